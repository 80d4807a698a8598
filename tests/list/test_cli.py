import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from oodbench.algorithms import algorithms
from oodbench.list.__main__ import app
from tests.helpers.commands import mistake

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


def test_one_name_has_a_page() -> None:
    page = call("IRM").stdout
    assert page.startswith("IRM (algorithm)\n") and "arXiv:1907.02893" in page


def test_a_plug_in_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_methods.py").write_text(PLUGIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(algorithms, "_classes", dict(algorithms.items()))
    result = call("--plugin", "my_methods")
    assert "Does nothing new. [none yet]" in result.stdout and "at length" not in result.stdout
    said = mistake(call("--plugin", "my_method"))
    assert said.startswith("error: unknown plug-in module 'my_method'")
