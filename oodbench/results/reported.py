"""Reported boards: numbers that others have printed, each with its source. Imports no torch.

BOARD/reported.csv  a number a row: dataset (as we call it), selection, method, environment (or
                    `average`), mean and error in %, source and perhaps footnote
BOARD/about.yaml    title, what the errors are, and the sources and footnotes by the names above
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from pydantic import BaseModel, ConfigDict, ValidationError

from oodbench.errors import UserError
from oodbench.results.board_files import NUMBERS_FILE
from oodbench.yaml_values import read_yaml

ABOUT_FILE = "about.yaml"
COLUMNS = (
    *("dataset", "selection", "method", "environment"),
    *("mean", "error", "source", "footnote"),
)
AVERAGE = "average"


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
