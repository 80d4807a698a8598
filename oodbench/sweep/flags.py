"""The fields of `Resources` as flags of a command."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

from oodbench.sweep.launchers.slurm_resources import Resources
from oodbench.yaml_values import assignments, parse_yaml

Flags = dict[str, Any]


def resource_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command a flag for each resource; those that are set are its first argument."""
    fields: dict[str, Any] = {}
    for name, field in Resources.model_fields.items():
        several = name == "slurm"
        kind: Any = list[str] | None if several else str | None
        fields[name] = Annotated[
            kind,
            typer.Option(
                metavar="KEY=VALUE" if several else None, help=f"(Slurm) {field.description}"
            ),
        ]

    @wraps(command)
    def wrapped(**values: Any) -> None:
        flags = {name: values.pop(name) for name in fields}
        command({name: _value(name, v) for name, v in flags.items() if v}, **values)

    signature = inspect.signature(command)
    _, *own = signature.parameters.values()
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint)
        for name, hint in fields.items()
    ]
    wrapped.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
    hints = {p.name: p.annotation for p in own}
    wrapped.__annotations__ = {**hints, **fields, "return": None}
    return wrapped


def _value(name: str, value: Any) -> Any:
    flag = f"--{name.replace('_', '-')}"
    return assignments(flag, value) if name == "slurm" else parse_yaml(value, flag)
