"""The contents of the HTML report: a results directory as one tree of plain values.

Tables are columns (lists of equal length); runs, datasets, labels, test sets and provenances are
given by their places in `runs`, `datasets`, `labels`, `tests` and `provenance`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd

from oodbench.errors import UserError, unknown
from oodbench.metrics import is_proportion
from oodbench.report.comparison import OVERALL, gains
from oodbench.report.leaderboard import (
    Leaderboard,
    is_mean,
    leaderboard_by_rule,
    reported_metrics,
    scores,
    with_disagreement,
)
from oodbench.report.numbers import number
from oodbench.report.prediction_metrics import with_prediction_metric
from oodbench.report.remarks import shared
from oodbench.report.statistics import BAND, Difference, ranked
from oodbench.report.traces import (
    ROLES,
    SPLITS,
    Distinct,
    Traces,
    curves,
    inside_and_test,
    judged_runs,
    significant,
    traces,
)
from oodbench.results.directory import Results
from oodbench.results.frames import CELL, Frames, plugins_of, records_at, sweep_runs, test_values
from oodbench.results.join import joined
from oodbench.results.run_spec import CONSTANT, OPTIONS, State
from oodbench.selection import candidates, find_rule, rule_names, served, usual
from oodbench.version import __version__

STATES = tuple(State)
BASELINE = "ERM"


def contents(
    directories: Sequence[Path],
    baseline: str = BASELINE,
    metric: str | None = None,
    beside: tuple[str, Frames] | None = None,
) -> dict[str, Any]:
    """Everything on the page of these results directories.

    `beside` is the title of a board and the frames of the board's and the directories' rows together.

    `metric` is shown instead of the datasets' own, and never changes what is chosen; one that is computed
    from kept predictions has values where a rule chose. Raises UserError if there is no sweep, for an
    unknown baseline or metric, and as `join.joined` does.
    """
    title, frames = beside or ("", joined(directories))
    frames = with_prediction_metric(frames, served(frames), metric)
    runs = sweep_runs(frames)
    if metric is not None:
        reported, directions = reported_metrics(frames, runs, metric)
        runs = runs.assign(
            metric=runs["dataset_label"].map(reported).where(runs["metric"].notna()),
            higher_is_better=directions[metric],
        )
    labels = [str(label) for label in runs["label"].unique()]
    if baseline not in labels and baseline != BASELINE:
        raise unknown("baseline", baseline, labels, ", ".join(map(str, directories)))
    constant = [CONSTANT] if any(isinstance(c, dict) and c for c in runs["constant"]) else []
    ceilings = set(runs.loc[runs["ceiling"], "label"])
    apart = set(runs.loc[runs["transductive"], "label"])
    names = {
        "datasets": _datasets(runs),
        "labels": labels + constant,
        "apart": [i for i, name in enumerate(labels) if name in apart],
        "grey": [i for i, name in enumerate(labels + constant) if name in {*ceilings, *constant}],
        "tests": [list(t) for t in runs["test_environments"].unique()],
    }
    values = traces(frames, runs)
    table, tables = _runs(runs, names)
    means = inside_and_test(values)
    grids = Distinct()
    shown = dict.fromkeys([*rule_names(), usual(frames)])
    by_rule = {
        n: _rule(frames, runs, values, means, grids, names, n, baseline, metric) for n in shown
    }
    boards = [board for _, board in by_rule.values() if board is not None]
    rules = {
        name: tree | ({"findings": with_disagreement(board, boards).findings} if board else {})
        for name, (tree, board) in by_rule.items()
    }
    against = labels.index(baseline) if baseline in labels else None
    plans = [Results(directory).plan() for directory in directories]
    return {
        "title": " + ".join(
            dict.fromkeys([*([title] if title else []), *(str(plan["name"]) for plan in plans)])
        ),
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": __version__,
        "baseline": against,
        **names,
        **tables,
        "environments": values.environments,
        "steps": grids.values,
        "roles": ROLES,
        "splits": SPLITS,
        "states": STATES,
        "settings": plans[0]["settings"].get("sweep", {}) if plans else {},
        "runs": table,
        "cost": costs(table, against),
        "rule": usual(frames),
        "rules": rules,
    }


def _datasets(runs: pd.DataFrame) -> list[dict[str, Any]]:
    datasets = []
    for name, group in runs.groupby("dataset_label", sort=False):
        started = group.dropna(subset=["metric"])
        metric = str(started["metric"].iloc[0]) if len(started) else ""
        higher = bool(started["higher_is_better"].iloc[0]) if len(started) else True
        classes = started["classes"].dropna()
        datasets.append(
            {
                "name": str(name),
                "metric": metric,
                "higher": higher,
                "percent": is_proportion(metric),
                "classes": list(classes.iloc[0]) if len(classes) else [],
            }
        )
    return datasets


def _codes(values: Iterable[Any], names: Iterable[Any]) -> list[int]:
    place = {name: i for i, name in enumerate(names)}
    return [place[value] for value in values]


def _runs(runs: pd.DataFrame, names: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The runs' columns, and the tables of hyperparameters, provenances and reasons to which they point."""
    hparams, provenance = Distinct(), Distinct()
    steps = [int(v) for v in runs["last_step"].astype(float).fillna(0)]
    ends = zip(runs["state"], runs["error"], steps, strict=True)
    table = {
        "id": list(runs["id"]),
        "dataset": _codes(runs["dataset_label"], [d["name"] for d in names["datasets"]]),
        "label": _codes(runs["label"], names["labels"]),
        "tests": _codes(runs["test_environments"], [tuple(t) for t in names["tests"]]),
        "draw": [int(v) for v in runs["draw"]],
        "trial": [int(v) for v in runs["trial"]],
        "state": _codes(runs["state"], STATES),
        "helper": [int(v) for v in runs["helper"]],
        "hparams": [
            hparams.place(_short(values) | options)
            for values, options in zip(runs["hparams"], _options(runs), strict=True)
        ],
        "provenance": [
            provenance.place({k: v for k, v in p.items() if k != "started"} if p else {})
            for p in runs["provenance"]
        ],
        "step": steps,
        "seconds": significant(runs["training_seconds"], 4),
        "waited": significant(runs["waiting_seconds"], 4),
        "memory": significant(runs["memory_mb"], 4),
    }
    started = sorted(p["started"] for p in runs["provenance"] if p and "started" in p)
    return table, {
        "hparams": hparams.values,
        "provenance": provenance.values,
        "started": [started[0], started[-1]] if started else [],
        "reasons": {i: text for i, end in enumerate(ends) if (text := _reason(*end))},
    }


def _options(runs: pd.DataFrame) -> list[dict[str, Any]]:
    """The weight average, adaptation and options of each run, where they are not at their defaults."""
    shown: list[dict[str, Any]] = [{} for _ in range(len(runs))]
    for name, neutral in {"average": None, "adapt": None, **OPTIONS}.items():
        for options, value in zip(shown, runs.get(name, [neutral] * len(runs)), strict=True):
            if isinstance(value, dict):
                numbers = ", ".join(
                    f"{k} {v}" for k, v in value.items() if k not in ("name", "runs")
                )
                options[name] = f"{value['name']} ({numbers})"
            elif value != neutral and not pd.isna(value):
                options[name] = value
    return shown


def _short(hparams: Mapping[str, Any]) -> dict[str, Any]:
    return {k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in hparams.items()}


def _reason(state: str, error: object, step: int) -> str:
    """The reason why a run has not ended, or ended early; empty if nothing is wrong."""
    if state in (State.FAILED, State.BROKEN):
        return str(error or "no reason recorded")
    if state == State.DIVERGED:
        return f"the loss was not finite at step {step}"
    if state == State.LOST:
        return (
            "no process trains it any more; launching the sweep again continues it "
            "(`status` calls it paused where no error is known)"
        )
    return ""


def costs(runs: Mapping[str, Any], baseline: int | None) -> dict[str, list[Any]]:
    """The cost of each (dataset, label): `seconds` a step (the median over runs), its `ratio` to the
    baseline on the same machines, `waiting` (the share of training that waited for data, over all
    runs), `memory` (MiB, the largest), `hours` of training in all.
    """
    columns = ("dataset", "label", "provenance", "step", "seconds", "waited", "memory")
    frame = pd.DataFrame({name: runs[name] for name in columns})
    frame = frame.astype({"seconds": float, "waited": float, "memory": float})
    frame["pace"] = (frame["seconds"] / frame["step"]).where(frame["step"] > 0)
    rows = []
    for dataset, group in frame.groupby("dataset"):
        paces = group.dropna(subset=["pace"])
        medians = paces.groupby(["provenance", "label"])["pace"].median()
        against = medians[medians.index.get_level_values("label") == baseline].droplevel("label")
        ratios = (medians / against.reindex(medians.index, level="provenance")).dropna()
        for label, of_label in paces.groupby("label"):
            ratio = ratios[ratios.index.get_level_values("label") == label].median()
            timed = of_label.dropna(subset=["waited"])
            spent = timed["seconds"].sum()  # 0 of averages of runs, which are not trained
            waiting = timed["waited"].sum() / spent if spent else None
            memory, hours = of_label["memory"].max(), of_label["seconds"].sum() / 3600
            rows.append((dataset, label, of_label["pace"].median(), ratio, waiting, memory, hours))
    costs_of = ("seconds", "ratio", "waiting", "memory", "hours")
    table = pd.DataFrame(rows, columns=["dataset", "label", *costs_of])
    exact = {name: [int(v) for v in table[name]] for name in ("dataset", "label")}
    rounded = {name: significant(table[name].astype(float), 3) for name in costs_of}
    return exact | rounded


def _rule(
    frames: Frames,
    runs: pd.DataFrame,
    values: Traces,
    means: pd.DataFrame,
    grids: Distinct,
    names: Mapping[str, Any],
    rule: str,
    baseline: str,
    metric: str | None,
) -> tuple[dict[str, Any], Leaderboard | None]:
    """The part of the page that depends on the selection rule, and its leaderboard.

    There is an `error` in place of all of it, and no leaderboard, where the sweep cannot serve the
    rule.
    """
    summary = find_rule(rule, plugins=plugins_of(frames)).description
    try:
        judged_by_rule = candidates(frames, rule)
    except UserError as error:
        return {"summary": summary, "error": str(error)}, None
    judged = judged_runs(judged_by_rule, runs, values, means)
    chosen = judged[judged["chosen"]]
    only = replace(frames, metrics=_at_chosen(frames.metrics, chosen))
    board = leaderboard_by_rule(only, rule, metric)  # it chooses the same: there is nothing else
    picks = _picks(only, chosen)
    values_at_choice = scores(only, rule, metric)
    cells = chosen.groupby(["dataset_label", "label", "test_environments"])
    tree = {
        "summary": summary,
        "notes": [*board.notes, *board.remarks],
        "higher": dict(board.higher),
        "board": _board(board.frame, picks, names),
        "columns": _last_columns(board),
        "points": {name: [int(v) for v in judged[name]] for name in ("run", "step", "chosen")}
        | {name: significant(judged[name], 4) for name in ("score", "inside", "test")},
        "cells": [int(v) for v in cells["run"].first()],
        "curves": curves(values, chosen["run"], cells.ngroup(), grids),
        "shared": shared(chosen, runs, baseline),
        "differences": _differences(values_at_choice, names, baseline),
        "ranks": _ranks(values_at_choice, names, baseline),
    }
    return tree, board


def _at_chosen(metrics: pd.DataFrame, chosen: pd.DataFrame) -> pd.DataFrame:
    """The records of the chosen runs at their chosen steps."""
    steps = chosen.set_index("id")["step"].reindex(metrics["id"].cat.categories)
    wanted = steps.to_numpy()[metrics["id"].cat.codes]
    records: pd.DataFrame = metrics[metrics["step"].to_numpy() == wanted]
    return records


def _picks(frames: Frames, chosen: pd.DataFrame) -> pd.DataFrame:
    """The chosen runs' values on their test environments (`in` splits), and of the predictor itself.

    `dataset`, `label`, `test_environments`, `environment` (empty for the predictor's own),
    `metric`, `trial`, `value`, `run`.
    """
    chosen = chosen[[*CELL, "id", "step", "run"]]
    tested = test_values(frames, chosen)
    records = records_at(frames, chosen)
    picks = pd.concat([tested, records[records["environment"].isna()]], ignore_index=True)
    picks = picks.rename(columns={"dataset_label": "dataset"})
    names = ["dataset", "label", "test_environments", "environment", "metric", "trial"]
    picks = picks[[*names, "value", "run"]].astype({"environment": object, "metric": object})
    return picks.fillna({"environment": ""})


def _board(
    frame: pd.DataFrame, picks: pd.DataFrame, names: Mapping[str, Any]
) -> dict[str, list[Any]]:
    """The leaderboard's numbers with their texts, and the runs and values behind each.

    A summary over test environments lists no runs; they are in the other cells of its row.
    """
    tests = picks["test_environments"].map("+".join).where(picks["environment"] != "", "")
    keys = ["dataset", "label", "tests", "environment", "metric"]
    behind = {
        key: (list(group["run"]), significant(group["value"], 4))
        for key, group in picks.assign(tests=tests).groupby(keys, sort=False)
    }
    sources = [
        behind.get(key, ([], []))
        for key in frame[
            ["dataset", "label", "test_environments", "environment", "metric"]
        ].itertuples(index=False, name=None)
    ]
    columns = frame[["mean", "stderr", "metric"]].itertuples(index=False, name=None)
    texts = [number(*c) if n else "" for c, n in zip(columns, frame["n"], strict=True)]
    return {
        "dataset": _codes(frame["dataset"], [d["name"] for d in names["datasets"]]),
        "label": _codes(frame["label"], names["labels"]),
        "tests": list(frame["test_environments"]),
        "environment": list(frame["environment"]),
        "overall": [int(v) for v in is_mean(frame)],
        "metric": list(frame["metric"]),
        "mean": significant(frame["mean"], 12),
        "error": significant(frame["stderr"], 4),
        "text": texts,
        "n": [int(v) for v in frame["n"]],
        "planned": [int(v) for v in frame["planned"]],
        "runs": [[int(r) for r in runs] for runs, _ in sources],
        "values": [values for _, values in sources],
    }


def _last_columns(board: Leaderboard) -> list[dict[str, Any]]:
    """The leaderboard's last columns, with a text for each number of `_board`."""
    rows = board.frame.to_dict(orient="records")
    return [
        {"name": c.name, "overall": c.overall, "text": list(map(c.text, rows))}
        for c in board.columns
    ]


def _differences(
    scores: pd.DataFrame, names: Mapping[str, Any], baseline: str
) -> list[dict[str, Any]]:
    """The paired differences on each dataset; those over all have no dataset."""
    if baseline not in set(scores["label"]):
        return []
    places = {d["name"]: i for i, d in enumerate(names["datasets"])}
    percent = {d["name"]: d["percent"] for d in names["datasets"]} | {OVERALL: True}
    return [
        {
            "dataset": places.get(dataset),
            "band": BAND if percent[dataset] else 0.0,
            "rows": _rows(differences, names["labels"]),
        }
        for dataset, differences in gains(scores, baseline)
    ]


def _rows(differences: list[Difference], labels: list[str]) -> list[dict[str, Any]]:
    rows = []
    for d in differences:
        numbers = (d.gain.mean, d.gain.low, d.gain.high, *d.bootstrap, d.probability, d.detectable)
        keys = ("gain", "low", "high", "lower", "upper", "probability", "detectable")
        counts = {"wins": d.wins, "ties": d.ties, "losses": d.losses}
        counts |= {"equal": d.equal, "clusters": d.gain.n, "pairs": d.pairs, "planned": d.planned}
        values = dict(zip(keys, significant(numbers, 4), strict=True))
        rows.append({"label": labels.index(d.label)} | values | counts)
    return rows


def _ranks(scores: pd.DataFrame, names: Mapping[str, Any], baseline: str) -> dict[str, Any]:
    """Mean ranks and their tests; `error` says why there are none."""
    try:
        ranking = ranked(scores, baseline)
    except UserError as error:
        return {"error": str(error)}
    place = names["labels"].index
    test = ranking.friedman
    return {
        "by": ranking.over,
        "blocks": ranking.blocks,
        "labels": [place(label) for label in ranking.mean.index],
        "mean": significant(ranking.mean, 4),
        "width": significant([ranking.width], 4)[0],
        "cliques": [[place(label) for label in group] for group in ranking.cliques],
        "friedman": significant([test.statistic, test.p], 3) if test else None,
        "holm": [[place(label), *significant([p], 3)] for label, p in ranking.holm.items()],
        "stability": [list(pair) for pair in ranking.stability.items()],
        "incomplete": [
            i
            for i, label in enumerate(names["labels"])
            if label not in ranking.mean.index and i not in names["grey"] + names["apart"]
        ],
    }
