"""The second pass of a launch: of a sweep whose names are known, the runs and the impossible cells."""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from oodbench.errors import PLUGIN_HINT, UserError, unknown
from oodbench.metrics import computed_names, recorded_names
from oodbench.notes import Finding, sentences
from oodbench.results.run_spec import OPTIONS, RunSpec
from oodbench.results.tables import chosen_once
from oodbench.seeds import derive
from oodbench.selection import find_rule, require_evidence
from oodbench.sweep.file import Sweep, validate
from oodbench.sweep.resolve import Pair, resolve
from oodbench.sweep.sources import Source
from oodbench.terminal import Terminal, counted


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
    """The runs in the order of the sweep. One that stands in several rows is there once for each."""
    impossible: list[Impossible]
    chosen: Mapping[str, Any] | None = None
    """How an earlier sweep has chosen the hyperparameters, if the file names one."""
    notes: tuple[str, ...] = ()
    """What is unusual in the data, see `Dataset.notes` and `Finding`, and in files of weights."""
    findings: Mapping[str, Sequence[Finding]] = field(default_factory=dict)
    """What an audit finds in the data, by the dataset's label."""

    @cached_property
    def runs(self) -> dict[str, RunSpec]:
        """The runs to train by id, each in the first of its rows."""
        runs: dict[str, RunSpec] = {}
        for spec in self.rows:
            runs.setdefault(spec.id, spec)
        return runs


def make_plan(sweep: Sweep, data_dir: Path | None = None, *, to_train: bool = True) -> Plan:
    """The runs of a sweep and its impossible cells, by dataset, test environments, then row.

    Raises UserError as `resolve`, for runs without an environment or example left to train on, for
    duplicates, and for runs that the sweep's selection rule cannot judge.
    """
    datasets, chosen, of_weights = resolve(sweep, data_dir, to_train=to_train)
    trained_on: list[tuple[str, ...]] = []
    known: set[tuple[str, str, str]] = set()
    findings = {source.label: source.findings for source, _ in datasets}
    notes = [f"{source.label}: {note}" for source, _ in datasets for note in source.dataset.notes]
    notes += [
        f"{label}: {sentence}"
        for label, found in findings.items()
        for sentence in sentences(f for f in found if f.changes_meaning)
    ]
    notes = [*dict.fromkeys([*notes, *of_weights])]
    plan = Plan(sweep, [], [], chosen[0] if chosen else None, tuple(notes), findings)
    for source, pairs in datasets:
        cells = [(pair, _specs(sweep, pair, tests)) for tests in source.tests for pair in pairs]
        for pair, specs in cells:
            first = specs[0]
            if reason := _reason_against(pair, specs, source, sweep.attributes):
                tests = first.test_environments
                plan.impossible.append(Impossible(source.label, first.label, tests, reason))
                continue
            for spec in specs:
                trained_on.append(_training_environments(source, spec))
                if empty := [name for name in trained_on[-1] if not source.sizes[name]]:
                    raise UserError(
                        f"{source.label}: environment '{empty[0]}' has no example to train on: "
                        "hold it out, too, or leave it out of the data"
                    )
                place = spec.id, spec.dataset_name, spec.label
                if place in known:
                    raise UserError(
                        f"sweep '{sweep.name}' holds {spec.label} on {spec.dataset_name} twice; "
                        "give algorithms with different hparams different labels"
                    )
                known.add(place)
                plan.rows.append(spec)
    if sweep.selection is not None and plan.rows:
        require_evidence(sweep.selection, plan.rows, trained_on)
        for source, _ in datasets:
            _check_metric(sweep.selection, source)
    return plan


def _check_metric(selection: str, source: Source) -> None:
    """Raise UserError if the selection judges by a metric that runs on the dataset would not record."""
    from oodbench.datasets import Dataset  # which imports torch

    metric, dataset = find_rule(selection).metric, source.dataset
    whole = type(dataset).split_metrics is not Dataset.split_metrics  # its names are not known here
    if metric is None or whole or dataset.task.kind == "boxes":
        return
    names = recorded_names(dataset.task, dataset.classes, dataset.attributes)
    if metric not in names:
        is_computed = metric in computed_names()
        hint = " (it is computed from predictions after training)" if is_computed else PLUGIN_HINT
        place = f"`selection: {selection}`, as runs of {source.label} do not record it"
        raise unknown("metric", metric, sorted(names), place, hint)


def show_plan(plan: Plan, console: Terminal) -> None:
    """Print the numbers of runs of a sweep by dataset and algorithm, then its impossible cells."""
    datasets: dict[str, dict[str, list[RunSpec]]] = {}
    for spec in plan.rows:
        datasets.setdefault(spec.dataset_name, {}).setdefault(spec.label, []).append(spec)
    titles: dict[
        tuple[tuple[str, ...], ...], list[str]
    ] = {}  # datasets with equal tables share one
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
    plan = make_plan(validate(values | keys, "a single run"), data_dir)
    for cell in plan.impossible:
        raise UserError(f"{cell.algorithm} on {cell.dataset}: {cell.reason}")
    (run,) = plan.runs.values()
    return run


def _specs(sweep: Sweep, pair: Pair, tests: tuple[str, ...]) -> list[RunSpec]:
    row, algorithm, source = pair.row, pair.algorithm, pair.source
    dataset, network = source.dataset, source.network_class
    return [
        RunSpec(
            dataset=dataset.name,
            options=source.options[network.is_pretrained(network_hparams)],
            algorithm=row.name,
            hparams=hparams,
            label=str(row.label),
            network=source.network.name,
            network_hparams=network_hparams,
            test_environments=tests,
            validation_environments=_validation(source, tests, trial),
            draw=draw,
            trial=trial,
            steps=source.steps,
            evaluate_every=source.evaluate_every,
            holdout=source.holdout,
            average=row.average if isinstance(row.average, dict) else None,
            adapt=adapt,
            noise=None if row.ceiling else source.noise,
            test_order="random" if algorithm.transductive else "stored",
            dataset_label=source.label,
            ceiling=row.ceiling,
            transductive=algorithm.transductive or adapt is not None,
            reference=algorithm.changes == "reference",
            **{key: getattr(sweep, key) for key in OPTIONS},
        )
        for (draw, trial), (hparams, network_hparams, adapt) in pair.draws[tests].items()
    ]


def _validation(source: Source, tests: tuple[str, ...], trial: int) -> tuple[str, ...]:
    if not isinstance(source.validation, int):
        return tuple(name for name in source.validation if name not in tests)
    free = [name for name in source.trainable if name not in tests]
    stream = random.Random(derive("validation", source.dataset.name, tests, trial))
    return tuple(sorted(stream.sample(free, source.validation), key=free.index))


def _training_environments(source: Source, spec: RunSpec) -> tuple[str, ...]:
    held_out = spec.held_out
    names = tuple(name for name in source.trainable if name not in held_out)
    if not names:
        tests = ", ".join((*spec.test_environments, *spec.validation_environments))
        raise UserError(
            f"{source.label}: with {tests} held out, no environment is left to train on"
        )
    return names


def _reason_against(
    pair: Pair, specs: Sequence[RunSpec], source: Source, attributes: str
) -> str | None:
    from oodbench.algorithms import Problem, why_skipped
    from oodbench.train import adapted, averages

    first, dataset, method = specs[0], pair.source.dataset, pair.algorithm
    of_draws = {id(spec.hparams): spec for spec in specs}.values()  # trials may share them
    network, names = pair.source.network_class, _training_environments(pair.source, first)
    problem = Problem(
        dataset.input_shape,
        dataset.task,
        names,
        first.steps,
        counts=tuple(source.counts[n] for n in names if n in source.counts),
        attributes=len(dataset.attributes),
        pretrained=all(network.is_pretrained(spec.network_hparams) for spec in of_draws),
        zero_shot=all(network.is_zero_shot(spec.network_hparams) for spec in of_draws),
        discrete=source.discrete,
    )
    unseen = replace(problem, attributes=0, counts=()) if attributes != "training" else problem
    for spec in of_draws:
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
