"""The contract that every launcher keeps, and what is the pool's own."""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from oodbench.errors import UserError
from oodbench.registry import load_plugins
from oodbench.results.directory import Results
from oodbench.results.run_spec import State
from oodbench.sweep.launch import LAUNCHERS
from oodbench.sweep.launchers.devices import available_devices
from oodbench.sweep.launchers.job import Job
from oodbench.sweep.launchers.local import local
from oodbench.sweep.launchers.slurm_resources import Resources
from oodbench.sweep.plan import Plan
from oodbench.train.settings import MIN_TO_VECTORIZE, TrainSettings, large_groups
from tests.helpers.paths import ROOT
from tests.helpers.sweeps import outcome, settle, tiny, tiny_file

pytestmark = pytest.mark.slow

PLUGIN = "tests.helpers.odd_methods"


def job(plan: Plan, out: Path, workers: int = 2) -> Job:
    results = Results(out)
    if not (out / "sweep.json").exists():
        results.write_plan(plan.sweep.name, {}, plan.runs)
    ids = [i for i in plan.runs if results.run(i).end() is None]
    return Job(
        name=plan.sweep.name,
        results=results,
        specs=plan.runs,
        ids=tuple(ids),
        settings=TrainSettings(plugins=(PLUGIN,)),
        workers=workers,
        resources=Resources(cpus=2, runs_per_job=len(ids)),
    )


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Results:
    out = tmp_path_factory.mktemp("undisturbed")
    LAUNCHERS["debug"](job(tiny(trials=3), out))
    return Results(out)


Train = Callable[[Job], dict[str, State]]


@pytest.fixture(params=sorted(LAUNCHERS))
def train(request: pytest.FixtureRequest) -> Train:
    """Every launcher; what a cluster has queued is waited for."""
    launcher = LAUNCHERS[request.param]
    if request.param != "slurm":
        return launcher
    request.getfixturevalue("cluster")

    def wait(job: Job) -> dict[str, State]:
        assert set(launcher(job).values()) == {"queued"}
        return settle(job.results)

    return wait


def test_all_launchers_give_the_same_records(
    train: Train, tmp_path: Path, undisturbed: Results
) -> None:
    states = train(job(tiny(trials=3), tmp_path))
    assert set(states.values()) == {"done"}
    assert outcome(Results(tmp_path)) == outcome(undisturbed)


def test_a_failed_run_does_not_stop_the_others(train: Train, tmp_path: Path) -> None:
    load_plugins([PLUGIN])
    plan = tiny(algorithms=["Raising", "Exploding", "ERM"], trials=2)
    states = train(job(plan, tmp_path))
    by_label = {(plan.runs[i].label, state) for i, state in states.items()}
    assert by_label == {("Raising", "failed"), ("Exploding", "diverged"), ("ERM", "done")}


def test_a_run_that_another_process_holds_is_left_to_it(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oodbench.sweep.launchers.local.PATIENCE", 0.5)
    asked = job(tiny(), tmp_path)
    with Results(tmp_path).run(asked.ids[0]).lock():
        states = train(asked)
    first, *others = (states[i] for i in asked.ids)
    assert first in ("elsewhere", "lost")  # a cluster's job that stood back is gone
    assert others == ["done", "done", "done"]
    assert Results(tmp_path).run(asked.ids[0]).records() == []


def test_a_worker_that_dies_takes_one_run_with_it(tmp_path: Path) -> None:
    load_plugins([PLUGIN])
    plan = tiny(algorithms=["Dying", "ERM"], trials=2)
    states = local(job(plan, tmp_path, workers=1))
    by_label = {(plan.runs[i].label, state) for i, state in states.items()}
    assert by_label == {("Dying", "failed"), ("ERM", "done")}
    dead = next(i for i in plan.runs if plan.runs[i].label == "Dying")
    failure = Results(tmp_path).run(dead).failure()
    assert failure is not None and "exit code -9" in failure["error"]


def test_a_worker_that_is_asked_to_end_gives_its_run_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEAVING_FILE", str(tmp_path / "left"))
    load_plugins([PLUGIN])
    states = local(job(tiny(algorithms=["Leaving"], trials=1), tmp_path / "out", workers=1))
    assert set(states.values()) == {"done"} and (tmp_path / "left").exists()


def test_runs_of_a_crowd_are_trained_together(tmp_path: Path) -> None:
    plan = tiny(algorithms=["ERM"], network="Linear", trials=MIN_TO_VECTORIZE)
    together = {}
    for launcher, workers in (("local", 2), ("local", 1), ("debug", 1)):
        asked = job(plan, tmp_path / f"{launcher}{workers}", workers)
        settings = replace(asked.settings, large_groups=large_groups(plan.runs.values()))
        assert set(LAUNCHERS[launcher](replace(asked, settings=settings)).values()) == {"done"}
        infos = [asked.results.run(i).info() for i in plan.runs]
        assert all(info is not None and info["provenance"]["vectorized"] for info in infos)
        together[launcher, workers] = outcome(asked.results)
    first, *others = together.values()
    assert all(other == first for other in others)


def test_few_runs_of_a_kind_are_no_crowd() -> None:
    few = tiny(algorithms=["ERM"], trials=MIN_TO_VECTORIZE - 1).runs.values()
    many = tiny(algorithms=["ERM"], trials=MIN_TO_VECTORIZE).runs.values()
    assert not large_groups(few) and not large_groups(many, at_hand=MIN_TO_VECTORIZE - 1)
    assert large_groups(many) == large_groups([*few, *many]) == {next(iter(many)).group_key}


def test_the_runs_of_a_worker_that_dies_are_tried_in_halves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEAVING_FILE", str(tmp_path / "died"))
    load_plugins([PLUGIN])
    plan = tiny(algorithms=["DyingOnce"], network="Linear", trials=3)
    asked = job(plan, tmp_path / "out", workers=1)
    asked = replace(asked, settings=replace(asked.settings, vectorize=64))
    assert set(local(asked).values()) == {"done"} and (tmp_path / "died").exists()


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
    deadline = time.monotonic() + 60
    while left(session) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left(session)


def wait_for_records(out: Path, count: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if len(list(out.glob("runs/*/metrics.jsonl"))) >= count:
            return
        time.sleep(0.05)
    pytest.fail("no run has started")


@pytest.fixture(scope="module")
def longer(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Results]:
    """A sweep long enough to be killed in the middle, and its undisturbed results."""
    folder = tmp_path_factory.mktemp("longer")
    changes = {"steps": 4000, "evaluate_every": 100}
    LAUNCHERS["debug"](job(tiny(**changes), folder / "reference"))
    return tiny_file(folder, **changes), Results(folder / "reference")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_launch_is_continued_to_the_same_end(
    tmp_path: Path, how: signal.Signals, longer: tuple[Path, Results]
) -> None:
    sweep, reference = longer
    out = tmp_path / "killed"
    process = launch(sweep, out)
    wait_for_records(out, 2)
    if how == signal.SIGKILL:
        process.kill()
    else:
        os.killpg(process.pid, how)  # a terminal's Ctrl-C
    output, errors = process.communicate(timeout=60)
    assert process.returncode == (-9 if how == signal.SIGKILL else 130) and not errors
    wait_for_the_end_of(process.pid)
    if how == signal.SIGINT:
        assert b"goes on" in output
    assert any(s != "done" for s, _ in outcome(Results(out)).values())
    again = launch(sweep, out)
    _, errors = again.communicate(timeout=120)
    assert again.returncode == 0, errors
    assert outcome(Results(out)) == outcome(reference)


def test_nothing_is_left_of_a_launch_that_is_killed_while_it_plans(tmp_path: Path) -> None:
    process = launch(tiny_file(tmp_path), tmp_path / "out")
    deadline = time.monotonic() + 60
    while len(left(process.pid)) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(left(process.pid)) == 3  # among them what workers are to be forked from
    process.kill()
    _, errors = process.communicate(timeout=60)
    assert not errors
    wait_for_the_end_of(process.pid)


def test_workers_outlive_what_they_were_forked_from(tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = launch(tiny_file(tmp_path, steps=2000, evaluate_every=100, trials=1), out)
    wait_for_records(out, 2)
    parents = left(process.pid)
    (server,) = (i for i in parents if parents[i] == process.pid and i in parents.values())
    os.kill(server, signal.SIGKILL)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert {state for state, _ in outcome(Results(out)).values()} == {"done"}


def test_two_launches_at_once_train_each_run_once(tmp_path: Path) -> None:
    sweep = tiny_file(tmp_path, steps=600, evaluate_every=100, trials=4)
    out = tmp_path / "out"
    both = [launch(sweep, out), launch(sweep, out)]
    for process in both:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    for state, records in outcome(Results(out)).values():
        assert state == "done"
        assert [r["step"] for r in records] == [100, 200, 300, 400, 500, 600]


def test_workers_end_with_their_launcher(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    plan = tiny(steps=200_000, evaluate_every=100_000, trials=1)
    process = context.Process(target=local, args=(job(plan, tmp_path),))
    process.start()
    wait_for_records(tmp_path, 2)
    beats = [Results(tmp_path).run(i).heartbeat() for i in plan.runs]
    process.kill()
    process.join()
    deadline = time.monotonic() + 20
    alive = {int(beat["pid"]) for beat in beats if beat is not None}
    assert alive
    while alive and time.monotonic() < deadline:
        alive = {pid for pid in alive if Path(f"/proc/{pid}").exists() and not _zombie(pid)}
        time.sleep(0.1)
    assert not alive


def _zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_devices_are_checked() -> None:
    assert available_devices("cpu") == ("cpu",)
    with pytest.raises(UserError, match="no device 'cuda:99'"):
        available_devices("cuda:99")
