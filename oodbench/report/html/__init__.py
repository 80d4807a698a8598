"""The report as one HTML file that needs no network, no second file and no server.

The page contains the numbers as JSON, which the script in assets/ draws. In this tree of plain values,
rows and datasets are given by their indices in `rows` and `datasets`.
"""

import base64
import hashlib
import html
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

import pandas as pd

from oodbench.errors import UserError
from oodbench.files import write_whole
from oodbench.metrics import is_proportion
from oodbench.report.cells import METHOD, mean_values, on_tests
from oodbench.report.comparison import gain_cell
from oodbench.report.gaps import BASELINE, GROUPS, Gaps, bounded_mean, losses, lost_to_oracle
from oodbench.report.html.views import Numbers, short_number, views
from oodbench.report.numbers import gain, place, share, unit_of_gains, with_unit
from oodbench.report.statistics import Difference, kendall
from oodbench.report.tables.leaderboard import Leaderboard, is_mean
from oodbench.report.tables.remarks import number_of_trials
from oodbench.report.tables.sheet import last_cells, value_cell
from oodbench.results.run_spec import COMPLETE, State
from oodbench.results.tables import CELL, ROW, Tables
from oodbench.selection import rule_names, sees_test, usual
from oodbench.terminal import counted, printable, printable_json
from oodbench.version import __version__

ASSETS = Path(__file__).resolve().parent / "assets"
POLICY = (
    "default-src 'none'; script-src '{script}'; style-src '{style}'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)
"""The content policy: the browser may use only this script and this style, and load nothing."""
FLOORS = (-0.5, -2.0, -5.0)
"""Lower bounds of a share, tried in place of the usual one."""


def write(tables: Tables, out: Path) -> None:
    """Write the page of these runs; raises UserError as `contents` does."""
    write_whole(out, render(contents(tables)))


def render(tree: dict[str, Any]) -> str:
    """The HTML page that shows a tree of `contents`."""
    style, script = ((ASSETS / name).read_text() for name in ("page.css", "page.js"))
    parts = {
        "policy": POLICY.format(script=_checksum(script), style=_checksum(style)),
        "version": html.escape(tree["version"]),
        "title": html.escape(printable(f"{tree['title']}: oodbench report")),
        "style": style,
        "script": script,
        "data": embedded(tree),
    }
    pieces = (ASSETS / "page.html").read_text().split("@")
    return "".join(parts[piece] if i % 2 else piece for i, piece in enumerate(pieces))


def embedded(tree: dict[str, Any]) -> str:
    """Compact JSON without `<`, so that no HTML parser finds markup in it."""
    text = json.dumps(tree, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return printable_json(text).replace("<", "\\u003c")


def _checksum(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def contents(tables: Tables) -> dict[str, Any]:
    """Everything on the page of these runs; gains are over ERM, if it is a row.

    Raises UserError if the sweep's rule is not in `rule_names`, and is unknown or cannot judge these runs.
    """
    runs, usual_rule = tables.runs, usual(tables)
    labels, datasets = ([str(x) for x in runs[c].unique()] for c in ("label", "dataset_label"))
    by_rule: dict[str, Numbers] = {}
    errors: dict[str, str] = {}
    for rule in dict.fromkeys([usual_rule, *rule_names()]):
        try:
            by_rule[rule] = Numbers(tables, rule)
        except UserError as error:
            errors[rule] = str(error)
    if usual_rule in errors and usual_rule not in rule_names():
        raise UserError(errors[usual_rule])
    kinds = dict.fromkeys(labels, METHOD)
    for one in by_rule.values():
        kinds |= dict(zip(one.board.frame["label"], one.board.frame["kind"], strict=True))
    frozen = runs["frozen"].eq(True)
    own = set(runs.loc[~frozen, "label"]) if frozen.any() else set()
    gaps = {name: one.gaps for name, one in by_rule.items() if one.gaps is not None}
    rules = {name: _rule(one, gaps, datasets, list(kinds)) for name, one in by_rule.items()}
    directories = runs["directory"].unique()
    return {
        "title": " + ".join(PurePath(str(name)).name for name in directories),
        "source": " ".join(map(str, directories)),
        "version": __version__,
        "baseline": BASELINE if BASELINE in labels else None,
        "datasets": [_dataset(name, by_rule) for name in datasets],
        "rows": [{"label": x, "kind": k, "own": int(x in own)} for x, k in kinds.items()],
        "rule": usual_rule if usual_rule in rules else next(iter(rules), ""),
        "rules": rules,
        "cost": selection_cost(gaps),
        "errors": errors,
        "tables": _tables(gaps, usual_rule),
        "states": {str(k): int(v) for k, v in runs["state"].value_counts().items()},
        "unfinished": _unfinished(runs),
    }


def _dataset(name: str, by_rule: Mapping[str, Numbers]) -> dict[str, Any]:
    known = next((one for one in by_rule.values() if name in one.means), None)
    metric = known.metrics[name] if known else ""
    return {
        "name": name,
        "metric": with_unit(metric),
        "percent": is_proportion(metric),
        "higher": known.higher[name] if known else True,
    }


def _rule(
    one: Numbers, gaps: Mapping[str, Gaps], datasets: Sequence[str], labels: Sequence[str]
) -> dict[str, Any]:
    chosen, board = _chosen(one), one.board
    others = [g for name, g in gaps.items() if name != board.rule and not sees_test(name)]
    shown = views(one, others)
    for view in shown:
        view["datasets"] = [datasets.index(name) for name in view["datasets"]]
        view["rows"] = [[labels.index(label), *rest] for label, *rest in view["rows"]]
    return {
        "asked": _asked(board),
        "notes": [str(note) for note in (*board.findings, *board.notes, *board.remarks)],
        "views": shown,
        "cells": [_cells(one, dataset, labels, chosen) for dataset in datasets],
        "environments": [_environments(board.frame, dataset, labels) for dataset in datasets],
    }


def _asked(board: Leaderboard) -> str:
    runs, frame = board.chosen.runs, board.frame
    runs = runs[runs["dataset_label"].isin(frame["dataset"])]
    rows = counted(frame.loc[frame["kind"] == METHOD, "label"].nunique(), "row")
    datasets = counted(runs["dataset_label"].nunique(), "dataset")
    draws = counted(int(runs["draw"].nunique()), "draw")
    return (
        f"Which of {rows} does best on test environments that it never saw? {datasets}; {draws} of "
        f"hyperparameters; trials: {number_of_trials(runs)}. Selected by {board.rule}: "
        f"{board.chosen.rule.description}."
    )


def _chosen(one: Numbers) -> dict[Any, list[list[Any]]]:
    """Chosen runs by dataset and label: test sets (if several), numbers of draws that tie (if any do),
    trials, draws, steps, scores, values.
    """
    by_rule = one.board.chosen
    ties = by_rule.tied.groupby(CELL, sort=False).size().rename("ties")
    values = mean_values(on_tests(one.board.cells), CELL)
    chosen = by_rule.chosen.merge(values, on=CELL).merge(ties, on=CELL)
    found: dict[Any, list[list[Any]]] = {}
    for key, group in chosen.groupby(ROW, sort=False):
        tests, tied = list(group["test_environments"].map("+".join)), list(map(int, group["ties"]))
        found[key] = [
            tests if len(set(tests)) > 1 else [],
            tied if max(tied) > 1 else [],
            *(list(map(int, group[name])) for name in ("trial", "draw", "step")),
            *(list(map(short_number, group[name].tolist())) for name in ("score", "value")),
        ]
    return found


def _cells(
    one: Numbers, dataset: str, labels: Sequence[str], chosen: Mapping[Any, Any]
) -> list[Any]:
    """For each label: value, share of the gap, gain, colour, sign, facts and chosen runs, or None."""
    if dataset not in one.means:
        return [None] * len(labels)
    known = one.gaps.all_shares if one.gaps else pd.DataFrame()
    shares = known.loc[dataset].dropna().to_dict() if dataset in known.index else {}
    found = one.gains.get(dataset, {})
    sizes = [abs(d.gain.mean) for d in found.values() if math.isfinite(d.gain.mean)]
    largest = max(sizes, default=0.0) or 1.0
    rows = one.means[dataset].to_dict(orient="index")
    cells: list[Any] = []
    for label in labels:
        row, d, share = rows.get(label), found.get(label), shares.get(label)
        if row is None or not row["n"]:
            cells.append(None)
            continue
        texts = [str(value_cell(row)), "", ""]
        facts = [[k, str(v)] for k, v in last_cells(one.board, row).items() if v]
        if share is not None:
            texts[1] = f"{share:z.2f}".replace("inf", "∞")
        if d is not None:
            texts[2] = gain_cell(d)
            facts += _facts(d)
        colour = share if shares else d.gain.mean / largest if d else None
        if colour is not None:
            colour = None if math.isnan(colour) else round(min(max(colour, -1.0), 1.0), 2)
        sign = one.signs.get((dataset, label), 0)
        cells.append([*texts, colour, sign, facts, chosen.get((dataset, label), [])])
    return cells


def _facts(d: Difference) -> list[list[str]]:
    facts = [["pairs", f"{d.pairs} of {d.planned}"]] if d.pairs < d.planned else []
    if math.isfinite(d.detectable):
        text = f"{gain(d.detectable, d.metric, '')} {unit_of_gains(d.metric)}"
        facts.append(["detectable", text])
    return facts


def _environments(frame: pd.DataFrame, dataset: str, labels: Sequence[str]) -> list[dict[str, Any]]:
    rest = frame[(frame["dataset"] == dataset) & ~is_mean(frame)]
    columns = []
    for key, group in rest.groupby(["test_environments", "environment", "metric"], sort=False):
        tests, environment, metric = map(str, key)
        name = (environment or metric) + (f" of {tests}" if "+" in tests else "")
        texts = {row["label"]: str(value_cell(row)) for row in group.to_dict("records")}
        columns.append({"name": name, "texts": [texts.get(label, "-") for label in labels]})
    return columns if len(columns) > 1 else []


def _tables(gaps: Mapping[str, Gaps], rule: str) -> list[dict[str, Any]]:
    """The folded tables, which are the same for all rules."""
    shown = [selection_costs(gaps, rule)] if rule in _known_losses(gaps) else []
    if rule in gaps and len(gaps[rule].shares) > 1:
        shown.append(orders(gaps, rule))
    return shown


def _known_losses(by_rule: Mapping[str, Gaps]) -> dict[str, float]:
    """The `losses`, which are NaN if no dataset is judged by all rules."""
    return {rule: loss for rule, loss in losses(by_rule).items() if not math.isnan(loss)}


def selection_cost(by_rule: Mapping[str, Gaps]) -> str:
    """What rows lose to the oracle by each other rule, as a clause; empty without an oracle."""
    most = max((len(gaps.rooms) for gaps in by_rule.values()), default=0)
    texts: list[str] = []
    for rule, loss in _known_losses(by_rule).items():
        few = len(by_rule[rule].rooms)
        only = f", which judges {few} of {most} datasets" * (few < most)
        texts.append(f"{loss:z.2f}{' of the gap' * (not texts)} by {rule}{only}")
    return f"against the oracle rows lose {' and '.join(texts)}" if texts else ""


def selection_costs(by_rule: Mapping[str, Gaps], rule: str) -> dict[str, Any]:
    """What each row loses to the oracle: by a rule on each dataset, and by all rules on average."""
    lost = lost_to_oracle(by_rule)
    means = {f"mean by {name}": lost[name].mean(axis=1) for name in losses(by_rule)}
    table = pd.DataFrame(means).join(lost[rule])
    table.loc["mean over rows"] = table.mean()
    note = (
        f"How much better a row is by the oracle than by {rule}, as a share of the gap between "
        f"{BASELINE} and the ceiling by the oracle."
    )
    rows = [[str(label), *map(share, row)] for label, *row in table.itertuples(name=None)]
    header = ["algorithm", *map(str, table)]
    return {"title": "What selection costs", "note": note, "header": header, "rows": rows}


def orders(by_rule: Mapping[str, Gaps], rule: str) -> dict[str, Any]:
    """How the order of rows by a rule changes with datasets, bounds and rules."""
    one = by_rule[rule]
    usual = one.shares[one.means.index]
    parts = {f"without {dataset}": usual.drop(dataset) for dataset in usual.index}
    parts |= {group: usual.loc[one.subsets[group]] for group in GROUPS if group in one.subsets}
    orders = [(f"bounded at {b:g}", one.means, bounded_mean(usual, b)) for b in FLOORS]
    orders += [(text, one.means, bounded_mean(part)) for text, part in parts.items()]
    for name, other in by_rule.items():
        both = usual.index.intersection(other.shares.index)
        theirs = other.shares.reindex(both, columns=usual.columns)
        if name != rule and len(both):
            orders.append((f"by {name}", bounded_mean(usual.loc[both]), bounded_mean(theirs)))
    first, rows = one.means.index[0], list[list[str]]()
    for text, before, after in orders:
        of_first = float(after.rank(ascending=False, method="min")[first])
        tau = f"{kendall(before, after):z.2f}"
        rows.append([text, tau, str(after.idxmax()), place(of_first)])
    note = (
        "Kendall's tau of the order of rows by the mean share of the gap with the usual order: 1 is "
        "the same. By another rule it is over the datasets that both judge."
    )
    header = ["changed", "Kendall's tau", "first", f"place of {first}"]
    return {"title": "What changes the order of rows", "note": note, "header": header, "rows": rows}


def _unfinished(runs: pd.DataFrame) -> list[list[str]]:
    ended_well = [*COMPLETE, State.PLANNED]
    wrong = runs[~runs["state"].isin(ended_well) | (runs["state"] == State.DIVERGED)]
    columns = ["id", "dataset_label", "label", "state", "error", "last_step"]
    return [
        [str(i), str(d), str(x), str(s), _reason(str(s), e, step)]
        for i, d, x, s, e, step in wrong[columns].itertuples(index=False, name=None)
    ]


def _reason(state: str, error: object, step: float) -> str:
    if state in (State.FAILED, State.BROKEN):
        return str(error or "no reason recorded")
    if state == State.DIVERGED:
        return f"the loss was not finite at step {step:.0f}"
    return "launching the sweep again continues it" if state == State.LOST else ""
