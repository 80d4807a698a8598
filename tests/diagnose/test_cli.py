"""The commands, and the diagnostics that train or look at networks."""

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from oodbench.diagnose.cli import app


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("kept", "--tau", "2"), "tau"),
        (("dataset", "Spiral"), "did you mean Spirals"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    result = call(*arguments, "--out", str(tmp_path / "out"))
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    assert message in result.stderr
    assert not (tmp_path / "out").exists()


def test_an_unknown_name() -> None:
    assert call("keep").exit_code == 2
