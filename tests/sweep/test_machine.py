"""What a machine and its user do to a launch: folders that go, odd numbers, odd windows."""

import subprocess
import sys
from pathlib import Path

import pytest

from oodbench.errors import UserError
from oodbench.registry import load_plugins
from oodbench.results.directory import Directory
from oodbench.sweep.file import read_sweep
from oodbench.sweep.launch import LaunchOptions, launch, launch_specs
from tests.helpers.commands import mistake, run
from tests.helpers.results.sweeps import ODD_METHODS, first, planned, tiny, tiny_file

pytestmark = pytest.mark.slow

PLACES = ("", "sweep.json", "runs", "runs/ID")
"""What goes of a results directory."""
MOVING = {"algorithms": ["Moving", "ERM"], "plugins": [ODD_METHODS], "steps": 40}


@pytest.mark.parametrize(
    ("what", "launcher"),
    [
        *((what, "debug") for what in PLACES),
        ("runs/ID", "local"),
        *(pytest.param(what, "local", marks=pytest.mark.nightly) for what in PLACES[:-1]),
    ],
)
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
    assert {run.state() for run in map(Directory(out).run, tiny(**MOVING).runs)} == {"done"}


def test_runs_of_another_name_leave_a_plan_alone(tmp_path: Path) -> None:
    results = Directory(tmp_path / "out")
    results.write_plan("tiny", {"sweep": {"steps": 120}}, tiny().rows)
    other = first(steps=10)
    with pytest.raises(UserError, match="holds the sweep 'tiny', not 'board'; use another"):
        launch_specs("board", {other.id: other}, [other.id], LaunchOptions(out=results.path))
    assert results.specs().keys() == tiny().runs.keys()
    results.write_plan("tiny", {"plugins": [ODD_METHODS]}, [other])
    assert results.specs().keys() == {*tiny().runs, other.id}
    assert results.plan()["settings"] == {"sweep": {"steps": 120}, "plugins": [ODD_METHODS]}


def test_nothing_is_written_before_yes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda question, **_: sys.exit(question))
    sweep = read_sweep(tiny_file(tmp_path))
    with pytest.raises(SystemExit, match="Launch into"):
        launch(sweep, LaunchOptions(out=tmp_path / "out", launcher="debug", confirm=True))
    assert not (tmp_path / "out").exists()


ONE = {"algorithms": ["ERM"], "trials": 1, "steps": 20, "evaluate_every": 10}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--set", "resources.runs_per_gpu=1000000"), "should be less than or equal to 1024"),
        (("--set", "run_timeout=.inf"), "run_timeout must be a number of seconds above 0"),
        (("--set", "steps=1000000000", "--set", "evaluate_every=1"), "raise `evaluate_every`"),
        (("--set", "algorithms=[{name: ERM, hparams: {lr: 1e-320}}]"), "at least 2.2e-308"),
    ],
)
def test_absurd_numbers_are_refused(tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    launched = run("launch", tiny_file(tmp_path, **ONE), "--out", tmp_path / "out", "--yes", *words)
    assert launched.exit_code == 2 and "Traceback" not in launched.output
    assert told in " ".join(launched.stderr.split()) and not (tmp_path / "out").exists()


def test_of_a_link_in_runs_only_the_link_goes(tmp_path: Path) -> None:
    results, theirs = planned(tmp_path / "out", tiny()), tmp_path / "theirs"
    (results.path / "runs").mkdir()
    theirs.mkdir()
    (theirs / "thesis.tex").write_text("precious")
    (results.path / "runs" / "folder").symlink_to(theirs)
    (results.path / "runs" / "file").symlink_to(theirs / "thesis.tex")
    assert "2 runs outside the sweep; 0.0 MB" in run("clean", results.path, "--yes").output
    assert not [*(results.path / "runs").iterdir()]
    assert (theirs / "thesis.tex").read_text() == "precious"


@pytest.mark.skipif(sys.platform != "linux", reason="a limit of the address space is Linux's")
@pytest.mark.parametrize(
    ("limit", "words", "told"),
    [
        ("-v 900000", "plan tiny.yaml", "there is too little memory"),
        ("-n 5", "launch tiny.yaml --yes", "Too many open files"),
    ],
)
def test_too_little_is_said(tmp_path: Path, limit: str, words: str, told: str) -> None:
    tiny_file(tmp_path, **ONE)
    command = f"ulimit {limit}; {sys.executable} -m oodbench sweep {words}"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert f"error: {told}" in done.stderr
