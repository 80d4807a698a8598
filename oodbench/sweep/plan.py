"""The plan of a sweep: the runs of all its cells, and the reasons why some cells cannot be run."""

import importlib.util
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from oodbench.data import facts
from oodbench.errors import PLUGIN_HINT, MissingError, UserError
from oodbench.results.read import chosen_once
from oodbench.results.run_spec import RunSpec
from oodbench.selection import require_evidence
from oodbench.sweep.cells import (
    Source,
    check_rows,
    rows_of,
    specs_of,
    trials_of,
    with_environments,
)
from oodbench.sweep.chosen import Chosen, chosen_in
from oodbench.sweep.file import (
    DatasetSettings,
    Row,
    Sweep,
    several,
    short,
    training_of,
    validate,
)
from oodbench.sweep.launchers import layered_resources
from oodbench.terminal import Terminal, counted, printable

MAX_RUNS = 200_000
"""The most runs of one sweep."""
NO_MEMORY = "allocate memory|Storage size|numel.*overflow|array is too big|allowed dimension"
"""Patterns in the errors of torch and numpy for arrays that are too large."""


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
    chosen: Chosen | None = None
    """The hyperparameters that an earlier sweep has chosen, if the file names one."""
    notes: tuple[str, ...] = ()
    """What is unusual in the data, see `facts.notes`."""


@dataclass(frozen=True)
class _Cell:
    """A row on a dataset with one set of test environments, which may prove impossible."""

    source: Source
    """The dataset with the options of the row, which a ceiling has."""
    specs: list[RunSpec]


def make_plan(sweep: Sweep, data_dir: Path | None = None, *, to_train: bool = True) -> Plan:
    """Return every run of a sweep.

    Raises one UserError for all unknown names, impossible values of algorithms and networks, wrong
    environments and missing data; and, if the runs are to be trained, MissingError for an optional
    package that a method needs.
    """
    from oodbench.algorithms import algorithms

    problems: list[UserError] = []
    rows = rows_of(sweep)
    with _noted(problems):
        layered_resources((f"the resources of {sweep.name}", sweep.resources))
    with _noted(problems):
        check_rows(rows)
    for row in rows:
        with _noted(problems):
            algorithms.get(row.name)
    sources = _sources(sweep, data_dir, problems)
    chosen = None
    if sweep.hparams_from is not None:
        trials = {trial for source in sources for trial in trials_of(sweep, source.training)}
        chosen = chosen_in(Path(sweep.hparams_from), sweep.selection, sorted(trials))
    for i, source in enumerate(sources):
        with _noted(problems):
            sources[i] = replace(with_environments(sweep, source), chosen=chosen)
    with _noted(problems):
        _check_size(sweep, sources, len(rows))
        cells = [_cells(sweep, rows, source, data_dir, problems) for source in sources]
    _raise(problems, sweep)
    if to_train:
        _check_packages(rows)
    notes = [f"{s.label}: {note}" for s in sources for note in facts.notes(s.dataset)]
    plan = Plan(sweep, {}, [], chosen, tuple(dict.fromkeys(notes)))
    for source, of_source in zip(sources, cells, strict=True):
        _add_cells(plan, source, of_source)
    if sweep.selection is not None and plan.runs:
        trained_on = {
            spec.id: _training_environments(source, spec)
            for source, of_source in zip(sources, cells, strict=True)
            for cell in of_source
            for spec in cell.specs
        }
        require_evidence(sweep.selection, [*plan.runs.values()], [trained_on[i] for i in plan.runs])
    return plan


def show_plan(plan: Plan, console: Terminal) -> None:
    """Print the numbers of runs of a sweep by dataset and algorithm, then its impossible cells."""
    datasets: dict[str, dict[str, list[RunSpec]]] = {}
    for spec in plan.runs.values():
        datasets.setdefault(spec.dataset_name, {}).setdefault(spec.label, []).append(spec)
    for dataset, rows in datasets.items():
        sets = dict.fromkeys("+".join(s.test_environments) for row in rows.values() for s in row)
        console.say(f"{dataset}, {counted(len(sets), 'test set')}: {', '.join(sets)}")
        header = ["algorithm", "runs", "test sets", "draws", "trials", "steps"]
        texts = [[label, *map(str, _counts(specs))] for label, specs in rows.items()]
        console.print(console.tables(header, texts), soft_wrap=True)
    console.say(f"{counted(len(plan.runs), 'run')} in sweep '{plan.sweep.name}'.")
    for note in plan.notes:
        console.say(note)
    if plan.chosen:
        console.say(f"Hyperparameters: {chosen_once(plan.chosen.about)}.")
    for cell in plan.impossible:
        console.say(
            f"impossible: {cell.algorithm} on {cell.dataset} "
            f"(test {', '.join(cell.test_environments)}): {cell.reason}"
        )


def as_json(plan: Plan) -> str:
    """Return the runs of a sweep, its impossible cells and its notes, as JSON."""
    runs = [{"id": i, **named(spec), "steps": spec.steps} for i, spec in plan.runs.items()]
    impossible = [asdict(cell) for cell in plan.impossible]
    values = {"name": plan.sweep.name, "runs": runs, "impossible": impossible, "notes": plan.notes}
    return json.dumps(values, indent=1)


def named(spec: RunSpec) -> dict[str, object]:
    """Return what tells a run from others of its sweep: dataset, row, test set, draw and trial."""
    return {
        "dataset": spec.dataset_name,
        "algorithm": spec.label,
        "test_environments": spec.test_environments,
        "draw": spec.draw,
        "trial": spec.trial,
    }


def _counts(specs: Sequence[RunSpec]) -> tuple[int, ...]:
    """Return how many runs, test sets, draws, trials and steps a row has on a dataset."""
    sets = {spec.test_environments for spec in specs}
    draws, trials = {spec.draw for spec in specs}, {spec.trial for spec in specs}
    return len(specs), len(sets), len(draws), len(trials), specs[0].steps


def single(
    dataset: Mapping[str, Any],
    algorithm: Mapping[str, Any],
    data_dir: Path | None = None,
    **keys: Any,
) -> RunSpec:
    """Return the only run of a sweep with one dataset, one algorithm and, by default, trial 0.

    Raises UserError as a sweep would, and where the algorithm cannot be run on the dataset.
    """
    values = {"name": "single", "datasets": [dataset], "algorithms": [algorithm], "trials": [0]}
    plan = make_plan(validate(values | keys, "a single run"), data_dir)
    for cell in plan.impossible:
        raise UserError(f"{cell.algorithm} on {cell.dataset}: {cell.reason}")
    (run,) = plan.runs.values()
    return run


def check_requirements(sweep: Sweep, data_dir: Path | None = None) -> None:
    """Raise MissingError for data or an optional package that the sweep's runs would lack.

    Raises UserError for what is unknown or damaged.
    """
    problems: list[UserError] = []
    _sources(sweep, data_dir, problems)
    _raise(problems, sweep)
    _check_packages(rows_of(sweep))


def absent_data(sweep: Sweep, data_dir: Path | None = None) -> dict[str, MissingError]:
    """Return the datasets of a sweep that lack data or a package, by label, with the command
    that gets it.
    """
    absent = {}
    for item in sweep.datasets:
        dataset, label, _ = _made(item, data_dir)
        try:
            facts.check(dataset)
        except MissingError as error:
            absent[label] = error
    return absent


@contextmanager
def _noted(problems: list[UserError]) -> Iterator[None]:
    """Add a UserError that is raised within to the problems, which are raised together later."""
    try:
        yield
    except UserError as error:
        problems.append(error)


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


def _check_packages(rows: Sequence[Row]) -> None:
    """Raise MissingError for an optional package that a method needs."""
    from oodbench.algorithms import algorithms

    for row in rows:
        for package, command in algorithms.get(row.name).needs.packages.items():
            if importlib.util.find_spec(package) is None:
                raise MissingError(f"{row.name} needs {package}: `{command}`", command)


def _sources(sweep: Sweep, data_dir: Path | None, problems: list[UserError]) -> list[Source]:
    """Return the datasets of a sweep whose data are there; the problems of others are noted."""
    by_label: dict[str, Source] = {}
    for item in sweep.datasets:
        with _noted(problems):
            dataset, label, entry = _made(item, data_dir)
            facts.check(dataset)
            if label in by_label:
                same = by_label[label].dataset.options == dataset.options
                hint = "leave one out" if same else "give them a `label` each"
                raise UserError(f"two datasets are called '{label}': {hint}")
            by_label[label] = Source(dataset, facts.for_plan(dataset), label, **entry)
    return list(by_label.values())


def _made(item: str | dict[str, Any], data_dir: Path | None) -> tuple[Any, str, dict[str, Any]]:
    """Return a dataset, its label, and its `training` and `ceiling` in a sweep file; raises UserError."""
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
    label = facts.label(dataset) if label is None else label
    settings = (
        DatasetSettings() if training is None else training_of(training, f"the training on {label}")
    )
    return dataset, label, {"training": settings, "ceiling": ceiling}


def _with_options(row: Row, source: Source, data_dir: Path | None) -> Source:
    """Return the dataset that a row trains on; a ceiling's has the `ceiling` options and the row's own."""
    from oodbench.datasets import make

    options = {**source.ceiling, **row.options} if row.ceiling else {}
    if not options:
        return source
    usual = source.dataset
    dataset = make(usual.name, asdict(usual.options) | options, data_dir)
    if (dataset.environments, dataset.task) != (usual.environments, usual.task):
        raise UserError(
            f"the options of {short(row.label)} change the environments or the task of "
            f"{source.label}: it would be another dataset's ceiling"
        )
    facts.check(dataset)
    return replace(source, dataset=dataset, facts=facts.for_plan(dataset))


def _cells(
    sweep: Sweep,
    rows: Sequence[Row],
    source: Source,
    data_dir: Path | None,
    problems: list[UserError],
) -> list[_Cell]:
    """Return the cells of a dataset by test environments, then row; their problems are noted."""
    by_row: list[list[_Cell]] = []
    for row in rows:
        with _noted(problems):
            of_row = _with_options(row, source, data_dir)
            by_row.append([_Cell(of_row, specs) for specs in specs_of(sweep, row, of_row)])
    return list(itertools.chain.from_iterable(zip(*by_row, strict=True)))


def _check_size(sweep: Sweep, sources: Sequence[Source], rows: int) -> None:
    """Raise UserError if a sweep with so many rows has more than MAX_RUNS runs."""
    draws = 1 if sweep.hparams_from else _count(sweep.hparam_draws)
    trials = [(len(source.tests), source.training.trials or sweep.trials) for source in sources]
    if (runs := rows * draws * sum(tests * _count(value) for tests, value in trials)) > MAX_RUNS:
        cells = rows * sum(tests for tests, _ in trials)
        counts = " or ".join(map(str, sorted({_count(value) for _, value in trials})))
        raise UserError(
            f"sweep '{sweep.name}' has {runs:,} runs ({cells} cells, {draws} draws, {counts} trials); "
            f"one sweep has at most {MAX_RUNS:,}"
        )


def _count(value: int | list[int]) -> int:
    return value if isinstance(value, int) else len(value)


def _add_cells(plan: Plan, source: Source, cells: Sequence[_Cell]) -> None:
    """Add the runs of a dataset's cells, and the reasons of those that are impossible."""
    from oodbench.data.preparation import is_discrete
    from oodbench.train.loading import split

    dataset, first = source.dataset, cells[0].specs[0]
    environments = _environments(source, first.trial)
    discrete = is_discrete(dataset, environments)
    reasons = [_reason_against(cell, discrete, plan.sweep.attributes) for cell in cells]
    sizes = {
        name: len(split(environment, first.holdout, dataset.name, name, first.trial)["in"])
        for name, environment in environments.items()
    }
    for cell, reason in zip(cells, reasons, strict=True):
        first = cell.specs[0]
        if reason is not None:
            impossible = Impossible(source.label, first.label, first.test_environments, reason)
            plan.impossible.append(impossible)
            continue
        for spec in cell.specs:
            for name in _training_environments(source, spec):
                if not sizes[name]:
                    raise UserError(
                        f"{source.label}: environment '{name}' has no example to train on"
                    )
            if spec.id in plan.runs:
                raise UserError(
                    f"sweep '{plan.sweep.name}' holds {spec.label} on {spec.dataset_name} twice; "
                    "give algorithms with different hparams different labels"
                )
            plan.runs[spec.id] = spec


def _environments(source: Source, trial: int) -> dict[str, Any]:
    """Return the environments of a dataset in a trial; raises UserError if they do not fit into memory."""
    from oodbench.data.preparation import load_checked

    try:
        return load_checked(source.dataset, trial)
    except (MemoryError, OverflowError, RuntimeError, ValueError) as error:
        plain = isinstance(error, MemoryError | OverflowError)
        if not (plain or re.search(NO_MEMORY, str(error))):
            raise
        raise UserError(f"{source.label}: data of this size do not fit into memory") from error


def _training_environments(source: Source, spec: RunSpec) -> tuple[str, ...]:
    """Return the environments that are left to train on; raises UserError if there is none."""
    names = tuple(name for name in source.facts.trainable if name not in spec.held_out)
    if not names:
        held_out = ", ".join((*spec.test_environments, *spec.validation_environments))
        raise UserError(
            f"{source.label}: with {held_out} held out, no environment is left to train on"
        )
    return names


def _reason_against(cell: _Cell, discrete: bool, attributes: str) -> str | None:
    """Return why a cell cannot be run with any of the draws of its hyperparameters, or None."""
    from oodbench.algorithms import Problem, algorithms, why_skipped
    from oodbench.networks.base import networks
    from oodbench.train import adapted, averages

    first, dataset = cell.specs[0], cell.source.dataset
    network, method = networks.get(first.network), algorithms.get(first.algorithm)
    problem = Problem(
        dataset.input_shape,
        dataset.task,
        _training_environments(cell.source, first),
        first.steps,
        attributes=len(dataset.attributes),
        pretrained=all(network.is_pretrained(spec.network_hparams) for spec in cell.specs),
        zero_shot=all(network.is_zero_shot(spec.network_hparams) for spec in cell.specs),
        discrete=discrete,
    )
    unseen = replace(problem, attributes=0) if attributes != "training" else problem
    for spec in cell.specs:
        if reason := why_skipped(method, problem, spec.hparams):
            return reason
        if why_skipped(method, unseen, spec.hparams):
            return f"it sees attributes in training, and `attributes: {attributes}` rules that out"
    if first.average is not None:
        validation, kind = first.validation_environments, dataset.task.kind
        name = first.average["name"]
        if reason := averages.reason_against(name, method, kind, first.holdout, validation):
            return reason
    return adapted.reason_against(first, method, dataset.task, dataset.input_shape)
