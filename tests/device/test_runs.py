"""A block of a run's steps: its examples are on the device, and one read from it in all."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from oodbench.sweep.plan import single
from oodbench.train.averages import make_average
from oodbench.train.batches import Batches, Examples
from oodbench.train.evaluate import Scored
from oodbench.train.run import Run
from oodbench.train.settings import TrainSettings
from oodbench.train.vectorized.program import VectorizedProgram
from tests.device.pretend import fake, move_algorithm, moved, on_device
from tests.helpers.results.sweeps import SPIRALS

pytestmark = pytest.mark.slow

STEPS = 4


def run_of(entry: dict[str, Any], trial: int = 0, **settings: Any) -> Run:
    """A run of a row on spirals, with batches of eight unless it says otherwise."""
    entry = {**entry, "hparams": {"batch_size": 8, **entry.get("hparams", {})}}
    network = {"name": "MLP", "hparams": {"width": 8, "depth": 1, "dropout": 0.0}}
    keys: dict[str, Any] = {"steps": 40, "evaluate_every": 20, "network": network}
    return Run(single(SPIRALS, entry, trials=[trial], **keys), TrainSettings(**settings))


def moved_scored(scored: Scored) -> Scored:
    return replace(
        scored,
        environments={name: moved(e) for name, e in scored.environments.items()},
        splits={n: {s: fake(i) for s, i in own.items()} for n, own in scored.splits.items()},
        groups={
            n: {s: replace(g, keys=fake(g.keys)) for s, g in own.items()}
            for n, own in scored.groups.items()
        },
    )


def move_batches(batches: Batches) -> None:
    given: list[Any] = [
        [fake(v) if isinstance(v, Tensor) else v for v in e] for e in batches._environments
    ]
    batches._environments = [Examples(*each) for each in given]
    batches._device = batches._environments[0].y.device
    batches._block.cache_clear()
    if batches._whole is not None:
        batches._whole = moved(batches._whole)


def move_run(run: Run) -> None:
    move_algorithm(run.algorithm)
    move_batches(run.batches_at(0))
    spec, average = run.spec, run.spec.average
    if average is not None:
        run.average = make_average(average, run.algorithm, spec.steps, spec.evaluate_every)
    run.scored, run.validated_on = moved_scored(run.scored), moved_scored(run.validated_on)
    splits = {n: {s: fake(i) for s, i in own.items()} for n, own in run.data.splits.items()}
    run.data = replace(run.data, splits=splits)
    vars(run.data)["groups"] = run.scored.groups  # which follow from targets on the CPU


def rows() -> Iterator[tuple[dict[str, Any], int]]:
    """Rows of a sweep, and the copies of a step: the environments drawn, and each tensor of draws."""
    hparams: list[dict[str, Any]] = [{}, {"sampling": "rwy"}, {"batch_size": 0}]
    yield from (({"name": "ERM", "hparams": values}, 0) for values in hparams)
    yield {"name": "ERM", "hparams": {"environments_per_step": 2}}, 1
    yield {"name": "JTT"}, 0
    yield {"name": "Mixup"}, 2
    yield from (({"name": "ERM", "average": each}, 0) for each in ("ema", "swa", "swad"))


@pytest.mark.parametrize(("entry", "copies"), list(rows()), ids=str)
def test_a_block_of_steps_is_read_once(entry: dict[str, Any], copies: int) -> None:
    """It copies what is drawn to the device. An evaluation with SWAD, which is told a loss before, is read
    twice.
    """
    run = run_of(entry)
    with on_device() as watch:
        move_run(run)
        run.run_steps(6)
        before = watch.live
        watch.forget()
        run.run_steps(STEPS)
        assert not watch.others
        assert watch.copies == copies * STEPS
        assert watch.reads == 1
        assert watch.live == before
        watch.forget()
        assert run.evaluate()
        assert not watch.crossings
        assert watch.reads == (2 if entry.get("average") == "swad" else 1)


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
@pytest.mark.parametrize(
    ("entry", "copies"),
    [
        ({"name": "ERM"}, 0),
        ({"name": "ERM", "average": "ema"}, 0),
        ({"name": "Mixup"}, 2),
        pytest.param({"name": "ERM", "hparams": {"clip_norm": 1.0}}, 0, marks=pytest.mark.nightly),
        *(
            pytest.param({"name": n}, 0, marks=pytest.mark.nightly)
            for n in ("ANDMask", "EQRM", "JTT")
        ),
    ],
    ids=str,
)
def test_runs_as_one_program_are_read_once(entry: dict[str, Any], copies: int) -> None:
    """A block begins with one more of the rates of all its steps, and one of an average's shares."""
    runs = [run_of(entry, trial, vectorize=2) for trial in (0, 1)]
    with on_device() as watch:
        for run in runs:
            move_run(run)
        program = VectorizedProgram(runs)
        program.run_steps(2)
        watch.forget()
        program.run_steps(STEPS)
        assert not watch.others
        assert watch.copies == copies * STEPS + 1 + ("average" in entry)
        assert watch.reads == 1
        watch.forget()
        assert program.evaluate([0, 1])
        assert not watch.others and watch.reads == 1
