"""The runs of a sweep: what is run, what cannot be, and why."""

import importlib.util
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from oodbench.errors import MissingError, UserError
from oodbench.hparams import identity, neutral_values
from oodbench.results.run_spec import RunSpec
from oodbench.sweep.draws import (
    chosen_network,
    indices,
    row_hparams,
)
from oodbench.sweep.environments import (
    test_environment_sets,
    training_environments,
    validation_environments,
)
from oodbench.sweep.file import Row, Sweep, training_of, validate
from oodbench.sweep.file_errors import PLUGIN_HINT, several, short
from oodbench.sweep.launchers.slurm_resources import resources
from oodbench.sweep.rows import average_of, check_rows, row_label, rows_of
from oodbench.terminal import printable

MAX_RUNS = 100_000
"""The most runs of one sweep."""
NO_MEMORY = "allocate memory|Storage size|numel.*overflow|array is too big|allowed dimension"
"""What the errors of torch and numpy say of arrays that are too large."""


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


def check_requirements(sweep: Sweep, data_dir: Path | None = None) -> None:
    """Raise MissingError for data or an optional package that the sweep's runs would lack.

    Raises UserError for what is unknown or damaged.
    """
    problems: list[UserError] = []
    _datasets(sweep, data_dir, problems)
    _raise(problems, sweep)
    _check_packages(sweep)


def _check_packages(sweep: Sweep) -> None:
    from oodbench.algorithms import algorithms

    for row in rows_of(sweep):
        for package, command in algorithms.get(row.name).packages.items():
            if importlib.util.find_spec(package) is None:
                raise MissingError(f"{row.name} needs {package}: `{command}`", command)


def make_plan(sweep: Sweep, data_dir: Path | None = None, *, to_train: bool = True) -> Plan:
    """Every run of a sweep.

    Raises UserError for names, values and data that cannot be: all unknown names, impossible values of
    algorithms and networks and wrong test environments at once; and, if the runs are to be trained,
    MissingError for an optional package that a method needs.
    """
    rows = rows_of(sweep)
    problems: list[UserError] = []
    with _noted(problems):
        resources((f"the resources of {sweep.name}", sweep.resources))
    with _noted(problems):
        check_rows(rows)
    datasets = _datasets(sweep, data_dir, problems)
    test_sets = []
    for dataset in datasets:
        with _noted(problems):
            test_sets.append(test_environment_sets(sweep, dataset))
    with _noted(problems):
        _check_size(sweep, sum(map(len, test_sets)) * len(rows))
        _check_components(sweep, rows, datasets, problems)
    _raise(problems, sweep)
    if to_train:
        _check_packages(sweep)
    from oodbench.data.preparation import is_discrete

    runs: dict[str, RunSpec] = {}
    impossible: list[Impossible] = []
    for dataset, sets in zip(datasets, test_sets, strict=True):
        environments = _environments(sweep, dataset)
        sizes, discrete = _sizes(sweep, dataset, environments), is_discrete(dataset, environments)
        sources = [_source(row, dataset, data_dir) for row in rows]
        for tests, (row, source) in itertools.product(sets, zip(rows, sources, strict=True)):
            specs = _runs(sweep, source, tests, row)
            reason = _skip(row, source, tests, sweep, specs, discrete)
            if reason is not None:
                label = row_label(row)
                impossible.append(Impossible(dataset.label, label, tests, reason))
                continue
            for run in specs:
                _check_training(run, dataset, sizes)
                if run.id in runs:
                    raise UserError(
                        f"sweep '{sweep.name}' holds {run.label} on {run.dataset_name} twice; "
                        "give algorithms with different hparams different labels"
                    )
                runs[run.id] = run
    return Plan(sweep, runs, impossible)


@contextmanager
def _noted(problems: list[UserError]) -> Iterator[None]:
    """Add a UserError to the problems, which are told together."""
    try:
        yield
    except UserError as error:
        problems.append(error)


def _datasets(sweep: Sweep, data_dir: Path | None, problems: list[UserError]) -> list[Any]:
    """The datasets of a sweep whose data are there; what is wrong with others is noted."""
    made: dict[str, Any] = {}
    for item in sweep.datasets:
        with _noted(problems):
            dataset = _dataset(item, data_dir)
            dataset.check()
            if dataset.label in made:
                same = made[dataset.label].options == dataset.options
                hint = "leave one out" if same else "give them a `label` each"
                raise UserError(f"two datasets are called '{dataset.label}': {hint}")
            made[dataset.label] = dataset
    return list(made.values())


def absent_data(sweep: Sweep, data_dir: Path | None = None) -> dict[str, MissingError]:
    """Which datasets of a sweep lack data or a package, by label, each with what would get it."""
    absent = {}
    for item in sweep.datasets:
        dataset = _dataset(item, data_dir)
        try:
            dataset.check()
        except MissingError as error:
            absent[dataset.label] = error
    return absent


def _dataset(item: str | dict[str, Any], data_dir: Path | None) -> Any:
    from oodbench.datasets import make

    options: dict[str, Any] = {"name": item} if isinstance(item, str) else dict(item)
    name, label = options.pop("name", None), options.pop("label", None)
    training = options.pop("training", None)
    ceiling: object = options.pop("ceiling", {})
    if not isinstance(name, str):
        raise UserError(f"the name of a dataset must be a text: {short(item)}")
    if not isinstance(label, str | None):
        raise UserError(f"the label of a dataset must be a text: {short(item)}")
    if not isinstance(ceiling, dict):
        raise UserError(f"the ceiling of a dataset must be names with values: {short(item)}")
    dataset = make(name, options, data_dir)
    dataset.given_ceiling = ceiling
    if label is not None:
        dataset.given_label = label
    if training is not None:
        dataset.given_training = training_of(training, f"the training on {dataset.label}")
    return dataset


def _check_components(
    sweep: Sweep, rows: Sequence[Row], datasets: Sequence[Any], problems: list[UserError]
) -> None:
    """Note every unknown algorithm and network and every impossible hyperparameter."""
    from oodbench.algorithms import algorithms

    first = indices(sweep.hparam_draws, "hparam_draws")[0]
    for row in rows:
        with _noted(problems):
            algorithms.get(row.name)
            for dataset in datasets:
                with _noted(problems):
                    row_hparams(sweep, dataset, row, first, None)


def _raise(problems: Sequence[UserError], sweep: Sweep) -> None:
    """Raise several problems of a sweep as one, a MissingError if that is all they are."""
    texts = []
    for text in (printable(str(problem)) for problem in problems):
        if text.startswith(("unknown algorithm", "unknown dataset", "unknown network")):
            text += PLUGIN_HINT
        texts.append(text)
    if not texts:
        return
    missing = [problem for problem in problems if isinstance(problem, MissingError)]
    if len(missing) == len(problems):
        alone = len(set(texts)) == 1
        text = texts[0] if alone else several(f"sweep '{sweep.name}'", texts)
        raise MissingError(text, missing[0].command)
    raise UserError(several(f"sweep '{sweep.name}'", texts)) from problems[0]


def _check_size(sweep: Sweep, cells: int) -> None:
    """Raise UserError if a sweep with so many cells has more runs than anybody can train."""
    trials = _number(sweep.trials)
    draws = _number(sweep.hparam_draws)
    if (runs := cells * draws * trials) > MAX_RUNS:
        raise UserError(
            f"sweep '{sweep.name}' has {runs:,} runs ({cells} cells, {draws} draws, {trials} trials); "
            f"one sweep has at most {MAX_RUNS:,}"
        )


def _number(value: int | list[int]) -> int:
    return value if isinstance(value, int) else len(value)


def _source(row: Row, dataset: Any, data_dir: Path | None) -> Any:
    """The dataset that a row trains on: a ceiling has the `ceiling` options of it, and its own."""
    from oodbench.datasets import make

    options = dataset.given_ceiling | row.options if row.ceiling else {}
    if not options:
        return dataset
    own = make(dataset.name, asdict(dataset.options) | options, data_dir)
    if (own.environments, own.task) != (dataset.environments, dataset.task):
        raise UserError(
            f"the options of {short(row_label(row))} change the environments or the task of "
            f"{dataset.label}: it would be another dataset's ceiling"
        )
    own.check()
    own.given_label, own.given_training = dataset.label, dataset.given_training
    return own


def _environments(sweep: Sweep, dataset: Any) -> dict[str, Any]:
    """The environments of a dataset in the first trial."""
    from oodbench.data.preparation import load_checked

    try:
        return load_checked(dataset, indices(sweep.trials, "trials")[0])
    except (MemoryError, OverflowError, RuntimeError, ValueError) as error:
        plain = isinstance(error, MemoryError | OverflowError)
        if not (plain or re.search(NO_MEMORY, str(error))):
            raise
        raise UserError(f"{dataset.label}: data of this size do not fit into memory") from error


def _sizes(sweep: Sweep, dataset: Any, environments: Mapping[str, Any]) -> dict[str, int]:
    """How many examples each environment has to train on, by the first trial's data and splits."""
    from oodbench.train.splits import split

    trial, holdout = indices(sweep.trials, "trials")[0], _holdout(sweep, dataset)
    return {
        name: len(split(environment, holdout, dataset.name, name, trial)["in"])
        for name, environment in environments.items()
    }


def _holdout(sweep: Sweep, dataset: Any) -> float:
    """The share of the `out` splits: data with evaluation splits of their own have none."""
    if dataset.evaluation_environments:
        return 0.0
    return sweep.holdout if "holdout" in sweep.model_fields_set else float(dataset.holdout)


def _check_training(run: RunSpec, dataset: Any, sizes: Mapping[str, int]) -> None:
    for name in training_environments(dataset, run.test_environments, run.validation_environments):
        if not sizes[name]:
            raise UserError(f"{dataset.label}: environment '{name}' has no example to train on")


def _steps(sweep: Sweep, dataset: Any) -> int:
    if dataset.given_training is not None and dataset.given_training.steps is not None:
        return int(dataset.given_training.steps)
    return int(dataset.metadata.steps) if sweep.steps == "default" else sweep.steps


def _evaluate_every(sweep: Sweep, dataset: Any) -> int:
    """The steps between two evaluations: by default so many that there are 20."""
    if dataset.given_training is not None and dataset.given_training.evaluate_every is not None:
        return int(dataset.given_training.evaluate_every)
    every = sweep.evaluate_every
    return -(-_steps(sweep, dataset) // 20) if every == "default" else every


def _skip(
    row: Row,
    dataset: Any,
    tests: tuple[str, ...],
    sweep: Sweep,
    specs: Sequence[RunSpec],
    discrete: bool,
) -> str | None:
    """Why a row cannot be run on a dataset, with any of the draws of its hyperparameters in `specs`."""
    from oodbench.algorithms import Problem, algorithms
    from oodbench.networks.base import networks
    from oodbench.train.averages import reason_against

    validation = validation_environments(sweep, dataset, tests, 0)
    names = training_environments(dataset, tests, validation)
    problem = Problem(
        dataset.input_shape,
        dataset.task,
        names,
        _steps(sweep, dataset),
        attributes=len(dataset.attributes),
        pretrained=all(networks.get(s.network).is_pretrained(s.network_hparams) for s in specs),
        discrete=discrete,
    )
    cls, average = algorithms.get(row.name), average_of(row)
    usual = neutral_values(cls.Hparams)
    lacking = (cls.lacks(problem, {**usual, **spec.hparams}) for spec in specs)
    reason = cls.skip(problem) or next((each for each in lacking if each), None)
    if reason is None and average is not None:
        holdout = _holdout(sweep, dataset)
        reason = reason_against(average["name"], cls, dataset.task.kind, holdout, validation)
    return reason


def _runs(sweep: Sweep, dataset: Any, tests: tuple[str, ...], row: Row) -> list[RunSpec]:
    """The runs of a cell, by draw, then trial."""
    from oodbench.algorithms import algorithms
    from oodbench.networks.base import networks

    name = chosen_network(sweep, dataset).name
    network = networks.get(name)
    steps = _steps(sweep, dataset)
    specs = []
    for index in indices(sweep.hparam_draws, "hparam_draws"):
        shared = row_hparams(sweep, dataset, row, index, None)
        for trial in indices(sweep.trials, "trials"):
            own = sweep.draws == "per trial"
            hparams, network_hparams = (
                row_hparams(sweep, dataset, row, index, trial) if own else shared
            )
            specs.append(
                RunSpec(
                    dataset=dataset.name,
                    options=identity(
                        type(dataset.options),
                        dataset.run_options(network.is_pretrained(network_hparams)),
                    ),
                    algorithm=row.name,
                    hparams=hparams,
                    label=row_label(row),
                    network=name,
                    network_hparams=network_hparams,
                    test_environments=tests,
                    validation_environments=validation_environments(sweep, dataset, tests, trial),
                    draw=index,
                    trial=trial,
                    steps=steps,
                    evaluate_every=_evaluate_every(sweep, dataset),
                    holdout=_holdout(sweep, dataset),
                    average=average_of(row),
                    precision=sweep.precision,
                    channels_last=sweep.channels_last,
                    dataset_label=dataset.label,
                    ceiling=row.ceiling,
                    transductive=algorithms.get(row.name).transductive,
                )
            )
    return specs


def single(dataset: Mapping[str, Any], algorithm: Mapping[str, Any], **keys: Any) -> RunSpec:
    """The one run of a sweep with one dataset, one algorithm and, unless `keys` say other, trial 0.

    Raises UserError as a sweep would.
    """
    values = {"name": "single", "datasets": [dataset], "algorithms": [algorithm], "trials": [0]}
    (run,) = make_plan(validate(values | keys, "a single run")).runs.values()
    return run
