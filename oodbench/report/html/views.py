"""What a page shows of a choice of datasets: the order of rows, one picture of intervals, one finding."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from oodbench.errors import UserError
from oodbench.metrics import is_proportion
from oodbench.report.cells import CEILING, METHOD, TRANSDUCTIVE, scores
from oodbench.report.comparison import OVERALL, gain_cell, gains, left_by_holm
from oodbench.report.gaps import ALL, BASELINE, GROUPS, Gaps, gaps_of
from oodbench.report.numbers import count, gain
from oodbench.report.statistics import Difference, block_table, estimate, mean_ranks, significant
from oodbench.report.tables.leaderboard import Leaderboard, is_mean
from oodbench.results.run_spec import CONSTANT
from oodbench.results.tables import Tables, frozen_scores, subset
from oodbench.selection import judge
from oodbench.terminal import counted

BY = "by a 95 % interval"
"""How rows are compared over several datasets."""
SHOWN = 10
"""The number of best rows whose intervals the picture's axis spans."""
TICKS = 5
"""About how many ticks an axis has."""


@dataclass(frozen=True)
class Numbers:
    """The numbers of a page by one selection rule."""

    board: Leaderboard
    """Of the datasets that serve the rule."""
    baseline: str

    @property
    def rule(self) -> str:
        """The selection rule."""
        return self.board.rule

    @cached_property
    def scores(self) -> pd.DataFrame:
        """The values of methods; see `oodbench.report.cells.scores`."""
        return scores(self.board.cells)

    @cached_property
    def gaps(self) -> Gaps | None:
        """The shares of the gap; None without a clear head-room, and for another baseline than ERM."""
        is_usual = self.baseline == BASELINE
        return gaps_of(self.board.chosen, self.board.cells) if is_usual else None

    @cached_property
    def means(self) -> pd.DataFrame:
        """The mean over the test environments of each row on each dataset, by dataset and label."""
        frame = self.board.frame
        return frame[is_mean(frame)].set_index(["dataset", "label"])

    def on(self, dataset: str) -> pd.DataFrame:
        """The means of each row on a dataset, by label."""
        return pd.DataFrame(self.means.xs(dataset, level="dataset"))

    @cached_property
    def differences(self) -> dict[tuple[str, str], Difference]:
        """The gain of each method over the baseline, by dataset (or OVERALL) and label."""
        several = self.gaps is None
        return {
            (dataset, d.label): d
            for dataset, differences in gains(self.scores, self.baseline)
            if several or dataset != OVERALL
            for d in differences
        }

    @cached_property
    def signs(self) -> dict[tuple[str, str], int]:
        """1 for a gain and -1 for a loss after Holm's correction over all datasets and rows, else 0."""
        tests = {key: d for key, d in self.differences.items() if key[0] != OVERALL}
        return dict(zip(tests, significant([*tests.values()]), strict=True))

    @cached_property
    def metrics(self) -> dict[str, str]:
        """The metric of each dataset."""
        frame = self.board.frame[is_mean(self.board.frame)].drop_duplicates("dataset")
        return dict(zip(frame["dataset"], frame["metric"], strict=True)) | {OVERALL: "accuracy"}

    def metric(self, dataset: str) -> str:
        """The metric of a dataset."""
        return self.metrics[dataset]

    def higher(self, dataset: str) -> bool:
        """Whether a higher value is better on a dataset."""
        return self.board.higher.get(self.metric(dataset), True)

    def scale(self, dataset: str) -> float:
        """The factor of the values that the page shows."""
        return 100.0 if is_proportion(self.metric(dataset)) else 1.0

    def unit(self, dataset: str) -> str:
        """The unit of gains on a dataset."""
        metric = self.metric(dataset)
        return "points" if is_proportion(metric) else metric


def _serving(frames: Tables, rule: str) -> Tables:
    runs, scores = frames.runs, frozen_scores(frames)
    if scores is None:
        return frames
    ids = scores.loc[scores["rule"] == rule, "id"]
    datasets = runs.loc[runs["id"].isin(ids), "dataset_label"].unique()
    kept = runs["dataset_label"].isin(datasets)
    return frames if kept.all() else subset(frames, runs[kept])


def numbers_by(frames: Tables, rule: str, baseline: str, metric: str | None) -> Numbers:
    """Compute the numbers by a rule; raises UserError where the sweep cannot serve it."""
    frames = _serving(frames, rule)
    if frames.runs.empty:
        raise UserError(f"no dataset serves the rule {rule}")
    board = Leaderboard(judge(frames, rule), metric)
    assert len(board.cells)
    return Numbers(board, baseline)


@dataclass
class View:
    """A table and a picture of some datasets."""

    name: str
    datasets: list[str]
    picture: str
    """The title of the picture: what its numbers are."""
    finding: str
    """The sentence above it."""
    head: list[str]
    """The titles of the columns of texts, the first being the number of the picture."""
    rows: list["Row"]
    marks: dict[str, float]
    """Lines in the picture by name, such as the baseline at 0."""
    note: str = ""
    """Sentences below the picture."""

    def tree(self, labels: Sequence[str], datasets: Sequence[str]) -> dict[str, Any]:
        """The view as plain values, with rows and datasets by their places in these lists."""
        drawn = [r for r in self.rows if r.ranked][:SHOWN]
        ends = [v for r in drawn for v in (r.low, r.mean, r.high) if math.isfinite(v)]
        return {
            "name": self.name,
            "datasets": [datasets.index(d) for d in self.datasets],
            "picture": self.picture,
            "finding": self.finding,
            "note": self.note,
            "head": self.head,
            "axis": _axis([*ends, *(v for v in self.marks.values() if math.isfinite(v))]),
            "marks": [[name, v] for name, v in self.marks.items() if math.isfinite(v)],
            "rows": [
                [labels.index(r.label), *map(_short, (r.mean, r.low, r.high)), r.texts, int(r.ranked)]
                for r in self.rows
            ],
        }  # fmt: skip


@dataclass
class Row:
    """A row of a view: its number in the picture with an interval (NaN without), and its texts."""

    label: str
    mean: float
    low: float
    high: float
    texts: list[str]
    ranked: bool


def views(one: Numbers, others: Sequence[Gaps] = ()) -> list[View]:
    """Make the presets of a page: all datasets, groups of them, and each dataset alone.

    Mean shares by `others`, the gaps by other rules, stand beside those by this one.
    """
    datasets = [str(d) for d in one.board.frame["dataset"].unique()]
    several: list[View] = []
    if len(datasets) > 1 and one.gaps is not None:
        groups = [ALL, *(g for g in GROUPS if 0 < len(one.gaps.subsets.get(g, ())) < len(datasets))]
        several = [_of_gaps(one, one.gaps, others, group) for group in groups]
    elif len(datasets) > 1:
        several = [_of_ranks(one, datasets)]
    return [*several, *(_of_dataset(one, dataset) for dataset in datasets)]


def _of_gaps(one: Numbers, gaps: Gaps, others: Sequence[Gaps], group: str) -> View:
    members, means = gaps.subsets[group], [other.means_over(group) for other in others]
    rows = []
    for share in (*gaps.ranked[group], *gaps.unranked[group]):
        mean, place, better = map(str, share.cells)
        texts = [mean, *(str(known.get(share.label, "-")) for known in means), place, better]
        ranked = share.place is not None
        rows.append(Row(share.label, share.mean, share.low, share.high, texts, ranked))
    head = ["mean share of the gap", *(f"by {g.rule}" for g in others), "place", "P(better)"]
    known = {row.label for row in rows}
    rows += [
        Row(x, math.nan, math.nan, math.nan, ["-"] * len(head), False)
        for x in dict.fromkeys(one.board.frame["label"])
        if x not in known
    ]
    over = f"{counted(len(members), 'dataset')}{'' if group == ALL else ', ' + group}"
    picture = f"Share of the gap closed: 0 is {BASELINE}, 1 the ceiling; a mean over {over}, 95 % intervals"
    finding = _finding_of_gaps([row for row in rows if row.ranked], len(members))
    note = left_by_holm([d for (dataset, _), d in one.differences.items() if dataset in members])
    if gaps.unclear and group == ALL:
        note += f" No share is given where the head-room is not clear: {', '.join(gaps.unclear)}."
    marks = {BASELINE: 0.0, "ceiling": 1.0}
    return View(group, members, picture, finding, head, rows, marks, note)


def _finding_of_gaps(rows: Sequence[Row], datasets: int) -> str:
    others = [r for r in rows if r.label != BASELINE]
    if not others:
        return "No method has all datasets yet."
    best = others[0]
    first = f"the first, {best.label}, closes {best.texts[0]} of the gap to the ceiling"
    if math.isnan(best.low):
        few = "datasets" if datasets > 1 else "trials"
        return f"Of {counted(len(others), 'row')} {first}; two {few} give no interval."
    above = sum(round(r.low, 2) > 0 for r in others)  # as tables print it
    below = sum(round(r.high, 2) < 0 for r in others)
    verdict = _verdict(above, below, len(others), BASELINE, BY)
    return f"{verdict}; {first}, and its place is {best.texts[-2]}."


def _verdict(up: int, down: int, of: int, than: str, how: str) -> str:
    better, worse = (f"{n or 'none'} {'are' if n > 1 else 'is'}" for n in (up, down))
    return f"Of {counted(of, 'row')}, {better} better than {than} {how} and {worse} worse"


def _of_ranks(one: Numbers, datasets: list[str]) -> View:
    """Make the view of mean ranks, and of mean gains over the datasets that are measured in proportions."""
    ranks = mean_ranks(block_table(one.scores))
    labels = [*map(str, ranks.index), *dict.fromkeys(one.board.frame["label"])]
    overall = {x: d for (dataset, x), d in one.differences.items() if dataset == OVERALL}
    rows = []
    for label in dict.fromkeys(labels):
        rank = f"{ranks[label]:.2f}" if label in ranks else "-"
        row = _row_of_gain(one, OVERALL, label, overall.get(label), [rank])
        row.ranked = label in ranks
        rows.append(row)
    over = f"over {counted(sum(is_proportion(one.metric(d)) for d in datasets), 'dataset')}"
    picture = f"Mean gain over {one.baseline} in points, {over}; 95 % intervals"
    finding = _finding_of_gains(one, OVERALL, overall, over)
    if not overall and len(ranks):
        first = f"{ranks.index[0]} has the best mean rank"
        finding = f"{first} of {counted(len(ranks), 'row')}: {ranks.iloc[0]:.2f}."
    marks = {one.baseline: 0.0} if overall else {}
    return View(
        ALL, datasets, picture if overall else "", finding, ["gain", "mean rank"], rows, marks
    )


def _of_dataset(one: Numbers, dataset: str) -> View:
    """Make the view of a dataset: gains over the baseline, or values where there is none."""
    metric, means = one.metric(dataset), one.on(dataset)
    own = {x: d for (of, x), d in one.differences.items() if of == dataset}
    rows = []
    for label in _order(means, one.higher(dataset)):
        of_row = means.loc[label].to_dict()
        text = [str(count(of_row["n"], of_row["planned"]))]
        row = (
            _row_of_gain(one, dataset, label, own.get(label), text)
            if own
            else _row_of_value(one, dataset, label, text)
        )
        row.ranked = of_row["kind"] == METHOD and 0 < of_row["n"] == of_row["planned"]
        rows.append(row)
    if own:
        what, finding = (
            f"gain over {one.baseline}",
            _finding_of_gains(one, dataset, own, f"on {dataset}"),
        )
    else:
        ranked = [row.label for row in rows if row.ranked]
        what = metric
        finding = (
            f"{ranked[0]} has the best {metric} of {counted(len(ranked), 'row')}." if ranked else ""
        )
    unit = one.unit(dataset) if own else "%" if is_proportion(metric) else metric
    return View(
        name=dataset,
        datasets=[dataset],
        picture=f"{dataset}: {what} ({unit}); 95 % intervals over trials",
        finding=finding,
        head=["gain" if own else "value", "trials"],
        rows=rows,
        marks=_marks(one, dataset) if own else {},
    )


def _order(means: pd.DataFrame, up: bool) -> list[str]:
    """Order the labels of a dataset: methods, those that see test inputs, others; the best first."""
    kind = means["kind"].map({METHOD: 0, TRANSDUCTIVE: 1}).fillna(2)
    partial = means["n"] < means["planned"]
    value = means["mean"] * (-1 if up else 1)
    table = pd.DataFrame({"kind": kind, "partial": partial, "value": value})
    return [str(x) for x in table.sort_values(["kind", "partial", "value"], kind="stable").index]


def _marks(one: Numbers, dataset: str) -> dict[str, float]:
    """Place the baseline, the constant answer and the ceiling among the gains on a dataset."""
    means = one.on(dataset).query("n > 0")
    sign = one.scale(dataset) * (1 if one.higher(dataset) else -1)
    marks = {one.baseline: 0.0}
    for kind in (CONSTANT, CEILING):
        of_kind = sign * means.loc[means["kind"] == kind, "mean"]
        if len(of_kind) and one.baseline in means.index:
            marks[kind] = float(of_kind.max() - sign * means["mean"][one.baseline])
    return marks


def _row_of_gain(
    one: Numbers, dataset: str, label: str, d: Difference | None, extra: list[str]
) -> Row:
    if d is None:
        mean = 0.0 if label == one.baseline else math.nan
        text = "0" if label == one.baseline else "-"
        return Row(label, mean, math.nan, math.nan, [text, *extra], label == one.baseline)
    text, scale = str(gain_cell(d, one.metric(dataset))), one.scale(dataset)
    mean, low, high = (scale * v for v in (d.gain.mean, d.gain.low, d.gain.high))
    return Row(label, mean, low, high, [text, *extra], d.pairs == d.planned)


def _row_of_value(one: Numbers, dataset: str, label: str, extra: list[str]) -> Row:
    values = one.scores.query("dataset == @dataset and label == @label")
    found = estimate(values.groupby("trial")["value"].mean())
    text = gain(found.mean, one.metric(dataset), "") if found.n else "-"
    mean, low, high = (one.scale(dataset) * v for v in (found.mean, found.low, found.high))
    return Row(label, mean, low, high, [text, *extra], True)


def _finding_of_gains(one: Numbers, dataset: str, own: Mapping[str, Difference], where: str) -> str:
    whole = [d for d in own.values() if d.pairs == d.planned]
    finite = [d for d in whole if math.isfinite(d.gain.mean)]
    if not finite:
        return f"No other row is complete {where} yet." if own else ""
    best = max(finite, key=lambda d: d.gain.mean)
    metric = one.metric(dataset)
    unit = one.unit(dataset)
    sure = dataset != OVERALL
    signs = [one.signs[dataset, d.label] if sure else _sign(d) for d in whole]
    how = "after Holm's correction" if sure else BY
    up, down = signs.count(1), signs.count(-1)
    text = f"the first, {best.label}, gains {gain_cell(best, metric)} {unit}"
    if math.isnan(best.gain.low):
        over = "dataset" if dataset == OVERALL else "trial"
        several = f"two {over}s give" if best.gain.n > 1 else f"one {over} gives"
        return f"Of {counted(len(whole), 'row')} {text}; {several} no interval."
    return f"{_verdict(up, down, len(whole), f'{one.baseline} {where}', how)}; {text}."


def _sign(d: Difference) -> int:
    return 0 if d.equal else int(d.gain.low > 0) - int(d.gain.high < 0)


def _axis(values: Iterable[float]) -> list[Any]:
    known = [*values] or [0.0, 1.0]
    low, high = min(known), max(known)
    room = 0.04 * ((high - low) or abs(high) or 1.0)
    low, high = low - room, high + room
    rough = (high - low) / TICKS
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(s * unit for s in (1, 2, 5, 10) if s * unit >= rough)
    ticks = np.arange(math.ceil(low / step), math.floor(high / step) + 1) * step
    return [_short(low), _short(high), [_short(t) for t in ticks]]


def _short(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None
