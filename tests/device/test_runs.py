"""A block of a run's steps: its examples are on the device, and one read from it in all."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from oodbench.data.streams import Stored
from oodbench.datasets import Environment
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
    """A run of a row on spirals."""
    network = {"name": "MLP", "hparams": {"width": 8, "depth": 1, "dropout": 0.0}}
    keys: dict[str, Any] = {"steps": 40, "evaluate_every": 20, "network": network}
    return Run(single(SPIRALS, entry, trials=[trial], **keys), TrainSettings(**settings))


def moved_environment(environment: Environment) -> Environment:
    """The environment on the device, but for what is read from disk."""
    return environment if isinstance(environment.x, Stored) else moved(environment)


def moved_scored(scored: Scored) -> Scored:
    return replace(
        scored,
        environments={name: moved_environment(e) for name, e in scored.environments.items()},
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
    """Put a run that was made on the CPU on the device."""
    move_algorithm(run.algorithm)
    move_batches(run.batches_at(0))
    spec, average = run.spec, run.spec.average
    if average is not None:
        run.average = make_average(average, run.algorithm, spec.steps, spec.evaluate_every)
    run.scored, run.validated_on = moved_scored(run.scored), moved_scored(run.validated_on)
    splits = {n: {s: fake(i) for s, i in own.items()} for n, own in run.data.splits.items()}
    run.data = replace(run.data, splits=splits)
    vars(run.data)["groups"] = run.scored.groups  # which follow from targets on the CPU


def rows() -> Iterator[Any]:
    """Rows of a sweep, and the copies of a step: the environments drawn, and each tensor of draws."""
    hparams: list[tuple[str, dict[str, Any], int]] = [
        ("uniform", {}, 0),
        ("rwy", {"sampling": "rwy"}, 0),
        ("environments", {"environments_per_step": 2}, 1),
        ("whole", {"batch_size": 0}, 0),
    ]
    for label, values, copies in hparams:
        yield pytest.param({"name": "ERM", "hparams": values}, copies, id=label)
    yield pytest.param({"name": "JTT"}, 0, id="index")
    yield pytest.param({"name": "Mixup"}, 2, id="draws")
    for average in ("ema", "swa", "swad"):
        yield pytest.param({"name": "ERM", "average": average}, 0, id=average)


@pytest.mark.parametrize(("entry", "copies"), list(rows()))
def test_a_block_of_steps_copies_what_is_drawn_and_is_read_once(
    entry: dict[str, Any], copies: int
) -> None:
    run = run_of({**entry, "hparams": {"batch_size": 8, **entry.get("hparams", {})}})
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


@pytest.mark.parametrize("average", ["none", "ema", "swad"])
def test_an_evaluation_is_read_once(average: str) -> None:
    """With SWAD, which is told a loss before, twice."""
    run = run_of({"name": "ERM", "average": average})
    with on_device() as watch:
        move_run(run)
        run.run_steps(6)
        watch.forget()
        assert run.evaluate()
        assert not watch.crossings
        assert watch.reads == (2 if average == "swad" else 1)


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
@pytest.mark.parametrize(
    ("entry", "copies"),
    [
        ({"name": "ERM"}, 0),
        ({"name": "ERM", "average": "ema"}, 0),
        ({"name": "Mixup"}, 2),
        *(
            pytest.param(row, 0, marks=pytest.mark.nightly)
            for row in (
                {"name": "ERM", "hparams": {"clip_norm": 1.0}},
                *({"name": name} for name in ("ANDMask", "EQRM", "JTT")),
            )
        ),
    ],
    ids=str,
)
def test_runs_as_one_program_copy_what_is_drawn_and_are_read_once(
    entry: dict[str, Any], copies: int
) -> None:
    """A block begins with one more of the rates of all its steps, and one of an average's shares."""
    entry = {**entry, "hparams": {"batch_size": 8, **entry.get("hparams", {})}}
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
