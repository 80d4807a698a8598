"""Statistics of a comparison: pure functions on numbers and data frames.

`scores` has one number per row: `dataset`, `label`, `environment`, `trial`, `value`, and `higher` (whether
larger is better). A *gain* over a baseline is positive if the label is better, for accuracies and losses
alike. A *table* has one row per block (a dataset) and one column per label; larger is better, and rank 1 is
the best.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
import scipy

LEVEL = 0.95
"""The confidence of every interval."""
BAND = 0.005
"""The indifference band of wins and losses, in the metric's unit: half a point of accuracy."""
RESAMPLES = 10_000
"""The resamples of every bootstrap."""
LEAST = 3
"""The fewest trials or datasets for an error or an interval: two say little about their spread."""
WIDEST = 4.31
"""An upper bound on half an interval in standard errors, which is 4.303 for LEAST values."""
POWER = 0.8
"""The power at which a difference is detectable."""
PAIRED_BY = ["dataset", "environment", "trial"]
"""The columns by which values are paired."""

Numbers = npt.NDArray[np.float64]
Integers = npt.NDArray[np.integer]


@dataclass(frozen=True)
class Estimate:
    """A mean with its standard error (ddof=1) and 95 % interval; NaN where n is below LEAST."""

    mean: float
    stderr: float
    low: float
    high: float
    n: int


def estimate(values: npt.ArrayLike) -> Estimate:
    """The mean of (n,) independent values and its interval by Student's t with n - 1 degrees."""
    n = len(np.asarray(values))
    mean, stderr = mean_and_error(values, LEAST)
    half = stderr * float(half_width(n))
    return Estimate(mean, stderr, mean - half, mean + half, n)


def mean_and_error(values: npt.ArrayLike, least: int = 2) -> tuple[float, float]:
    """The mean of (n,) values and its standard error (ddof=1); NaN where n is below `least`."""
    v = np.asarray(values, dtype=float)
    n = len(v)
    mean = float(v.mean()) if n else math.nan
    return mean, float(v.std(ddof=1)) / math.sqrt(n) if n >= least else math.nan


def half_width(n: npt.ArrayLike) -> Numbers:
    """Half the width of an interval of n values in standard errors (Student's t), or NaN."""
    count = np.asarray(n, dtype=float)
    quantile = scipy.special.stdtrit(np.maximum(count - 1, 1), (1 + LEVEL) / 2)
    return np.where(count >= LEAST, quantile, np.nan)


@dataclass(frozen=True)
class Difference:
    """The gain of a label over the baseline, paired by (dataset, environment, trial)."""

    label: str
    baseline: str
    gain: Estimate
    """Over clusters, which are the datasets, or the trials of a single dataset."""
    wins: int
    ties: int
    losses: int
    """Numbers of pairs above, within and below the indifference band."""
    pairs: int
    planned: int
    """The number of the baseline's values; a row with fewer pairs is incomplete."""
    detectable: float
    """The smallest mean gain that this number of clusters detects with 80 % power."""
    equal: bool
    """Whether both values of every pair are equal, so that there is nothing to estimate."""
    metric: str = ""
    """The metric of the values, or that of the first of several datasets."""


def paired_differences(scores: pd.DataFrame, baseline: str, band: float = BAND) -> list[Difference]:
    """The difference of each other label to `baseline`, in the order of the labels.

    A mean gain averages over trials, then environments, then datasets, which must share one unit. The
    interval is Student's t over clusters, because environments and trials of a dataset share training data.
    """
    is_baseline = scores["label"] == baseline
    of_baseline = scores.loc[is_baseline, [*PAIRED_BY, "value"]]
    pairs = scores[~is_baseline].merge(of_baseline, on=PAIRED_BY, suffixes=("", "_baseline"))
    sign = np.where(pairs["higher"].astype(bool), 1.0, -1.0)
    gains = sign * (pairs["value"] - pairs["value_baseline"]).to_numpy(float)
    # a diverged run loses to any other, and ties with another diverged one
    diverged, other = pairs["value"].isna(), pairs["value_baseline"].isna()
    outcome = np.where(np.abs(gains) <= band, 0, np.sign(gains))
    outcome = np.where(diverged | other, other.astype(int) - diverged.astype(int), outcome)
    metric = str(scores["metric"].iloc[0]) if "metric" in scores and len(scores) else ""
    rows_of = dict(iter(pairs.groupby("label", sort=False).indices.items()))
    dataset, environment, trial = (pd.factorize(pairs[name])[0] for name in PAIRED_BY)
    found = []
    for label in map(str, scores.loc[~is_baseline, "label"].drop_duplicates()):
        rows = rows_of.get(label, np.empty(0, int))
        gain = gains[rows]
        clusters = _clusters(dataset[rows], environment[rows], trial[rows], gain)
        spread = float(clusters.std(ddof=1)) if len(clusters) > 1 else math.nan
        wins, losses = (int((outcome[rows] == sign).sum()) for sign in (1, -1))
        difference = Difference(
            label=label,
            baseline=baseline,
            gain=estimate(clusters),
            wins=wins,
            ties=len(gain) - wins - losses,
            losses=losses,
            pairs=len(gain),
            planned=int(is_baseline.sum()),
            detectable=detectable_difference(spread, len(clusters)),
            equal=len(gain) > 0 and not np.any(gain),
            metric=metric,
        )
        found.append(difference)
    return found


def _clusters(dataset: Integers, environment: Integers, trial: Integers, gain: Numbers) -> Numbers:
    if not len(gain):
        return gain
    if dataset.min() == dataset.max():
        return _means(trial, gain)[0]
    cells, kept = _means(dataset * (1 + environment.max()) + environment, gain)
    return _means(kept // (1 + environment.max()), cells)[0]


def _means(code: Integers, values: Numbers) -> tuple[Numbers, Integers]:
    counts = np.bincount(code)
    there = np.flatnonzero(counts)
    return np.bincount(code, values)[there] / counts[there], there


def each_mean_and_error(
    values: Numbers, code: Integers, size: int, least: int = 2
) -> tuple[Numbers, Numbers]:
    """`mean_and_error`, to the bit, of the values (n,) of each code below `size`; NaN without values."""
    means, errors = np.full(size, np.nan), np.full(size, np.nan)
    counts = np.bincount(code)
    order, starts = np.argsort(code, kind="stable"), np.cumsum(counts) - counts
    for n in np.unique(counts[counts > 0]):  # codes with n values each form a table
        codes = np.flatnonzero(counts == n)
        table = values[order[starts[codes, None] + np.arange(n)]]
        means[codes] = table.mean(axis=1)
        if n >= least:
            errors[codes] = table.std(axis=1, ddof=1) / math.sqrt(n)
    return means, errors


def plain_mean(values: npt.ArrayLike) -> float:
    """The mean, NaN if a value is NaN, which pandas would skip."""
    v = np.asarray(values, dtype=float)
    return float(v.mean()) if len(v) else math.nan


def detectable_difference(spread: float, n: int) -> float:
    """The mean of n paired differences that a two-sided t-test at 5 % detects with 80 % power.

    `spread` is the standard deviation of the differences (ddof=1). NaN if n is below LEAST.
    """
    if n < LEAST or not math.isfinite(spread):
        return math.nan
    critical = scipy.special.stdtrit(n - 1, (1 + LEVEL) / 2)
    shift = scipy.special.nctdtrinc(n - 1, 1 - POWER, critical)  # the other tail is negligible
    return spread * float(shift) / math.sqrt(n)


def by_trial(scores: pd.DataFrame, block: str = "dataset") -> pd.DataFrame:
    """The mean of `scores` for each block and trial (index) and label (column), larger is better.

    -inf for a diverged run; NaN if a label lacks a value that another label has in that trial.
    """
    sign = np.where(scores["higher"].astype(bool), 1.0, -1.0)
    signed = scores.assign(value=(sign * scores["value"]).fillna(-math.inf))
    cells = signed.groupby([block, "trial", "label"], sort=False)["value"]
    means, counts = (of_cells.unstack("label") for of_cells in (cells.mean(), cells.size()))
    whole = counts.eq(counts.max(axis=1), axis=0)
    return pd.DataFrame(means.where(whole))[list(scores["label"].unique())]


def over_trials(trials: pd.DataFrame) -> pd.DataFrame:
    """The mean over trials of each label in each block; its bits do not depend on other labels."""
    block = str(trials.index.names[0])
    tables = trials.groupby(block, sort=False)
    columns = {name: np.ascontiguousarray(table.to_numpy(float).T) for name, table in tables}
    means = {name: of_labels.mean(axis=1) for name, of_labels in columns.items()}
    table = pd.DataFrame.from_dict(means, orient="index", columns=trials.columns)
    return table.rename_axis(block)


def block_table(scores: pd.DataFrame) -> pd.DataFrame:
    """Means over environments and trials by block and label, larger is better.

    A block is a dataset, or a test environment of a single dataset. Labels that lack any block, environment
    or trial are left out.
    """
    block = "dataset" if scores["dataset"].nunique() > 1 else "environment"
    return over_trials(by_trial(scores, block)).dropna(axis=1)


def rounded(mean: float) -> float:
    """A mean to 12 digits, so that equal values are equal in any order of summation."""
    return float(f"{mean:.12g}")


def ranks(table: pd.DataFrame) -> pd.DataFrame:
    """Ranks in every block, 1 the best; equal values share their mean rank."""
    return table.map(rounded).rank(axis=1, ascending=False)


def mean_ranks(table: pd.DataFrame) -> "pd.Series[float]":
    """The mean rank of every label over the blocks, the best first."""
    return ranks(table).mean().sort_values(kind="stable")


def holm(p: "pd.Series[float]") -> "pd.Series[float]":
    """p-values after Holm's step-down correction, in the order of `p`."""
    ordered = p.sort_values()
    steps: pd.Series[float] = (ordered * np.arange(len(p), 0, -1)).cummax()
    return steps.clip(upper=1.0).reindex(p.index)


def significant(differences: Sequence[Difference]) -> list[int]:
    """1 for a gain, -1 for a loss, 0 for neither, by paired t-tests over clusters at 5 %.

    They have Holm's correction over all these differences; equal values are not tested.
    """
    tests = {i: _p(d) for i, d in enumerate(differences) if not d.equal and d.gain.n >= LEAST}
    corrected = holm(pd.Series(tests, dtype=float))
    below = corrected.index[corrected < 1 - LEVEL]
    return [int(np.sign(d.gain.mean)) if i in below else 0 for i, d in enumerate(differences)]


def _p(difference: Difference) -> float:
    gain = difference.gain
    if not math.isfinite(gain.stderr):
        return 1.0
    t = abs(gain.mean) / gain.stderr if gain.stderr else math.inf
    return float(2 * scipy.special.stdtr(gain.n - 1, -t))


def kendall(a: "pd.Series[float]", b: "pd.Series[float]") -> float:
    """Kendall's tau-b between two rankings, over the labels that both have; NaN for fewer than 2."""
    both = a.index.intersection(b.index)
    values = (x[both].to_numpy(float) for x in (a, b))
    first, second = (np.sign(np.subtract.outer(v, v)) for v in values)
    pairs = math.sqrt((first**2).sum() * (second**2).sum())  # without ties
    return float((first * second).sum()) / pairs if pairs else math.nan
