"""The head-room of a dataset: how far ERM is from the constant answer and from the ceiling."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from oodbench.datasets import Dataset, make
from oodbench.diagnose.admission import ERM, REFERENCES, Figures, Value, checks, figures, value_of
from oodbench.errors import UserError
from oodbench.hparams import defaults
from oodbench.report.cells import cell_runs, constant_values, reported_metrics
from oodbench.report.numbers import with_error, with_unit
from oodbench.report.statistics import mean_and_error
from oodbench.report.why import why
from oodbench.results.directory import Directory
from oodbench.results.read import read_results
from oodbench.results.run_spec import COMPLETE, CONSTANT, RunSpec
from oodbench.results.tables import Tables
from oodbench.selection.judge import judge
from oodbench.sweep.file import validate
from oodbench.sweep.launch import LaunchOptions, launch_specs
from oodbench.sweep.plan import make_plan
from oodbench.terminal import Terminal, counted, duration

CEILING, ALONE = "ceiling", "alone"
LIKE_TEST = ("as_test", "grayscale", "oracle")
"""Options of datasets by which training data become like the test environment's, for a ceiling."""
DRAWS, TRIALS, MOST_STEPS = 8, 3, 600
LEVEL = 0.05


@dataclass(frozen=True)
class HeadRoom:
    """ERM's value on a dataset's test environments, with the constant answer and the ceilings."""

    label: str
    tests: tuple[str, ...]
    rule: str
    """The selection rule of ERM and the ceiling."""
    steps: int
    draws: int
    trials: int
    seconds: float
    """The mean seconds of a run of ERM, training and evaluation."""
    constant: Value | None
    spearman: Value | None
    """Spearman's correlation, with p-value, over all draws and trials of ERM: of a run's best score by
    `train_val`, and the test value at the same step. None without such scores."""
    figures: Figures
    """`figures.ceilings` has ALONE, ERM trained on the test environments' `in` splits and scored on the
    `out` splits; and CEILING, ERM trained on data like the test environment's, if the dataset has an option
    for such data."""

    @property
    def is_at_chance(self) -> bool:
        """Whether ERM is no better than the constant answer."""
        return self.constant is not None and self.figures.over_erm(self.constant) >= 0

    @property
    def is_on_the_line(self) -> bool | None:
        """Whether runs that are better in distribution are also better on the test set; None if unknown."""
        if self.spearman is None:
            return None
        return self.spearman[0] > 0 and self.spearman[1] < LEVEL


def head_room(
    name: str,
    settings: Mapping[str, Any],
    options: LaunchOptions,
    *,
    steps: int | None = None,
    draws: int = DRAWS,
    trials: int = TRIALS,
    references: bool = True,
) -> HeadRoom:
    """Train ERM, its ceiling, and ERM on the test environments alone, and compare the values.

    The ceilings have half as many draws. With `references`, the reference rows are fitted in all three
    ways. `settings` are options of the dataset; `steps` are by default the dataset's, at most MOST_STEPS.
    Runs that have ended in `options.out` are not trained again. Raises UserError for missing data and for
    failed runs.
    """
    dataset = make(name, settings, options.data_dir)
    if not has_choice(dataset):
        raise UserError(
            f"{name} has neither `out` splits nor validation environments to choose runs by"
        )
    budget: dict[str, Any] = {
        "name": "head-room",
        "hparam_draws": draws,
        "trials": trials,
        "steps": steps or min(dataset.metadata.steps, MOST_STEPS),
    }
    trained, few = (ERM, *REFERENCES) if references else (ERM,), -(-draws // 2)
    kept, own = dict[str, RunSpec](), dict[str, RunSpec]()
    for rows in filter(None, (trained[:1], trained[1:])):
        # references are fitted in one step
        keys = budget if ERM in rows else {**budget, "steps": 1}
        sweeps = _against_ceiling(dataset, settings, rows), _alone(dataset, settings, rows)
        for runs, sweep in zip((kept, own), sweeps, strict=True):
            planned = _planned({**keys, **sweep}, options, ERM in rows) if sweep else {}
            runs.update({i: s for i, s in planned.items() if s.draw < few or s.label in rows})
    results, specs = Directory(options.out), kept | own
    waiting = [i for i in specs if not results.run(i).state().final]
    launch_specs("head-room", specs, waiting, options)
    alone = read_results(results, own) if own else None
    return _compared(dataset, budget, read_results(results, kept), alone, trained)


def has_choice(dataset: Dataset) -> bool:
    """Whether the dataset has examples by which a rule can select runs."""
    return bool(dataset.holdout or dataset.validation_environments)


def show(room: HeadRoom, console: Terminal) -> None:
    """Print the values, the head-room, and whether the dataset is on the line."""
    figures, tests = room.figures, "+".join(room.tests)
    metric = figures.metric
    runs = f"{room.draws} draws x {room.trials} trials of {room.steps} steps"
    each = f"{duration(room.seconds)} a run" if room.seconds >= 1 else "less than 1 s a run"
    better = "higher" if figures.higher_is_better else "lower"
    console.say(
        f"{room.label}, test {tests}: {with_unit(metric)}, {better} is better; {runs}, "
        f"{each}, chosen by {room.rule}"
    )
    names = {CEILING: CEILING, ALONE: f"ERM on {tests} alone"}
    rows = {CONSTANT: room.constant, ERM: figures.outside[ERM]}
    rows |= {shown: figures.ceilings.get(name) for name, shown in names.items()}
    rows |= {n: v for n, v in figures.outside.items() if n != ERM}
    rows |= {n: v for n, v in figures.ceilings.items() if n not in names}
    texts = [(name, value_text(value, metric)) for name, value in rows.items()]
    console.print(console.tables(("trained", metric), texts), soft_wrap=True)
    for sentence in verdicts(room):
        console.say(sentence)
    show_checks(figures, console)


def show_checks(figures: Figures, console: Terminal) -> None:
    """Print the conditions of admission."""
    holds = {True: "yes", False: "no", None: "-"}
    found = [(c.what, c.found, c.wanted, holds[c.holds]) for c in checks(figures)]
    console.print(console.tables(("admission", "found", "wanted", "holds"), found))


def value_text(value: Value | None, metric: str) -> str:
    """A mean and its error as text; `-` for None."""
    return "-" if value is None else str(with_error(*value, metric))


def verdicts(room: HeadRoom) -> list[str]:
    """Sentences on ERM at chance, and on the correlation of values in and out of distribution."""
    sentences = []
    if room.is_at_chance:
        sentences.append("ERM is no better than the constant answer.")
    if room.spearman is not None:
        rho, p = room.spearman
        line = "on the line" if room.is_on_the_line else "not on the line"
        count = counted(room.draws * room.trials, "run")
        sentences.append(
            f"Spearman's correlation of values in and out of distribution over {count} of ERM: "
            f"{rho:+.2f} (p = {p:.2g}), {line}."
        )
    return sentences


def _against_ceiling(
    dataset: Dataset, settings: Mapping[str, Any], rows: Sequence[str]
) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": dataset.name, **settings}
    algorithms: list[Any] = [*rows]
    if like_test := _like_test(dataset):
        entry["ceiling"] = like_test
        algorithms += [{"name": r, "label": _of(CEILING, r), "ceiling": True} for r in rows]
    return {"datasets": [entry], "algorithms": algorithms}


def _of(what: str, row: str) -> str:
    return what if row == ERM else f"{row} {what}"


def _alone(dataset: Dataset, settings: Mapping[str, Any], rows: Sequence[str]) -> dict[str, Any]:
    tests = dataset.test_environments
    others = [name for name in dataset.environments if name not in tests]
    if not set(tests) <= set(dataset.trainable(others)):
        return {}
    return {
        "datasets": [{"name": dataset.name, **settings}],
        "algorithms": [{"name": row, "label": _of(ALONE, row)} for row in rows],
        "test_environments": [others],
        "validation_environments": "none",
    }


def _planned(sweep: dict[str, Any], options: LaunchOptions, is_needed: bool) -> dict[str, RunSpec]:
    plan = make_plan(validate(sweep, "diagnose dataset"), options.data_dir)
    if is_needed and not plan.runs:
        raise UserError(f"no run is possible: {plan.impossible[0].reason}")
    return plan.runs


def _like_test(dataset: Dataset) -> dict[str, Any]:
    known = defaults(type(dataset.options))
    for name in LIKE_TEST:
        if known.get(name) is False:
            return {name: True}
        if known.get(name) == "" and len(dataset.test_environments) == 1:
            return {name: dataset.test_environments[0]}
    return {}


def _compared(
    dataset: Dataset,
    budget: Mapping[str, Any],
    frames: Tables,
    own: Tables | None,
    rows: Sequence[str],
) -> HeadRoom:
    runs, higher, labels = frames.runs, dataset.higher_is_better, set(frames.runs["label"])
    failed = runs[~runs["state"].isin(COMPLETE)]
    if len(failed):
        raise UserError(f"{counted(len(failed), 'run')} failed: {failed['error'].iloc[0]}")
    cell, names = why(frames, label=ERM), [_of(CEILING, row) for row in rows]
    ceilings = {name: value_of(why(frames, label=name)) for name in names if name in labels}
    if own is not None:
        alone = {_of(ALONE, r): _on_its_own(own, higher, _of(ALONE, r)) for r in rows}
        ceilings |= {name: value for name, value in alone.items() if value}
    reported = reported_metrics(frames)[0]
    constant = constant_values(cell_runs(runs), reported).groupby("trial")["value"].mean()
    spent = runs["training_seconds"] + runs["evaluation_seconds"]
    return HeadRoom(
        label=dataset.label,
        tests=tuple(dataset.test_environments),
        rule=cell.rule,
        steps=int(budget["steps"]),
        draws=int(budget["hparam_draws"]),
        trials=int(budget["trials"]),
        seconds=float(spent[runs["label"] == ERM].mean()),
        constant=mean_and_error(constant) if len(constant) else None,
        spearman=_spearman(frames),
        figures=figures(frames, ceilings, cell.metric, higher),
    )


def _spearman(frames: Tables) -> Value | None:
    try:
        runs = why(frames, label=ERM, rule="train_val").runs[["score", "value"]].dropna()
    except UserError:  # there are no `out` splits
        return None
    if len(runs) < 3 or runs["score"].nunique() < 2 or runs["value"].nunique() < 2:
        return None
    result = scipy.stats.spearmanr(runs["score"], runs["value"])
    return float(result.statistic), float(result.pvalue)


def _on_its_own(frames: Tables, higher_is_better: bool, label: str) -> Value | None:
    # the mean over trials of a row's `out` value at the draw and step that the other trials choose; a
    # choice by the same trial would bias the values upwards
    try:
        scores = judge(frames, "train_val").candidates
    except UserError:
        return None
    scores = scores[scores["label"] == label]
    table = scores.pivot_table("score", ["draw", "step"], "trial", "first")
    table = table if higher_is_better else -table
    if table.shape[1] < 2:
        return None
    values = []
    for trial in table:
        best = int(np.nanargmax(table.drop(columns=trial).mean(axis=1).to_numpy()))
        values.append(float(table[trial].iloc[best]))
    mean, error = mean_and_error(values)
    return (mean if higher_is_better else -mean), error
