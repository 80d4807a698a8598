"""The contents of a page: everything that it shows, as one tree of plain values.

Rows and datasets are given by their places in `rows` and `datasets`.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import PurePath
from typing import Any

import pandas as pd

from oodbench.errors import UserError, unknown
from oodbench.metrics import is_proportion
from oodbench.report.comparison import gain_text
from oodbench.report.gaps import BASELINE, Gaps, bounded_mean
from oodbench.report.html.views import Numbers, numbers_by, views
from oodbench.report.numbers import gain, number
from oodbench.report.sources import with_prediction_metrics
from oodbench.report.statistics import Difference, kendall
from oodbench.report.tables import Block
from oodbench.report.tables.leaderboard import METHOD
from oodbench.report.tables.remarks import number_of_trials
from oodbench.results.frames import Frames, plugins_of
from oodbench.results.run_spec import COMPLETE, State
from oodbench.selection import find_rule, rule_names, sees_test, served, usual
from oodbench.terminal import counted
from oodbench.version import __version__


def contents(frames: Frames, baseline: str = BASELINE, metric: str | None = None) -> dict[str, Any]:
    """Return everything on the page of these runs.

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
    rules = {name: _rule(one, runs, datasets, list(kinds)) for name, one in by_rule.items()}
    gaps = {name: one.gaps for name, one in by_rule.items() if one.gaps is not None}
    return {
        "title": _title(runs),
        "source": " ".join(map(str, runs["directory"].unique())),
        "version": __version__,
        "baseline": baseline if baseline in labels else None,
        "datasets": [_dataset(name, runs, by_rule) for name in datasets],
        "rows": [{"label": x, "kind": k, "own": int(x in _own(runs))} for x, k in kinds.items()],
        "rule": usual(frames) if usual(frames) in rules else next(iter(rules), ""),
        "rules": rules,
        "errors": errors,
        "tables": [
            _table(*shown)
            for shown in (
                *_selection_costs(by_rule, usual(frames)),
                *_tables(runs, gaps, usual(frames), baseline),
            )
        ],
        "states": {str(k): int(v) for k, v in runs["state"].value_counts().items()},
        "unfinished": _unfinished(runs),
    }


def _title(runs: pd.DataFrame) -> str:
    """Name the boards and directories that the runs are from."""
    return " + ".join(PurePath(str(name)).name for name in runs["directory"].unique())


def _own(runs: pd.DataFrame) -> set[str]:
    """Return the labels of the runs that stand beside frozen ones."""
    if "frozen" not in runs or not runs["frozen"].eq(True).any():
        return set()
    return set(runs.loc[~runs["frozen"].eq(True), "label"])


def _kinds(judged_runs: Any, labels: Sequence[str]) -> dict[str, str]:
    """Return the kind of each row: `method`, `transductive`, `ceiling` or `constant`."""
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
    runs: pd.DataFrame,
    datasets: Sequence[str],
    labels: Sequence[str],
) -> dict[str, Any]:
    """Return the part of a page that depends on the selection rule."""
    chosen = _chosen(one)
    board = one.board
    return {
        "asked": _asked(one, runs),
        "notes": [str(note) for note in (*board.findings, *board.notes, *board.remarks)],
        "views": [view.tree(labels, datasets) for view in views(one)],
        "cells": [_cells(one, dataset, labels, chosen) for dataset in datasets],
        "environments": [_environments(one, dataset, labels) for dataset in datasets],
    }


def _asked(one: Numbers, runs: pd.DataFrame) -> str:
    """Say which question the runs answer, and how many they are."""
    runs = runs[runs["dataset_label"].isin(one.board.frame["dataset"])]
    methods = set(one.board.frame.loc[one.board.frame["kind"] == METHOD, "label"])
    counts = [counted(len(methods), "row"), counted(runs["dataset_label"].nunique(), "dataset")]
    summary = find_rule(one.rule, plugins=plugins_of(one.judged.frames)).description
    draws = counted(int(runs["draw"].nunique()), "draw")
    return (
        f"Which of {counts[0]} does best on test environments that it never saw? {counts[1]}; {draws} of "
        f"hyperparameters; trials: {number_of_trials(runs)}. Selected by {one.rule}: "
        f"{summary}."
    )


def _chosen(one: Numbers) -> dict[Any, list[list[Any]]]:
    """List chosen runs by dataset and label: test sets if several, trials, draws, steps, scores, values."""
    chosen = one.judged.chosen.copy()
    metrics = dict(zip(one.board.frame["dataset"], one.board.frame["metric"], strict=True))
    tested = one.judged.test_values(chosen[["id", "step"]], metrics)
    means = tested["value"].fillna(-math.inf).groupby(tested["id"], sort=False).mean()
    chosen["value"] = chosen["id"].map(means)
    found: dict[Any, list[list[Any]]] = {}
    for key, group in chosen.groupby(["dataset_label", "label"], sort=False):
        counts = [[int(v) for v in group[name]] for name in ("trial", "draw", "step")]
        tests = list(group["test_environments"].map("+".join))
        found[key] = [
            tests if len(set(tests)) > 1 else [],
            *counts,
            _significant(group["score"]),
            _significant(group["value"]),
        ]
    return found


def _significant(values: Any) -> list[float | None]:
    """Return values (n,) rounded to 4 significant digits; None where a value is not finite."""
    return [float(f"{v:.4g}") if math.isfinite(v) else None for v in map(float, values)]


def _cells(
    one: Numbers, dataset: str, labels: Sequence[str], chosen: Mapping[Any, Any]
) -> list[Any]:
    """List for each label value, share of the gap, gain, colour, sign, facts and chosen runs, or None."""
    if dataset not in one.means.index:
        return [None] * len(labels)
    means = one.on(dataset)
    shares = _shares(one, dataset)
    known = [abs(d.gain.mean) for (of, _), d in one.differences.items() if of == dataset]
    largest = max((v for v in known if math.isfinite(v)), default=0.0) or 1.0
    rows = means.to_dict(orient="index")
    cells: list[Any] = []
    for label in labels:
        row, d = rows.get(label), one.differences.get((dataset, label))
        if row is None or not row["n"]:
            cells.append(None)
            continue
        share = shares.get(label)
        colour = share if shares else d.gain.mean / largest if d else None
        facts = [[c.name, c.text(row)] for c in one.board.columns if c.text(row)]
        texts = [number(row["mean"], row["stderr"], row["metric"]), "", ""]
        if share is not None:
            texts[1] = f"{share:z.2f}".replace("inf", "∞")
        if d is not None:
            texts[2] = gain_text(d, row["metric"])
            facts += _facts(d, row["metric"], one.unit(dataset))
        sign = one.signs.get((dataset, label), 0)
        cells.append([*texts, _bounded(colour), sign, facts, chosen.get((dataset, label), [])])
    return cells


def _shares(one: Numbers, dataset: str) -> dict[str, float]:
    """Return the share of the gap that each row closes on a dataset."""
    if one.gaps is None or dataset not in one.gaps.shares.index:
        return {}
    tables = one.gaps.apart_shares, one.gaps.shares
    rows = (pd.Series(table.loc[dataset]).dropna().to_dict() for table in tables)
    return {str(label): value for row in rows for label, value in row.items()}


def _bounded(value: float | None) -> float | None:
    """Bound a colour to [-1, 1] and round it to two digits."""
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


def _tables(
    runs: pd.DataFrame, gaps: Mapping[str, Gaps], rule: str, baseline: str
) -> list[tuple[str, Block]]:
    """List the tables that do not depend on the rule, each with its note."""
    about = "Kendall's tau of the orders of rows by the share of the gap; 1 is the same order."
    shown = [(about, block) for block in agreement_tables(gaps, rule)]
    cost = _costs(runs, baseline)
    return [*shown, cost] if cost[1].rows else shown


def _selection_costs(by_rule: Mapping[str, Numbers], rule: str) -> list[tuple[str, Block]]:
    """Return a table of what rows lose to the oracle by `rule`, and on average by the others; or none."""
    fair = sorted((name for name in by_rule if not sees_test(name)), key=lambda name: name != rule)
    oracles = [one for name, one in by_rule.items() if sees_test(name)]
    if not oracles or rule not in fair:
        return []
    lost = {name: _lost(by_rule[name], oracles[0]) for name in fair}
    shown, one = lost[rule], by_rule[rule]
    shares = {n: [d for d in map(str, t) if is_proportion(one.metric(d))] for n, t in lost.items()}
    means = pd.DataFrame(
        {name: lost[name][shares[name]].mean(axis=1) for name in fair if shares[name]}
    )
    table = means.rename(columns="mean by {}".format).join(shown)
    table.loc["mean over rows"] = table.mean()
    rows = [[str(x), *(_points(v) for v in values)] for x, *values in table.itertuples(name=None)]
    note = (
        f"How much better a row's value by {oracles[0].rule} is than by {rule}, in points or the dataset's "
        "metric. Means are over the datasets that are measured in proportions."
    )
    header = ["algorithm", *map(str, table.columns)]
    return [(note, Block("What selection costs", header, rows, len(rows)))]


def _lost(one: Numbers, oracle: Numbers) -> pd.DataFrame:
    """Return how much better each method is by the oracle than by a rule, by label and dataset."""
    methods = one.means[one.means["kind"] == METHOD].reset_index()
    own, best = (
        means.pivot(index="label", columns="dataset", values="mean")
        for means in (methods, oracle.means.reset_index())
    )
    datasets = [str(d) for d in methods["dataset"].unique() if d in best]
    signs = {d: one.scale(d) * (1 if one.higher(d) else -1) for d in datasets}
    lost = (best - own).reindex(methods["label"].unique())[datasets]
    return lost * pd.Series(signs)


def _points(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:z.1f}" if abs(value) >= 1 else f"{value:z.2f}"


def _costs(runs: pd.DataFrame, baseline: str) -> tuple[str, Block]:
    """Compare the seconds a step of each row's fastest run with the baseline's, if that was run."""
    timed = runs[(runs["last_step"].astype(float) > 0) & runs["training_seconds"].notna()]
    pace = timed["training_seconds"].astype(float) / timed["last_step"].astype(float)
    places = [timed["label"], timed["dataset_label"]]
    table = pace.groupby(places, sort=False).min().unstack()
    seconds = timed["training_seconds"].astype(float).groupby(timed["label"]).sum().to_dict()
    is_ratio = baseline in table.index
    shown = table / table.loc[baseline] if is_ratio else 1000 * table
    rows = [
        [str(x), f"{v.median():.2f}", f"{seconds[x] / 3600:.2g}", *map(_ratio, v)]
        for x, v in shown.iterrows()
    ]
    what = f"Times the seconds of {baseline}" if is_ratio else "Milliseconds a step"
    note = (
        f"{what}, of each row's fastest run with its evaluations; the median over datasets, and each. Runs "
        "that are trained as one program share its time. Hours: of all runs."
    )
    return note, Block("Cost", ["algorithm", "median", "hours", *map(str, table)], rows, len(rows))


def _ratio(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"


def _table(note: str, block: Block) -> dict[str, Any]:
    return {"title": block.title, "note": note, "header": block.header, "rows": block.rows}


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


def agreement_tables(gaps: Mapping[str, Gaps], rule: str) -> list[Block]:
    """Return the tables of the agreement of datasets by a rule, and of rules."""
    shown = [datasets_agree(gaps[rule])] if rule in gaps and len(gaps[rule].shares) > 1 else []
    return [*shown, rules_agree(gaps)] if len(gaps) > 1 else shown


def datasets_agree(gaps: Gaps) -> Block:
    """Return a table of Kendall's tau of the orders of rows on two datasets, and on one and the others."""
    table = gaps.shares
    known = {dataset: shares.dropna() for dataset, shares in table.iterrows()}
    taus = {(a, b): kendall(known[a], known[b]) for a, b in combinations(known, 2)}
    taus |= {(b, a): tau for (a, b), tau in taus.items()}
    rows = []
    for dataset, here in known.items():
        cells = ["" if d == dataset else _tau(taus[dataset, d]) for d in known]
        rest = bounded_mean(table.drop(dataset)).dropna()
        rows.append([str(dataset), *cells, _tau(kendall(here, rest))])
    header = ["dataset", *map(str, table.index), "mean of the others"]
    return Block("Datasets: Kendall's tau of the orders of rows", header, rows, len(rows))


def rules_agree(gaps: Mapping[str, Gaps]) -> Block:
    """Kendall's tau between the rows' mean shares by each two rules, over the datasets that both judge."""
    rows = []
    for rule, one in gaps.items():
        cells = []
        for other in gaps.values():
            both = one.shares.index.intersection(other.shares.index)
            a, b = (bounded_mean(g.shares.loc[both]).dropna() for g in (one, other))
            tau = f"{_tau(kendall(a, b))} ({counted(len(both), 'dataset')})"
            cells.append("" if one is other else tau)
        rows.append([rule, *cells])
    return Block("Rules: Kendall's tau of the orders of rows", ["rule", *gaps], rows, len(rows))


def _tau(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:z.2f}"
