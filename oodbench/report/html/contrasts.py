"""Differences to a baseline and ranks, as the HTML report shows them. Imports no torch."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from oodbench.errors import UserError
from oodbench.report.comparison import OVERALL, gains
from oodbench.report.html.curves import significant
from oodbench.report.ranking import ranked
from oodbench.report.statistics import BAND, Difference


def contrasts(scores: pd.DataFrame, names: Mapping[str, Any], baseline: str) -> dict[str, Any]:
    """`differences` and `ranks` of the labels under one selection rule.

    `scores` is `leaderboard.scores`; `names` has the `datasets` (`name`, `percent`) and the `labels`.
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
        counts |= {"equal": d.equal, "clusters": d.gain.n, "pairs": d.pairs, "planned": d.planned}
        values = dict(zip(keys, significant(numbers, 4), strict=True))
        rows.append({"label": labels.index(d.label)} | values | counts)
    return rows


def _ranks(scores: pd.DataFrame, names: Mapping[str, Any], baseline: str) -> dict[str, Any]:
    """Mean ranks and their tests; `error` says why there are none."""
    try:
        found = ranked(scores, baseline)
    except UserError as error:
        return {"error": str(error)}
    place = names["labels"].index
    test = found.friedman
    return {
        "by": found.over,
        "blocks": found.blocks,
        "labels": [place(label) for label in found.mean.index],
        "mean": significant(found.mean, 4),
        "width": significant([found.width], 4)[0],
        "cliques": [[place(label) for label in group] for group in found.cliques],
        "friedman": significant([test.statistic, test.p], 3) if test else None,
        "holm": [[place(label), *significant([p], 3)] for label, p in found.holm.items()],
        "stability": [list(pair) for pair in found.stability.items()],
        "incomplete": [
            i
            for i, label in enumerate(names["labels"])
            if label not in found.mean.index and i not in names["grey"] + names["apart"]
        ],
    }
