"""The hyperparameters that were tried and chosen: the table of a paper's appendix."""

import json
from statistics import median
from typing import Any

import pandas as pd

from oodbench.report.formats import Block, Sheet
from oodbench.results.frames import Frames, sweep_runs
from oodbench.selection import choose, usual

HEADER = ["dataset", "algorithm", "hyperparameter", "default", "tried", "chosen"]


def hparams_sheet(frames: Frames, rule: str | None = None) -> Sheet:
    """Return a table of the values of every varied hyperparameter that draws tried, and of those chosen.

    Numbers are `lowest to highest`, and for the chosen runs in brackets after the median; others are lists.
    The default is that of draw 0. Raises UserError as `choose` does.
    """
    rule = rule or usual(frames)
    runs = sweep_runs(frames)
    best = set(choose(frames, rule)["id"])
    rows, numbers = [], []
    for (dataset, label), group in runs[~runs["ceiling"]].groupby(
        ["dataset_label", "label"], sort=False
    ):
        for name in varied(group["hparams"]):
            of_run = group["hparams"].map(lambda hparams, name=name: hparams.get(name))
            defaults = of_run[group["draw"] == 0]
            default = text_of(defaults.iloc[0]) if len(defaults) else "-"
            chosen = list(of_run[group["id"].isin(best)])
            texts = [default, _span(list(of_run)), _median_and_span(chosen)]
            rows.append([str(dataset), str(label), name, *texts])
            numbers.append(dict(zip(HEADER, rows[-1], strict=True)))
    block = Block("Hyperparameters: tried and chosen", HEADER, _once(rows), len(rows), keys=3)
    notes: tuple[str, ...] = (
        f"Chosen by {rule}: the median (lowest to highest) over test environments and trials.",
        "Hyperparameters that no draw varies are at their defaults and left out.",
    )
    if "hparams_from" in runs:
        known = runs["hparams_from"].dropna().unique()
        notes += tuple(f"Some were {text}: its own table has what was tried." for text in known)
    return Sheet([block], notes, (), pd.DataFrame(numbers, columns=HEADER).to_dict("list"))


def varied(hparams: "pd.Series[Any]") -> list[str]:
    """Return the names of the hyperparameters that differ among runs."""
    names = dict.fromkeys(name for of_run in hparams for name in of_run)
    return [n for n in names if len({json.dumps(of_run.get(n)) for of_run in hparams}) > 1]


def _are_numbers(values: list[Any]) -> bool:
    return all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)


def text_of(value: Any) -> str:
    """Return a hyperparameter's value as tables print it."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _span(values: list[Any]) -> str:
    """Return the lowest and the highest of numbers, or all different values."""
    if not values:
        return "-"
    if not _are_numbers(values):
        return ", ".join(dict.fromkeys(map(text_of, values)))
    low, high = text_of(min(values)), text_of(max(values))
    return low if low == high else f"{low} to {high}"


def _median_and_span(values: list[Any]) -> str:
    """Return the median of numbers, and in brackets what they span if they differ."""
    span = _span(values)
    if " to " not in span or not _are_numbers(values):
        return span
    return f"{text_of(median(values))} ({span})"


def _once(rows: list[list[str]]) -> list[list[str]]:
    """Blank the dataset and algorithm of a row where they repeat those of the row before."""
    shown = []
    for before, row in zip([[], *rows], rows, strict=False):
        same = 2 if before[:2] == row[:2] else int(before[:1] == row[:1])
        shown.append([*[""] * same, *row[same:]])
    return shown
