"""A small sweep whose first rows are frozen."""

from pathlib import Path
from typing import Any

import yaml
from typer.testing import CliRunner

from oodbench.board.cli import app
from oodbench.board.files import PROTOCOL_FILE
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
    """What `python -m oodbench.board` prints; it must exit with this code."""
    found = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert found.exit_code == code, found.output
    return found.output
