"""What a machine and its user do to a launch: folders that go, odd numbers, odd windows."""

import sys
from pathlib import Path

import pytest

from oodbench.errors import UserError
from oodbench.registry import load_plugins
from oodbench.results.directory import Results
from oodbench.sweep.file import read_sweep
from oodbench.sweep.launch import LaunchOptions, launch, launch_specs
from tests.helpers.commands import mistake, run
from tests.helpers.sweeps import ODD_METHODS, first, tiny, tiny_file

MOVING = {
    "algorithms": ["Moving", "ERM"],
    "plugins": [ODD_METHODS],
    "steps": 20,
    "evaluate_every": 10,
}


@pytest.mark.parametrize("launcher", ["debug", "local"])
@pytest.mark.parametrize("what", ["", "sweep.json", "runs", "runs/ID"])
def test_a_launch_whose_folder_goes_away_stops_and_makes_nothing_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launcher: str, what: str
) -> None:
    load_plugins([ODD_METHODS])
    sweep, out = tiny_file(tmp_path, **MOVING), tmp_path / "out"
    one = next(i for i, s in tiny(**MOVING).runs.items() if s.algorithm == "Moving")
    gone = out / what.replace("ID", one)
    monkeypatch.setenv("MOVED", str(gone))
    arguments = ("launch", sweep, "--out", out, "--launcher", launcher, "--workers", "1", "--yes")
    told = mistake(run(*arguments))
    assert str(gone) in told and ("gone" in told or "moved" in told)
    assert not gone.exists()
    Path(f"{gone}.moved").rename(gone)
    monkeypatch.setenv("MOVED", str(tmp_path / "nothing"))
    assert run(*arguments).exit_code == 0
    assert {run.state() for run in map(Results(out).run, tiny(**MOVING).runs)} == {"done"}


def test_runs_of_another_name_leave_a_plan_alone(tmp_path: Path) -> None:
    results = Results(tmp_path / "out")
    results.write_plan("tiny", {"sweep": {"steps": 120}}, tiny().runs)
    other = first(steps=10)
    with pytest.raises(UserError, match="holds the sweep 'tiny', not 'board'; use another"):
        launch_specs("board", {other.id: other}, [other.id], LaunchOptions(out=results.path))
    assert results.plan()["runs"].keys() == tiny().runs.keys()
    results.write_plan("tiny", {"plugins": [ODD_METHODS]}, {other.id: other})
    plan = results.plan()
    assert plan["runs"].keys() == {*tiny().runs, other.id}
    assert plan["settings"] == {"sweep": {"steps": 120}, "plugins": [ODD_METHODS]}


def test_nothing_is_written_before_yes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda question, **_: sys.exit(question))
    sweep = read_sweep(tiny_file(tmp_path))
    with pytest.raises(SystemExit, match="Launch into"):
        launch(sweep, LaunchOptions(out=tmp_path / "out", launcher="debug", confirm=True))
    assert not (tmp_path / "out").exists()
