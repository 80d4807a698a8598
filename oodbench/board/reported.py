"""Reported boards: numbers that others have printed, each with its source. Imports no torch.

BOARD/reported.csv  a number a row: dataset (as we call it), selection, method, environment (or
                    `average`), mean and error in %, source and perhaps footnote
BOARD/about.yaml    title, what the errors are, and the sources and footnotes by the names above
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from pydantic import BaseModel, ConfigDict, ValidationError

from oodbench.board.files import NUMBERS_FILE
from oodbench.errors import UserError, unknown
from oodbench.report.sheet import Block, Sheet
from oodbench.yaml_values import read_yaml

ABOUT_FILE = "about.yaml"
COLUMNS = (
    *("dataset", "selection", "method", "environment"),
    *("mean", "error", "source", "footnote"),
)
AVERAGE = "average"
UNSAID = "as published"
"""The selection of numbers whose source does not say in these words by which rule they were chosen."""


class _About(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    title: str
    error: str
    sources: dict[str, str]
    footnotes: dict[str, str] = {}


@dataclass(frozen=True)
class Reported:
    """The numbers of a reported board."""

    name: str
    title: str
    error: str
    """What the errors are."""
    sources: Mapping[str, str]
    footnotes: Mapping[str, str]
    table: pd.DataFrame
    """COLUMNS; `mean` and `error` in %, an error that was not reported is NaN."""


def read_reported(board: Path) -> Reported:
    """The numbers of a reported board; raises UserError for files that are not of that form."""
    path = board / NUMBERS_FILE
    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
        numbers = {name: pd.to_numeric(table[name]) for name in ("mean", "error")}
    except (ValueError, KeyError) as error:
        raise UserError(f"{path} is no table of reported numbers: {error}") from error
    if tuple(table) != COLUMNS:
        raise UserError(f"{path} must have the columns {', '.join(COLUMNS)}")
    table = table.assign(**numbers)
    try:
        about = _About.model_validate(read_yaml(board / ABOUT_FILE))
    except ValidationError as error:
        raise UserError(f"{board / ABOUT_FILE}: {error.errors()[0]['msg']}") from error
    for column, known in (("source", about.sources), ("footnote", about.footnotes)):
        for name in table[column].unique():
            if name not in known and (name or column == "source"):
                raise UserError(f"{board / ABOUT_FILE} does not say what the {column} '{name}' is")
    if table.duplicated(list(COLUMNS[:4])).any() or table["mean"].isna().any():
        raise UserError(f"{path} has a number twice, or lacks one")
    return Reported(board.name, about.title, about.error, about.sources, about.footnotes, table)


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
