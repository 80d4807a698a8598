"""Reported numbers as tables: of their own, or beside runs trained here. Imports no torch."""

from collections.abc import Collection

import pandas as pd

from oodbench.errors import unknown
from oodbench.report.sheet import Block, Sheet
from oodbench.results.reported import AVERAGE, Reported

UNSAID = "as published"
"""The selection of numbers whose source does not say in these words by which rule they were chosen."""


def reported_sheet(
    board: Reported, selection: str | None = None, datasets: Collection[str] | None = None
) -> Sheet:
    """A table for each dataset and selection rule, in which nothing is ranked.

    `selection` and `datasets` leave others out; raises UserError where nothing is left.
    """
    table = board.table
    if selection is not None:
        chosen = table["selection"].isin((selection, UNSAID))
        if not chosen.any():
            raise unknown("selection rule", selection, table["selection"].unique(), board.name)
        table = table[chosen]
    if datasets is not None:
        if not set(datasets) & set(table["dataset"]):
            names = table["dataset"].unique()
            raise unknown("dataset", ", ".join(datasets), names, f"the reported board {board.name}")
        table = table[table["dataset"].isin(datasets)]
    blocks = [
        _block(f"{dataset}: accuracy (%) as reported, selection {rule}", own)
        for (dataset, rule), own in table.groupby(["dataset", "selection"], sort=False)
    ]
    sources = [f"{name} is {board.sources[name]}" for name in table["source"].unique()]
    marks = [mark for mark in table["footnote"].unique() if mark]
    notes = (
        f"{board.title}. Reported, not run here, and ranked with nothing; errors: {board.error}.",
        f"Sources: {'; '.join(sources)}.",
        *(f"* {board.footnotes[mark]}." for mark in marks),
    )
    return Sheet(blocks, notes, (), table)


def _block(title: str, own: pd.DataFrame) -> Block:
    environments = [e for e in own["environment"].unique() if e != AVERAGE]
    header = ["algorithm", *environments, AVERAGE, "from"]
    rows = []
    for method, group in own.groupby("method", sort=False):
        mark = " *" if group["footnote"].any() else ""
        places = zip(group["environment"], group["mean"], group["error"], strict=True)
        cells = {environment: _number(mean, error) for environment, mean, error in places}
        values = [cells.get(environment, "-") for environment in (*environments, AVERAGE)]
        rows.append([f"{method}{mark}", *values, ", ".join(group["source"].unique())])
    return Block(title, header, rows, len(rows))


def _number(mean: float, error: float) -> str:
    return f"{mean:.1f}" if error != error else f"{mean:.1f} ± {error:.1f}"
