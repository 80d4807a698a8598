"""How much datasets and selection rules agree on the order of rows, and what a rule costs."""

import math
from collections.abc import Mapping

from oodbench.report.formats import Block
from oodbench.report.gap_tables import BASELINE, Gaps
from oodbench.report.gaps import FLOOR, bounded_mean
from oodbench.report.numbers import counted
from oodbench.report.statistics import kendall, plain_mean


def tables(gaps: Mapping[str, Gaps], rule: str) -> list[Block]:
    """Return the tables of the agreement of datasets by a rule, of rules, and of what rules cost."""
    shown = [datasets_agree(gaps[rule])] if rule in gaps and len(gaps[rule].shares) > 1 else []
    if len(gaps) > 1:
        shown.append(rules_agree(gaps))
    cost = rules_cost(gaps)
    return [*shown, cost] if cost else shown


def datasets_agree(gaps: Gaps) -> Block:
    """Return a table of Kendall's tau between the orders of rows on two datasets, and on one and the
    others.
    """
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
    """Return a table of how much less of the gap rows close by each rule than by the oracle; None without
    one.

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


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:z.2f}"
