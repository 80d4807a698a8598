import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest

from oodbench.registry import load_plugins
from oodbench.results.directory import Directory
from oodbench.results.run_spec import State
from oodbench.results.schemas import FailedFile
from oodbench.sweep.launchers import Job, Launcher
from oodbench.sweep.launchers import local as pool
from oodbench.sweep.launchers.local import Debug, Local
from oodbench.sweep.launchers.worker import FORKS, MALLOC, warm_up
from oodbench.sweep.plan import Plan
from tests.helpers.commands import run
from tests.helpers.paths import ROOT
from tests.helpers.results.sweeps import ODD_METHODS, job, outcome, tiny, tiny_file, until

pytestmark = pytest.mark.slow


def local(job: Job) -> dict[str, State]:
    return Local().launch(job)


def by_label(plan: Plan, states: Mapping[str, State]) -> set[tuple[str, str]]:
    return {(plan.runs[i].label, state) for i, state in states.items()}


def failures(plan: Plan, out: Path, label: str) -> list[FailedFile]:
    runs = [Directory(out).run(i) for i, spec in plan.runs.items() if spec.label == label]
    return [failure for run in runs if (failure := run.failure()) is not None]


def test_a_worker_that_dies_takes_one_run_with_it(tmp_path: Path) -> None:
    load_plugins([ODD_METHODS])
    plan = tiny(algorithms=["Dying", "ERM"], trials=2)
    states = local(job(plan, tmp_path, workers=1))
    assert by_label(plan, states) == {("Dying", "failed"), ("ERM", "done")}
    assert ["exit code -9" in f.error for f in failures(plan, tmp_path, "Dying")] == [True, True]


@pytest.mark.parametrize("launcher", [pytest.param(Local, marks=pytest.mark.nightly), Debug])
def test_failed_runs_are_tried_again_from_where_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launcher: type[Launcher]
) -> None:
    monkeypatch.setattr(pool, "RETRY_SECONDS", 0.01)
    monkeypatch.setenv("LEAVING_FILE", str(tmp_path / "once"))
    load_plugins([ODD_METHODS])
    plan = tiny(algorithms=["RaisingOnce", "Raising", "ERM"], trials=1)
    out = tmp_path / "out"
    states = launcher().launch(job(plan, out, workers=1, retries=2))
    ends = {("RaisingOnce", "done"), ("Raising", "failed"), ("ERM", "done")}
    assert by_label(plan, states) == ends
    (failed,) = json.loads(run("status", out, "--format", "json").stdout)["runs"][1:2]
    assert failed["note"].endswith("(attempt 3 of 3)") and failed["state"] == "failed"
    Debug().launch(job(plan, tmp_path / "undisturbed"))
    assert outcome(Directory(out)) == outcome(Directory(tmp_path / "undisturbed"))


@pytest.mark.nightly
def test_workers_that_die_at_the_import_of_a_plug_in_fail_their_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dies = "import multiprocessing, os\nif multiprocessing.parent_process(): os._exit(3)\n"
    (tmp_path / "dies_in_workers.py").write_text(dies)
    monkeypatch.chdir(tmp_path)
    plan, plugins = tiny(algorithms=["ERM"]), ("dies_in_workers",)
    states = local(job(plan, tmp_path / "out", workers=1, plugins=plugins, vectorize=1))
    assert states == dict.fromkeys(plan.runs, "failed")
    found = failures(plan, tmp_path / "out", "ERM")
    assert ["exit code 3" in failure.error for failure in found] == [True] * len(states)


def test_a_worker_that_is_asked_to_end_gives_its_run_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEAVING_FILE", str(tmp_path / "left"))
    load_plugins([ODD_METHODS])
    states = local(job(tiny(algorithms=["Leaving"], trials=1), tmp_path / "out", workers=1))
    assert set(states.values()) == {"done"} and (tmp_path / "left").exists()


@pytest.mark.nightly
def test_the_runs_of_a_worker_that_dies_are_tried_in_halves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEAVING_FILE", str(tmp_path / "died"))
    load_plugins([ODD_METHODS])
    plan = tiny(algorithms=["DyingOnce"], network="Linear", trials=3)
    asked = job(plan, tmp_path / "out", workers=1, vectorize=64)
    assert set(local(asked).values()) == {"done"} and (tmp_path / "died").exists()


@pytest.mark.nightly
@pytest.mark.parametrize("vectorize", [1, 64])
def test_runs_that_hang_fail_and_the_launch_goes_on(tmp_path: Path, vectorize: int) -> None:
    plugin = "tests.helpers.algorithms.leaky_methods"
    load_plugins([plugin])
    plan = tiny(algorithms=["Hanging", "ERM"], network="Linear", trials=2)
    asked = job(plan, tmp_path, 1, plugins=(plugin,), vectorize=vectorize, run_timeout=3.0)
    assert by_label(plan, local(asked)) == {("Hanging", "failed"), ("ERM", "done")}
    for failure in failures(plan, tmp_path, "Hanging"):
        assert "longer than the run timeout of 3 s" in failure.error
        assert ("1 run in the same program" in failure.error) == (vectorize > 1)
        assert "leaky_methods.py" in failure.traceback and "objective" in failure.traceback
    assert not list(tmp_path.glob("runs/*/stack.txt"))


@pytest.mark.nightly
@pytest.mark.skipif(not FORKS, reason="workers are not forked here")
def test_a_server_that_dies_while_a_worker_starts_is_replaced(tmp_path: Path) -> None:
    asked = job(tiny(trials=1), tmp_path, workers=1)
    server: Any = forkserver._forkserver
    server._stop()
    warm_up()
    pid = server._forkserver_pid
    os.kill(pid, signal.SIGSTOP)  # so that it is asked for a worker and does not answer
    killer = threading.Timer(1.0, os.kill, (pid, signal.SIGKILL))
    killer.start()
    states = local(asked)
    killer.join()
    assert set(states.values()) == {"done"} and server._forkserver_pid != pid


@pytest.mark.skipif(not FORKS, reason="workers are not forked here")
def test_workers_reuse_freed_memory_and_the_user_process_keeps_its_environment() -> None:
    warm_up()
    assert not MALLOC.keys() & os.environ.keys()
    server: Any = forkserver._forkserver
    wanted = {f"{name}={value}".encode() for name, value in MALLOC.items()}
    file = Path(f"/proc/{server._forkserver_pid}/environ")
    until(lambda: wanted <= {*file.read_bytes().split(b"\0")})  # it may still be starting


def launch(sweep: Path, out: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "oodbench.sweep", "launch", str(sweep), "--out", str(out)]
    command += ["--workers", "2", "--yes"]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )


def left(session: int) -> dict[int, int]:
    """The parents of a session's living processes."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            state, parent, _, its, *_ = path.read_text().rpartition(")")[2].split()
            if int(its) == session and state != "Z":
                found[int(path.parent.name)] = int(parent)
    return found


def wait_for_the_end_of(session: int) -> None:
    until(lambda: not left(session))


def wait_for_records(out: Path, count: int) -> None:
    until(lambda: len(list(out.glob("runs/*/metrics.jsonl"))) >= count)


@pytest.fixture(scope="module")
def longer(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Directory]:
    """A sweep long enough to be killed in the middle, and its undisturbed results."""
    load_plugins([ODD_METHODS])
    folder = tmp_path_factory.mktemp("longer")
    rows = {"algorithms": ["Slow", "ERM", "IRM"], "trials": 1}
    changes = {"steps": 400, "evaluate_every": 50, **rows}
    Debug().launch(job(tiny(**changes), folder / "reference"))
    return tiny_file(folder, **changes, plugins=[ODD_METHODS]), Directory(folder / "reference")


@pytest.mark.parametrize(
    "how",
    [
        signal.SIGKILL,
        *(pytest.param(s, marks=pytest.mark.nightly) for s in (signal.SIGTERM, signal.SIGINT)),
    ],
)
def test_a_launch_that_is_ended_leaves_no_process_and_goes_on_to_the_same_end(
    tmp_path: Path,
    how: signal.Signals,
    longer: tuple[Path, Directory],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker is within a long step, which Ctrl-C alone would wait for."""
    sweep, reference = longer
    monkeypatch.setenv("SLOW_SECONDS", "0.01" if how == signal.SIGINT else "100")
    out = tmp_path / "out"
    process = launch(sweep, out)
    wait_for_records(out, 2)
    if how == signal.SIGINT:
        os.killpg(process.pid, how)  # a terminal's Ctrl-C
    else:
        process.send_signal(how)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == (130 if how == signal.SIGINT else -how) and not errors
    wait_for_the_end_of(process.pid)
    assert how != signal.SIGINT or b"resumes the runs" in output
    assert any(s != "done" for s, _ in outcome(Directory(out)).values())
    monkeypatch.setenv("SLOW_SECONDS", "0")
    again = run("launch", sweep, "--out", out, "--workers", 2, "--yes")
    assert again.exit_code == 0, again.output
    assert outcome(Directory(out)) == outcome(reference)


@pytest.mark.nightly
def test_nothing_is_left_of_a_launch_that_is_killed_while_it_plans(tmp_path: Path) -> None:
    process = launch(tiny_file(tmp_path), tmp_path / "out")
    until(lambda: len(left(process.pid)) == 3)  # among them what workers are to be forked from
    process.kill()
    _, errors = process.communicate(timeout=60)
    assert not errors
    wait_for_the_end_of(process.pid)


@pytest.mark.nightly
def test_workers_outlive_what_they_were_forked_from(tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = launch(tiny_file(tmp_path, steps=2000, evaluate_every=100, trials=1), out)
    wait_for_records(out, 2)
    parents = left(process.pid)
    (server,) = (i for i in parents if parents[i] == process.pid and i in parents.values())
    os.kill(server, signal.SIGKILL)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert {state for state, _ in outcome(Directory(out)).values()} == {"done"}
