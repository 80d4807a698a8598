"""YAML texts and KEY=VALUE flags as values. Imports no torch."""

import re
from collections.abc import Sequence
from typing import Any

import yaml

from oodbench.errors import UserError


class _Loader(yaml.SafeLoader):
    """YAML in which 1:30:00 is text, not the number 5400 of YAML 1.1."""


_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, re.compile(r"[-+]?(?:0|[1-9][0-9_]*)$") if tag.endswith(":int") else pattern)
        for tag, pattern in resolvers
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def parse_yaml(text: str, place: str) -> Any:
    """The value of a YAML text; raises UserError naming the place."""
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise UserError(f"{place} is not YAML: {' '.join(str(error).split())}") from error


def assignments(flag: str, settings: Sequence[str]) -> dict[str, Any]:
    """The values of a flag's `key=value`, read as YAML; raises UserError."""
    values = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise UserError(f"{flag} takes key=value, not '{setting}'")
        values[key] = parse_yaml(value, f"{flag} {key}")
    return values
