"""The command."""

from pathlib import Path

import pytest

from tests.helpers.commands import type_in


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("Spirals", "--set", "dims=2"), "unknown name 'dims'"),
        (("Spiral",), "did you mean Spirals"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    result = type_in("diagnose", "dataset", *arguments, "--out", tmp_path / "out", code=2)
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    assert message in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.nightly
def test_a_dataset_is_judged_by_the_runs_of_a_board() -> None:
    of_board = ("--results", "small.v3")
    shown = type_in("diagnose", "dataset", "city weather", *of_board, code=0).stdout
    assert "rows equal to ERM" in shown
    said = type_in("diagnose", "dataset", "city wether", *of_board, code=2).stderr
    assert "did you mean city weather" in said
