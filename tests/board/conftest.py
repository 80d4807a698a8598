"""Results of a small sweep, a part of which is frozen; made once for all processes of the tests."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from oodbench.board.freeze import freeze
from tests.conftest import made_once
from tests.helpers.results.boards import PROTOCOL, new_board, trained


def _once(factory: pytest.TempPathFactory, out: str, **options: Any) -> Path:
    """A results directory, which the first process that needs it trains."""
    folder = made_once(factory, f"board-{out}", lambda folder: trained(folder, out, **options))
    return folder / out


@pytest.fixture(scope="session")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of the first two rows."""
    return _once(tmp_path_factory, "half", algorithms=["ERM", "IRM"])


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory, half: Path) -> Path:
    """Results of the whole sweep."""

    def write(folder: Path) -> None:
        shutil.copytree(half, folder / "whole")
        trained(folder, "whole")  # the last row

    return made_once(tmp_path_factory, "board-whole", write) / "whole"


@pytest.fixture(scope="session")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of the last row."""
    return _once(tmp_path_factory, "mine", algorithms=["VREx"])


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of the first two rows on digits, with predictions."""
    digits = {"algorithms": ["ERM", "IRM"], "datasets": [PROTOCOL["datasets"][1]]}
    return _once(tmp_path_factory, "kept", keep_predictions=True, **digits)


@pytest.fixture(scope="session")
def board(tmp_path_factory: pytest.TempPathFactory, half: Path) -> Path:
    """A board of the first two rows; tests must not change it."""
    name = "tiny.v1"
    made = made_once(tmp_path_factory, "boards", lambda root: freeze(half, new_board(root, name)))
    return made / name


@pytest.fixture
def copy(board: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(board, tmp_path / "tiny.v1"))
