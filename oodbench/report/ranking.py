"""Ranks of labels over blocks, and tests of their differences.

A *table* has a block (a dataset) a row and a label a column, larger values being better; rank 1 is
the best. scikit-posthocs, which tests check the critical difference against, would bring seaborn
and statsmodels and 2 s of imports for the three short functions at the end of this module, and has
no critical difference or cliques of its own.
"""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
import scipy

from oodbench.errors import UserError
from oodbench.report.statistics import plain_mean


def block_table(scores: pd.DataFrame) -> pd.DataFrame:
    """Blocks by labels: mean over environments of the mean over trials, larger is better.

    A block is a dataset, or a test environment where there is one dataset. The table has only the
    labels with a value in every block, environment and trial that any label has; NaN (a diverged
    run) becomes the worst of its block.
    """
    block = "dataset" if scores["dataset"].nunique() > 1 else "environment"
    sizes = scores.groupby("label", sort=False).size()
    whole = len(scores[["dataset", "environment", "trial"]].drop_duplicates())
    full = scores[scores["label"].isin(sizes.index[sizes == whole])]
    full = full.assign(value=np.where(full["higher"].astype(bool), 1.0, -1.0) * full["value"])
    groups = full.groupby(["label", "dataset", "environment"], sort=False)["value"]
    cells = groups.agg(plain_mean).groupby(["label", block], sort=False).agg(plain_mean)
    return pd.DataFrame(cells.unstack("label")).fillna(-math.inf)


def ranks(table: pd.DataFrame) -> pd.DataFrame:
    """Ranks in every block, 1 the best; equal values, to 12 digits, share their mean rank."""
    return table.map(lambda v: float(f"{v:.12g}")).rank(axis=1, ascending=False)


def mean_ranks(table: pd.DataFrame) -> "pd.Series[float]":
    """The mean rank of every label over the blocks, the best first."""
    return ranks(table).mean().sort_values(kind="stable")


@dataclass(frozen=True)
class Friedman:
    """Friedman's test of whether all labels are equal."""

    statistic: float
    p: float


def friedman(table: pd.DataFrame) -> Friedman | None:
    """Friedman's chi-squared test with the correction for ties; None below 3 labels or 2 blocks."""
    blocks, labels = table.shape
    if labels < 3 or blocks < 2:
        return None
    ranked = ranks(table)
    if (ranked.nunique(axis=1) == 1).all():
        return Friedman(0.0, 1.0)
    statistic, p = scipy.stats.friedmanchisquare(*ranked.to_numpy().T)
    return Friedman(float(statistic), float(p))


def holm_against(table: pd.DataFrame, baseline: str) -> pd.DataFrame:
    """Test every other label against the baseline by mean rank (Demšar 2006, section 3.2.2).

    Returns a row for each label, the smallest p first: `p`, and `holm`, p after Holm's step-down
    correction.
    """
    blocks, labels = table.shape
    mean = mean_ranks(table)
    difference = (mean - mean[baseline]).drop(baseline)
    z = difference / math.sqrt(labels * (labels + 1) / (6 * blocks))
    p = pd.Series(2 * scipy.special.ndtr(-z.abs().to_numpy()), index=z.index)
    frame = pd.DataFrame({"p": p}).sort_values("p")
    factor = np.arange(len(frame), 0, -1)
    return frame.assign(holm=np.minimum(1.0, np.maximum.accumulate(factor * frame["p"])))


def critical_difference(labels: int, blocks: int, alpha: float = 0.05) -> float:
    """The difference of mean ranks beyond which two labels differ by Nemenyi's test."""
    q = float(scipy.stats.studentized_range.ppf(1 - alpha, labels, np.inf)) / math.sqrt(2)
    return q * math.sqrt(labels * (labels + 1) / (6 * blocks))


def cliques(mean: "pd.Series[float]", width: float) -> list[list[str]]:
    """The largest groups of labels within `width` mean ranks, at least two in each.

    They are the bars of a critical-difference diagram.
    """
    ordered = mean.sort_values(kind="stable")
    found: list[list[str]] = []
    for start, rank in enumerate(ordered):
        group = [str(x) for x in ordered.index[start:][(ordered.iloc[start:] <= rank + width)]]
        if len(group) > 1 and not (found and set(group) <= set(found[-1])):
            found.append(group)
    return found


def kendall(a: "pd.Series[float]", b: "pd.Series[float]") -> float:
    """Kendall's tau-b between two rankings, over the labels that both have; NaN below 2."""
    both = a.index.intersection(b.index)
    if len(both) < 2:
        return math.nan
    return float(scipy.stats.kendalltau(a[both], b[both]).statistic)


def rank_stability(table: pd.DataFrame) -> dict[str, float]:
    """Kendall's tau between the mean ranks on all blocks and on all but the named one."""
    if len(table) < 2:
        return {}
    whole = mean_ranks(table)
    return {str(block): kendall(whole, mean_ranks(table.drop(block))) for block in table.index}


@dataclass(frozen=True)
class Ranks:
    """Mean ranks of the labels that are complete everywhere, and the tests of their differences."""

    over: str
    """The kind of the blocks: `dataset` or `environment`."""
    blocks: int
    mean: "pd.Series[float]"
    """The mean rank of each label, the best first."""
    width: float
    """The critical difference at 5 %."""
    friedman: Friedman | None
    holm: "pd.Series[float]"
    """p after Holm's correction of each label but the baseline, the smallest first; empty where the
    baseline has no rank."""
    stability: dict[str, float]
    """Kendall's tau between this ranking and the one without the named block; without NaN."""

    @property
    def cliques(self) -> list[list[str]]:
        """The groups of labels that the critical difference does not tell apart."""
        return cliques(self.mean, self.width)


def ranked(scores: pd.DataFrame, baseline: str) -> Ranks:
    """The ranks of the labels in `scores` (see `oodbench.report.statistics`) with their tests.

    Raises UserError, which says why, where fewer than two labels or blocks can be ranked.
    """
    table = block_table(scores) if len(scores) else pd.DataFrame()
    blocks, labels = table.shape
    if blocks < 2:
        raise UserError("Ranks need at least two datasets or two test environments.")
    if labels < 2:
        raise UserError("Ranks need at least two algorithms that are complete everywhere.")
    mean = mean_ranks(table)
    against = holm_against(table, baseline)["holm"] if baseline in mean.index else None
    taus = rank_stability(table)
    return Ranks(
        over=str(table.index.name),
        blocks=blocks,
        mean=mean,
        width=critical_difference(labels, blocks),
        friedman=friedman(table),
        holm=pd.Series(dtype=float) if against is None else against,
        stability={block: tau for block, tau in taus.items() if math.isfinite(tau)},
    )
