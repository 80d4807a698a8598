"""The table of trials, from runs really trained."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from oodbench.diagnose.cli import app as diagnose
from oodbench.diagnose.trials import trials
from oodbench.errors import UserError
from oodbench.report.leaderboard import scores
from oodbench.results.directory import Results
from oodbench.results.frames import load_frames
from oodbench.sweep.cli import app as sweep
from tests.helpers.sweeps import tiny_file


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trials")
    data = [{"name": "Spirals", "num_environments": 4, "num_examples": 40, "num_validation": 2}]
    algorithms = ["ERM", "ANDMask"]
    file = tiny_file(folder, datasets=data, algorithms=algorithms, trials=3, steps=20)
    called = CliRunner().invoke(
        sweep, ["launch", str(file), "--yes", "--launcher", "debug", "--out", str(folder / "out")]
    )
    assert called.exit_code == 0, called.output
    return folder / "out"


@pytest.mark.parametrize("threshold", [0.0, 0.5, 1.1])
def test_each_trial_is_what_the_rule_chose(results: Path, threshold: float) -> None:
    finding = trials(results, ("train_val", "val_env"), threshold)
    names = [(row[0], row[1]) for row in finding.rows]
    assert names == [(m, r) for m in ("ERM", "ANDMask") for r in ("train_val", "val_env")]
    for label, rule, median, count, each in finding.rows:
        table = scores(load_frames(Results(results)), rule)
        values = sorted(table[table["label"] == label]["value"])
        assert each == " ".join(f"{v:.3f}" for v in values)
        assert median == f"{values[1]:.3f}"
        assert count == f"{sum(v >= threshold for v in values)}/3"


def test_on_the_command_line(results: Path, tmp_path: Path) -> None:
    arguments = ["trials", str(results), "--out", str(tmp_path)]
    called = CliRunner().invoke(diagnose, arguments, env={"COLUMNS": "200"})
    assert called.exit_code == 0, called.output
    assert "≥ 0.9" in called.output
    assert (tmp_path / "out-trials.svg").read_text().count("<use") >= 12


def test_a_rule_that_is_none(results: Path) -> None:
    with pytest.raises(UserError, match="val_env"):
        trials(results, ("val_envs",), 0.9)
