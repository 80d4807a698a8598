"""Results of a small sweep, a part of which is frozen; made once for all processes of the tests."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from oodbench.board.freeze import freeze
from tests.helpers.results.boards import PROTOCOL, new_board, trained


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that all processes share."""
    root = tmp_path_factory.getbasetemp()
    found = (root if "PYTEST_XDIST_WORKER" not in os.environ else root.parent) / "boards"
    found.mkdir(exist_ok=True)
    return found


def _once(folder: Path, out: str, **options: Any) -> Path:
    """A results directory, which the first process that needs it trains."""
    with FileLock(folder / f"{out}.lock"):
        return folder / out if (folder / out).exists() else trained(folder, out, **options)


@pytest.fixture(scope="session")
def half(folder: Path) -> Path:
    """Results of the first two rows."""
    return _once(folder, "half", algorithms=["ERM", "IRM"])


@pytest.fixture(scope="session")
def whole(folder: Path, half: Path) -> Path:
    """Results of the whole sweep."""
    with FileLock(folder / "whole.lock"):
        if (folder / "whole").exists():
            return folder / "whole"
        shutil.copytree(half, folder / "whole")
        return trained(folder, "whole")  # the last row


@pytest.fixture(scope="session")
def mine(folder: Path) -> Path:
    """Results of the last row."""
    return _once(folder, "mine", algorithms=["VREx"])


@pytest.fixture(scope="session")
def kept(folder: Path) -> Path:
    """Results of the first two rows on digits, with predictions."""
    digits = {"algorithms": ["ERM", "IRM"], "datasets": [PROTOCOL["datasets"][1]]}
    return _once(folder, "kept", keep_predictions=True, **digits)


@pytest.fixture(scope="session")
def board(folder: Path, half: Path) -> Path:
    """A board of the first two rows; tests must not change it."""
    with FileLock(folder / "board.lock"):
        if not (path := folder / "tiny.v1").exists():
            freeze(half, new_board(folder, path.name))
    return path


@pytest.fixture
def copy(board: Path, tmp_path: Path) -> Path:
    """A board that a test may change."""
    return Path(shutil.copytree(board, tmp_path / "tiny.v1"))
