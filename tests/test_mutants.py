"""What `tests/mutants.py` mutates, and the tests that it runs, are there."""

from tests.helpers.paths import ROOT
from tests.mutants import TARGETS


def test_every_target_and_its_tests_are_files() -> None:
    for pattern, tests in TARGETS.items():
        assert list(ROOT.glob(pattern)), pattern
        assert all((ROOT / path).exists() for path in tests), pattern
