"""`python -m oodbench.sweep` as a user types it."""

from pathlib import Path

from typer.testing import CliRunner, Result

from oodbench.sweep.cli import app


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments])


def mistake(result: Result) -> str:
    """What a mistake costs: exit code 2, a few lines at the end, no traceback."""
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    lines = result.output.splitlines()
    (at,) = [i for i, line in enumerate(lines) if line.startswith("error: ")]
    return " ".join(" ".join(lines[at:]).split())
