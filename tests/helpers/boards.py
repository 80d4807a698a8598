"""A small sweep whose first rows are frozen."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from typer.testing import CliRunner

from oodbench.board.cli import app
from oodbench.report.cli import app as report
from oodbench.results.boards import PROTOCOL_FILE, dataset_file
from oodbench.results.parts import Part, read_file, write_parts
from oodbench.sweep.file import find_sweep, read_sweep
from oodbench.sweep.launch import LaunchOptions, launch

SEM = {"name": "LinearSEM", "num_examples": 40, "scales": [0.2, 1, 2, 5], "label": "SEM"}
PROTOCOL: dict[str, Any] = {
    "name": "tiny.v1",
    "datasets": [
        SEM,
        {"name": "ColoredDigits", "copies": 1, "flips": [0.2, 0.1, 0.5, 0.9], "label": "digits"},
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
ONE_RUN: dict[str, Any] = {
    "algorithms": ["VREx"],
    "datasets": [SEM],
    "trials": 1,
    "hparam_draws": 1,
}


def protocol_file(folder: Path, **changes: Any) -> Path:
    """The protocol as a file, with some keys changed."""
    path = folder / "tiny-v1.yaml"
    path.write_text(yaml.safe_dump(PROTOCOL | changes))
    return path


def new_board(folder: Path, name: str, **changes: Any) -> Path:
    """A board of the protocol, with some keys changed, that has no part yet."""
    board = folder / name
    board.mkdir()
    (board / PROTOCOL_FILE).write_text(yaml.safe_dump(PROTOCOL | changes))
    return board


def trained(folder: Path, out: str, **changes: Any) -> Path:
    """A results directory of the sweep with some keys changed."""
    file = protocol_file(folder, **changes)
    launch(read_sweep(find_sweep(str(file))), LaunchOptions(out=folder / out, launcher="debug"))
    protocol_file(folder)
    return folder / out


def invoke(*arguments: object, code: int = 0) -> str:
    """Return what `python -m oodbench.board` prints, or `oodbench.report` for its commands.

    It must exit with this code.
    """
    room = report if arguments[0] in ("table", "compare", "figure") else app
    found = CliRunner().invoke(room, [str(argument) for argument in arguments])
    assert found.exit_code == code, found.output
    return found.output


def frozen_part(board: Path, dataset: str, label: str) -> Part:
    """The part of a row on a dataset."""
    (part,) = (part for part in read_file(dataset_file(board, dataset)) if part.label == label)
    return part


def change_part(
    board: Path, dataset: str, label: str, change: Callable[[Part], Part | None]
) -> None:
    """Write a dataset's file again with another part of a row, or without it."""
    path = dataset_file(board, dataset)
    parts = [change(part) if part.label == label else part for part in read_file(path)]
    write_parts([part for part in parts if part is not None], path)


def remove_part(board: Path, dataset: str, label: str) -> None:
    """Write a dataset's file again without a row; the file of one row alone is removed."""
    if len(read_file(dataset_file(board, dataset))) == 1:
        dataset_file(board, dataset).unlink()
    else:
        change_part(board, dataset, label, lambda _: None)
