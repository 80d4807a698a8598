"""How much datasets and selection rules agree on the order of rows, and what a rule costs."""

import math
from collections.abc import Mapping

from oodbench.board.protocol import Tier
from oodbench.report.formats import Block
from oodbench.report.gap_tables import BASELINE, Gaps, gaps_of
from oodbench.report.gaps import FLOOR, bounded_mean
from oodbench.report.leaderboard import METHOD, kinds
from oodbench.report.numbers import counted
from oodbench.report.remarks import number_of_trials
from oodbench.report.statistics import kendall, plain_mean
from oodbench.report.traces import plain_means
from oodbench.results.frames import Frames, subset, sweep_runs, test_values
from oodbench.selection import USUAL


def datasets_agree(gaps: Gaps) -> Block:
    """A table of Kendall's tau between the orders of rows on two datasets, and on one and the others."""
    table = gaps.shares
    rows = []
    for dataset, here in table.iterrows():
        taus = {d: kendall(here.dropna(), there.dropna()) for d, there in table.iterrows()}
        cells = ["" if d == dataset else _number(tau) for d, tau in taus.items()]
        rest = bounded_mean(table.drop(dataset)).dropna()
        rows.append([str(dataset), *cells, _number(kendall(here.dropna(), rest))])
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
            tau = f"{_number(kendall(a, b))} ({counted(len(both), 'dataset')})"
            cells.append("" if one is other else tau)
        rows.append([rule, *cells])
    return Block("Rules: Kendall's tau of the orders of rows", ["rule", *gaps], rows, len(rows))


def rules_cost(gaps: Mapping[str, Gaps], oracle: str = "oracle") -> Block | None:
    """A table of how much less of the gap rows close by each rule than by the oracle; None without one.

    Its numbers are means over rows on each dataset. By either rule the gap starts at the value of the
    baseline's runs that the oracle chooses.
    """
    if oracle not in gaps or len(gaps) < 2:
        return None
    best = gaps[oracle]
    datasets = best.shares.index
    start = best.trials[BASELINE].groupby("dataset").agg(plain_mean)[datasets]
    rows = []
    for rule, one in gaps.items():
        if rule == oracle:
            continue
        means = one.trials.groupby("dataset").agg(plain_mean).reindex(datasets)
        reached = means.sub(start, axis=0).div(best.rooms["mean"][datasets], axis=0)
        lost = (best.shares.clip(lower=FLOOR) - reached.clip(lower=FLOOR)).mean(axis=1)
        rows.append([rule, *map(_number, lost), _number(lost.mean())])
    title = "Share of the gap that rows close less than by the oracle"
    return Block(title, ["rule", *map(str, datasets), "mean"], rows, len(rows))


def tiers_agree(gaps: Gaps, frames: Frames, tiers: Mapping[str, Tier]) -> Block:
    """A table of each tier's size, its time for the baseline, and Kendall's tau with the whole board."""
    rows = []
    for name, tier in tiers.items():
        few = of_tier(frames, tier)
        one = gaps_of(few, gaps.rule)
        baseline = few.runs[few.runs["label"] == BASELINE]
        tau = kendall(one.means, gaps.means) if one else math.nan
        seconds = f"{baseline['training_seconds'].sum():.0f} s"
        datasets, draws = (str(baseline[c].nunique()) for c in ("dataset_label", "draw"))
        counts = [datasets, draws, number_of_trials(baseline), str(len(baseline))]
        rows.append([name, *counts, seconds, _number(tau)])
    header = ["tier", "datasets", "draws", "trials", f"runs of {BASELINE}", "their time"]
    title = "Tiers: Kendall's tau of the order of rows with the whole board's"
    return Block(title, [*header, "tau"], rows, len(rows))


def of_tier(frames: Frames, tier: Tier) -> Frames:
    """The frames of the datasets, draws and trials of a tier."""
    runs = frames.runs
    kept = runs["dataset_label"].isin(tier.datasets or runs["dataset_label"].unique())
    for column, most in (("draw", tier.draws), ("trial", tier.trials)):
        places = runs.groupby("dataset_label")[column].rank(method="dense")
        kept &= places <= (most or math.inf)
    return subset(frames, runs[kept])


def on_the_line(frames: Frames) -> Block:
    """Spearman's correlation of values in and out of distribution over all runs of methods, by dataset.

    Each run counts at the step that `train_val` chooses, with its score on held-out examples of the
    training environments and its value on the test environments. Where the two are highly correlated, a
    better fit is all that a dataset asks for (Miller et al., ICML 2021).
    """
    runs = sweep_runs(frames)
    of_methods = [k == METHOD for k in kinds(runs, runs["dataset_label"], runs["label"])]
    runs = runs[of_methods].set_index("id")
    judged = frames.scores[(frames.scores["rule"] == USUAL) & frames.scores["id"].isin(runs.index)]
    judged = judged[["id", "step", "score"]].astype({"id": object})
    on_tests = test_values(frames, judged[["id", "step"]])
    values = plain_means(on_tests["value"], on_tests["id"])
    table = judged.assign(
        value=judged["id"].map(values), dataset=judged["id"].map(runs["dataset_label"])
    )
    rows = []
    for dataset, pairs in table.dropna().groupby("dataset", sort=False):
        rho = pairs["score"].corr(pairs["value"], method="spearman")
        rows.append([str(dataset), f"{len(pairs):,}", _number(rho)])
    title = "In and out of distribution: Spearman's correlation over runs"
    return Block(title, ["dataset", "runs", "correlation"], rows, len(rows))


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:z.2f}"
