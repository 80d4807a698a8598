"""The share of the gap closed: how far rows come from the baseline to the ceiling, and how sure that is.

On a dataset the share is (row - baseline) / (ceiling - baseline), of means over trials: 0 for the baseline,
1 for the ceiling, in one unit for accuracies and losses. Means over datasets bound it below at `FLOOR`,
because one diverged regression would outweigh everything else. The *head-room* is the ceiling minus the
baseline; a dataset has shares only if its head-room is clear of its error.

`trials` has a row for each dataset and trial and a column for each label. Larger is better; -inf is a
diverged run, NaN a missing one. Places are among the labels given.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from oodbench.report.cells import CEILING, METHOD, REFERENCE, TRANSDUCTIVE, cells, scores
from oodbench.report.numbers import place, share
from oodbench.report.statistics import (
    LEAST,
    LEVEL,
    RESAMPLES,
    Numbers,
    by_trial,
    mean_and_error,
    over_trials,
)
from oodbench.results.boards import halves
from oodbench.results.run_spec import CONSTANT
from oodbench.results.tables import Tables, pretraining
from oodbench.selection import rule_names, sees_test
from oodbench.selection.judge import Chosen, judge_by_all

FLOOR = -1.0
"""The lower bound of a dataset's share of the gap in means over datasets."""
BASELINE = "ERM"
ALL = "all"
HALVES, PRETRAINED = ("constructed", "natural"), "pretrained"
GROUPS = (*HALVES, PRETRAINED)
CLEAR = 2.0
"""A head-room is clear if it is larger than this number of its standard errors."""


def best_ceiling(ceilings: pd.DataFrame) -> "pd.Series[float]":
    """On each dataset, the values of the ceiling with the best mean; of the first if all lack a trial."""
    chosen: list[pd.Series[float]] = []
    for dataset, means in over_trials(ceilings).iterrows():
        table = ceilings.loc[[dataset]]
        whole = means.dropna()
        chosen.append(table[whole.idxmax()] if len(whole) else table.bfill(axis=1).iloc[:, 0])
    return pd.concat(chosen)


def head_rooms(trials: pd.DataFrame, ceilings: "pd.Series[float]") -> pd.DataFrame:
    """The head-room of each dataset: the mean difference of ceiling and baseline, paired by trial.

    `ceilings` has the index of `trials`. Returns `mean`, `stderr` and whether the mean is `clear` of its
    error, by dataset. A dataset without ceiling or baseline is left out.
    """
    there = ceilings.notna() & trials[BASELINE].notna()  # both -inf: NaN, and no clear head-room
    paired = (ceilings - trials[BASELINE])[there]
    rooms = {d: mean_and_error(values) for d, values in paired.groupby("dataset", sort=False)}
    table = pd.DataFrame(rooms, index=["mean", "stderr"]).T.rename_axis("dataset")
    return table.assign(clear=table["mean"] > CLEAR * table["stderr"])


def shares(trials: pd.DataFrame, rooms: pd.DataFrame) -> pd.DataFrame:
    """The unbounded share of each label on each dataset with a clear head-room; NaN if it lacks a trial.

    Shares have 12 digits, so that values that differ by round-off are equal.
    """
    clear = rooms[rooms["clear"]]
    means = over_trials(trials).reindex(clear.index)
    return means.sub(means[BASELINE], axis=0).div(clear["mean"], axis=0).round(12)


def bounded_mean(shares: pd.DataFrame, floor: float = FLOOR) -> "pd.Series[float]":
    """The mean over datasets of each label's shares, bounded below; NaN if one is missing."""
    return shares.clip(lower=floor).mean(skipna=False).round(12)


def resampled(
    trials: pd.DataFrame,
    rooms: pd.DataFrame,
    datasets: Collection[str] | None = None,
    resamples: int = RESAMPLES,
) -> pd.DataFrame:
    """The bounded mean share, to 12 digits, of each label (column) in each resample (row) of a bootstrap.

    The bootstrap draws datasets (of all by default), then trials of each drawn dataset, the same for all
    labels because trials are paired. Head-rooms are units, and are not resampled. Shares are means over the
    datasets with a clear head-room, NaN without such datasets. Labels that lack a trial are left out.
    """
    chosen = [d for d in trials.index.unique("dataset") if datasets is None or d in datasets]
    whole = trials.loc[chosen].dropna(axis=1)
    clear = [d for d in chosen if d in rooms.index[rooms["clear"]]]
    tables, units = (
        [whole.loc[d].to_numpy(float) for d in clear],
        rooms.loc[clear, "mean"].to_numpy(),
    )
    baseline, rng = list(whole.columns).index(BASELINE), np.random.default_rng(0)
    gap = np.full((resamples, whole.shape[1]), 0.0 if clear else math.nan)
    for _ in clear:
        drawn = rng.integers(len(clear), size=resamples)
        means = np.zeros(gap.shape)
        for d, table in enumerate(tables):
            rows = np.flatnonzero(drawn == d)
            means[rows] = _drawn_means(table, len(rows), rng)
        with np.errstate(invalid="ignore"):  # a diverged baseline
            share = (means - means[:, [baseline]]) / units[drawn, None]
        gap += np.maximum(share, FLOOR) / len(clear)
    return pd.DataFrame(gap.round(12), columns=whole.columns)


def _drawn_means(values: Numbers, resamples: int, rng: np.random.Generator) -> Numbers:
    """The means (resamples, labels) of resampled trials of `values` (trials, labels); -inf if a value
    is.
    """
    trials = len(values)
    picks = rng.integers(trials, size=(resamples, trials)) + trials * np.arange(resamples)[:, None]
    counts = np.bincount(picks.ravel(), minlength=resamples * trials).reshape(resamples, trials)
    finite = np.isfinite(values)
    means = counts @ np.where(finite, values, 0.0) / trials
    return means if finite.all() else np.where(counts @ ~finite, -math.inf, means)


def places(better: "pd.Series[float]", resampled: Numbers) -> pd.DataFrame:
    """The `place` of each label with its 95 % interval over resamples, `place_low` and `place_high`.

    Larger is `better`; `resampled` (resamples, labels) has the same order. Equal labels share the first of
    their places.
    """
    low, high = np.quantile(_places(resampled), _TAILS, axis=0, method="inverted_cdf")
    (here,) = _places(better.to_numpy()[None])
    columns = {"place": here, "place_low": low, "place_high": high}
    return pd.DataFrame(columns, index=better.index)


def _places(table: npt.NDArray[np.floating]) -> Numbers:
    ranks = pd.DataFrame(table).rank(axis=1, method="min", ascending=False)
    return np.where(np.isnan(table).any(axis=1, keepdims=True), np.nan, ranks)


_TAILS = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]


def share_cells(row: Any) -> tuple[str, str, str]:
    """A row's mean share, place and P(better) as texts; `row` is a row of `Gaps.over`, by `itertuples`."""
    of_row = place(row.place, row.place_low, row.place_high)
    if row.Index == BASELINE and not math.isnan(row.mean):
        return "0", of_row, "-"
    return share(row.mean, row.low, row.high), of_row, share(row.better)


@dataclass(frozen=True)
class Gaps:
    """The shares of the gap that rows close by one selection rule."""

    chosen: Chosen
    cells: pd.DataFrame
    """See `oodbench.report.cells`."""
    trials: pd.DataFrame
    """The methods' means over test environments, by dataset and trial."""
    rooms: pd.DataFrame
    """See `head_rooms`."""

    @property
    def rule(self) -> str:
        """The selection rule."""
        return self.chosen.rule.full_name

    @cached_property
    def everyone(self) -> pd.DataFrame:
        """`trials` with columns for the unranked rows, too."""
        kinds = (METHOD, TRANSDUCTIVE, REFERENCE, CONSTANT)
        parts = [scores(self.cells, kind) for kind in kinds]
        parts[0] = parts[0][parts[0]["label"] == BASELINE]  # every dataset and trial has it
        apart = by_trial(pd.concat([part for part in parts if len(part)]))
        return self.trials.join(apart[[x for x in apart if x not in self.trials]])

    @cached_property
    def subsets(self) -> dict[str, list[str]]:
        """The datasets with a clear head-room: ALL of them, and those of each of GROUPS that has any."""
        runs, clear = self.chosen.runs, [str(d) for d in self.rooms.index[self.rooms["clear"]]]
        boards = runs.loc[runs["frozen"].eq(True), "directory"].unique()
        weights, of_boards = pretraining(runs), halves(boards[0]) if len(boards) else {}
        groups = {ALL: clear}
        groups |= {half: [d for d in clear if d in of_boards.get(half, ())] for half in HALVES}
        groups[PRETRAINED] = [d for d in clear if weights.get((d, BASELINE))]
        return {group: members for group, members in groups.items() if members}

    @cached_property
    def all_shares(self) -> pd.DataFrame:
        """Shares by dataset (row) and label (column), unranked rows included."""
        return shares(self.everyone, self.rooms)

    @cached_property
    def shares(self) -> pd.DataFrame:
        """Shares of the methods, the best mean first and incomplete labels last."""
        table = self.all_shares[list(self.trials)]
        return table[_ordered(bounded_mean(table)).index]

    @cached_property
    def means(self) -> "pd.Series[float]":
        """The mean share of each method that has every dataset, the best first."""
        return bounded_mean(self.shares).dropna()

    @property
    def unclear(self) -> list[str]:
        """The datasets whose head-room is not clear of its error."""
        return [str(dataset) for dataset in self.rooms.index[~self.rooms["clear"]]]

    @cached_property
    def over(self) -> dict[str, pd.DataFrame]:
        """Mean shares over each group of datasets, by label: methods first, the best at the top.

        `mean`, with the 95 % interval `low`, `high`; `better`, the share of resamples in which the row
        beats the baseline (a tie counts half); `place`, `place_low`, `place_high`; `grey`, whether the
        row is not a method, and so unranked. NaN for what a row lacks.
        """
        return {group: self._over(members) for group, members in self.subsets.items()}

    def _over(self, members: list[str]) -> pd.DataFrame:
        means = bounded_mean(self.all_shares.loc[members])
        grey = ~means.index.isin(list(self.trials))
        means = pd.concat([_ordered(means[~grey]), _ordered(means[grey])])
        drawn = resampled(self.everyone, self.rooms, members)
        low, high = np.quantile(drawn, _TAILS, axis=0)
        better = ((drawn > 0) + 0.5 * (drawn == 0)).mean().where(~np.isnan(low))
        ranked = [str(x) for x in drawn if x in self.trials]
        found = places(means[ranked], drawn[ranked].to_numpy()).reindex(drawn.columns)
        found = found.assign(low=low, high=high, better=better)
        if (len(members) if len(members) > 1 else len(self.trials.loc[members])) < LEAST:
            found = found[["place"]].reindex(columns=found.columns)
        found.loc[BASELINE, ["low", "high", "better"]] = math.nan
        return means.to_frame("mean").join(found).assign(grey=~means.index.isin(list(self.trials)))

    def means_over(self, group: str) -> dict[str, str]:
        """The mean share of each row that has all datasets of a group."""
        means = bounded_mean(self.all_shares.loc[self.subsets.get(group, [])]).dropna()
        return {str(label): share(mean) for label, mean in means.items()}


def _ordered(means: "pd.Series[float]") -> "pd.Series[float]":
    return means.sort_values(ascending=False, kind="stable", na_position="last")


def gaps_of(chosen: Chosen, table: pd.DataFrame) -> Gaps | None:
    """The gaps by a rule's choices and their `cells`, on the datasets that have the baseline.

    None if there is no baseline, or no dataset with a clear head-room.
    """
    ceilings, methods = scores(table, CEILING), scores(table)
    baseline = methods[methods["label"] == BASELINE]
    methods = methods[methods["dataset"].isin(baseline["dataset"])]
    if methods.empty or ceilings.empty:
        return None
    trials = by_trial(methods)
    rooms = head_rooms(trials, best_ceiling(by_trial(ceilings)))
    if not rooms["clear"].any():
        return None
    return Gaps(chosen, table, trials, rooms)


def gaps_by_rule(tables: Tables) -> dict[str, Gaps]:
    """The gaps by each rule that has gaps."""
    by_rule = judge_by_all(tables, rule_names()).items()
    found = {rule: gaps_of(chosen, cells(chosen)) for rule, chosen in by_rule}
    return {rule: gaps for rule, gaps in found.items() if gaps}


def lost_to_oracle(by_rule: Mapping[str, Gaps]) -> dict[str, pd.DataFrame]:
    """By rule, what each label (row) loses to the oracle on each dataset (column) that all rules judge.

    Losses are shares of the oracle's head-room, within [-1, 1]. Empty without an oracle.
    """
    oracle = next((gaps for rule, gaps in by_rule.items() if sees_test(rule)), None)
    if oracle is None:
        return {}
    every = [gaps.shares.index for gaps in by_rule.values()]
    datasets = [d for d in oracle.shares.index if all(d in index for index in every)]
    best, rooms = over_trials(oracle.trials), oracle.rooms.loc[datasets, "mean"]
    return {
        rule: (best - over_trials(gaps.trials)).loc[datasets].div(rooms, axis=0).clip(-1, 1).T
        for rule, gaps in by_rule.items()
        if not sees_test(rule)
    }


def losses(by_rule: Mapping[str, Gaps]) -> dict[str, float]:
    """By rule, the mean of `lost_to_oracle` over rows and datasets.

    Rules that judge more datasets come first, then rules that lose less.
    """
    lost = lost_to_oracle(by_rule)
    means = {rule: float(table.mean(axis=1).mean()) for rule, table in lost.items()}
    order = sorted(means, key=lambda rule: (-len(by_rule[rule].rooms), means[rule]))
    return {rule: means[rule] for rule in order}
