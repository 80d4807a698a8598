"""Reads all YAML: files, texts and KEY=VALUE flags.

A text is refused before its values are made if a key is given twice, if it is nested too deeply, or
if its aliases stand for too many values.
"""

import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from oodbench.errors import UserError, brief
from oodbench.files import read_regular

LARGEST_FILE = 2**18
"""The most bytes of a YAML file."""
DEEPEST = 50
"""The deepest nesting of lists and mappings."""
MOST_VALUES, LONG = 100_000, 16
"""The most values of a text with its aliases expanded; each `LONG` characters count as one more value."""

_Base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's is ten times as fast


class _Loader(_Base):  # type: ignore[misc, valid-type]
    """YAML in which names stay texts: NO, on, 10_3, 1:30:00 and 2020-01-31, unlike in YAML 1.1."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """The value of a node; raises YAMLError for a tag that does not fit, such as `!!int x`."""
        try:
            value = super().construct_object(node, deep)
        except (ValueError, KeyError, AttributeError):
            kind, text = node.tag.rpartition(":")[2], brief(node.value, 40)
            raise _refused(f"'{text}' is not a valid {kind}", node.start_mark) from None
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise _refused("an integer does not fit into 64 bits", node.start_mark)
        return value


NARROWER = {
    "int": re.compile(r"[-+]?(?:0|[1-9][0-9]*)$"),
    "bool": re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"),
    "float": re.compile(
        r"(?:[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
    "timestamp": re.compile(r"(?!)"),
}
"""The plain texts that are values of a type, if these are fewer than in YAML 1.1."""
_Loader.yaml_implicit_resolvers = {
    first: [(tag, NARROWER.get(tag.rpartition(":")[2], pattern)) for tag, pattern in resolvers]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_yaml(path: Path) -> Any:
    """The value of a YAML file; raises UserError naming the file and, if known, the line."""
    try:
        text = read_regular(path, LARGEST_FILE).decode()
    except UnicodeDecodeError:
        raise UserError(f"{path} is not YAML: it is not UTF-8 text") from None
    return parse_yaml(text, str(path))


def parse_yaml(text: str, place: str) -> Any:
    """The value of a YAML text; raises UserError naming `place` and, if known, the line."""
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _size(node, {})
        return loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}: " if mark is not None else ""
        raise UserError(f"{place} is not YAML: {line}{brief(error.problem)}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise UserError(f"{place} is not YAML: {brief(error)}") from error


def _size(node: yaml.Node, sizes: dict[int, int], depth: int = 0) -> int:
    """The number of values of a node. `sizes` has it by node, and 0 for the nodes that contain this one."""
    if depth > DEEPEST:
        raise _refused("nested too deeply", node.start_mark)
    if id(node) not in sizes:
        sizes[id(node)] = 0
        inner = node.value
        if isinstance(node, yaml.MappingNode):
            _check_keys([key for key, _ in inner])
            inner = chain.from_iterable(inner)
        if isinstance(node, yaml.ScalarNode):
            sizes[id(node)] = 1 + len(inner) // LONG
        else:
            sizes[id(node)] = 1 + sum(_size(each, sizes, depth + 1) for each in inner)
    if not sizes[id(node)]:
        raise _refused("a value contains itself", node.start_mark)
    if sizes[id(node)] > MOST_VALUES:
        raise _refused(f"over {MOST_VALUES:,} values", node.start_mark)
    return sizes[id(node)]


def _check_keys(keys: Sequence[yaml.Node]) -> None:
    lines = dict[str, int]()
    for key in keys:
        if isinstance(key, yaml.ScalarNode) and key.value != "<<":
            if key.value in lines:
                line, name = lines[key.value], brief(key.value, 40)
                raise _refused(f"the key '{name}' is also in line {line}", key.start_mark)
            lines[key.value] = key.start_mark.line + 1


def _refused(reason: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=reason, problem_mark=mark)


def assignments(flag: str, settings: Sequence[str]) -> dict[str, Any]:
    """The values of a flag's `key=value`, read as YAML; raises UserError."""
    values = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise UserError(f"{flag} takes key=value, not '{setting}'")
        values[key] = parse_yaml(value, f"{flag} {key}")
    return values
