"""The origin of a number of the leaderboard: the runs behind its cell, what was tried and chosen."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd

from oodbench.errors import UserError, unknown
from oodbench.metrics import needs
from oodbench.report.cells import mean_values, test_values, unknown_metric
from oodbench.report.numbers import UNDEFINED, Cell, with_error, with_unit
from oodbench.report.statistics import LEAST, mean_and_error
from oodbench.report.tables import Block, Sheet
from oodbench.results.directory import Directory
from oodbench.results.run_directory import kept_weights
from oodbench.results.run_spec import COMPLETE, SCORE
from oodbench.results.tables import Tables
from oodbench.selection import find_rule
from oodbench.selection.judge import judge
from oodbench.terminal import Terminal, plain_terminal


@dataclass(frozen=True)
class Why:
    """The runs behind one cell of a leaderboard, shown as `python -m oodbench.report why` prints them."""

    dataset: str
    label: str
    test_environments: tuple[str, ...]
    rule: str
    metric: str
    """The metric of `value`."""
    selection_metric: str
    """The metric of `score`: the rule's, else the dataset's main one."""
    classes: tuple[str, ...]
    """The names of the dataset's classes, if any."""
    runs: pd.DataFrame
    """One run per row, by trial, the best first: `trial`, `draw`, `id`, `state`, `hparams`, `step` (the
    run's best by the rule), `score`, `value` (mean over the test environments' `in` splits at that step),
    `chosen`, `tied` (chosen, or with the score of the chosen run), `undefined` (tied, but without a value
    of the metric). Scores and values are NaN if a run cannot be judged. A metric computed from kept
    predictions has values only for tied runs."""
    directory: str | None = None
    """The results directory, if all chosen runs are in one."""

    def of_trials(self, column: str) -> "pd.Series[float]":
        """The mean `score` or `value` of the tied runs of each trial that has a choice."""
        counts = self.runs["tied"] & ~(self.runs["undefined"] & (column == "value"))
        of_tied = self.runs.loc[counts, ["trial", column]]
        return mean_values(of_tied.rename(columns={column: "value"}), ["trial"])["value"]

    @property
    def waiting(self) -> list[int]:
        """The trials in which nothing is chosen yet."""
        done = set(self.runs.loc[self.runs["chosen"], "trial"])
        return [int(t) for t in sorted(set(self.runs["trial"]) - done)]

    def __repr__(self) -> str:
        console = plain_terminal()
        with console.capture() as capture:
            show(self, console)
        return capture.get()


def why(
    frames: Tables,
    dataset: str | None = None,
    label: str | None = None,
    test: str | None = None,
    rule: str | None = None,
    metric: str | None = None,
    *,
    options: Sequence[str] = ("--dataset", "--algorithm", "--test-env"),
) -> Why:
    """The runs behind the cell of a dataset, a row and a test set (names joined by `+`).

    A name may be left out if there is only one. `metric`, the dataset's own by default, never changes what
    is chosen. Raises UserError for unknown names, for a rule that cannot judge these runs, and for a
    missing name, with the option of `options` that gives it.
    """
    one = judge(frames, rule)
    runs = one.runs[~one.runs["helper"]]
    runs = runs.assign(test=runs["test_environments"].map("+".join))
    columns = {"dataset_label": dataset, "label": label, "test": test}
    nouns = ("dataset", "algorithm", "test environment")
    for (column, name), what, option in zip(columns.items(), nouns, options, strict=True):
        runs = runs[runs[column] == _one(what, option, name, runs[column])]
    metrics, classes, directories = (
        runs[name].dropna() for name in ("metric", "classes", "directory")
    )
    usual_metric = str(metrics.iloc[0]) if len(metrics) else ""
    known = sorted(frames.records.loc[frames.records["split"] != SCORE, "metric"].unique())
    if metric is not None and metric not in known:
        raise unknown_metric(metric, known, frames)
    first = runs.iloc[0]
    best = one.candidates[one.candidates["run"].isin(runs.index)].drop_duplicates("run")
    shown = {str(first["dataset_label"]): metric or usual_metric}
    values = test_values(one, best[["run", "id", "step"]], shown)
    means = mean_values(values[~values["undefined"]], ["run"]).set_index("run")["value"]
    best = best.assign(value=best["run"].map(means), place=range(len(best))).set_index("run")
    table = runs[["trial", "draw", "id", "state", "hparams"]].join(
        best[["step", "score", "value", "place"]]
    )
    table = table.sort_values(["trial", "place", "draw"]).drop(columns="place")
    tied, has_value = (table.index.isin(rows) for rows in (one.tied["run"], means.index))
    table = table.assign(chosen=table.index.isin(one.chosen["run"]), tied=tied)
    return Why(
        dataset=str(first["dataset_label"]),
        label=str(first["label"]),
        test_environments=tuple(first["test_environments"]),
        rule=one.rule.full_name,
        metric=metric or usual_metric,
        selection_metric=one.rule.metric or usual_metric,
        classes=tuple(classes.iloc[0]) if len(classes) else (),
        runs=table.assign(undefined=tied & ~has_value).reset_index(drop=True),
        directory=str(directories.iloc[0]) if directories.nunique() == 1 else None,
    )


def _one(what: str, option: str, name: str | None, there: Iterable[str]) -> str:
    known = list(dict.fromkeys(there))
    if name is None and len(known) > 1:
        raise UserError(f"{option} must say which {what}: {', '.join(known)}")
    if name is not None and name not in known:
        raise unknown(what, name, known)
    return known[0] if name is None else name


def load_line(cell: Why) -> str | None:
    """A line of Python, for any working directory, that loads the first chosen run with kept weights."""
    if cell.directory is None:
        return None
    results = Directory(Path(cell.directory))
    for run in cell.runs[cell.runs["chosen"]].to_dict(orient="records"):
        if (cell.rule, int(run["step"])) in kept_weights(results.run(run["id"])):
            names = {
                "dataset": cell.dataset,
                "algorithm": cell.label,
                "test_environment": "+".join(cell.test_environments),
                "rule": cell.rule,
                "trial": int(run["trial"]),
            }
            arguments = ", ".join(f"{name}={value!r}" for name, value in names.items())
            return f"oodbench.load_model({str(results.path.absolute())!r}, {arguments})"
    return None


def show(cell: Why, console: Terminal) -> None:
    """Print what is chosen and how, the runs, and the mean."""
    tests = "+".join(cell.test_environments)
    metric = cell.metric or "nothing recorded yet"
    console.say(f"{cell.label} on {cell.dataset}, test {tests}, selection {cell.rule}: {metric}")
    if cell.classes:
        console.say(f"Classes: {', '.join(cell.classes)}.")
    console.say(f"{cell.rule}: {find_rule(cell.rule).description}.")
    console.say(
        "In each trial the run and step with the best score is chosen; ties go to the lowest draw, "
        "then to the earliest step. Draws that tie count with the mean of their values."
    )
    console.print()
    rows = [_row(cell, run) for run in cell.runs.itertuples()]
    console.print(console.tables(HEADER, rows, keys=2), soft_wrap=True)
    console.say(_mean(cell))
    if line := load_line(cell):
        console.say("The chosen weights are kept; in Python:")
        console.print(line, soft_wrap=True, markup=False, highlight=False)  # to be copied
    states = cell.runs.loc[~cell.runs["state"].isin(COMPLETE), "state"].value_counts()
    if cell.waiting:
        trials = ", ".join(map(str, cell.waiting))
        counts = ", ".join(f"{n} {state}" for state, n in states.items()) or "those that judge them"
        console.say(f"Runs that are missing for a choice in trial {trials}: {counts}.")


HEADER = ("trial", "draw", "step", "score", "value", "chosen", "state", "run")


def _row(cell: Why, run: Any) -> list[str]:
    step, score, value = "-", "-", "-"
    if not pd.isna(run.step):
        step, score = (
            str(int(run.step)),
            str(with_error(run.score, math.nan, cell.selection_metric)),
        )
        if cell.metric == cell.selection_metric or not pd.isna(run.value):
            value = str(with_error(run.value, math.nan, cell.metric))
        value = UNDEFINED if run.undefined else value
    choice = "yes" if run.chosen else "tie" * run.tied
    place = [str(run.trial), str(run.draw), step]
    return [*place, score, value, choice, run.state, run.id]


def _mean(cell: Why) -> str:
    values = cell.of_trials("value").to_numpy(float)
    if not len(values):
        why = f"{with_unit(cell.metric)}: {UNDEFINED}, as it {needs(cell.metric)}."
        return why if cell.runs["undefined"].any() else "No trial is complete."
    mean, error = mean_and_error(values, LEAST)
    few = "one trial" if len(values) == 1 else "mean over two trials, too few for an error"
    what = few if len(values) < LEAST else "mean ± standard error over trials (ddof=1)"
    shown = f"{with_unit(cell.metric)}: {with_error(mean, error, cell.metric)}"
    return f"{shown}, {what}, n = {len(values)} of {cell.runs['trial'].nunique()}"


TRIED_HEADER = ["dataset", "algorithm", "hyperparameter", "default", "tried", "chosen"]


def hparams_sheet(frames: Tables, rule: str | None = None) -> Sheet:
    """A table of all varied hyperparameters: their defaults (draw 0), and the tried and chosen values.

    Numbers are `lowest to highest`, for chosen runs `median (lowest to highest)`; other values are listed.
    Raises UserError as `judge`.
    """
    one = judge(frames, rule)
    runs, best = frames.runs, one.chosen["run"]
    rows: list[list[Cell]] = []
    groups = runs[~runs["ceiling"]].groupby(["dataset_label", "label"], sort=False)
    for row, group in groups:
        for name in varied(group["hparams"]):
            there = group[[name in hparams for hparams in group["hparams"]]]
            values = there["hparams"].map(itemgetter(name))
            defaults, chosen = values[there["draw"] == 0], values[there.index.isin(best)]
            spans = _span(defaults[:1]), _span(values), _span(chosen, with_median=True)
            rows.append([*map(str, row), name, *spans])
    frame = pd.DataFrame(rows, columns=TRIED_HEADER)
    named = frame[TRIED_HEADER[:2]]
    repeated = named.eq(named.shift())
    repeated["algorithm"] &= repeated["dataset"]
    shown = frame.assign(**named.mask(repeated, "")).to_numpy().tolist()
    title = "Hyperparameters: tried and chosen"
    block = Block(title, TRIED_HEADER, shown, len(rows), keys=3)
    once = runs["hparams_from"].dropna().unique()
    notes = (
        f"Chosen by {one.rule.full_name}: the median (lowest to highest) over test environments and "
        "trials.",
        "Hyperparameters that no draw varies are at their defaults and left out.",
        *(f"Some were {text}: its own table has what was tried." for text in once),
    )
    return Sheet([block], notes, (), frame)


def varied(hparams: "pd.Series[Any]") -> list[str]:
    """The names of the hyperparameters that differ among runs."""
    names = dict.fromkeys(name for of_run in hparams for name in of_run)
    return [n for n in names if len({json.dumps(of_run.get(n)) for of_run in hparams}) > 1]


def text_of(value: Any) -> str:
    """A hyperparameter's value as text."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _span(of_runs: "pd.Series[Any]", with_median: bool = False) -> str:
    values = of_runs.tolist()
    if not values:
        return "-"
    if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        return ", ".join(dict.fromkeys(map(text_of, values)))
    low, high = text_of(min(values)), text_of(max(values))
    if low == high:
        return low
    span = f"{low} to {high}"
    return f"{text_of(median(values))} ({span})" if with_median else span
