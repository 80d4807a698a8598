"""A sweep file to its runs: what is run, what cannot be, and why."""

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from oodbench.errors import UserError, unknown
from oodbench.paths import folder
from oodbench.protocols import under
from oodbench.records import RunSpec
from oodbench.resources import parse_yaml
from oodbench.seeds import derive


class Component(BaseModel):
    """An algorithm or a network by name, with values for some of its hyperparameters."""

    model_config = ConfigDict(extra="forbid")

    name: str
    hparams: dict[str, Any] = {}


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
    """The name in sweeps/ of the protocol that it is under, see `oodbench.protocols`."""
    datasets: list[str | dict[str, Any]] = Field(min_length=1)
    algorithms: list[str | Row] = Field(min_length=1)
    test_environments: Literal["default", "each", "pairs"] | list[list[str | float]] = "default"
    validation_environments: Literal["default", "none"] | int | list[str | float] = "default"
    hparam_draws: int | list[int] = 1
    trials: int | list[int] = 3
    steps: Literal["default"] | int = "default"
    evaluate_every: Literal["default"] | int = "default"
    network: str | Component = "default"
    holdout: float = Field(0.2, ge=0, lt=1)
    resources: dict[str, Any] = {}
    """What the launcher `slurm` asks for; the keys of `oodbench.resources.Resources`."""


@dataclass(frozen=True)
class Impossible:
    """A cell of a sweep that cannot be run."""

    dataset: str
    algorithm: str
    test_environments: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Plan:
    """The runs of a sweep by id, and the cells that are impossible."""

    sweep: Sweep
    runs: dict[str, RunSpec]
    impossible: list[Impossible]


def find(sweep: str) -> Path:
    """The file of a sweep given as a path or as a name in sweeps/; raises UserError."""
    path = Path(sweep)
    if path.suffix in (".yaml", ".yml") or path.is_file():
        if not path.is_file():
            raise UserError(f"there is no sweep file {path}")
        return path
    named = folder("sweeps") / f"{sweep}.yaml"
    if not named.is_file():
        raise unknown("sweep", sweep, [p.stem for p in folder("sweeps").glob("*.yaml")], "sweeps/")
    return named


def read(path: Path, settings: Sequence[str] = ()) -> Sweep:
    """The sweep in a YAML file, with `key=value` settings over it; raises UserError."""
    values = _file(path)
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise UserError(f"--set takes key=value, not '{setting}'")
        values[key] = parse_yaml(value, f"--set {key}")
    if values.get("protocol") is not None:
        values = under(_file(find(str(values["protocol"]))), values, str(path))
    return validate(values, str(path))


def _file(path: Path) -> dict[str, Any]:
    """The keys and values of a YAML file."""
    try:
        values = parse_yaml(path.read_text(), str(path))
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not YAML: {error}") from error
    if not isinstance(values, dict):
        raise UserError(f"{path} must hold keys and values, such as `name: quickstart`")
    return values


def validate(values: Mapping[str, Any], place: str) -> Sweep:
    """A sweep from plain values; raises UserError naming the key and the place."""
    try:
        return Sweep.model_validate(values)
    except ValidationError as error:
        errors = error.errors()
        # of the alternatives of a union, tell of those that came furthest
        depth = max(len(e["loc"]) for e in errors)
        furthest = [e for e in errors if len(e["loc"]) == depth]
        first = furthest[0]
        keys = [str(k) for k in first["loc"]]
        if first["type"] == "extra_forbidden":
            known = (Sweep if len(keys) == 1 else Row).model_fields
            raise unknown("key", keys[-1], known, place) from error
        wanted = dict.fromkeys(
            e["msg"][:1].lower() + e["msg"][1:] for e in furthest if e["loc"][0] == first["loc"][0]
        )
        got = "" if first["type"] == "missing" else f", not {first['input']!r}"
        raise UserError(f"{place}: {keys[0]}: {', or '.join(wanted)}{got}") from error


def make_plan(sweep: Sweep, data_dir: Path | None = None) -> Plan:
    """Every run of a sweep; raises UserError for names, values and data that cannot be."""
    from oodbench.datasets import make

    runs: dict[str, RunSpec] = {}
    impossible: list[Impossible] = []
    for item in sweep.datasets:
        options = {"name": item} if isinstance(item, str) else dict(item)
        if "name" not in options:
            raise UserError(f"a dataset of sweep '{sweep.name}' has no name: {item!r}")
        dataset = make(str(options.pop("name")), options, data_dir)
        dataset.check()
        sizes = _sizes(sweep, dataset)
        for tests in _test_sets(sweep, dataset):
            for entry in _rows(sweep.algorithms):
                reason = _skip(entry.name, dataset, tests, sweep)
                if reason is not None:
                    label = entry.label or entry.name
                    impossible.append(Impossible(dataset.label, label, tests, reason))
                    continue
                for run in _runs(sweep, dataset, tests, entry):
                    _check_training(run, dataset, sizes)
                    if run.id in runs:
                        raise UserError(
                            f"sweep '{sweep.name}' holds {run.label} on {run.dataset} twice; "
                            "give algorithms with different hparams different labels"
                        )
                    runs[run.id] = run
    return Plan(sweep, runs, impossible)


def _rows(items: Sequence[str | Row]) -> list[Row]:
    entries = [Row(name=i) if isinstance(i, str) else i for i in items]
    names = [e.label or e.name for e in entries]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"two algorithms are called '{name}': give them a `label` each")
    return entries


def _indices(value: int | list[int], key: str) -> list[int]:
    indices = list(range(value)) if isinstance(value, int) else value
    if not indices or min(indices) < 0 or len(set(indices)) < len(indices):
        raise UserError(f"{key} must be a positive number or a list of distinct ones, not {value}")
    return indices


def _known(names: Sequence[str | float], dataset: Any, key: str) -> tuple[str, ...]:
    """Environment names as the dataset spells them; YAML reads 0.9 as a number."""
    found = tuple(f"{n:g}" if isinstance(n, int | float) else n for n in names)
    for name in found:
        if name not in dataset.environments:
            raise unknown("environment", name, dataset.environments, f"{key} of {dataset.label}")
    return found


def _test_sets(sweep: Sweep, dataset: Any) -> list[tuple[str, ...]]:
    wanted = sweep.test_environments
    if wanted == "default":
        sets = [dataset.test_environments]
    elif wanted in ("each", "pairs"):
        sets = [(name,) for name in dataset.environments]
        if wanted == "pairs":
            sets += list(itertools.combinations(dataset.environments, 2))
    else:
        sets = [_known(names, dataset, "test_environments") for names in wanted]
    for names in sets:
        if not names or len(set(names)) < len(names):
            raise UserError(f"test_environments must be lists of distinct names, not {list(names)}")
    return sets


def _validation(sweep: Sweep, dataset: Any, tests: tuple[str, ...], trial: int) -> tuple[str, ...]:
    wanted = sweep.validation_environments
    if wanted == "none":
        return ()
    if wanted == "default":
        return tuple(n for n in dataset.validation_environments if n not in tests)
    free = dataset.trained_on(tests)
    if isinstance(wanted, int):
        if not 0 < wanted < len(free):
            raise UserError(
                f"{dataset.label} has {len(free)} environments besides the test ones: "
                f"{wanted} validation environments leave none to train on"
            )
        stream = random.Random(derive("validation", dataset.name, tests, trial))
        return tuple(sorted(stream.sample(free, wanted), key=free.index))
    names = _known(wanted, dataset, "validation_environments")
    for name in names:
        if name in tests:
            raise UserError(f"environment '{name}' of {dataset.label} is both test and validation")
    return names


def _training(dataset: Any, tests: Sequence[str], validation: Sequence[str]) -> tuple[str, ...]:
    names: tuple[str, ...] = dataset.trained_on({*tests, *validation})
    if not names:
        raise UserError(
            f"{dataset.label}: with {', '.join([*tests, *validation])} held out, "
            "no environment is left to train on"
        )
    return names


def _sizes(sweep: Sweep, dataset: Any) -> dict[str, int]:
    """How many examples each environment has to train on, by the first trial's data and splits."""
    from oodbench.splits import split

    trial = _indices(sweep.trials, "trials")[0]
    return {
        name: len(split(environment, _holdout(sweep, dataset), dataset.name, name, trial)["in"])
        for name, environment in dataset.load(trial).items()
    }


def _holdout(sweep: Sweep, dataset: Any) -> float:
    """The share of the `out` splits: data with evaluation splits of their own have none."""
    return 0.0 if dataset.evaluation_environments else sweep.holdout


def _check_training(run: RunSpec, dataset: Any, sizes: Mapping[str, int]) -> None:
    for name in _training(dataset, run.test_environments, run.validation_environments):
        if not sizes[name]:
            raise UserError(f"{dataset.label}: environment '{name}' has no example to train on")


def _steps(sweep: Sweep, dataset: Any) -> int:
    steps = dataset.metadata.steps if sweep.steps == "default" else sweep.steps
    if steps < 1:
        raise UserError(f"steps must be at least 1, not {steps}")
    return int(steps)


def _skip(algorithm: str, dataset: Any, tests: tuple[str, ...], sweep: Sweep) -> str | None:
    from oodbench.algorithms import Problem, algorithms

    validation = _validation(sweep, dataset, tests, 0)
    names = _training(dataset, tests, validation)
    problem = Problem(dataset.input_shape, dataset.task, names, _steps(sweep, dataset))
    cls = algorithms.get(algorithm, f"sweep '{sweep.name}'")
    return cls.skip(problem)


def _runs(sweep: Sweep, dataset: Any, tests: tuple[str, ...], entry: Row) -> list[RunSpec]:
    from oodbench.algorithms import algorithms
    from oodbench.networks import networks

    family = dataset.metadata.family
    space = algorithms.get(entry.name).Hparams
    chosen = Component(name=sweep.network) if isinstance(sweep.network, str) else sweep.network
    if chosen.name in ("default", dataset.network):
        given = {**dataset.network_hparams, **chosen.hparams}
        chosen = Component(name=dataset.network, hparams=given)
    network = chosen.name
    network_space = networks.get(network, f"sweep '{sweep.name}'").Hparams
    given = {**chosen.hparams, **entry.network}
    steps = _steps(sweep, dataset)
    every = sweep.evaluate_every
    evaluate_every = -(-steps // 20) if every == "default" else every
    if evaluate_every < 1:
        raise UserError(f"evaluate_every must be at least 1, not {evaluate_every}")
    specs = []
    for index in _indices(sweep.hparam_draws, "hparam_draws"):
        hparams = _values(space, entry.name, entry.hparams, index, family, dataset.metadata.hparams)
        owner = f"{entry.name}/{network}"
        network_hparams = _values(network_space, owner, given, index, family)
        for trial in _indices(sweep.trials, "trials"):
            specs.append(
                RunSpec(
                    dataset=dataset.name,
                    options=asdict(dataset.options),
                    algorithm=entry.name,
                    hparams=hparams,
                    label=entry.label or entry.name,
                    network=network,
                    network_hparams=network_hparams,
                    test_environments=tests,
                    validation_environments=_validation(sweep, dataset, tests, trial),
                    draw=index,
                    trial=trial,
                    steps=steps,
                    evaluate_every=evaluate_every,
                    holdout=_holdout(sweep, dataset),
                )
            )
    return specs


def _values(
    space: type,
    owner: str,
    given: Mapping[str, Any],
    index: int,
    family: str,
    own: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """Draw `index` with the sweep file's values over it, checked; `own` are a dataset's defaults."""
    from oodbench.hparams import checked, draw

    values = {**draw(space, owner, index, family, own), **given}
    return asdict(checked(space, values, f"the hyperparameters of {owner.split('/')[-1]}"))


def single(dataset: Mapping[str, Any], algorithm: Mapping[str, Any], **keys: Any) -> RunSpec:
    """The one run of a sweep with one dataset, one algorithm and, unless `keys` say other, trial 0.

    Raises UserError as a sweep would.
    """
    values = {"name": "single", "datasets": [dataset], "algorithms": [algorithm], "trials": [0]}
    (run,) = make_plan(validate(values | keys, "a single run")).runs.values()
    return run
