import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from oodbench.list.catalogue import own_entries
from oodbench.list.cli import app

PLUGIN = '''
from oodbench.algorithms import Algorithm, register

@register("Mine", paper="none yet")
class Mine(Algorithm):
    """Does nothing new.

    And says so at length.
    """

    def objective(self, out):
        return out.risks.mean()
'''


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "80"})


def listed(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, with a folder as its working directory."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-X", "importtime", "-m", "oodbench.list", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_json_has_the_same_entries() -> None:
    assert json.loads(call("--format", "json").stdout) == [asdict(e) for e in own_entries()]


def test_one_name_has_a_page_and_json() -> None:
    assert call("IRM").stdout.startswith("IRM (algorithm)\n")
    assert json.loads(call("IRM", "--format", "json").stdout)["paper"] == "arXiv:1907.02893"


@pytest.mark.slow
def test_the_listing_imports_no_torch(tmp_path: Path) -> None:
    done = listed(tmp_path)
    assert done.returncode == 0
    imported = {line.split("|")[-1].strip() for line in done.stderr.splitlines()}
    assert "oodbench.list.catalogue" in imported
    assert not {"torch", "numpy"} & imported


@pytest.mark.slow
def test_a_plug_in_is_listed(tmp_path: Path) -> None:
    (tmp_path / "my_methods.py").write_text(PLUGIN)
    result = listed(tmp_path, "--plugin", "my_methods")
    assert result.returncode == 0, result.stderr
    assert "Does nothing new. [none yet]" in result.stdout
    assert "at length" not in result.stdout
    wrong = listed(tmp_path, "--plugin", "my_method")
    assert wrong.returncode == 2
    assert wrong.stderr.splitlines()[-1].startswith("error: unknown plug-in module 'my_method'")


def test_wrong_usage() -> None:
    assert call("--plug").exit_code == 2
    assert call("IRM", "ERM").exit_code == 2
    wrong = call("Spirls")
    assert wrong.exit_code == 2
    assert "did you mean Spirals" in " ".join(wrong.output.split())
