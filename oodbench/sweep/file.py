"""A sweep file: its keys, where it lies and what is wrong with it. Imports no torch."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from oodbench.errors import UserError, unknown
from oodbench.registry import folder
from oodbench.sweep.protocols import under
from oodbench.sweep.search import Search
from oodbench.yaml_values import assignments, read_yaml


class Component(BaseModel):
    """An algorithm or a network by name, with values for some of its hyperparameters."""

    model_config = ConfigDict(extra="forbid")

    name: str
    hparams: dict[str, Any] = {}
    """A value, or a list with one for each hparam draw: draw 0 takes the first."""


class Row(Component):
    """An algorithm of a sweep."""

    label: str | None = None
    """The row of the table; the algorithm's name by default."""
    network: dict[str, Any] = {}
    """Values over those of the sweep's network."""


class Sweep(BaseModel):
    """A sweep file. README.md shows one with every key."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1)
    protocol: str | None = None
    """The name in sweeps/ of the protocol that it is under, see `oodbench.sweep.protocols`."""
    datasets: list[str | dict[str, Any]] = Field(min_length=1)
    algorithms: list[str | Row] = Field(min_length=1)
    test_environments: Literal["default", "each", "pairs"] | list[list[str | float]] = "default"
    validation_environments: Literal["default", "none"] | int | list[str | float] = "default"
    hparam_draws: int | list[int] = 1
    search: Search | None = None
    """Instead of `hparam_draws` random draws."""
    trials: int | list[int] = 3
    steps: Literal["default"] | int = "default"
    evaluate_every: Literal["default"] | int = "default"
    network: str | Component = "default"
    holdout: float = Field(0.2, ge=0, lt=1)
    selection: str | None = None
    """The selection rule of its tables; None: `val_env` where validation environments are held out,
    else `train_val`."""
    run_timeout: float | None = Field(None, gt=0)
    """Seconds after which a run that has not ended counts as failed; `--run-timeout` says otherwise."""
    resources: dict[str, Any] = {}
    """What the launcher `slurm` asks for; the keys of `slurm_resources.Resources`."""


def find(sweep: str) -> Path:
    """The file of a sweep given as a path or as a name in sweeps/; raises UserError.

    Names are written with hyphens; those with underscores of version 0.1.0 still find theirs.
    """
    path = Path(sweep)
    if path.suffix in (".yaml", ".yml") or path.is_file():
        if not path.is_file():
            raise UserError(f"there is no sweep file {path}")
        return path
    known = named_sweeps()
    if sweep.replace("_", "-") not in known:
        raise unknown("sweep", sweep, known, "sweeps/")
    return known[sweep.replace("_", "-")]


def named_sweeps() -> dict[str, Path]:
    """The files of sweeps/, protocols among them, by their names."""
    return {path.stem: path for path in sorted(folder("sweeps").rglob("*.yaml"))}


def read(path: Path, settings: Sequence[str] = ()) -> Sweep:
    """The sweep in a YAML file, with `key=value` settings over it; raises UserError."""
    values = _file(path)
    values |= assignments("--set", settings)
    if values.get("protocol") is not None:
        values = under(_file(find(str(values["protocol"]))), values, str(path))
    return validate(values, str(path))


def _file(path: Path) -> dict[str, Any]:
    """The keys and values of a YAML file."""
    values = read_yaml(path)
    if not isinstance(values, dict):
        raise UserError(f"{path} must hold keys and values, such as `name: quickstart`")
    return values


def validate(values: Mapping[str, Any], place: str) -> Sweep:
    """A sweep from plain values; raises UserError naming the key and the place."""
    try:
        sweep = Sweep.model_validate(values)
    except ValidationError as error:
        errors = error.errors()
        # of the alternatives of a union, tell of those that came furthest
        depth = max(len(e["loc"]) for e in errors)
        furthest = [e for e in errors if len(e["loc"]) == depth]
        first = furthest[0]
        keys = [str(k) for k in first["loc"]]
        if first["type"] == "extra_forbidden":
            models: dict[int, type[BaseModel]] = {1: Sweep, 2: Search}
            known = models.get(len(keys), Row).model_fields
            raise unknown("key", keys[-1], known, place) from error
        wanted = dict.fromkeys(
            e["msg"][:1].lower() + e["msg"][1:] for e in furthest if e["loc"][0] == first["loc"][0]
        )
        got = "" if first["type"] == "missing" else f", not {first['input']!r}"
        raise UserError(f"{place}: {keys[0]}: {', or '.join(wanted)}{got}") from error
    if sweep.selection is not None:
        from oodbench.selection import RULES

        if sweep.selection not in RULES:
            raise unknown("selection rule", sweep.selection, RULES, place)
    return sweep
