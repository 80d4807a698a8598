import os
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner, Result

from oodbench.algorithms import algorithms
from oodbench.datasets import datasets
from oodbench.list import algorithm_rows, app, dataset_rows, summary

PLUGIN = '''
from oodbench.algorithms import Algorithm, register

@register("Mine", paper="none yet")
class Mine(Algorithm):
    """Does nothing new.

    And says so at length.
    """
'''


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})


def test_everything_is_listed_with_its_paper() -> None:
    result = call()
    assert result.exit_code == 0
    for name in algorithms:
        assert f" {name} " in result.stdout
        assert algorithms.get(name).paper.split()[0] in result.stdout
    for name in datasets:
        assert f" {name} " in result.stdout
        assert datasets.get(name).metadata.paper in result.stdout


def test_rows() -> None:
    rows = {row[0]: row[1:] for row in algorithm_rows()}
    assert list(rows) == list(algorithms)
    assert rows["ERM"][1] == "The mean over the training environments of their mean losses."
    found = {row[0]: row[1:] for row in dataset_rows()}
    assert list(found) == list(datasets)
    assert found["LinearSEM"][:3] == ("linear", "0.2, 2, 5", "arXiv:1907.02893")
    assert found["Spirals"][1] == "0, 1, ..., 15, test"
    assert found["Camelyon17"][1] == "those of its files"


def test_every_entry_has_a_summary() -> None:
    for *_, paper, text in [*algorithm_rows(), *dataset_rows()]:
        assert paper
        assert text.endswith(".")


def test_summary_is_the_first_line_of_a_classs_own_docstring() -> None:
    class Parent:
        """Of the parent."""

    class Child(Parent):
        pass

    assert summary(Parent) == "Of the parent."
    assert summary(Child) == ""


def test_plugins(tmp_path: Path) -> None:
    (tmp_path / "my_methods.py").write_text(PLUGIN)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment["COLUMNS"] = "200"

    def listed(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "oodbench.list", *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    result = listed("--plugin", "my_methods")
    assert result.returncode == 0, result.stderr
    assert "Mine" in result.stdout
    assert "Does nothing new." in result.stdout
    assert "at length" not in result.stdout
    wrong = listed("--plugin", "my_method")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("error: unknown plug-in module 'my_method'")


def test_wrong_usage() -> None:
    assert call("--plug").exit_code == 2
    assert call("everything").exit_code == 2
