"""Makes the plan of a sweep: its runs, and the cells that are impossible."""

import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from oodbench.errors import PLUGIN_HINT, UserError, unknown
from oodbench.metrics import computed_names, recorded_names
from oodbench.notes import Finding, sentences
from oodbench.results.run_spec import OPTIONS, RunSpec
from oodbench.results.tables import chosen_once
from oodbench.selection import Rule, find_rule, require_evidence
from oodbench.sweep.chosen import chosen_draws, chosen_in
from oodbench.sweep.file import Row, Sweep, validate
from oodbench.sweep.launchers import check_resources
from oodbench.sweep.resolve import (
    Problems,
    Source,
    ceiling_of,
    check_packages,
    draws_of,
    methods_of,
    sources_of,
)
from oodbench.terminal import Terminal, counted

if TYPE_CHECKING:
    from oodbench.algorithms import Algorithm

MAX_RUNS = 200_000
"""The most runs of one sweep."""


@dataclass(frozen=True)
class Impossible:
    """A cell of a sweep that cannot be run."""

    dataset: str
    algorithm: str
    test_environments: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Plan:
    """The runs of a sweep, and the cells that are impossible."""

    sweep: Sweep
    rows: list[RunSpec]
    """The runs in the order of the sweep; a run of several rows is listed once for each row."""
    impossible: list[Impossible]
    rule: Rule | None = None
    """The selection rule that the file names, if any."""
    chosen: Mapping[str, Any] | None = None
    """How an earlier sweep chose the hyperparameters, if the file names that sweep."""
    notes: tuple[str, ...] = ()
    """What is unusual in the data, see `Dataset.notes` and `Finding`, and in files of weights."""
    findings: Mapping[str, Sequence[Finding]] = field(default_factory=dict)
    """The findings of an audit of the data, by the dataset's label."""

    @cached_property
    def runs(self) -> dict[str, RunSpec]:
        """The runs by id, each in the first of its rows."""
        runs: dict[str, RunSpec] = {}
        for spec in self.rows:
            runs.setdefault(spec.id, spec)
        return runs

    def only(self, place: str) -> RunSpec:
        """The single run of the plan; raises UserError for any other number, with the reason for none."""
        if self.impossible and not self.runs:
            raise UserError(f"{place}: {self.impossible[0].reason}")
        if len(self.runs) != 1:
            raise UserError(f"{place} trains one run, and these keys make {len(self.runs)}")
        return next(iter(self.runs.values()))


class Measured(NamedTuple):
    """What is known from the examples of a dataset's first trial."""

    discrete: bool
    """Whether the inputs have few values, see `oodbench.data.preparation.is_discrete`."""
    sizes: Mapping[str, int]
    """The number of examples to train on in each environment."""
    counts: Mapping[str, tuple[int, ...]]
    """The numbers of examples in each group, see `Problem.counts`; empty for tasks without classes."""
    findings: Sequence[Finding]
    """The findings of an audit of the data."""


Cell = tuple[Any, list[RunSpec]]
"""A dataset, for a ceiling with the row's options, and a row's runs with a set of test environments."""


def make_plan(sweep: Sweep, data_dir: Path | None = None, *, to_train: bool = True) -> Plan:
    """The runs of a sweep and its impossible cells, by dataset, test environments, then row.

    Looks up all names, draws hyperparameters, and loads data. Raises one UserError for all unknown names,
    impossible values, wrong environments and missing data; then for runs without an environment or an
    example to train on, and for runs that the selection rule cannot judge. Unless `to_train` is false,
    raises MissingError for an optional package that a method needs.
    """
    problems = Problems(sweep.name)
    with problems.noted():
        check_resources(sweep.name, sweep.resources)
    rule = None
    with problems.noted():
        rule = _rule(sweep)
    methods = methods_of(sweep.algorithms, problems)
    listed = sources_of(sweep, data_dir, problems)
    about, chosen = None, None
    cells: list[Cell] = []
    with _warnings_of_files() as notes_on_weights, problems.noted():
        _check_size(sweep, listed, len(methods))
        if sweep.hparams_from is not None:
            trials = sorted({trial for source in listed for trial in source.trials})
            about, chosen = chosen_in(Path(sweep.hparams_from), sweep.selection, trials)
        for source in listed:
            of_rows: list[list[Cell]] = []
            for row, algorithm in methods:
                with problems.noted():
                    of = ceiling_of(sweep, row, source, data_dir)
                    of_rows.append(_cells(sweep, of, row, algorithm, chosen))
            cells += chain.from_iterable(zip(*of_rows, strict=True))
    problems.tell()
    if to_train:
        check_packages({row.name: algorithm for row, algorithm in methods})
    known = {source.label: measured(source) for source in listed}
    rows, impossible = _possible(cells, known, sweep.attributes)
    if rule is not None and rows:
        datasets = {source.label: source.dataset for source in listed}
        trained_on = [datasets[s.dataset_name].trainable(s.held_out) for s in rows]
        require_evidence(rule, rows, trained_on)
    for source in listed:
        _check_metrics(rule, source)
    return Plan(
        sweep,
        rows,
        impossible,
        rule,
        about,
        tuple(dict.fromkeys([*_notes(listed, known), *notes_on_weights])),
        {label: of.findings for label, of in known.items()},
    )


def _rule(sweep: Sweep) -> Rule | None:
    if sweep.selection is None:
        return None
    rule = find_rule(sweep.selection)
    if sweep.attributes == "unknown" and rule.sees_attributes:
        raise UserError(
            f"the selection {sweep.selection} sees attributes, which `attributes: unknown` rules out; "
            f"{rule.name}:worst_class_accuracy does not"
        )
    return rule


@contextmanager
def _warnings_of_files() -> Iterator[list[str]]:
    """Collect warnings on files of weights; other warnings are passed on at the end."""
    notes: list[str] = []
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        yield notes
    for warning in warned:
        if warning.category is UserWarning:
            notes.append(str(warning.message))
        else:  # shown or not as the process would
            place = warning.category, warning.filename, warning.lineno
            warnings.warn_explicit(warning.message, *place)


def _check_size(sweep: Sweep, listed: Sequence[Source], rows: int) -> None:
    draws = 1 if sweep.hparams_from else len(sweep.hparam_draws)
    runs = rows * draws * sum(len(source.tests) * len(source.trials) for source in listed)
    if runs > MAX_RUNS:
        cells = rows * sum(len(source.tests) for source in listed)
        counts = " or ".join(map(str, sorted({len(source.trials) for source in listed})))
        raise UserError(
            f"sweep '{sweep.name}' has {runs:,} runs ({cells} cells, {draws} draws, {counts} trials); "
            f"one sweep has at most {MAX_RUNS:,}"
        )


def _cells(
    sweep: Sweep,
    source: Source,
    row: Row,
    algorithm: "type[Algorithm]",
    chosen: Mapping[Any, RunSpec] | None,
) -> list[Cell]:
    """The cells of a row on a dataset, by test environments; `chosen` are runs of an earlier sweep."""
    from oodbench.networks.base import networks

    network = networks.get(source.network.name)
    draws = draws_of(sweep, source, row, algorithm) if chosen is None else {}
    options = {key: getattr(sweep, key) for key in OPTIONS}
    cells = []
    for tests in source.tests:
        of_tests = draws if chosen is None else chosen_draws(sweep, source, row, tests, chosen)
        validation = {t: source.validation_environments(tests, t) for t in source.trials}
        runs = [
            RunSpec(
                dataset=source.dataset.name,
                options=source.options[network.is_pretrained(drawn["network_hparams"])],
                algorithm=row.name,
                label=row.title,
                network=source.network.name,
                test_environments=tests,
                validation_environments=validation[trial],
                draw=draw,
                trial=trial,
                steps=source.steps,
                evaluate_every=source.evaluate_every,
                holdout=source.holdout,
                average=row.average,
                noise=None if row.ceiling else source.noise,
                test_order="random" if algorithm.transductive else "stored",
                dataset_label=source.label,
                ceiling=row.ceiling,
                transductive=algorithm.transductive or drawn["adapt"] is not None,
                reference=algorithm.changes == "reference",
                **drawn,
                **options,
            )
            for (draw, trial), drawn in of_tests.items()
        ]
        cells.append((source.dataset, runs))
    return cells


def measured(source: Source) -> Measured:
    """Load the examples of a dataset's first trial, and audit them."""
    from oodbench.data.audit import audit
    from oodbench.data.preparation import is_discrete, load_checked
    from oodbench.train.loading import Data, apart, groups_of, split

    dataset, trial = source.dataset, source.trials[0]
    environments = load_checked(dataset, trial)
    # the other trials of generated data have other examples
    known = source.trials if dataset.files_read else source.trials[:1]
    splits = {
        name: {t: split(environment, source.holdout, dataset.name, name, t) for t in known}
        for name, environment in environments.items()
    }
    first = {name: of_trials[trial] for name, of_trials in splits.items()}
    known_labels = {name: dataset.task.known(e.y) for name, e in environments.items()}
    labelled = {n: {h: i[known_labels[n][i]] for h, i in of.items()} for n, of in first.items()}
    groups = groups_of(dataset, environments, labelled)
    outs = {n: {t: s["out"] for t, s in each.items() if "out" in s} for n, each in splits.items()}
    never = () if isinstance(source.validation, int) else source.validation
    if dataset.separates_clusters:
        for tests in source.tests:
            apart(Data(dataset, environments, first), {*tests, *never})
    roles = [(tests, dataset.trainable({*tests, *never})) for tests in source.tests]
    return Measured(
        discrete=is_discrete(dataset, environments),
        sizes={name: len(halves["in"]) for name, halves in first.items()},
        counts={name: tuple(of["in"].counts) for name, of in groups.items() if "in" in of},
        findings=audit(dataset, environments, roles, outs=outs, trial=trial),
    )


def _possible(
    cells: Iterable[Cell], known: Mapping[str, Measured], attributes: str
) -> tuple[list[RunSpec], list[Impossible]]:
    """The runs of possible cells, and the impossible cells; raises UserError for runs without examples."""
    rows: list[RunSpec] = []
    impossible: list[Impossible] = []
    for dataset, runs in cells:
        first, data = runs[0], known[runs[0].dataset_name]
        place, tests = first.dataset_name, first.test_environments
        sets = dict.fromkeys(spec.held_out for spec in runs)
        trained_on = [dataset.trainable(held_out) for held_out in sets]
        if not trained_on[0]:
            names = ", ".join((*tests, *first.validation_environments))
            raise UserError(f"{place}: with {names} held out, no environment is left to train on")
        if reason := _reason_against(dataset, runs, data, attributes):
            impossible.append(Impossible(place, first.label, tests, reason))
            continue
        if empty := [n for names in trained_on for n in names if not data.sizes[n]]:
            why = "the option `group` leaves none; " if len(dataset.cluster_names) > 0 else ""
            raise UserError(
                f"{place}: environment '{empty[0]}' has no example to train on: {why}"
                "hold it out, too, or leave it out of the data"
            )
        rows += runs
    return rows, impossible


def _notes(listed: Iterable[Source], known: Mapping[str, Measured]) -> Iterator[str]:
    for source in listed:
        yield from (f"{source.label}: {note}" for note in source.dataset.notes)
    for label, of in known.items():
        changes = sentences(finding for finding in of.findings if finding.changes_meaning)
        yield from (f"{label}: {sentence}" for sentence in changes)


def _check_metrics(rule: Rule | None, source: Source) -> None:
    """Raise UserError if the dataset or the rule names a metric that runs would not record."""
    from oodbench.train.evaluate import whole_metrics  # which imports torch

    dataset = source.dataset
    if whole_metrics(dataset) is not None or dataset.task.kind == "boxes":
        return  # the names are not known here
    names = recorded_names(dataset.task, dataset.classes, dataset.attributes)
    places = {"`metric` of the dataset": dataset.metric}
    if rule is not None and rule.metric is not None:
        places[f"`selection: {rule.name}:{rule.metric}`"] = rule.metric
    for place, metric in places.items():
        if metric not in names:
            computed = " (it is computed from predictions after training)"
            hint = computed if metric in computed_names() else PLUGIN_HINT
            where = f"{place}, as runs of {source.label} do not record it"
            raise unknown("metric", metric, sorted(names), where, hint)


def show_plan(plan: Plan, console: Terminal) -> None:
    """Print the numbers of runs by dataset and row, then the impossible cells."""
    datasets: dict[str, dict[str, list[RunSpec]]] = {}
    for spec in plan.rows:
        datasets.setdefault(spec.dataset_name, {}).setdefault(spec.label, []).append(spec)
    # datasets with equal tables share one
    titles: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for dataset, rows in datasets.items():
        sets = dict.fromkeys("+".join(s.test_environments) for row in rows.values() for s in row)
        table = tuple((label, *map(str, _counts(specs))) for label, specs in rows.items())
        title = f"{dataset}, {counted(len(sets), 'test set')}: {', '.join(sets)}"
        titles.setdefault(table, []).append(title)
    header = ["algorithm", "runs", "test sets", "draws", "trials", "steps"]
    for table, of_table in titles.items():
        console.say("\n".join(of_table))
        if len(of_table) > 1:
            console.say("Each of them:")
        console.print(console.tables(header, table), soft_wrap=True)
    console.say(f"{counted(len(plan.runs), 'run')} in sweep '{plan.sweep.name}'.")
    for note in plan.notes:
        console.say(note)
    if plan.chosen:
        console.say(f"Hyperparameters: {chosen_once(plan.chosen)}.")
    impossible: dict[tuple[str, str, str], list[str]] = {}
    for cell in plan.impossible:
        tests = impossible.setdefault((cell.algorithm, cell.dataset, cell.reason), [])
        tests.append("+".join(cell.test_environments))
    for (algorithm, dataset, reason), tests in impossible.items():
        console.say(f"impossible: {algorithm} on {dataset} (test {', '.join(tests)}): {reason}")


def as_json(plan: Plan) -> str:
    """The runs of a sweep, its impossible cells and its notes, as JSON."""
    runs = [{"id": spec.id, **coordinates(spec), "steps": spec.steps} for spec in plan.rows]
    impossible = [asdict(cell) for cell in plan.impossible]
    values = {"name": plan.sweep.name, "runs": runs, "impossible": impossible, "notes": plan.notes}
    return json.dumps(values, indent=1)


def coordinates(spec: RunSpec) -> dict[str, object]:
    """The values that identify a run in its sweep: dataset, row, test set, draw and trial."""
    return {
        "dataset": spec.dataset_name,
        "algorithm": spec.label,
        "test_environments": spec.test_environments,
        "draw": spec.draw,
        "trial": spec.trial,
    }


def _counts(specs: Sequence[RunSpec]) -> tuple[int, ...]:
    sets = {spec.test_environments for spec in specs}
    draws, trials = {spec.draw for spec in specs}, {spec.trial for spec in specs}
    return len(specs), len(sets), len(draws), len(trials), specs[0].steps


def single(
    dataset: Mapping[str, Any],
    algorithm: Mapping[str, Any],
    data_dir: Path | None = None,
    **keys: Any,
) -> RunSpec:
    """The only run of a sweep with one dataset, one algorithm and, by default, trial 0.

    Raises UserError as a sweep would, and where the algorithm cannot be run on the dataset.
    """
    values = {"name": "single", "datasets": [dataset], "algorithms": [algorithm], "trials": [0]}
    return make_plan(validate(values | keys, "a single run"), data_dir).only("a single run")


def _reason_against(
    dataset: Any, runs: Sequence[RunSpec], data: Measured, attributes: str
) -> str | None:
    from oodbench.algorithms import algorithms, why_skipped
    from oodbench.train import adapted, averages
    from oodbench.train.run import problem_of

    first, method = runs[0], algorithms.get(runs[0].algorithm)
    of_draws: dict[int, RunSpec] = {}
    for spec in runs:
        of_draws.setdefault(id(spec.hparams), spec)  # trials may share them
    for spec in of_draws.values():
        problem = problem_of(spec, dataset, discrete=data.discrete)
        counts = tuple(data.counts[n] for n in problem.environments if n in data.counts)
        problem = replace(problem, counts=counts)
        if reason := why_skipped(method, problem, spec.hparams):
            return reason
        unseen = replace(problem, attributes=0, counts=())
        if attributes != "training" and why_skipped(method, unseen, spec.hparams):
            return f"it sees attributes in training, and `attributes: {attributes}` rules that out"
    if first.average is not None:
        validation, kind = first.validation_environments, dataset.task.kind
        name = first.average["name"]
        if reason := averages.reason_against(name, method, kind, first.holdout, validation):
            return reason
    return adapted.reason_against(first, method, dataset.task, dataset.input_shape)
