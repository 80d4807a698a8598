"""A few rounds of each torture; `python -m tests.sweep.torture` deals more."""

from pathlib import Path

import pytest

from oodbench.results.directory import Directory
from tests.sweep import torture

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Directory:
    return torture.undisturbed(tmp_path_factory.mktemp("undisturbed"))


def test_killed_or_doubled_launches_end_as_undisturbed(tmp_path: Path, expected: Directory) -> None:
    assert not torture.kills(tmp_path, expected, 4, seed=100)
    assert not torture.doubles(tmp_path, expected, 2, seed=100)


def test_full_disks_lose_nothing(tmp_path: Path, expected: Directory) -> None:
    assert not torture.disks(tmp_path, expected, 1)
