"""Reported boards: numbers that others have printed, each with its source.

BOARD/reported.csv  a number a row: dataset (as we call it), selection, method, environment (or
                    `average`), mean and error in %, source and perhaps footnote
BOARD/about.yaml    title, what the errors are, and the sources and footnotes by the names above
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from pydantic import BaseModel, ConfigDict, ValidationError

from oodbench.board.files import NUMBERS_FILE
from oodbench.errors import UserError, unknown
from oodbench.report.formats import Block, Sheet
from oodbench.report.leaderboard import leaderboard
from oodbench.report.sheet import sheet
from oodbench.results.frames import only
from oodbench.results.join import joined
from oodbench.selection import usual
from oodbench.yaml_values import read_yaml

ABOUT_FILE = "about.yaml"
COLUMNS = (
    *("dataset", "selection", "method", "environment"),
    *("mean", "error", "source", "footnote"),
)
AVERAGE = "average"
UNSAID = "as published"
"""The selection of numbers whose source names none of our rules."""


class About(BaseModel):
    """The description of a reported board: title, errors, sources, footnotes."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    title: str
    error: str
    """The kind of the errors."""
    sources: dict[str, str]
    footnotes: dict[str, str] = {}


@dataclass(frozen=True)
class Reported:
    """The numbers of a reported board."""

    name: str
    about: About
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
        about = About.model_validate(read_yaml(board / ABOUT_FILE))
    except ValidationError as error:
        raise UserError(f"{board / ABOUT_FILE}: {error.errors()[0]['msg']}") from error
    for column, known in (("source", about.sources), ("footnote", about.footnotes)):
        for name in table[column].unique():
            if name not in known and (name or column == "source"):
                raise UserError(f"{board / ABOUT_FILE} does not say what the {column} '{name}' is")
    if table.duplicated(list(COLUMNS[:4])).any() or table["mean"].isna().any():
        raise UserError(f"{path} has a number twice, or lacks one")
    return Reported(board.name, about, table)


def sheets_with_reported(
    board: Reported,
    directories: Sequence[Path],
    selection: str | None,
    named: Collection[str],
    rows: Sequence[str] = (),
) -> Iterator[Sheet]:
    """The leaderboards of results directories on the datasets of a reported board, then its numbers.

    `named` restricts both to these datasets, and `rows` the numbers to these rows; empty means all. Numbers
    are those of `selection`, by default of the rule of the runs if it is reported, else of all. Raises
    UserError where runs and numbers share no dataset.
    """
    datasets = set(named) or None
    if directories:
        frames = joined(directories)
        names = dict(zip(frames.runs["dataset_label"], frames.runs["dataset"], strict=True))
        known = set(board.table["dataset"])
        datasets = datasets or {name for pair in names.items() for name in pair if name in known}
        if not datasets:
            raise UserError(
                f"{', '.join(map(str, directories))} and {board.name}, with "
                f"{', '.join(board.table['dataset'].unique())}, share no dataset"
            )
        for label, name in names.items():
            if {label, name} & datasets & known:
                yield sheet(leaderboard(only(frames, [label]), selection))
        rule = usual(frames)
        selection = selection or (rule if rule in set(board.table["selection"]) else None)
    yield reported_sheet(board, selection, datasets, rows)


def reported_sheet(
    board: Reported,
    selection: str | None = None,
    datasets: Collection[str] | None = None,
    rows: Sequence[str] = (),
) -> Sheet:
    """A table for each dataset and selection rule, in which nothing is ranked.

    `selection`, `datasets` and `rows` leave others out; raises UserError where nothing is left.
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
    if rows:
        methods = table["method"].unique()
        for row in rows:
            if row not in methods:
                raise unknown("algorithm", row, methods, f"the reported board {board.name}")
        table = table[table["method"].isin(rows)]
    blocks = [
        _block(f"{dataset}: accuracy (%) as reported, selection {rule}", numbers)
        for (dataset, rule), numbers in table.groupby(["dataset", "selection"], sort=False)
    ]
    about = board.about
    sources = [f"{name} is {about.sources[name]}" for name in table["source"].unique()]
    marks = [mark for mark in table["footnote"].unique() if mark]
    notes = (
        f"{about.title}. Reported, not run here, and ranked with nothing; errors: {about.error}.",
        f"Sources: {'; '.join(sources)}.",
        *(f"* {about.footnotes[mark]}." for mark in marks),
    )
    return Sheet(blocks, notes, (), table.to_dict("list"))


def _block(title: str, numbers: pd.DataFrame) -> Block:
    environments = [e for e in numbers["environment"].unique() if e != AVERAGE]
    rows = []
    for method, row in numbers.groupby("method", sort=False):
        mark = " *" if row["footnote"].any() else ""
        places = zip(row["environment"], row["mean"], row["error"], strict=True)
        cells = {environment: _number(mean, error) for environment, mean, error in places}
        values = [cells.get(environment, "-") for environment in (*environments, AVERAGE)]
        rows.append([f"{method}{mark}", *values, ", ".join(row["source"].unique())])
    return Block(title, ["algorithm", *environments, "mean", "from"], rows, len(rows))


def _number(mean: float, error: float) -> str:
    return f"{mean:.1f}" if error != error else f"{mean:.1f} ± {error:.1f}"
