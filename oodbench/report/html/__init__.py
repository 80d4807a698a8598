"""The report as one HTML file that needs nothing else: no network, no second file, no server.

The numbers are in the page as JSON, a tree of plain values, and the script in assets/ draws them. Rows and
datasets of the tree are given by their positions in `rows` and `datasets`.
"""

import base64
import hashlib
import html
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from oodbench.errors import UserError
from oodbench.files import write_whole
from oodbench.metrics import is_proportion
from oodbench.report.cells import CEILING, METHOD, TRANSDUCTIVE, over_ties, scores, test_values
from oodbench.report.comparison import OVERALL, gain_cell, gains, left_by_holm
from oodbench.report.gaps import (
    ALL,
    BASELINE,
    GROUPS,
    Gaps,
    bounded_mean,
    gaps_of,
    losses,
    lost_to_oracle,
    share_cells,
)
from oodbench.report.numbers import count, gain, place, scale, share, unit_of_gains, with_unit
from oodbench.report.statistics import (
    Difference,
    block_table,
    half_width,
    kendall,
    mean_ranks,
    significant,
)
from oodbench.report.tables.leaderboard import Leaderboard, is_mean, value_cell
from oodbench.report.tables.remarks import number_of_trials
from oodbench.results.run_spec import COMPLETE, CONSTANT, State
from oodbench.results.tables import CELL, ROW, Tables, plugins_of, subset
from oodbench.selection import find_rule, rule_names, sees_test, usual
from oodbench.selection.judge import judge
from oodbench.terminal import counted, printable, printable_json
from oodbench.version import __version__

ASSETS = Path(__file__).resolve().parent / "assets"
POLICY = (
    "default-src 'none'; script-src '{script}'; style-src '{style}'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)
"""The content policy: the browser may use this script and this style, and load nothing."""
FLOORS = (-0.5, -2.0, -5.0)
"""Other bounds of a share than the usual one, to see what changes with them."""
BY = "by a 95 % interval"
"""How rows are compared over several datasets."""
SHOWN = 10
"""The number of best rows whose intervals the picture's axis spans."""
TICKS = 5
"""About how many ticks an axis has."""


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
    """Compact JSON that no HTML parser takes for markup: every `<` is written as an escape."""
    text = json.dumps(tree, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return printable_json(text).replace("<", "\\u003c")


def _checksum(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def contents(tables: Tables) -> dict[str, Any]:
    """Everything on the page of these runs: gains are over ERM, where it is a row.

    Raises UserError if no run is planned, and if no rule that the runs name is known.
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


class Numbers:
    """The numbers of a page by one selection rule, on the datasets that serve it."""

    def __init__(self, tables: Tables, rule: str) -> None:
        """Raises UserError if no dataset serves the rule."""
        if tables.scores is not None:
            ids = tables.scores.loc[tables.scores["rule"] == rule, "id"]
            serving = tables.runs.loc[tables.runs["id"].isin(ids), "dataset_label"].unique()
            tables = subset(tables, tables.runs[tables.runs["dataset_label"].isin(serving)])
        if tables.runs.empty:
            raise UserError(f"no dataset serves the rule {rule}")
        self.board = Leaderboard(judge(tables, rule), alone=True)
        self.scores = scores(self.board.cells)
        self.gaps = gaps_of(self.board.chosen, self.board.cells)
        means = self.board.frame[is_mean(self.board.frame)]
        self.means = {
            str(dataset): rows.set_index("label")
            for dataset, rows in means.groupby("dataset", sort=False)
        }
        self.metrics = {
            dataset: str(rows["metric"].iloc[0]) for dataset, rows in self.means.items()
        }
        self.gains = gains(self.scores, BASELINE)
        tests = {
            (dataset, d.label): d
            for dataset, rows in self.gains.items()
            if dataset != OVERALL
            for d in rows.values()
        }
        self.signs = dict(zip(tests, significant([*tests.values()]), strict=True))
        """1 for a gain and -1 for a loss, else 0: after Holm's correction over all datasets and rows, or
        by the interval over several datasets."""
        for d in self.gains.get(OVERALL, {}).values():
            self.signs[OVERALL, d.label] = int(d.gain.low > 0) - int(d.gain.high < 0)

    def higher(self, dataset: str) -> bool:
        """Whether a higher value is better."""
        return self.board.higher.get(self.metrics[dataset], True)


def _dataset(name: str, by_rule: Mapping[str, Numbers]) -> dict[str, Any]:
    known = next((one for one in by_rule.values() if name in one.means), None)
    metric = known.metrics[name] if known else ""
    return {
        "name": name,
        "metric": with_unit(metric),
        "percent": is_proportion(metric),
        "higher": known.higher(name) if known else True,
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
    summary = find_rule(board.rule, plugins=plugins_of(board.chosen.tables)).description
    draws = counted(int(runs["draw"].nunique()), "draw")
    return (
        f"Which of {rows} does best on test environments that it never saw? {datasets}; {draws} of "
        f"hyperparameters; trials: {number_of_trials(runs)}. Selected by {board.rule}: {summary}."
    )


def _chosen(one: Numbers) -> dict[Any, list[list[Any]]]:
    """Chosen runs by dataset and label: test sets if several, how many draws tie if some do, trials,
    draws, steps, scores, values.
    """
    by_rule = one.board.chosen
    ties = by_rule.tied.groupby(CELL, sort=False).size().rename("ties")
    values = over_ties(test_values(by_rule, by_rule.tied, one.metrics), CELL)
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
    """For each label value, share of the gap, gain, colour, sign, facts and chosen runs, or None."""
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
        facts = [[k, str(v)] for k, v in one.board.last_cells(row).items() if v]
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
    rest = frame[(frame["dataset"] == dataset) & (frame["environment"] != "mean")]
    columns = []
    for key, group in rest.groupby(["test_environments", "environment", "metric"], sort=False):
        tests, environment, metric = map(str, key)
        name = (environment or metric) + (f" of {tests}" if "+" in tests else "")
        texts = {row["label"]: str(value_cell(row)) for row in group.to_dict("records")}
        columns.append({"name": name, "texts": [texts.get(label, "-") for label in labels]})
    return columns if len(columns) > 1 else []


class Row(NamedTuple):
    """A row of a view: its number in the picture with an interval (NaN without), and its texts."""

    label: str
    mean: float
    low: float
    high: float
    texts: list[str]
    ranked: bool


def _view(rows: Sequence[Row], marks: Mapping[str, float], **about: Any) -> dict[str, Any]:
    """A table and a picture of some datasets as plain values.

    `marks` are lines in the picture, such as the baseline at 0. `about` are the view's `name`, `datasets`,
    `picture` (its title), `finding` (the sentence above), `note` (those below) and `head`, which titles the
    texts; the first of these is the number in the picture.
    """
    drawn = [row for row in rows if row.ranked][:SHOWN]
    ends = [v for row in drawn for v in (row.low, row.mean, row.high)]
    return about | {
        "axis": _axis([*ends, *marks.values()]),
        "marks": [[mark, v] for mark, v in marks.items() if math.isfinite(v)],
        "rows": [
            [x, *map(short_number, ends), texts, int(ranked)] for x, *ends, texts, ranked in rows
        ],
    }


def views(one: Numbers, others: Sequence[Gaps] = ()) -> list[dict[str, Any]]:
    """The presets of a page: all datasets, groups of them, and each dataset alone.

    Further columns show the mean shares by `others`, the gaps under other rules.
    """
    datasets, several = list(one.means), list[dict[str, Any]]()
    if len(datasets) > 1 and one.gaps is not None:
        groups = [ALL, *(g for g in GROUPS if 0 < len(one.gaps.subsets.get(g, ())) < len(datasets))]
        several = [_of_gaps(one, one.gaps, others, group) for group in groups]
    elif len(datasets) > 1:
        several = [_of_ranks(one, datasets)]
    return [*several, *(_of_dataset(one, dataset) for dataset in datasets)]


def _of_gaps(one: Numbers, gaps: Gaps, others: Sequence[Gaps], group: str) -> dict[str, Any]:
    members, means = gaps.subsets[group], [other.means_over(group) for other in others]
    labels = dict.fromkeys([*gaps.over[group].index, *one.board.frame["label"]])
    rows = list[Row]()
    named: Any = gaps.over[group].reindex(list(labels)).itertuples()
    for row in named:
        label, (mean, place, better) = str(row.Index), share_cells(row)
        texts = [mean, *(known.get(label, "-") for known in means), place, better]
        rows.append(Row(label, row.mean, row.low, row.high, texts, not math.isnan(row.place)))
    finding = _finding_of_gaps([row for row in rows if row.ranked], len(members))
    head = ["mean share of the gap", *(f"by {g.rule}" for g in others), "place", "P(better)"]
    over = f"{counted(len(members), 'dataset')}{'' if group == ALL else ', ' + group}"
    picture = f"Share of the gap closed: 0 is {BASELINE}, 1 the ceiling; a mean over {over}, 95 % intervals"
    note = left_by_holm([d for m in one.gains if m in members for d in one.gains[m].values()])
    if gaps.unclear and group == ALL:
        note += f" No share is given where the head-room is not clear: {', '.join(gaps.unclear)}."
    about = {"name": group, "datasets": members, "picture": picture, "finding": finding}
    return _view(rows, {BASELINE: 0.0, "ceiling": 1.0}, **about, note=note, head=head)


def _finding_of_gaps(rows: Sequence[Row], datasets: int) -> str:
    others = [row for row in rows if row.label != BASELINE]
    if not others:
        return "No method has all datasets yet."
    best = others[0]
    first = f"the first, {best.label}, closes {best.texts[0]} of the gap to the ceiling"
    if math.isnan(best.low):
        few = "datasets" if datasets > 1 else "trials"
        return f"Of {counted(len(others), 'row')} {first}; two {few} give no interval."
    above = sum(round(row.low, 2) > 0 for row in others)  # as tables print it
    below = sum(round(row.high, 2) < 0 for row in others)
    verdict = _verdict(above, below, len(others), BASELINE, BY)
    return f"{verdict}; {first}, and its place is {best.texts[-2]}."


def _verdict(up: int, down: int, of: int, than: str, how: str) -> str:
    better, worse = (f"{n or 'none'} {'are' if n > 1 else 'is'}" for n in (up, down))
    return f"Of {counted(of, 'row')}, {better} better than {than} {how} and {worse} worse"


def _of_ranks(one: Numbers, datasets: list[str]) -> dict[str, Any]:
    ranks = mean_ranks(block_table(one.scores))
    overall, rows = OVERALL in one.gains, []
    for label in dict.fromkeys([*map(str, ranks.index), *one.board.frame["label"]]):
        rank, (numbers, text) = ranks.get(label), _gain_of(one, OVERALL, label)
        texts = [text, "-" if rank is None else f"{rank:.2f}"]
        rows.append(Row(label, *numbers, texts, rank is not None))
    over = f"over {counted(sum(is_proportion(one.metrics[d]) for d in datasets), 'dataset')}"
    picture = f"Mean gain over {BASELINE} in points, {over}; 95 % intervals" if overall else ""
    finding = _finding_of_gains(one, OVERALL, over)
    if not overall and len(ranks):
        first = f"{ranks.index[0]} has the best mean rank"
        finding = f"{first} of {counted(len(ranks), 'row')}: {ranks.iloc[0]:.2f}."
    marks = {BASELINE: 0.0} if overall else {}
    about = {"name": ALL, "datasets": datasets, "picture": picture, "finding": finding}
    return _view(rows, marks, **about, note="", head=["gain", "mean rank"])


def _of_dataset(one: Numbers, dataset: str) -> dict[str, Any]:
    metric, means, has_gains = one.metrics[dataset], one.means[dataset], dataset in one.gains
    made, rows = _gain_of if has_gains else _value_of, []
    for label in _order(means, one.higher(dataset)):
        of_row = means.loc[label].to_dict()
        numbers, text = made(one, dataset, label)
        whole = of_row["kind"] == METHOD and 0 < of_row["n"] == of_row["planned"]
        rows.append(Row(label, *numbers, [text, count(of_row["n"], of_row["planned"])], whole))
    if has_gains:
        what, unit = f"gain over {BASELINE}", unit_of_gains(metric)
        finding, marks = _finding_of_gains(one, dataset, f"on {dataset}"), _marks(one, dataset)
    else:
        ranked = [row.label for row in rows if row.ranked]
        what, unit, marks = metric, "%" if is_proportion(metric) else metric, {}
        best = f"{''.join(ranked[:1])} has the best {metric} of {counted(len(ranked), 'row')}."
        finding = best if ranked else ""
    picture = f"{dataset}: {what} ({unit}); 95 % intervals over trials"
    head = ["gain" if has_gains else "value", "trials"]
    about = {"name": dataset, "datasets": [dataset], "picture": picture, "finding": finding}
    return _view(rows, marks, **about, note="", head=head)


def _order(means: pd.DataFrame, up: bool) -> list[str]:
    kind = means["kind"].map({METHOD: 0, TRANSDUCTIVE: 1}).fillna(2)
    value = means["mean"] * (-1 if up else 1)
    table = pd.DataFrame({"k": kind, "few": means["n"] < means["planned"], "v": value})
    return [str(x) for x in table.sort_values(["k", "few", "v"], kind="stable").index]


def _marks(one: Numbers, dataset: str) -> dict[str, float]:
    means = one.means[dataset].query("n > 0")
    sign = scale(one.metrics[dataset]) * (1 if one.higher(dataset) else -1)
    marks = {BASELINE: 0.0}
    for kind in (CONSTANT, CEILING):
        of_kind = sign * means.loc[means["kind"] == kind, "mean"]
        if len(of_kind) and BASELINE in means.index:
            marks[kind] = float(of_kind.max() - sign * means["mean"][BASELINE])
    return marks


Ends = tuple[float, float, float]
"""A number of a picture and the ends of its interval."""


def _gain_of(one: Numbers, dataset: str, label: str) -> tuple[Ends, str]:
    if label == BASELINE:
        return (0.0, math.nan, math.nan), "0"
    if (d := one.gains.get(dataset, {}).get(label)) is None:
        return (math.nan, math.nan, math.nan), "-"
    factor = scale(d.metric)
    return (factor * d.gain.mean, factor * d.gain.low, factor * d.gain.high), gain_cell(d)


def _value_of(one: Numbers, dataset: str, label: str) -> tuple[Ends, str]:
    row, metric = one.means[dataset].loc[label].to_dict(), one.metrics[dataset]
    mean = scale(metric) * row["mean"]
    half = scale(metric) * row["stderr"] * float(half_width(row["n"]))
    return (mean, mean - half, mean + half), gain(row["mean"], metric, "")


def _finding_of_gains(one: Numbers, dataset: str, where: str) -> str:
    own = one.gains.get(dataset, {})
    whole = [d for d in own.values() if d.pairs == d.planned]
    finite = [d for d in whole if math.isfinite(d.gain.mean)]
    if not finite:
        return f"No other row is complete {where} yet." if own else ""
    best = max(finite, key=lambda d: d.gain.mean)
    text = f"the first, {best.label}, gains {gain_cell(best)} {unit_of_gains(best.metric)}"
    if math.isnan(best.gain.low):
        over = "dataset" if dataset == OVERALL else "trial"
        several = f"two {over}s give" if best.gain.n > 1 else f"one {over} gives"
        return f"Of {counted(len(whole), 'row')} {text}; {several} no interval."
    signs = [one.signs[dataset, d.label] for d in whole]
    how = BY if dataset == OVERALL else "after Holm's correction"
    up, down = signs.count(1), signs.count(-1)
    return f"{_verdict(up, down, len(whole), f'{BASELINE} {where}', how)}; {text}."


def _axis(values: Iterable[float]) -> list[Any]:
    known = [v for v in values if math.isfinite(v)] or [0.0, 1.0]
    low, high = min(known), max(known)
    room = 0.04 * ((high - low) or abs(high) or 1.0)
    low, high = low - room, high + room
    rough = (high - low) / TICKS
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(s * unit for s in (1, 2, 5, 10) if s * unit >= rough)
    ticks = np.arange(math.ceil(low / step), math.floor(high / step) + 1) * step
    return [short_number(low), short_number(high), [short_number(t) for t in ticks]]


def short_number(value: float) -> float | None:
    """Four digits of a number, for the page's file; None if it is not finite."""
    return float(f"{value:.4g}") if math.isfinite(value) else None


def _tables(gaps: Mapping[str, Gaps], rule: str) -> list[dict[str, Any]]:
    """The folded tables, which do not depend on the rule that is shown."""
    shown = [selection_costs(gaps, rule)] if rule in losses(gaps) else []
    if rule in gaps and len(gaps[rule].shares) > 1:
        shown.append(orders(gaps, rule))
    return shown


def selection_cost(by_rule: Mapping[str, Gaps]) -> str:
    """The clause on what rows lose to the oracle by each other rule; empty without an oracle."""
    most = max((len(gaps.rooms) for gaps in by_rule.values()), default=0)
    texts: list[str] = []
    for rule, loss in losses(by_rule).items():
        few = len(by_rule[rule].rooms)
        only = f", which judges {few} of {most} datasets" * (few < most)
        texts.append(f"{loss:z.2f}{' of the gap' * (not texts)} by {rule}{only}")
    return f"against the oracle rows lose {' and '.join(texts)}" if texts else ""


def selection_costs(by_rule: Mapping[str, Gaps], rule: str) -> dict[str, Any]:
    """What each row loses to the oracle by a rule, and on average by the others."""
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
    """What changes the order of the rows that have a place by a rule."""
    one = by_rule[rule]
    usual = one.shares[one.means.index]
    parts = {f"without {dataset}": usual.drop(dataset) for dataset in usual.index}
    parts |= {group: usual.loc[one.subsets[group]] for group in GROUPS if group in one.subsets}
    orders = [(f"bounded at {b:g}", one.means, bounded_mean(usual, b)) for b in FLOORS]
    orders += [(text, one.means, bounded_mean(part)) for text, part in parts.items()]
    for name, other in by_rule.items():
        both = usual.index.intersection(other.shares.index)
        theirs = other.shares.reindex(both, columns=usual.columns)
        if name != rule:
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
