"""No step of any method waits for the device or copies to it more than what it draws."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest
import torch

from oodbench.algorithms import Algorithm, algorithms, why_skipped
from oodbench.conformance import tiny_problems
from oodbench.conformance.tiny_problems import TASKS, suited, tiny_batch, tiny_problem
from oodbench.hparams import defaults
from oodbench.tasks import Task
from tests.device.pretend import DEVICE, move_algorithm, moved, on_device
from tests.helpers.algorithms.methods import OF_EACH_KIND, OURS

FITTED = {
    "AdversarialTraining": "examples whose class has changed leave the search",
    "GAF": "whether a step does an update depends on its gradients",
    "ICP": "a run is one fit, by scipy on the host",
    "ISR_Cov": "a run is one fit, of as many examples of a class as there are",
    "ISR_Mean": "a run is one fit, of as many examples of a class as there are",
    "LinearIRM": "a run is a descent in machine code on the host",
    "LinearVREx": "a run is a descent in machine code on the host",
}
"""The methods that leave the device, and why."""
READ_ON_HOST = {"DGSAM", "F_IRM_Game", "Fish", "GGA", "MLDG", "PGrad", "V_IRM_Game"}
"""The methods whose noise is an order that Python follows, or a seed."""
EVERYWHERE: list[dict[str, Any]] = [
    {"environments_per_step": 3, "optimizer": "sgd"},
    {"accumulation": 2, "optimizer": "adamw"},
    {"head_only": 0.5, "clip_norm": 1.0, "warm_up": 0.5, "lr_schedule": "cosine"},
]
"""Hyperparameters that every method is tried with."""
LATE = 19_000
"""A step past every annealing and first stage."""


def own_options(cls: type[Algorithm]) -> Iterator[dict[str, Any]]:
    """Each value of the method's own switches and words that is not the default."""
    common = {f.name for f in fields(Algorithm.Hparams)}
    for f in fields(cls.Hparams):
        if f.name not in common:
            if isinstance(f.default, bool):
                yield {f.name: not f.default}
            yield from ({f.name: o} for o in f.metadata.get("options") or () if o != f.default)
    if cls.__name__ == "EQRM":
        yield {"quantile": -0.5}


def made(cls: type[Algorithm], task: Task, values: dict[str, Any]) -> Algorithm:
    algorithm = tiny_problems.tiny_algorithm(cls, tiny_problem(task), values, torch.float32)
    move_algorithm(algorithm)
    return algorithm


def tasks_of(cls: type[Algorithm]) -> list[Task]:
    """The tasks that a method takes, as they suit it."""
    tasks = (suited(cls, task) for task in (*TASKS.values(), Task("regression", 1)))
    return [task for task in tasks if why_skipped(cls, tiny_problem(task)) is None]


def cases() -> Iterator[Any]:
    """Every method with the options that it can have, each on a task; the defaults on all tasks.

    All but the defaults of a method of each kind on one task, and what every method can have with
    ERM, wait for the night.
    """
    for name in OURS:
        cls = algorithms.get(name)
        takes = tasks_of(cls)
        why = FITTED.get(name)
        marks = [pytest.mark.xfail(strict=True, reason=why)] if why else []
        marks += [] if name in OF_EACH_KIND else [pytest.mark.nightly]
        for task in takes:
            label = f"{name}-{task.kind}{task.num_outputs}"
            yield pytest.param(cls, task, {}, id=label, marks=marks)
            marks = [*marks, pytest.mark.nightly]
        for values in (*EVERYWHERE, *own_options(cls)):
            if not why_skipped(cls, tiny_problem(takes[0]), {**defaults(cls.Hparams), **values}):
                label = "-".join([name, *(f"{k}={v}" for k, v in values.items())])
                now = name == "ERM" and values in EVERYWHERE
                yield pytest.param(cls, takes[0], values, id=label, marks=[] if now else marks)


def noise_tensors(algorithm: Algorithm) -> int:
    """How many tensors of noise a step sends to the device."""
    if type(algorithm).__name__ in READ_ON_HOST:
        return 0
    return len(algorithm.noise(tiny_batch(algorithm.problem.task), torch.Generator()))


@pytest.mark.slow
@pytest.mark.parametrize(("cls", "task", "values"), list(cases()))
def test_a_step_stays_on_a_device(cls: type[Algorithm], task: Task, values: Any) -> None:
    """The steps are the first three and one past every switch.

    The third allocates what the second did, in the same order, and leaves no more behind.
    """
    with on_device() as watch:
        algorithm = made(cls, task, values)
        batch = moved(tiny_batch(task))
        wanted = noise_tensors(algorithm) + bool(getattr(algorithm.hparams, "split_half", False))
        seen = []
        for step in (0, 1, 2, LATE):
            watch.forget()
            metrics = algorithm.train_step(batch, step)
            assert {v.device.type for v in metrics.values()} == {DEVICE}
            del metrics
            if step > 0:  # the first one sends what layers a mask's records are of
                assert not watch.others
                assert watch.copies == wanted
            follows = cls.__name__ in READ_ON_HOST  # an order, by which it allocates
            seen.append(([] if follows else watch.sizes, watch.live))
        assert all("and_mask.py" in crossing for crossing in watch.others)
        assert seen[1] == seen[2]


@pytest.mark.parametrize(
    "name", [n for n in OURS if not algorithms.get(n).overrides("fit_examples")]
)
def test_a_prediction_stays_on_the_device(name: str) -> None:
    cls = algorithms.get(name)
    task = tasks_of(cls)[0]
    with on_device() as watch:
        algorithm = made(cls, task, {}).eval()
        algorithm.predict(moved(tiny_batch(task)).x[0])
    assert not watch.crossings
