"""Bundles of runs from start to end: who leaves, who is resumed, what does not fit; heartbeats."""

import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import Timeout
from torch import Tensor

from oodbench.algorithms import Algorithm, Outputs, algorithms, register
from oodbench.errors import UserError
from oodbench.registry import load_plugins
from oodbench.results.directory import Directory
from oodbench.results.run_directory import RunDirectory
from oodbench.results.run_spec import RunSpec
from oodbench.train import execute as module
from oodbench.train.execute import execute, execute_bundle
from oodbench.train.run import Run
from oodbench.train.settings import TrainSettings
from oodbench.train.vectorized.program import VectorizedProgram
from tests.helpers.kills import Killed, checkpoint_every, killed_at
from tests.helpers.results.sweeps import ODD_METHODS, outcome, planned, tiny

TOGETHER = TrainSettings(plugins=(ODD_METHODS,), vectorize=64)
DIVERGING = {"name": "ERM", "hparams": {"lr": [1e-3, 1e30]}}
"""Its draw 0 does not diverge, draw 1 does."""


def prepared(path: Path, **changes: Any) -> tuple[Directory, list[RunSpec]]:
    load_plugins(TOGETHER.plugins)
    plan = tiny(**{"algorithms": ["IRM"], "trials": 4, "network": "Linear"} | changes)
    return planned(path, plan), list(plan.runs.values())


def trained(
    results: Directory, specs: Sequence[RunSpec], settings: TrainSettings = TOGETHER, **more: Any
) -> dict[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = {}

    def ended(run_id: str, state: str, message: str) -> None:
        assert run_id not in found
        found[run_id] = state, message

    runs = [(spec, results.run(spec.id)) for spec in specs]
    left = execute_bundle(runs, settings, ended, **more)
    assert not left and set(found) == {spec.id for spec in specs}
    return found


def vectorized(results: Directory) -> list[bool]:
    infos = [results.run(i).info() for i in results.specs()]
    return [info.provenance["vectorized"] for info in infos if info is not None]


def beats_of(directory: RunDirectory, count: int) -> list[float]:
    """The times of so many different heartbeats, as soon as they are there."""
    found: list[float] = []
    deadline = time.monotonic() + 60
    while len(found) < count and time.monotonic() < deadline:
        beat = directory.heartbeat()
        if beat is not None and beat.time not in found:
            found.append(beat.time)
        time.sleep(0.005)
    return found


def test_each_run_is_locked_and_beats_until_its_own_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BEAT_SECONDS", 0.01)
    results, specs = prepared(tmp_path)
    specs = [replace(spec, steps=10 * (1 + k)) for k, spec in enumerate(specs)]
    ended: list[str] = []

    def check(run_id: str, state: str, message: str) -> None:
        ended.append(run_id)
        for left in map(results.run, [spec.id for spec in specs][len(ended) :]):
            beat = left.heartbeat() if len(beats_of(left, 3)) == 3 else None
            assert beat is not None and beat.step == 10 * len(ended)
        free = []
        for spec in specs:
            with suppress(Timeout), results.run(spec.id).lock():
                free.append(spec.id)
        silent = [spec.id for spec in specs if results.run(spec.id).heartbeat() is None]
        assert free == silent == ended

    execute_bundle([(s, results.run(s.id)) for s in specs], TOGETHER, check)
    assert ended == [s.id for s in specs]


@pytest.mark.slow
def test_a_checkpoint_holds_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint_every(15, monkeypatch)
    for count in (1, 4):
        results, specs = prepared(tmp_path / str(count), trials=count)
        with pytest.raises(Killed):
            trained(results, specs, progress=killed_at(45))
    sizes = [next((tmp_path / str(n)).glob("runs/*/checkpoint.pt")).stat().st_size for n in (1, 4)]
    assert max(sizes) < 1.1 * min(sizes)  # some versions of torch pad with a few bytes


@pytest.mark.nightly
@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_killed_bundle_goes_on_in_any_bundling(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint_every(15, monkeypatch)
    undisturbed, specs = prepared(tmp_path / "a")
    trained(undisturbed, specs)
    killed, _ = prepared(tmp_path / "b")
    for some, place in ((specs, 45), (specs[1:3], 90)):
        with pytest.raises(Killed):
            trained(killed, some, progress=killed_at(place))
    for start in range(0, 4, size):
        trained(killed, specs[start : start + size])
    assert outcome(killed) == outcome(undisturbed)


@pytest.mark.slow
def test_shorter_and_diverging_runs_leave_without_touching_the_others(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"algorithms": [DIVERGING], "hparam_draws": 2, "trials": 2}
    results, specs = prepared(tmp_path / "a", **changes)
    short, more = prepared(tmp_path / "b", **changes, steps=70)
    both = [(s, results.run(s.id)) for s in specs] + [(s, short.run(s.id)) for s in more]
    states: dict[str, str] = {}
    execute_bundle(both, TOGETHER, lambda i, state, _: states.update({i: state}))
    for spec in (*specs, *more):
        assert states[spec.id] == ("diverged" if spec.draw else "done")
        target = results if spec in specs else short
        last = target.run(spec.id).records()[-1]["step"]
        assert last == (40 if spec.draw else spec.steps)
    for target, runs in ((results, specs), (short, more)):
        alone, _ = prepared(
            tmp_path / f"{len(runs)}{runs[0].steps}", **changes, steps=runs[0].steps
        )
        for spec in runs:
            trained(alone, [spec])
        assert outcome(alone) == outcome(target)


def test_a_diverging_run_is_recorded_where_it_would_be_by_itself(tmp_path: Path) -> None:
    """Whatever the steps are at which the runs beside it are evaluated."""
    plan: dict[str, Any] = {"algorithms": [DIVERGING], "hparam_draws": 2, "trials": 1, "steps": 200}
    results, specs = prepared(tmp_path / "a", **plan)
    specs = [replace(s, evaluate_every=100 if s.draw else 30) for s in specs]
    trained(results, specs)
    diverging = next(s for s in specs if s.draw)
    alone, _ = prepared(tmp_path / "b", **plan)
    trained(alone, [diverging])
    found = [r.run(diverging.id).records() for r in (results, alone)]
    assert [[r["step"] for r in records] for records in found] == [[50], [50]]
    assert results.run(diverging.id).state() == "diverged"


@pytest.mark.slow
def test_runs_of_other_shapes_make_a_bundle_of_their_own(tmp_path: Path) -> None:
    entry = {"name": "DANN", "hparams": {"discriminator_width": [8, 16]}}
    results, specs = prepared(tmp_path, algorithms=[entry], hparam_draws=2, trials=2)
    assert len({spec.bundle_key for spec in specs}) == 1
    assert set(trained(results, specs).values()) == {("done", "")}
    assert vectorized(results) == [True] * 4


@pytest.mark.slow
def test_what_does_not_fit_into_memory_is_tried_in_halves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []

    class Small(VectorizedProgram):
        def run_steps(self, steps: int) -> list[int | None]:
            sizes.append(len(self.runs))
            if len(self.runs) > 2 and self.runs[0].step >= 50:
                raise torch.OutOfMemoryError("it is full")
            return super().run_steps(steps)

    undisturbed, specs = prepared(tmp_path / "a", trials=5)
    trained(undisturbed, specs)
    monkeypatch.setattr(module, "VectorizedProgram", Small)
    results, _ = prepared(tmp_path / "b", trials=5)
    trained(results, specs)
    assert set(sizes) == {5, 2, 1} and outcome(results) == outcome(undisturbed)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_what_does_not_fit_onto_a_gpu_is_tried_in_halves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    class Seen(VectorizedProgram):
        def __init__(self, runs: Sequence[Run]) -> None:
            sizes.append(len(runs))
            super().__init__(runs)

    monkeypatch.setattr(module, "VectorizedProgram", Seen)
    monkeypatch.setattr(module, "capacity", lambda run: 64)  # others take the memory later
    settings = replace(TOGETHER, device="cuda:0")
    entry = {"name": "ERM", "hparams": {"batch_size": 512}}
    changes: dict[str, Any] = {"datasets": ["Spirals"], "network": "MLP", "algorithms": [entry]}

    def reserved(count: int, name: str) -> int:
        results, specs = prepared(tmp_path / name, **changes, trials=count, steps=2)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        assert set(trained(results, specs, settings).values()) == {("done", "")}
        return torch.cuda.max_memory_reserved()

    few, many = reserved(8, "few"), reserved(32, "many")
    assert few < many and sizes == [8, 32]
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((few + many) / 2 / total)
    try:
        reserved(32, "limited")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert sizes[2:] in ([32, 16, 16], [32, 16, 8, 8, 8, 8])


def test_a_method_that_breaks_the_rules_is_trained_one_run_at_a_time(tmp_path: Path) -> None:
    results, specs = prepared(tmp_path, algorithms=["Branching"], hparam_draws=2, trials=1)
    message = "Branching on LinearSEM.* are trained one at a time.*`objective` .*branches in Python"
    with pytest.warns(UserWarning, match=message):
        assert set(trained(results, specs).values()) == {("done", "")}
    assert vectorized(results) == [False, False]


def test_predictions_of_another_shape_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Flat(Algorithm):
        def predict(self, x: Tensor) -> Tensor:
            return super().predict(x).squeeze(-1)

    monkeypatch.setattr(algorithms, "_classes", dict(algorithms.items()))
    register("Flat", paper="none")(Flat)
    results, specs = prepared(tmp_path, algorithms=["Flat"], trials=2)
    shapes = r"^`predict` of Flat must return .* \((\d+), 1\), not torch.Size\(\[\1\]\)$"
    ((state, message),) = trained(results, specs[:1]).values()
    assert state == "failed" and re.search(shapes, message)
    with pytest.raises(UserError, match=shapes):
        VectorizedProgram([Run(spec, TOGETHER) for spec in specs]).evaluate([0])


@pytest.mark.slow
@pytest.mark.parametrize("error", [torch.OutOfMemoryError, ValueError])
def test_who_fails_in_a_program_of_its_own_has_failed_and_others_have_their_bits(
    error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Bad(VectorizedProgram):
        def run_steps(self, steps: int) -> list[int | None]:
            if any(run.spec.trial == 1 for run in self.runs):
                raise error("not with trial 1")
            return super().run_steps(steps)

    undisturbed, specs = prepared(tmp_path / "a", trials=3)
    trained(undisturbed, specs)
    monkeypatch.setattr(module, "VectorizedProgram", Bad)
    results, _ = prepared(tmp_path / "b", trials=3)
    found = trained(results, specs)
    states = [found[spec.id] for spec in specs]
    assert [state for state, _ in states] == ["done", "failed", "done"]
    assert "not with trial 1" in states[1][1] and vectorized(results) == [True] * 3
    ended = [
        {i: r for i, r in outcome(x).items() if i != specs[1].id} for x in (results, undisturbed)
    ]
    assert ended[0] == ended[1]


def test_runs_that_cannot_be_together_are_handed_back(tmp_path: Path) -> None:
    results, specs = prepared(tmp_path, algorithms=["Slow"])
    states: dict[str, str] = {}
    runs = [(spec, results.run(spec.id)) for spec in specs]
    left = execute_bundle(runs, TOGETHER, lambda i, state, _: states.update({i: state}))
    assert left == [s.id for s in specs[1:]] and states == {specs[0].id: "done"}


def test_a_run_whose_end_cannot_be_read_fails_by_itself(tmp_path: Path) -> None:
    results, specs = prepared(tmp_path)
    damaged = results.run(specs[0].id).path / "done.json"
    damaged.parent.mkdir(parents=True)
    damaged.write_text("{")
    found = trained(results, specs)
    state, message = found[specs[0].id]
    assert state == "failed" and str(damaged) in message
    assert {found[s.id] for s in specs[1:]} == {("done", "")}


def test_a_run_beats_within_a_single_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BEAT_SECONDS", 0.05)
    directory = RunDirectory(tmp_path / "a")
    seen: list[float] = []

    @register("LongStep", paper="none")
    class LongStep(Algorithm):
        """Its second step ends when its run has beaten three times."""

        def objective(self, out: Outputs) -> Tensor:
            if out.step == 1 and not seen:
                seen.extend(beats_of(directory, 3))
            return out.risks.mean()

    (spec,) = tiny(algorithms=["LongStep"], trials=1).runs.values()
    assert execute(spec, directory, TrainSettings()) == ("done", "")
    assert len(seen) == 3 and directory.heartbeat() is None
