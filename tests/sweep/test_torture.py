"""A few rounds of each torture; `python -m tests.sweep.torture` deals more."""

from collections.abc import Callable
from pathlib import Path

import pytest

from oodbench.results.directory import Directory
from tests.helpers.disks import CannotMount
from tests.sweep import torture

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Directory:
    return torture.undisturbed(tmp_path_factory.mktemp("undisturbed"))


@pytest.mark.parametrize(
    "rounds",
    [
        lambda folder, expected: torture.kills(folder, expected, 4, seed=100),
        lambda folder, expected: torture.doubles(folder, expected, 2, seed=100),
    ],
)
def test_launches_that_are_killed_or_doubled_end_as_if_undisturbed(
    tmp_path: Path, expected: Directory, rounds: Callable[[Path, Directory], int]
) -> None:
    assert not rounds(tmp_path, expected)


def test_full_disks_lose_nothing(tmp_path: Path, expected: Directory) -> None:
    try:
        assert not torture.disks(tmp_path, expected, 1)
    except CannotMount as error:
        pytest.skip(str(error))
