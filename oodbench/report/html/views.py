"""The page's views of a dataset or of several: rows, a picture of them, and the finding."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from oodbench.errors import UserError
from oodbench.metrics import is_proportion
from oodbench.report.cells import CEILING, METHOD, TRANSDUCTIVE, scores
from oodbench.report.comparison import gain_cell, gains, left_by_holm
from oodbench.report.gaps import ALL, BASELINE, GROUPS, Gaps, gaps_of, share_cells
from oodbench.report.numbers import count, gain, scale, unit_of_gains
from oodbench.report.statistics import block_table, half_width, mean_ranks, significant
from oodbench.report.tables.leaderboard import Leaderboard, is_mean
from oodbench.results.run_spec import CONSTANT, OVERALL
from oodbench.results.tables import Tables, subset
from oodbench.selection.judge import judge
from oodbench.terminal import counted

BY = "by a 95 % interval"
"""How rows are compared over several datasets."""
SHOWN = 10
"""The number of best rows whose intervals fit on the picture's axis."""
TICKS = 5
"""The approximate number of ticks of an axis."""


class Numbers:
    """The numbers of a page by one selection rule, on the datasets that the rule can judge."""

    def __init__(self, tables: Tables, rule: str) -> None:
        """Raises UserError if there is no such dataset."""
        if len(frozen := tables.scores):
            ids = frozen.loc[frozen["rule"] == rule, "id"]
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
        self.higher = {d: self.board.higher.get(m, True) for d, m in self.metrics.items()}
        self.gains = gains(self.scores, BASELINE)
        tests = {
            (dataset, d.label): d
            for dataset, rows in self.gains.items()
            if dataset != OVERALL
            for d in rows.values()
        }
        self.signs = dict(zip(tests, significant([*tests.values()]), strict=True))
        """1 for a gain, -1 for a loss, else 0: after Holm's correction over all datasets and rows; over
        several datasets by the interval."""
        for d in self.gains.get(OVERALL, {}).values():
            self.signs[OVERALL, d.label] = int(d.gain.low > 0) - int(d.gain.high < 0)


class Row(NamedTuple):
    """A row of a view: the number in the picture, its interval (NaN if none), and the texts."""

    label: str
    mean: float
    low: float
    high: float
    texts: list[str]
    ranked: bool


def _view(rows: Sequence[Row], marks: Mapping[str, float], **about: Any) -> dict[str, Any]:
    """A table and its picture as plain values.

    `marks` are lines in the picture, such as the baseline at 0. `about` has the view's `name`,
    `datasets`, `picture` (the title), `finding` (the sentence above), `note` (the sentences below) and
    `head` (the titles of the texts; the first text is the number in the picture).
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
    """The views of a page: all datasets, groups of datasets, each dataset.

    `others`, the gaps by other rules, add columns with their mean shares.
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
    who = f"the first, {best.label}," if len(others) > 1 else best.label
    first = f"{who} closes {best.texts[0]} of the gap to the ceiling"
    if math.isnan(best.low):
        few = "datasets" if datasets > 1 else "trials"
        of = f"Of {len(others)} rows " * (len(others) > 1)
        return f"{of}{first}; two {few} give no interval."
    above = sum(round(row.low, 2) > 0 for row in others)  # as tables print it
    below = sum(round(row.high, 2) < 0 for row in others)
    verdict = _verdict(above, below, len(others), BASELINE, BY)
    return f"{verdict}; {first}, and its place is {best.texts[-2]}."


def _verdict(up: int, down: int, of: int, than: str, how: str) -> str:
    if of == 1:
        verdict = "better" if up else "worse" if down else "neither better nor worse"
        return f"The one other row is {verdict} than {than} {how}"
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
    for label in _order(means, one.higher[dataset]):
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
    sign = scale(one.metrics[dataset]) * (1 if one.higher[dataset] else -1)
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
    gained = "nothing" if best.equal else f"{gain_cell(best)} {unit_of_gains(best.metric)}"
    text = f"{f'the first, {best.label},' if len(whole) > 1 else best.label} gains {gained}"
    if math.isnan(best.gain.low):
        over = "dataset" if dataset == OVERALL else "trial"
        several = f"two {over}s give" if best.gain.n > 1 else f"one {over} gives"
        return f"{f'Of {len(whole)} rows ' * (len(whole) > 1)}{text}; {several} no interval."
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
    """A number to four digits; None if it is not finite."""
    return float(f"{value:.4g}") if math.isfinite(value) else None
