"""The one place that reads YAML: files, texts and KEY=VALUE flags as values.

A text is refused, in one sentence and before anything large is made of it, if a key is given twice,
if it is nested too deeply, or if its aliases would expand to too many values.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from oodbench.errors import UserError
from oodbench.files import read_regular

LARGEST_FILE = 2**18
"""Bytes of a YAML file."""
DEEPEST = 50
"""Collections in each other."""
MOST_VALUES, LONG = 100_000, 16
"""Values of a text, those counted again that an alias repeats; each `LONG` characters are one more."""
LONGEST_REASON = 160
"""Characters of what a parser says."""

_Base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's, ten times as fast, where it is


class _Loader(_Base):  # type: ignore[misc, valid-type]
    """YAML in which names stay texts: NO, on, 10_3, 1:30:00 and 2020-01-31, unlike in YAML 1.1."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Return the value of a node; raises YAMLError for a tag that does not fit, such as `!!int x`."""
        try:
            value = super().construct_object(node, deep)
        except (ValueError, KeyError, AttributeError):
            kind, text = node.tag.rpartition(":")[2], _shortened(node.value, 40)
            raise _refused(f"'{text}' is no {kind}", node.start_mark) from None
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise _refused("an integer does not fit into 64 bits", node.start_mark)
        return value


NARROWER = {
    "int": re.compile(r"[-+]?(?:0|[1-9][0-9]*)$"),
    "bool": re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"),
    "float": re.compile(
        r"(?:[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+][0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
    "timestamp": re.compile(r"(?!)"),
}
"""What plain texts are of a kind, where it is less than in YAML 1.1."""
_Loader.yaml_implicit_resolvers = {
    first: [(tag, NARROWER.get(tag.rpartition(":")[2], pattern)) for tag, pattern in resolvers]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_yaml(path: Path) -> Any:
    """Return the value of a YAML file; raises UserError naming the file and the place in it."""
    try:
        text = read_regular(path, LARGEST_FILE).decode()
    except UnicodeDecodeError:
        raise UserError(f"{path} is not YAML: it is no text in UTF-8") from None
    return parse_yaml(text, str(path))


def parse_yaml(text: str, place: str) -> Any:
    """Return the value of a YAML text; raises UserError naming the place."""
    try:
        _check(text)
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}: " if mark is not None else ""
        raise UserError(f"{place} is not YAML: {line}{_shortened(error.problem)}") from error
    except yaml.YAMLError as error:
        raise UserError(f"{place} is not YAML: {_shortened(error)}") from error


class _Collection:
    """A mapping or sequence that the parser is in."""

    def __init__(self, anchor: str | None = None, is_mapping: bool = False) -> None:
        self.anchor = anchor
        self.size = 1
        """The values in it so far, and itself."""
        self.is_mapping = is_mapping
        self.keys: dict[str, int] = {}
        """The lines of a mapping's keys."""
        self.at_key = is_mapping

    def take(self, event: yaml.NodeEvent) -> None:
        """Take in a key or a value; raises YAMLError for a key that was there before."""
        if self.at_key and isinstance(event, yaml.ScalarEvent) and event.value != "<<":
            mark: Any = event.start_mark
            if event.value in self.keys:
                line, key = self.keys[event.value], _shortened(event.value, 40)
                raise _refused(f"the key '{key}' is also in line {line}", mark)
            self.keys[event.value] = mark.line + 1
        self.at_key = self.is_mapping and not self.at_key


def _check(text: str) -> None:
    """Refuse a key given twice, and what is too deep, in itself or too large.

    The parser's events are read one by one; nothing of what they describe is built.
    """
    sizes: dict[str, int] = {}
    inside = [_Collection()]
    for event in yaml.parse(text, _Loader):
        if isinstance(event, yaml.NodeEvent):
            inside[-1].take(event)
        if isinstance(event, yaml.CollectionStartEvent):
            inside.append(_Collection(event.anchor, isinstance(event, yaml.MappingStartEvent)))
        elif isinstance(event, yaml.ScalarEvent):
            sizes[str(event.anchor)] = 1 + len(event.value) // LONG
            inside[-1].size += sizes[str(event.anchor)]
        elif isinstance(event, yaml.AliasEvent):
            anchor = str(event.anchor)
            if any(anchor == collection.anchor for collection in inside):
                raise _refused(f"*{_shortened(anchor, 40)} contains itself", event.start_mark)
            inside[-1].size += sizes.get(anchor, 1)
        elif isinstance(event, yaml.CollectionEndEvent):
            ended = inside.pop()
            inside[-1].size += ended.size
            if ended.anchor is not None:
                sizes[ended.anchor] = ended.size
        if len(inside) > DEEPEST:
            raise _refused("nested too deeply", event.start_mark)
        if inside[-1].size > MOST_VALUES:
            raise _refused(f"over {MOST_VALUES:,} values", event.start_mark)


def _refused(reason: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=reason, problem_mark=mark)


def _shortened(value: object, length: int = LONGEST_REASON) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= length else f"{text[: length - 3]}..."


def assignments(flag: str, settings: Sequence[str]) -> dict[str, Any]:
    """Return the values of a flag's `key=value`, read as YAML; raises UserError."""
    values = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise UserError(f"{flag} takes key=value, not '{setting}'")
        values[key] = parse_yaml(value, f"{flag} {key}")
    return values
