"""The share of the gap closed: how far rows come from the baseline to the ceiling, and how sure that is.

On a dataset the share is (row - baseline) / (ceiling - baseline), 0 for the baseline and 1 for the ceiling,
of means over trials; it has the same unit for accuracies and for losses. In means over datasets it is
bounded below at `FLOOR`, as one diverged regression would outweigh all else. The difference of ceiling and
baseline is the *head-room*. A dataset whose head-room is not clear of its own error has no shares.

`Trials` are the values by dataset, trial and label, larger being better. Functions take the labels that are
shown, so that places and win rates are those among these rows.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import scipy

from oodbench.report.statistics import (
    LEVEL,
    RESAMPLES,
    Difference,
    Numbers,
    holm,
    mean_and_error,
    plain_mean,
)

FLOOR = -1.0
"""The lower bound of a dataset's share of the gap in means over datasets."""
CLEAR = 2.0
"""A head-room is clear if it is larger than this number of its standard errors."""

Trials = pd.DataFrame
"""Indexed by dataset and trial, a label a column; -inf for a diverged run, NaN where there is none."""


def by_trial(scores: pd.DataFrame) -> Trials:
    """Return the means over test environments of `scores`, as `oodbench.report.statistics` describes them.

    NaN where a label lacks one of the test environments that another has in that trial.
    """
    sign = np.where(scores["higher"].astype(bool), 1.0, -1.0)
    signed = scores.assign(value=(sign * scores["value"]).fillna(-math.inf))
    cells = signed.groupby(["dataset", "trial", "label"], sort=False)["value"]
    means, counts = (
        of_cells.unstack("label") for of_cells in (cells.agg(plain_mean), cells.size())
    )
    whole = counts.eq(counts.max(axis=1), axis=0)
    return pd.DataFrame(means.where(whole))[list(scores["label"].unique())]


def head_rooms(trials: Trials, ceilings: "pd.Series[float]", baseline: str) -> pd.DataFrame:
    """Return the mean difference of the ceiling to the baseline on each dataset, paired by trial.

    `ceilings` is indexed as `trials` is. Returns `mean`, `stderr` and whether the mean is `clear` of its
    error, by dataset; a dataset without a ceiling or a baseline is left out.
    """
    there = ceilings.notna() & trials[baseline].notna()  # both -inf: NaN, and no clear head-room
    paired = (ceilings - trials[baseline])[there]
    rooms = {d: mean_and_error(values) for d, values in paired.groupby("dataset", sort=False)}
    table = pd.DataFrame(rooms, index=["mean", "stderr"]).T.rename_axis("dataset")
    return table.assign(clear=table["mean"] > CLEAR * table["stderr"])


def shares(trials: Trials, rooms: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """Return the share of the gap that each label closes on each dataset with a clear head-room, unbounded.

    To 12 digits, so that what is equal but for round-off is equal. NaN where a label lacks a trial.
    """
    clear = rooms[rooms["clear"]]
    means = trials.groupby("dataset", sort=False).agg(plain_mean).reindex(clear.index)
    return means.sub(means[baseline], axis=0).div(clear["mean"], axis=0).round(12)


def bounded_mean(shares: pd.DataFrame) -> "pd.Series[float]":
    """Return the mean over datasets of each label's shares, bounded below; NaN for a label that
    lacks one.
    """
    return shares.clip(lower=FLOOR).mean(skipna=False).round(12)


@dataclass(frozen=True)
class Resampled:
    """Every label's numbers in the resamples of a bootstrap over datasets, then over their trials."""

    labels: list[str]
    gap: Numbers
    """(resamples, labels): the bounded mean share of the gap; NaN without a clear head-room."""
    rank: Numbers
    """(resamples, labels): the mean rank."""

    def interval(self, label: str) -> tuple[float, float]:
        """Return the 2.5 % and 97.5 % points of a label's share."""
        return _interval(self.gap[:, self.labels.index(label)])


def resampled(
    trials: Trials,
    rooms: pd.DataFrame,
    baseline: str,
    datasets: Collection[str] | None = None,
    resamples: int = RESAMPLES,
) -> Resampled:
    """Resample the datasets (all by default) and, within each that is drawn, its trials.

    A resample has the same trials for all labels, as they are paired. The head-rooms are units and stay
    what they are. Ranks are over all datasets, shares over those with a clear head-room. Only labels that
    have every trial take part.
    """
    chosen = [d for d in trials.index.unique("dataset") if datasets is None or d in datasets]
    whole = trials.loc[chosen].dropna(axis=1)
    labels = [str(label) for label in whole.columns]
    clear = [d for d in chosen if d in rooms.index[rooms["clear"]]]
    column, gap = labels.index(baseline), np.full((resamples, len(labels)), math.nan)
    if clear:
        units = rooms.loc[clear, "mean"].to_numpy()
        gap = np.zeros_like(gap)
        for drawn, means in _resamples(whole.loc[clear], resamples):
            with np.errstate(invalid="ignore"):  # a diverged baseline
                share = (means - means[:, [column]]) / units[drawn, None]
            gap += np.maximum(share, FLOOR) / len(clear)
    rank = np.zeros((resamples, len(labels)))
    for _, means in _resamples(whole, resamples):
        rank += scipy.stats.rankdata(-_rounded(means), axis=1)
    return Resampled(labels, gap, rank / len(chosen))


def _resamples(trials: Trials, resamples: int) -> Iterator[tuple["np.ndarray", Numbers]]:
    """Yield for each slot of a resample the sampled datasets, (resamples,), and means over their trials.

    The means are (resamples, labels), each over as many resampled trials as the dataset has.
    """
    values = [table.to_numpy(float) for _, table in trials.groupby("dataset", sort=False)]
    sizes = np.array([len(table) for table in values])
    padded = np.zeros((len(values), sizes.max(), trials.shape[1]))
    for table, value in zip(padded, values, strict=True):
        table[: len(value)] = value
    rng = np.random.default_rng(0)
    for _ in values:
        drawn = rng.integers(len(values), size=resamples)
        means = np.zeros((resamples, trials.shape[1]))
        for size in np.unique(sizes):  # datasets with as many trials
            rows = np.flatnonzero(sizes[drawn] == size)
            trial = rng.integers(size, size=(len(rows), size))
            means[rows] = padded[drawn[rows, None], trial].mean(axis=1)
        yield drawn, means


def _rounded(values: Numbers) -> Numbers:
    """Return the values to 12 digits, so that those that are equal but for round-off share a rank."""
    has_digits = np.isfinite(values) & (values != 0)
    unit = 10.0 ** (
        np.floor(np.log10(np.abs(values, where=has_digits, out=np.ones_like(values)))) - 11
    )
    return np.asarray(np.where(has_digits, np.round(values / unit) * unit, values))


@dataclass(frozen=True)
class Place:
    """A label's place among all, 1 the best."""

    place: int
    low: int
    high: int
    """The 2.5 % and 97.5 % points of the place over the resamples."""
    first: float
    """The share of the resamples in which the label is the first; equal labels share it."""


def places(better: "pd.Series[float]", resampled: Numbers) -> dict[str, Place]:
    """Return the place of each label by a number of which larger is better, and its spread over resamples.

    `resampled` is (resamples, labels), in the order of `better`. Equal labels have the first of their
    places.
    """
    here = scipy.stats.rankdata(-better.to_numpy(), method="min")
    there = scipy.stats.rankdata(-resampled, axis=1, method="min")
    first = (there == 1) / (there == 1).sum(axis=1, keepdims=True)
    spread = np.quantile(there, _TAILS, axis=0, method="inverted_cdf")
    columns = zip(better.index, here, *spread, first.mean(axis=0), strict=True)
    return {str(x): Place(int(p), int(a), int(b), float(f)) for x, p, a, b, f in columns}


def significant(differences: Sequence[Difference]) -> list[int]:
    """1 for a gain, -1 for a loss, 0 for neither, after Holm's correction over all these differences.

    By the paired t-test over clusters at 5 %; differences of equal values are no tests.
    """
    tests = {i: _p(d) for i, d in enumerate(differences) if not d.equal and d.gain.n > 1}
    corrected = holm(pd.Series(tests, dtype=float))
    below = corrected.index[corrected < 1 - LEVEL]
    return [int(np.sign(d.gain.mean)) if i in below else 0 for i, d in enumerate(differences)]


def _p(difference: Difference) -> float:
    """Return the two-sided p of the t-test of a gain; 1 where it has no error that is a number."""
    gain = difference.gain
    if not math.isfinite(gain.stderr):
        return 1.0
    t = abs(gain.mean) / gain.stderr if gain.stderr else math.inf
    return float(2 * scipy.special.stdtr(gain.n - 1, -t))


_TAILS = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]


def _interval(values: Numbers) -> tuple[float, float]:
    low, high = np.quantile(values, _TAILS)
    return float(low), float(high)
