"""The contents of a page: everything that it shows, as one tree of plain values.

Rows and datasets are given by their places in `rows` and `datasets`.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import pandas as pd

from oodbench.errors import UserError, unknown
from oodbench.metrics import is_proportion
from oodbench.report.cells import METHOD, over_ties, test_values
from oodbench.report.comparison import gain_cell, orders, selection_cost, selection_costs
from oodbench.report.gaps import BASELINE, Gaps, losses
from oodbench.report.html.views import Numbers, numbers_by, views
from oodbench.report.numbers import gain, number
from oodbench.report.sources import with_prediction_metrics
from oodbench.report.statistics import Difference
from oodbench.report.tables import Block
from oodbench.report.tables.remarks import number_of_trials
from oodbench.results.run_spec import COMPLETE, State
from oodbench.results.tables import CELL, Tables, plugins_of
from oodbench.selection import find_rule, rule_names, sees_test, served, usual
from oodbench.terminal import counted
from oodbench.version import __version__


def contents(frames: Tables, baseline: str = BASELINE, metric: str | None = None) -> dict[str, Any]:
    """Everything on the page of these runs.

    `metric` is shown instead of the datasets' own, and never changes what is chosen; one that is computed
    from kept predictions has values where a rule chose. Raises UserError if no run is planned, and for
    an unknown baseline or metric.
    """
    frames = with_prediction_metrics(frames, served(frames) if metric else (), [metric])
    runs = frames.runs
    labels = [str(label) for label in runs["label"].unique()]
    if baseline not in labels and baseline != BASELINE:
        raise unknown("baseline", baseline, labels)
    by_rule: dict[str, Numbers] = {}
    errors: dict[str, str] = {}
    for rule in dict.fromkeys([usual(frames), *rule_names()]):
        try:
            by_rule[rule] = numbers_by(frames, rule, baseline, metric)
        except UserError as error:
            errors[rule] = str(error)
    if usual(frames) not in rule_names() or (metric is not None and not by_rule):
        raise UserError(errors[usual(frames)])
    kinds = _kinds(by_rule.values(), labels)
    datasets = [str(d) for d in runs["dataset_label"].unique()]
    gaps = {name: one.gaps for name, one in by_rule.items() if one.gaps is not None}
    rules = {name: _rule(one, gaps, datasets, list(kinds)) for name, one in by_rule.items()}
    return {
        "title": _title(runs),
        "source": " ".join(map(str, runs["directory"].unique())),
        "version": __version__,
        "baseline": baseline if baseline in labels else None,
        "datasets": [_dataset(name, runs, by_rule) for name in datasets],
        "rows": [{"label": x, "kind": k, "own": int(x in _own(runs))} for x, k in kinds.items()],
        "rule": usual(frames) if usual(frames) in rules else next(iter(rules), ""),
        "rules": rules,
        "cost": selection_cost(gaps),
        "errors": errors,
        "tables": _tables(gaps, usual(frames)),
        "states": {str(k): int(v) for k, v in runs["state"].value_counts().items()},
        "unfinished": _unfinished(runs),
    }


def _title(runs: pd.DataFrame) -> str:
    return " + ".join(PurePath(str(name)).name for name in runs["directory"].unique())


def _own(runs: pd.DataFrame) -> set[str]:
    if "frozen" not in runs or not runs["frozen"].eq(True).any():
        return set()
    return set(runs.loc[~runs["frozen"].eq(True), "label"])


def _kinds(judged_runs: Any, labels: Sequence[str]) -> dict[str, str]:
    kinds = dict.fromkeys(labels, METHOD)
    for one in judged_runs:
        frame = one.board.frame
        kinds |= dict(zip(frame["label"], frame["kind"], strict=True))
    return kinds


def _dataset(name: str, runs: pd.DataFrame, by_rule: Mapping[str, Numbers]) -> dict[str, Any]:
    known = [one for one in by_rule.values() if name in one.means.index]
    metric = known[0].metric(name) if known else ""
    higher = known[0].higher(name) if known else True
    tests = runs.loc[runs["dataset_label"] == name, "test_environments"].unique()
    return {
        "name": name,
        "metric": metric + (" (%)" if is_proportion(metric) else ""),
        "percent": is_proportion(metric),
        "higher": higher,
        "tests": ["+".join(names) for names in tests],
    }


def _rule(
    one: Numbers,
    gaps: Mapping[str, Gaps],
    datasets: Sequence[str],
    labels: Sequence[str],
) -> dict[str, Any]:
    chosen = _chosen(one)
    board = one.board
    others = [g for name, g in gaps.items() if name != one.rule and not sees_test(name)]
    return {
        "asked": _asked(one),
        "notes": [str(note) for note in (*board.findings, *board.notes, *board.remarks)],
        "views": [view.tree(labels, datasets) for view in views(one, others)],
        "cells": [_cells(one, dataset, labels, chosen) for dataset in datasets],
        "environments": [_environments(one, dataset, labels) for dataset in datasets],
    }


def _asked(one: Numbers) -> str:
    """Say which question the runs answer, and how many they are."""
    runs = one.board.chosen.runs
    runs = runs[runs["dataset_label"].isin(one.board.frame["dataset"])]
    methods = set(one.board.frame.loc[one.board.frame["kind"] == METHOD, "label"])
    counts = [counted(len(methods), "row"), counted(runs["dataset_label"].nunique(), "dataset")]
    summary = find_rule(one.rule, plugins=plugins_of(one.board.chosen.tables)).description
    draws = counted(int(runs["draw"].nunique()), "draw")
    return (
        f"Which of {counts[0]} does best on test environments that it never saw? {counts[1]}; {draws} of "
        f"hyperparameters; trials: {number_of_trials(runs)}. Selected by {one.rule}: "
        f"{summary}."
    )


def _chosen(one: Numbers) -> dict[Any, list[list[Any]]]:
    """List chosen runs by dataset and label: test sets if several, how many draws tie if some do, trials,
    draws, steps, scores, values.
    """
    by_rule, metrics = one.board.chosen, one.metrics
    ties = by_rule.tied.groupby(CELL, sort=False).size().rename("ties")
    values = over_ties(test_values(by_rule, by_rule.tied, metrics), CELL)
    chosen = by_rule.chosen.merge(values, on=CELL).merge(ties, on=CELL)
    found: dict[Any, list[list[Any]]] = {}
    for key, group in chosen.groupby(["dataset_label", "label"], sort=False):
        tests, tied = list(group["test_environments"].map("+".join)), list(map(int, group["ties"]))
        found[key] = [
            tests if len(set(tests)) > 1 else [],
            tied if max(tied) > 1 else [],
            *([int(v) for v in group[name]] for name in ("trial", "draw", "step")),
            _significant(group["score"]),
            _significant(group["value"]),
        ]
    return found


def _significant(values: Any) -> list[float | None]:
    return [float(f"{v:.4g}") if math.isfinite(v) else None for v in map(float, values)]


def _cells(
    one: Numbers, dataset: str, labels: Sequence[str], chosen: Mapping[Any, Any]
) -> list[Any]:
    """List for each label value, share of the gap, gain, colour, sign, facts and chosen runs, or None."""
    if dataset not in one.means.index:
        return [None] * len(labels)
    means = one.on(dataset)
    shares = _shares(one, dataset)
    gains = [abs(d.gain.mean) for (of, _), d in one.differences.items() if of == dataset]
    largest = max((v for v in gains if math.isfinite(v)), default=0.0) or 1.0
    rows = means.to_dict(orient="index")
    cells: list[Any] = []
    for label in labels:
        row, d = rows.get(label), one.differences.get((dataset, label))
        if row is None or not row["n"]:
            cells.append(None)
            continue
        share = shares.get(label)
        colour = share if shares else d.gain.mean / largest if d else None
        known = [(column.name, str(column.cell(row))) for column in one.board.columns]
        facts = [[name, text] for name, text in known if text]
        texts = [number(row["mean"], row["stderr"], row["metric"]), "", ""]
        if share is not None:
            texts[1] = f"{share:z.2f}".replace("inf", "∞")
        if d is not None:
            texts[2] = str(gain_cell(d, row["metric"]))
            facts += _facts(d, row["metric"], one.unit(dataset))
        sign = one.signs.get((dataset, label), 0)
        cells.append([*texts, _bounded(colour), sign, facts, chosen.get((dataset, label), [])])
    return cells


def _shares(one: Numbers, dataset: str) -> dict[str, float]:
    if one.gaps is None or dataset not in one.gaps.shares.index:
        return {}
    tables = one.gaps.apart_shares, one.gaps.shares
    rows = (pd.Series(table.loc[dataset]).dropna().to_dict() for table in tables)
    return {str(label): value for row in rows for label, value in row.items()}


def _bounded(value: float | None) -> float | None:
    if value is None or math.isnan(value):
        return None
    return round(min(max(value, -1.0), 1.0), 2)


def _facts(d: Difference, metric: str, unit: str) -> list[list[str]]:
    """Give the number of pairs where some are missing, and the smallest gain that so many could show."""
    facts = [["pairs", f"{d.pairs} of {d.planned}"]] if d.pairs < d.planned else []
    if math.isfinite(d.detectable):
        facts.append(["detectable", f"{gain(d.detectable, metric, '')} {unit}"])
    return facts


def _environments(one: Numbers, dataset: str, labels: Sequence[str]) -> list[dict[str, Any]]:
    """List the columns of a dataset beside its mean, each with a text for each label."""
    frame = one.board.frame
    rest = frame[(frame["dataset"] == dataset) & (frame["environment"] != "mean")]
    columns = []
    for key, group in rest.groupby(["test_environments", "environment", "metric"], sort=False):
        tests, environment, metric = map(str, key)
        own = group.set_index("label").to_dict(orient="index")
        name = environment or metric
        if "+" in tests:
            name = f"{name} of {tests}"
        texts = [_text(own.get(label)) for label in labels]
        columns.append({"name": name, "texts": texts})
    return columns if len(columns) > 1 else []


def _text(row: Mapping[Any, Any] | None) -> str:
    return number(row["mean"], row["stderr"], row["metric"]) if row and row["n"] else "-"


def _tables(gaps: Mapping[str, Gaps], rule: str) -> list[dict[str, Any]]:
    """List the folded tables, which do not depend on the rule that is shown."""
    shown: list[tuple[str, Block]] = []
    if rule in losses(gaps):
        about = (
            f"How much better a row is by the oracle than by {rule}, as a share of the gap between "
            f"{BASELINE} and the ceiling by the oracle."
        )
        shown.append((about, selection_costs(gaps, rule)))
    if rule in gaps and len(gaps[rule].shares) > 1:
        about = (
            "Kendall's tau of the order of rows by the mean share of the gap with the usual order: 1 is "
            "the same. By another rule it is over the datasets that both judge."
        )
        shown.append((about, orders(gaps, rule)))
    return [{"title": b.title, "note": n, "header": b.header, "rows": b.rows} for n, b in shown]


def _unfinished(runs: pd.DataFrame) -> list[list[str]]:
    """List run, dataset, row, state and reason of each run that has not ended well."""
    wrong = runs[~runs["state"].isin(COMPLETE) | (runs["state"] == State.DIVERGED)]
    columns = ["id", "dataset_label", "label", "state", "error", "last_step"]
    return [
        [str(i), str(d), str(x), str(s), _reason(str(s), e, step)]
        for i, d, x, s, e, step in wrong[columns].itertuples(index=False, name=None)
        if s != State.PLANNED
    ]


def _reason(state: str, error: object, step: float) -> str:
    """Say why a run has not ended, or ended early; empty if nothing is wrong."""
    if state in (State.FAILED, State.BROKEN):
        return str(error or "no reason recorded")
    if state == State.DIVERGED:
        return f"the loss was not finite at step {step:.0f}"
    return "launching the sweep again continues it" if state == State.LOST else ""
