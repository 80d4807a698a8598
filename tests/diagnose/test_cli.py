"""The command."""

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from oodbench.diagnose.__main__ import app


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("dataset", "Spirals", "--set", "dims=2"), "unknown name 'dims'"),
        (("dataset", "Spiral"), "did you mean Spirals"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    result = call(*arguments, "--out", str(tmp_path / "out"))
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    assert message in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.nightly
def test_a_dataset_is_judged_by_the_runs_of_a_board() -> None:
    result = call("dataset", "city weather", "--results", "small.v3")
    assert result.exit_code == 0 and "rows equal to ERM" in result.stdout
    result = call("dataset", "city wether", "--results", "small.v3")
    assert result.exit_code == 2 and "did you mean city weather" in result.stderr
