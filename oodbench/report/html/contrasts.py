"""Differences to a baseline and ranks, as the HTML report shows them. Imports no torch."""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from oodbench.report.comparison import OVERALL, gains
from oodbench.report.html.curves import significant
from oodbench.report.ranking import (
    block_table,
    cliques,
    critical_difference,
    friedman,
    holm_against,
    mean_ranks,
    rank_stability,
)
from oodbench.report.statistics import BAND, Difference


def contrasts(scores: pd.DataFrame, names: Mapping[str, Any], baseline: str) -> dict[str, Any]:
    """`differences` and `ranks` of the labels under one selection rule.

    `scores` is `tables.scores`; `names` has the `datasets` (`name`, `percent`) and the `labels`.
    """
    return {
        "differences": _differences(scores, names, baseline),
        "ranks": _ranks(scores, names, baseline),
    }


def _differences(
    scores: pd.DataFrame, names: Mapping[str, Any], baseline: str
) -> list[dict[str, Any]]:
    """The paired differences on each dataset; those over all have no dataset."""
    if baseline not in set(scores["label"]):
        return []
    places = {d["name"]: i for i, d in enumerate(names["datasets"])}
    percent = {d["name"]: d["percent"] for d in names["datasets"]} | {OVERALL: True}
    return [
        {
            "dataset": places.get(dataset),
            "band": BAND if percent[dataset] else 0.0,
            "rows": _rows(found, names["labels"]),
        }
        for dataset, found in gains(scores, baseline)
    ]


def _rows(differences: list[Difference], labels: list[str]) -> list[dict[str, Any]]:
    rows = []
    for d in differences:
        numbers = (d.gain.mean, d.gain.low, d.gain.high, *d.bootstrap, d.probability, d.detectable)
        keys = ("gain", "low", "high", "lower", "upper", "probability", "detectable")
        counts = {"wins": d.wins, "ties": d.ties, "losses": d.losses}
        counts |= {"clusters": d.gain.n, "pairs": d.pairs, "planned": d.planned}
        values = dict(zip(keys, significant(numbers, 4), strict=True))
        rows.append({"label": labels.index(d.label)} | values | counts)
    return rows


def _ranks(scores: pd.DataFrame, names: Mapping[str, Any], baseline: str) -> dict[str, Any]:
    """Mean ranks over datasets (over test environments where there is one dataset), and tests.

    `error` says why there are none.
    """
    by = ["dataset"] if scores["dataset"].nunique() > 1 else ["dataset", "environment"]
    table = block_table(scores, by) if len(scores) else pd.DataFrame()
    blocks, count = table.shape
    if blocks < 2:
        return {"error": "Ranks need at least two datasets or two test environments."}
    if count < 2:
        return {"error": "Ranks need at least two algorithms that are complete everywhere."}
    mean = mean_ranks(table)
    width = critical_difference(count, blocks)
    place = names["labels"].index
    test = friedman(table)
    ranked = set(mean.index)
    holm = holm_against(table, baseline)["holm"] if baseline in ranked else pd.Series(dtype=float)
    taus = rank_stability(table) if len(by) == 1 else {}
    return {
        "by": by[-1],
        "blocks": blocks,
        "labels": [place(label) for label in mean.index],
        "mean": significant(mean, 4),
        "width": significant([width], 4)[0],
        "cliques": [[place(label) for label in group] for group in cliques(mean, width)],
        "friedman": significant([test.statistic, test.p], 3) if test else None,
        "holm": [[place(label), *significant([p], 3)] for label, p in holm.items()],
        "stability": [[dataset, tau] for dataset, tau in taus.items() if math.isfinite(tau)],
        "incomplete": [place(x) for x in names["labels"] if x not in ranked],
    }
