import math
import re
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from oodbench.registry import load_plugins
from oodbench.results.run_directory import RunDirectory
from oodbench.results.run_spec import State
from oodbench.train import loop as training
from oodbench.train.averages import AVERAGES
from oodbench.train.execute import execute
from oodbench.train.loop import Training
from oodbench.train.run import Run
from oodbench.train.settings import Interrupts, TrainSettings
from tests.helpers.kills import checkpoint_every, kill_at, killed_and_resumed
from tests.helpers.results.sweeps import DIGITS, ODD_METHODS, ended, first, records_of, tiny

SETTINGS = TrainSettings()
load_plugins([ODD_METHODS])
SMALL = {"network": {"name": "MLP", "hparams": {"width": 8, "dropout": 0.5}}}
GROUPED = {"datasets": [DIGITS]}
OFTEN = GROUPED | {"network": {"name": "MLP", "hparams": {"width": 8}}, "evaluate_every": 6}
IMAGES = GROUPED | {"network": {"name": "ConvNet", "hparams": {"width": 2, "depth": 1}}}


@pytest.fixture
def always_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint_every(15, monkeypatch)


ALL: dict[str, Any] = {"clip_norm": 0.1, "warm_up": 0.5, "accumulation": 2, "head_only": 0.25}
LOW = {"precision": "bfloat16", "channels_last": True}


def killed(marks: Any, changes: dict[str, Any], *names: str, **keys: Any) -> list[Any]:
    """Rows of methods with some keys, in sweeps with some changes."""
    return [pytest.param({"name": name, **keys}, changes, marks=marks) for name in names]


NIGHTLY, SLOW = pytest.mark.nightly, pytest.mark.slow
KILLED = [
    *killed([], SMALL, "ERM", "TemporalANDMask"),
    *killed([], SMALL, "ERM", hparams={"optimizer": "sgd"}),
    *killed(NIGHTLY, SMALL, "ERM", hparams={"optimizer": "adamw"}),
    *killed([], {}, "LeastSquares"),
    *killed([], GROUPED, "JTT"),
    *killed([], GROUPED, "ERM", hparams={"sampling": "rwg"}),
    *killed(NIGHTLY, SMALL, "IRM", "DANN", "ANDMask"),
    *killed(NIGHTLY, GROUPED, "DFR", "LfF"),
    *killed(SLOW, GROUPED, "GroupDRO", hparams={"over": "groups"}),
    *killed(NIGHTLY, GROUPED, "VREx", hparams={"sampling": "subg"}),
    *(row for average in AVERAGES for row in killed(SLOW, OFTEN, "ERM", average=average)),
    *(
        row
        for average in AVERAGES
        for row in killed(NIGHTLY, OFTEN, "JTT", "Fish", average=average)
    ),
    *killed(
        NIGHTLY, OFTEN, "LISA", average="swad", hparams={"domains": "attributes", "sampling": "rwg"}
    ),
    *killed(SLOW, IMAGES, "ERM", adapt="TENT"),
    *killed(NIGHTLY, IMAGES, "ERM", adapt={"name": "SHOT", "epochs": 1}),
    *killed(SLOW, IMAGES | LOW, "ERM", "ANDMask", hparams=ALL),
]


@pytest.mark.parametrize(("row", "changes"), KILLED)
@pytest.mark.usefixtures("always_checkpoint")
def test_a_killed_run_goes_on_to_the_same_records(
    tmp_path: Path, row: dict[str, Any], changes: dict[str, Any]
) -> None:
    entry = {**row, "hparams": {"batch_size": 8, **row.get("hparams", {})}}
    spec = first(**{"algorithms": [entry], "steps": 60, "evaluate_every": 20} | changes)
    records = killed_and_resumed(spec, tmp_path, (15, 38, 45))
    assert [r["step"] for r in records] == [*range(spec.evaluate_every, 61, spec.evaluate_every)]


def test_a_run_that_is_asked_to_stop_leaves_its_last_step(tmp_path: Path) -> None:
    spec, asked, interrupts = first(), RunDirectory(tmp_path / "b"), Interrupts()
    undisturbed = ended(spec, tmp_path / "a")

    def ask(step: int) -> None:
        if step >= 40:
            interrupts.stop = True

    state = execute(spec, asked, SETTINGS, ask, interrupts)
    assert state == ("interrupted", "") and asked.heartbeat() is None
    steps: list[int] = []
    assert execute(spec, asked, SETTINGS, steps.append) == ("done", "")
    assert steps[0] > 40
    assert records_of(asked) == records_of(undisturbed)
    saved = RunDirectory(tmp_path / "c")
    save = Interrupts(save=True)

    def look(step: int) -> None:
        assert saved.checkpoint.exists() and not save.save

    assert execute(spec, saved, SETTINGS, look, save) == ("done", "")


@pytest.mark.slow
def test_a_run_of_slow_steps_stops_between_two_looks_at_its_losses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, asked, interrupts = (
        first(algorithms=["Slow"]), RunDirectory(tmp_path / "b"), Interrupts(),
    )  # fmt: skip
    undisturbed = ended(spec, tmp_path / "a")
    monkeypatch.setenv("SLOW_SECONDS", "0.3")
    timer = threading.Timer(1.0, lambda: setattr(interrupts, "stop", True))
    timer.start()
    assert execute(spec, asked, SETTINGS, interrupts=interrupts) == ("interrupted", "")
    assert not asked.records()  # before step 40
    monkeypatch.setenv("SLOW_SECONDS", "0")
    steps: list[int] = []
    assert execute(spec, asked, SETTINGS, steps.append) == ("done", "")
    assert steps[0] > 1 and records_of(asked) == records_of(undisturbed)


@pytest.mark.parametrize("lr", [1e-3, 1e30])
def test_how_often_the_clock_is_looked_at_changes_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lr: float
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)  # on Windows it ticks every 16 ms
    spec = first(algorithms=[{"name": "ERM", "hparams": {"lr": lr}}], evaluate_every=60)
    found = []
    for seconds in (1e-9, 1.0, 1e9):
        monkeypatch.setattr(training, "BLOCK_SECONDS", seconds)
        directory = RunDirectory(tmp_path / str(seconds))
        found.append((execute(spec, directory, SETTINGS)[0], records_of(directory)))
    assert found[0] == found[1] == found[2]
    state, records = found[0]
    assert [r["step"] for r in records] == ([60, 120] if state == "done" else [50])
    assert state == ("done" if lr < 1 else "diverged")
    mse = [e["value"] for e in records[-1]["evaluations"] if e["metric"] == "mse"]
    assert mse and all((value is None) == (lr > 1) for value in mse)


def test_checkpoints_take_their_share_of_the_time(tmp_path: Path) -> None:
    run = Run(first(), SETTINGS)
    run.step = 1
    new = Training(run, RunDirectory(tmp_path), saved=100.0)
    assert not new.checkpoint_is_due(109.0) and new.checkpoint_is_due(111.0)
    long = Training(run, RunDirectory(tmp_path), saved=100.0, saving=1.0)
    assert not long.checkpoint_is_due(119.0) and long.checkpoint_is_due(121.0)
    run.step = run.spec.steps
    assert not long.checkpoint_is_due(1000.0)  # it ends


@pytest.mark.usefixtures("always_checkpoint")
def test_what_was_written_by_halves_is_redone(tmp_path: Path) -> None:
    spec, torn = first(), RunDirectory(tmp_path / "b")
    undisturbed = ended(spec, tmp_path / "a")
    kill_at(90, spec, torn)
    with (torn.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 100, "evaluat')
    assert torn.records()[-1]["step"] == 80
    again = RunDirectory(Path(shutil.copytree(torn.path, tmp_path / "c")))
    execute(spec, torn, SETTINGS)
    again.checkpoint.write_bytes(again.checkpoint.read_bytes()[:1000])
    with pytest.warns(UserWarning, match="cannot be read .* the run starts again"):
        execute(spec, again, SETTINGS)
    assert records_of(torn) == records_of(again) == records_of(undisturbed)


def test_a_run_that_diverges_right_after_an_evaluation_keeps_that_record(tmp_path: Path) -> None:
    """Its loss is finite up to step 70, where it is evaluated, and at no later step."""
    spec = first(algorithms=["Exploding"], steps=140, evaluate_every=70)
    directory = RunDirectory(tmp_path / spec.id)
    assert execute(spec, directory, SETTINGS)[0] == "diverged"
    healthy, last = directory.records()
    assert (healthy["step"], last["step"]) == (70, 100)
    assert math.isfinite(healthy["train"]["loss"]) and last["train"] == {}
    values = [e["value"] for e in healthy["evaluations"]]
    assert values and all(value is not None for value in values)


def test_an_error_is_kept_with_its_traceback(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "a")
    state, message = execute(first(algorithms=["Raising"]), directory, SETTINGS)
    place = r"\(.*odd_methods\.py:\d+, in update\)"
    assert state is State.FAILED
    assert re.fullmatch(f"RuntimeError: the third step is one too many {place}", message)
    failure = directory.failure()
    assert failure is not None and "odd_methods.py" in failure.traceback
    assert directory.state() == "failed"


def test_a_run_that_another_process_holds_or_that_has_ended_is_left_alone(tmp_path: Path) -> None:
    with RunDirectory(tmp_path / "a").lock():
        assert execute(first(), RunDirectory(tmp_path / "a"), SETTINGS) == ("elsewhere", "")
    directory = ended(first(), tmp_path / "a")
    before = (directory.path / "metrics.jsonl").read_bytes()
    assert execute(first(), directory, SETTINGS) == ("done", "")
    assert (directory.path / "metrics.jsonl").read_bytes() == before


def test_runs_of_a_trial_share_data_initial_weights_and_batches() -> None:
    """Common random numbers: nothing shared depends on the algorithm or on the draw."""
    plan = tiny(algorithms=["ERM", "IRM", "DANN"], hparam_draws=2, trials=1, network="MLP")
    runs = [Run(spec, SETTINGS) for spec in plan.runs.values()]
    reference = runs[0]
    same_width = [r for r in runs if r.spec.network_hparams == reference.spec.network_hparams]
    assert len(same_width) >= 3
    weights = [[*run.algorithm.network.parameters()] for run in same_width]
    assert all(torch.equal(a, b) for a, *others in zip(*weights, strict=True) for b in others)
    for run in runs[1:]:
        assert torch.equal(run.batches_at(3)[3].x, reference.batches_at(3)[3].x)
        for name, parts in run.data.splits.items():
            assert torch.equal(parts["out"], reference.data.splits[name]["out"])


def test_trials_differ_in_data_weights_and_batches() -> None:
    a, b = (Run(spec, SETTINGS) for spec in tiny(algorithms=["ERM"], network="MLP").runs.values())
    assert not torch.equal(a.batches_at(0)[0].x, b.batches_at(0)[0].x)
    weights = [next(r.algorithm.network.parameters()) for r in (a, b)]
    assert not torch.equal(*weights)
