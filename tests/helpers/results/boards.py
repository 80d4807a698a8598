"""A small sweep whose first rows are frozen."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from oodbench.results import parquet
from oodbench.results.boards import PROTOCOL_FILE, RECORDS_FILE, RUNS_FILE
from oodbench.results.ended import ended, write_part
from oodbench.results.parquet import RECORDS, RUNS, read_table, table_of, write_table
from oodbench.sweep.file import validate
from oodbench.sweep.launch import LaunchOptions, launch
from tests.helpers.commands import type_in

SEM = {"name": "LinearSEM", "num_examples": 40, "scales": [0.2, 1, 2, 5], "label": "SEM"}
NARROW = {"network": {"name": "MLP", "hparams": {"width": 8}}}
PROTOCOL: dict[str, Any] = {
    "name": "tiny.v1",
    "datasets": [
        SEM,
        {
            **{"name": "ColoredDigits", "copies": 1, "flips": [0.2, 0.1, 0.5, 0.9]},
            **{"label": "digits", "training": NARROW},
        },
    ],
    "algorithms": ["ERM", "IRM", "VREx"],
    "validation_environments": 1,
    "hparam_draws": 4,
    "draws": "per trial",
    "trials": 4,
    "steps": 20,
    "evaluate_every": 10,
}
"""16 runs a row and dataset, which are vectorized."""
ONE_RUN: dict[str, Any] = dict(algorithms=["VREx"], datasets=[SEM], trials=1, hparam_draws=1)


def new_board(folder: Path, name: str, **changes: Any) -> Path:
    """A board of the protocol, with some keys changed, that has no row yet."""
    board = folder / name
    board.mkdir()
    (board / PROTOCOL_FILE).write_text(yaml.safe_dump(PROTOCOL | changes))
    return board


def trained(folder: Path, out: str, *, keep_predictions: Any = False, **changes: Any) -> Path:
    """A results directory of the sweep with some keys changed."""
    options = LaunchOptions(
        out=folder / out, launcher="debug", keep_predictions=keep_predictions, table=False
    )
    launch(validate(PROTOCOL | changes, "tiny"), options)
    return folder / out


def invoke(*arguments: object, code: int = 0) -> str:
    """Return what `python -m oodbench.board` prints, or `oodbench.report` for its commands.

    It must exit with this code.
    """
    room = "report" if arguments[0] in ("table", "compare", "figure") else "board"
    return type_in(room, *arguments, code=code).output


@dataclass
class Stored:
    """The two tables of a board as they are on the disk."""

    runs: pd.DataFrame
    records: pd.DataFrame

    def row(self, dataset: str, label: str) -> "pd.Series[bool]":
        return (self.runs["dataset_label"] == dataset) & (self.runs["label"] == label)


def stored(board: Path) -> Stored:
    """The tables of a board; names are plain texts."""
    records = parquet.records_frame([read_table(board / RECORDS_FILE, RECORDS)])
    runs = parquet.runs_frame(read_table(board / RUNS_FILE, RUNS))
    return Stored(runs, records.astype(dict.fromkeys(parquet.CATEGORIES, object)))


@contextmanager
def edited_board(board: Path) -> Iterator[Stored]:
    """The tables of a board to change; records of runs that go are left out when they are written."""
    tables = stored(board)
    before = set(tables.runs["id"])
    yield tables
    gone = before - set(tables.runs["id"])
    tables.records = tables.records[~tables.records["id"].isin(gone)]
    write_table(table_of(tables.runs, RUNS), board / RUNS_FILE)
    write_table(table_of(tables.records, RECORDS), board / RECORDS_FILE)


@contextmanager
def edited_results(results: Path) -> Iterator[Stored]:
    """The tables of a results directory to change; records without a run are left out."""
    now = ended(results)
    tables = Stored(now.runs, parquet.records_frame([now.records]))
    yield tables
    records = tables.records[tables.records["id"].isin(tables.runs["id"])]
    write_part(replace(now, records=table_of(records, RECORDS)), now.parts, tables.runs)


def remove(board: Path, dataset: str, *labels: str) -> None:
    """Remove rows of a dataset, or all of them where none is named."""
    with edited_board(board) as tables:
        gone = tables.runs["dataset_label"] == dataset
        if labels:
            gone &= tables.runs["label"].isin(labels)
        tables.runs = tables.runs[~gone]
