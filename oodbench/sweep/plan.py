"""The runs of a sweep: what is run, what cannot be, and why."""

import importlib.util
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from oodbench.errors import MissingError, UserError, unknown
from oodbench.results.run_spec import RunSpec
from oodbench.seeds import derive
from oodbench.sweep.file import Component, Row, Sweep, validate
from oodbench.sweep.search import Study, study
from oodbench.sweep.search import check as check_search


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
    """Of a search, those of the random draws that it starts with."""
    impossible: list[Impossible]
    studies: tuple[Study, ...] = ()

    @property
    def total(self) -> int:
        """How many runs the sweep has in the end."""
        return sum(study.total for study in self.studies) or len(self.runs)


def check_requirements(sweep: Sweep, data_dir: Path | None = None) -> None:
    """Raise MissingError for data or an optional package that the sweep's runs would lack.

    Raises UserError for what is unknown or damaged.
    """
    for dataset in _datasets(sweep, data_dir):
        dataset.check()
    _check_packages(sweep)


def _check_packages(sweep: Sweep) -> None:
    from oodbench.algorithms import algorithms

    for entry in _rows(sweep.algorithms):
        for package, command in algorithms.get(entry.name).packages.items():
            if importlib.util.find_spec(package) is None:
                raise MissingError(f"{entry.name} needs {package}: `{command}`", command)


def _datasets(sweep: Sweep, data_dir: Path | None) -> Iterator[Any]:
    from oodbench.datasets import make

    named: dict[str, Any] = {}
    for item in sweep.datasets:
        options = {"name": item} if isinstance(item, str) else dict(item)
        if "name" not in options:
            raise UserError(f"a dataset of sweep '{sweep.name}' has no name: {item!r}")
        label = options.pop("label", None)
        dataset = make(str(options.pop("name")), options, data_dir)
        if label is not None:
            dataset.given_label = str(label)
        if named.setdefault(dataset.label, dataset.options) != dataset.options:
            raise UserError(
                f"two datasets of sweep '{sweep.name}' are called '{dataset.label}': "
                "give them a `label` each"
            )
        yield dataset


def make_plan(sweep: Sweep, data_dir: Path | None = None) -> Plan:
    """Every run of a sweep; raises UserError for names, values and data that cannot be."""
    _check_packages(sweep)
    runs: dict[str, RunSpec] = {}
    impossible: list[Impossible] = []
    studies: list[Study] = []
    for dataset in _datasets(sweep, data_dir):
        dataset.check()
        sizes = _sizes(sweep, dataset)
        for tests in _test_sets(sweep, dataset):
            for entry in _rows(sweep.algorithms):
                reason = _skip(entry.name, dataset, tests, sweep)
                if reason is not None:
                    label = entry.label or entry.name
                    impossible.append(Impossible(dataset.label, label, tests, reason))
                    continue
                specs = _runs(sweep, dataset, tests, entry)
                if sweep.search is not None:
                    fixed = {**_network(sweep, dataset).hparams, **entry.network}
                    studies.append(study(sweep.search, specs, dataset, entry.hparams, fixed))
                for run in specs:
                    _check_training(run, dataset, sizes)
                    if run.id in runs:
                        raise UserError(
                            f"sweep '{sweep.name}' holds {run.label} on {run.dataset_name} twice; "
                            "give algorithms with different hparams different labels"
                        )
                    runs[run.id] = run
    if sweep.search is not None:
        check_search(studies, sweep.test_environments)
    return Plan(sweep, runs, impossible, tuple(studies))


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
    from oodbench.data.preparation import load_checked
    from oodbench.train.splits import split

    trial = _indices(sweep.trials, "trials")[0]
    return {
        name: len(split(environment, _holdout(sweep, dataset), dataset.name, name, trial)["in"])
        for name, environment in load_checked(dataset, trial).items()
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
    from oodbench.networks.base import networks

    family = dataset.metadata.family
    space = algorithms.get(entry.name).Hparams
    chosen = _network(sweep, dataset)
    network = networks.get(chosen.name, f"sweep '{sweep.name}'")
    given = {**chosen.hparams, **entry.network}
    steps = _steps(sweep, dataset)
    every = sweep.evaluate_every
    evaluate_every = -(-steps // 20) if every == "default" else every
    if evaluate_every < 1:
        raise UserError(f"evaluate_every must be at least 1, not {evaluate_every}")
    specs = []
    for index in _draws(sweep):
        hparams = _values(space, entry.name, entry.hparams, index, family, dataset.metadata.hparams)
        owner = f"{entry.name}/{chosen.name}"
        network_hparams = _values(network.Hparams, owner, given, index, family)
        network.check(network_hparams)
        for trial in _indices(sweep.trials, "trials"):
            specs.append(
                RunSpec(
                    dataset=dataset.name,
                    options=asdict(dataset.options),
                    algorithm=entry.name,
                    hparams=hparams,
                    label=entry.label or entry.name,
                    network=chosen.name,
                    network_hparams=network_hparams,
                    test_environments=tests,
                    validation_environments=_validation(sweep, dataset, tests, trial),
                    draw=index,
                    trial=trial,
                    steps=steps,
                    evaluate_every=evaluate_every,
                    holdout=_holdout(sweep, dataset),
                    dataset_label=dataset.label,
                )
            )
    return specs


def _network(sweep: Sweep, dataset: Any) -> Component:
    chosen = Component(name=sweep.network) if isinstance(sweep.network, str) else sweep.network
    if chosen.name not in ("default", dataset.network):
        return chosen
    return Component(name=dataset.network, hparams={**dataset.network_hparams, **chosen.hparams})


def _draws(sweep: Sweep) -> list[int]:
    """The default and random draws."""
    if sweep.search is None:
        return _indices(sweep.hparam_draws, "hparam_draws")
    if "hparam_draws" in sweep.model_fields_set:
        raise UserError(f"sweep '{sweep.name}' has both hparam_draws and a search: leave one out")
    draws = sweep.search.draws(len(_indices(sweep.trials, "trials")))
    return list(range(min(draws, sweep.search.startup)))


def _values(
    space: type,
    owner: str,
    given: Mapping[str, Any],
    index: int,
    family: str,
    own: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """Draw `index` with the sweep file's own values over it, checked; a list has one for each draw.

    `own` are a dataset's defaults.
    """
    from oodbench.hparams import checked, draw

    place = f"the hyperparameters of {owner.split('/')[-1]}"
    fixed = {}
    for name, value in given.items():
        if isinstance(value, list):
            if index >= len(value):
                raise UserError(
                    f"'{name}' in {place} lists {len(value)} values, none for draw {index}"
                )
            value = value[index]
        fixed[name] = value
    return asdict(checked(space, {**draw(space, owner, index, family, own), **fixed}, place))


def single(dataset: Mapping[str, Any], algorithm: Mapping[str, Any], **keys: Any) -> RunSpec:
    """The one run of a sweep with one dataset, one algorithm and, unless `keys` say other, trial 0.

    Raises UserError as a sweep would.
    """
    values = {"name": "single", "datasets": [dataset], "algorithms": [algorithm], "trials": [0]}
    (run,) = make_plan(validate(values | keys, "a single run")).runs.values()
    return run
