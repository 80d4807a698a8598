"""The flags that say how runs are trained, those of a cluster's resources among them."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

from oodbench.errors import UserError
from oodbench.sweep.launchers.slurm_resources import Resources
from oodbench.yaml_values import assignments, parse_yaml

Flags = dict[str, Any]

Workers = Annotated[int | None, typer.Option(min=1, help="Processes; one per core or device.")]
Devices = Annotated[str, typer.Option(help="auto, cpu, or a list such as cuda:0,cuda:1.")]
Threads = Annotated[int, typer.Option(min=1, help="CPU threads of a run; changes the last bits.")]
Snapshot = Annotated[bool, typer.Option("--snapshot", help="Slurm: run a frozen copy of the code.")]
LoaderWorkers = Annotated[
    int | None, typer.Option(min=0, help="Threads a run reads stored data with; all cores' share.")
]
Vectorize = Annotated[
    str, typer.Option(help="Runs trained as one program: auto, a number at most, or 1 for none.")
]
BatchRuns = Annotated[str | None, typer.Option(hidden=True, help="The former --vectorize.")]
RunTimeout = Annotated[
    float | None,
    typer.Option(min=0.001, help="Seconds after which a run that has not ended counts as failed."),
]


def vectorize_at_most(wanted: str) -> int | None:
    """The most runs of one program that --vectorize asks for, None for `auto`; raises UserError."""
    if wanted == "auto":
        return None
    if not wanted.isdecimal() or int(wanted) < 1:
        raise UserError(f"--vectorize is auto or a number from 1 on, not '{wanted}'")
    return int(wanted)


TRAINING: dict[str, tuple[Any, Any]] = {
    "workers": (Workers, None),
    "devices": (Devices, "auto"),
    "threads": (Threads, 1),
    "loader_workers": (LoaderWorkers, None),
    "vectorize": (Vectorize, "auto"),
    "batch_runs": (BatchRuns, None),
    "run_timeout": (RunTimeout, None),
    "snapshot": (Snapshot, False),
}
"""The type and the default of every flag of training."""


def training_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the flags of training and one for each resource.

    Its first argument is what they say, as fields of `LaunchOptions`.
    """
    asked: dict[str, tuple[Any, Any]] = {}
    for name, field in Resources.model_fields.items():
        several = name == "slurm"
        option = typer.Option(
            metavar="KEY=VALUE" if several else None, help=f"(Slurm) {field.description}"
        )
        asked[name] = (Annotated[list[str] | None if several else str | None, option], None)

    @wraps(command)
    def wrapped(**values: Any) -> None:
        how = {name: values.pop(name) for name in TRAINING}
        how["vectorize"] = vectorize_at_most(how.pop("batch_runs") or how["vectorize"])
        flags = {name: values.pop(name) for name in asked}
        how["resources"] = {name: _value(name, v) for name, v in flags.items() if v}
        command(how, **values)

    signature = inspect.signature(command)
    _, *own = signature.parameters.values()
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
        for name, (hint, default) in (TRAINING | asked).items()
    ]
    wrapped.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in (*own, *more)} | {"return": None}
    return wrapped


def _value(name: str, value: Any) -> Any:
    flag = f"--{name.replace('_', '-')}"
    return assignments(flag, value) if name == "slurm" else parse_yaml(value, flag)
