"""Results of a small sweep, a part of which is frozen."""

import shutil
from pathlib import Path

import pytest

from oodbench.board.freeze import freeze
from tests.helpers.boards import new_board, protocol_file, trained


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the protocol's file."""
    found = tmp_path_factory.mktemp("board")
    protocol_file(found)
    return found


@pytest.fixture(scope="session")
def whole(folder: Path) -> Path:
    """Results of the whole sweep."""
    return trained(folder, "whole")


@pytest.fixture(scope="session")
def half(folder: Path) -> Path:
    """Results of the first two rows."""
    return trained(folder, "half", algorithms=["ERM", "IRM"])


@pytest.fixture(scope="session")
def mine(folder: Path) -> Path:
    """Results of the last row."""
    return trained(folder, "mine", algorithms=["VREx"])


@pytest.fixture(scope="session")
def board(folder: Path, half: Path) -> Path:
    """A board of the first two rows; tests must not change it."""
    path = new_board(folder, "tiny.v1")
    freeze(half, path)
    return path


@pytest.fixture
def copy(board: Path, tmp_path: Path) -> Path:
    """A board that a test may change."""
    return Path(shutil.copytree(board, tmp_path / "tiny.v1"))
