"""Commands as a user types them, in this process or in one of their own."""

import os
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner, Result

from oodbench.__main__ import main
from tests.helpers.paths import ROOT


def run(*arguments: object) -> Result:
    return type_in("sweep", *arguments)


def type_in(*words: object, code: int | None = None) -> Result:
    """A command of any room, `sweep launch ...`, which must exit with a code if one is given."""
    result = CliRunner().invoke(main, [str(word) for word in words], prog_name="oodbench")
    assert code is None or result.exit_code == code, result.output
    return result


def python(folder: Path, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Python in a process of its own that finds the project, with a folder as its working directory."""
    env = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)


def mistake(result: Result) -> str:
    """What a mistake costs: exit code 2, a few lines at the end, no traceback."""
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    lines = result.output.splitlines()
    (at,) = [i for i, line in enumerate(lines) if line.startswith("error: ")]
    return " ".join(" ".join(lines[at:]).split())


def installed(folder: Path, group: str, module: str) -> None:
    """Make `folder` hold what is left of a package whose entry point in a group of ours is `module`."""
    information = folder / f"{module}-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[oodbench.{group}]\n{module} = {module}\n")
