"""The contract that every launcher keeps."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from oodbench.errors import UserError
from oodbench.registry import load_plugins
from oodbench.results import stale
from oodbench.results.directory import Directory
from oodbench.results.run_spec import RunStatus, State
from oodbench.sweep.launchers import Job, launchers, states
from oodbench.sweep.launchers.local import Debug, placed
from oodbench.sweep.launchers.progress import Display
from oodbench.sweep.launchers.slurm import Slurm
from tests.helpers.commands import installed, python
from tests.helpers.paths import ROOT
from tests.helpers.results.sweeps import ODD_METHODS, job, outcome, settle, tiny, tiny_file, trained

Train = Callable[[Job], dict[str, State]]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Directory:
    out = tmp_path_factory.mktemp("undisturbed")
    Debug().launch(job(tiny(trials=3), out))
    return Directory(out)


@pytest.fixture(params=["debug", "local", pytest.param("slurm", marks=pytest.mark.nightly)])
def train(request: pytest.FixtureRequest) -> Train:
    """Every launcher; what a cluster has queued is waited for."""
    launcher = launchers.get(request.param)()
    if request.param != "slurm":
        return launcher.launch
    request.getfixturevalue("cluster")

    def wait(job: Job) -> dict[str, State]:
        assert set(launcher.launch(job).values()) == {"queued"}
        return settle(job.results)

    return wait


@pytest.mark.slow
def test_launchers_give_equal_records(train: Train, tmp_path: Path, undisturbed: Directory) -> None:
    states = train(job(tiny(trials=3), tmp_path))
    assert set(states.values()) == {"done"}
    assert outcome(Directory(tmp_path)) == outcome(undisturbed)
    infos = [Directory(tmp_path).run(run_id).info() for run_id in states]
    assert all(info is not None and info.provenance["vectorized"] for info in infos)


@pytest.mark.slow
def test_runs_that_fail_or_that_another_process_holds_do_not_stop_the_others(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oodbench.sweep.launchers.local.LOCK_RETRY_SECONDS", 0.5)
    load_plugins([ODD_METHODS])
    plan = tiny(algorithms=["Raising", "Exploding", "ERM"], trials=2)
    asked = job(plan, tmp_path)
    held = asked.ids[-1]
    with Directory(tmp_path).run(held).lock():
        states = train(asked)
    assert states.pop(held) in ("elsewhere", "lost")  # a cluster's job that stood back is gone
    assert Directory(tmp_path).run(held).records() == []
    by_label = {(plan.runs[i].label, state) for i, state in states.items()}
    assert by_label == {("Raising", "failed"), ("Exploding", "diverged"), ("ERM", "done")}


def test_the_calling_process_takes_no_timeout(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="use local for `run_timeout`"):
        Debug().check(job(tiny(), tmp_path, run_timeout=1.0))


SPOOL = """
from oodbench.sweep.launchers import Launcher, Resources, register

class Colours(Resources):
    colour: str = "red"

@register("spool")
class Spool(Launcher):
    '''Says what it is asked for.'''
    Resources = Colours

    def launch(self, job):
        print(len(job.ids), Colours.of(job.options.resources).colour)
        return {}
"""
COMMANDS = """
from tests.helpers.commands import run
for setting in ("resources.colour=blue", "resources.color=blue"):
    launch = ["launch", "tiny.yaml", "--out", "out", "--yes", "--launcher", "spool"]
    print(run(*launch, "--set", setting).output)
"""


@pytest.mark.nightly
def test_a_launcher_is_one_file_of_another_package(tmp_path: Path) -> None:
    """`tests/slurm` has what `status`, `cancel` and a dry run ask of a launcher."""
    (tmp_path / "spool.py").write_text(SPOOL)
    installed(tmp_path, "launchers", "spool")
    tiny_file(tmp_path, algorithms=["ERM"])
    done = python(tmp_path, "-c", COMMANDS, PYTHONPATH=f"{ROOT}:{tmp_path}", COLUMNS="1000")
    assert "\n2 blue\n" in done.stdout, done.stdout + done.stderr
    assert "unknown resource 'color' in the resources of tiny; did you mean colour" in done.stdout


def test_runs_of_a_cluster_may_be_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = trained(tmp_path, tiny(trials=1, steps=4, evaluate_every=2))
    done = dict.fromkeys(results.specs(), RunStatus(State.DONE, "in a job"))
    monkeypatch.setattr(Slurm, "states", lambda *_: done)
    assert states(results) == done
    monkeypatch.setattr(stale, "__version__", "9.0")
    (reason,) = stale.stale_in(results, results.specs(), states(results))
    assert reason.sentence.endswith("trained 2 of 2 runs, and 9.0 is here")


def test_runs_share_a_gpu_and_see_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    options: dict[str, Any] = {"workers": None, "devices": "auto"}
    asked = job(tiny(hparam_draws=2, trials=3, steps=10), tmp_path, **options)
    shared = placed(asked, 3)
    assert (shared.workers, shared.gpus) == (6, ("4", "6"))
    settings = shared.settings_of(5)
    assert (settings.device, settings.device_share) == ("cuda:0", 1 / 3)
    assert placed(asked, 1).workers == 2
    assert placed(replace(asked, options=replace(asked.options, workers=4)), 3).workers == 4


def test_the_time_left_is_that_of_the_runs_so_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = job(tiny(algorithms=["ERM"], trials=8, steps=100), tmp_path)
    clock = iter([1000.0, 1010.0, 1016.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    with Display(asked, workers=1) as display:
        display.ended(asked.ids[0], State.DONE, "")
        display.ended(asked.ids[4], State.FAILED, "why")
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("trial 0, about 70 s left")
    assert second.endswith("trial 4: why, about 48 s left")
