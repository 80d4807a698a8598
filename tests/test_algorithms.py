"""What every method has: environments of a step, warm-up, clipping, accumulation, a start of the head."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from oodbench.algorithms import Algorithm, Outputs, Problem, algorithms, register
from oodbench.conformance.tiny_problems import (
    PLAIN,
    TASKS,
    suited,
    tiny_algorithm,
    tiny_batch,
    tiny_problem,
)
from oodbench.errors import UserError
from oodbench.hparams import defaults
from oodbench.networks.base import Network
from oodbench.tasks import Task

OURS = [n for n in algorithms if algorithms.get(n).__module__.startswith("oodbench.")]
METHODS = [n for n in OURS if algorithms.get(n).trains_network]


def solvable(name: str) -> tuple[type[Algorithm], Task]:
    """A method with a task that it can be run on."""
    cls = algorithms.get(name)
    tasks = (suited(cls, task) for task in TASKS.values())
    return cls, next(task for task in tasks if cls.skip(tiny_problem(task)) is None)


def trained(name: str, steps: int = 3, start: int = 0, **values: object) -> list[Tensor]:
    """The parameters and buffers of a method after some updates, with plain gradient descent."""
    cls, task = solvable(name)
    algorithm = tiny_algorithm(cls, tiny_problem(task), {**PLAIN, **values})
    torch.manual_seed(5)
    for step in range(start, start + steps):
        algorithm.update(tiny_batch(task, step), step)
    return [p.detach() for p in (*algorithm.parameters(), *algorithm.buffers())]


@pytest.mark.parametrize(
    ("value", "given"),
    [
        ("out.risks", r"values of shape \(5,\)"),
        ("out.risks.mean().item()", "float"),
        ("None", "NoneType"),
    ],
)
def test_an_objective_that_is_not_one_number_is_told(value: str, given: str) -> None:
    class Vector(Algorithm):
        def objective(self, out: Outputs) -> Tensor:
            return eval(value)  # type: ignore[no-any-return]

    task = TASKS["binary"]
    algorithm = tiny_algorithm(Vector, tiny_problem(task), PLAIN)
    message = f"^`objective` of Vector gives one number in a tensor, not {given}$"
    with pytest.raises(UserError, match=message):
        algorithm.update(tiny_batch(task, 0), 0)


@pytest.mark.parametrize("parts", [2, 4])
@pytest.mark.parametrize("name", METHODS)
def test_a_batch_in_parts_gives_the_gradients_of_the_whole(name: str, parts: int) -> None:
    """Six examples in two parts, and in three: four of equal size there cannot be."""
    cls, task = solvable(name)
    values = {**defaults(cls.Hparams), "accumulation": parts}
    if reason := cls.lacks(tiny_problem(task), values):
        assert "`accumulation`" in reason
        return
    for whole, in_parts in zip(trained(name), trained(name, accumulation=parts), strict=True):
        torch.testing.assert_close(in_parts, whole, rtol=1e-9, atol=1e-12)


def test_the_learning_rate_rises_to_its_schedule() -> None:
    problem = tiny_problem(TASKS["binary"])
    for warm_up, steps in ((4, 4), (0.5, problem.steps // 2)):
        values = {"lr": 0.1, "lr_schedule": "linear", "warm_up": warm_up}
        algorithm = tiny_algorithm(Algorithm, problem, values)
        for step in (0, 1, steps // 2, steps - 1, steps, problem.steps - 1):
            wanted = 0.1 * (1 - step / problem.steps) * min(1, (step + 1) / steps)
            assert algorithm.rates(step).lr == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("name", ["ERM", "ANDMask"])
def test_a_gradient_is_scaled_down_to_the_largest_norm(name: str) -> None:
    cls, task = solvable(name)
    steps = []
    for clip_norm in (0.0, 1e-2, 1e9):
        values = {**PLAIN, "clip_norm": clip_norm, "weight_decay": 0.3}
        algorithm = tiny_algorithm(cls, tiny_problem(task), values)
        before = nn.utils.parameters_to_vector(algorithm.parameters()).detach()
        algorithm.update(tiny_batch(task), 0)
        after = nn.utils.parameters_to_vector(algorithm.parameters()).detach()
        steps.append((before - after) / 0.01 - 0.3 * before)
    free, clipped, loose = steps
    torch.testing.assert_close(clipped, free * 1e-2 / free.norm(), rtol=1e-4, atol=1e-9)
    assert free.norm() > 1e-2 and torch.equal(free, loose)


class Normed(Network):
    """A featurizer with statistics and dropout, and a linear classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.num_features = 8
        self.featurizer = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
        self.classifier = nn.Linear(8, 1)


def normed(name: str, **values: object) -> Algorithm:
    torch.manual_seed(2)
    algorithm = tiny_algorithm(algorithms.get(name), tiny_problem(TASKS["binary"]), values)
    algorithm.network = Normed().double()
    algorithm.optimizers = algorithm.configure()
    return algorithm.train()


def weights(module: nn.Module) -> list[Tensor]:
    return [t.detach().clone() for t in (*module.parameters(), *module.buffers())]


@pytest.mark.parametrize("name", ["ERM", "ANDMask", "VREx", "SAM", "Fish"])
def test_at_first_the_head_alone_is_trained(name: str) -> None:
    given: dict[str, Any] = {"head_only": 3, "weight_decay": 0.1, "lr": 0.01}
    algorithm = normed(name, **given)
    network = algorithm.network
    for step in range(6):
        body, head = weights(network.featurizer), weights(network.classifier)
        algorithm.update(tiny_batch(TASKS["binary"], step), step)
        same = [torch.equal(a, b) for a, b in zip(body, weights(network.featurizer), strict=True)]
        assert (all(same) and not network.featurizer.training) == (step < 3)
        assert step < 3 or not all(same)
        assert not torch.equal(head[0], weights(network.classifier)[0])


def test_a_share_of_the_steps_is_of_the_head_alone() -> None:
    algorithm = tiny_algorithm(Algorithm, tiny_problem(TASKS["binary"]), {"head_only": 0.1})
    last = algorithm.problem.steps // 10
    assert [algorithm.trains_head_only(s) for s in (0, last - 1, last)] == [True, True, False]
    plain = tiny_algorithm(Algorithm, tiny_problem(TASKS["binary"]))
    assert not plain.trains_head_only(0) and not plain.trains_head_only(-1)


def test_statistics_count_each_part_once() -> None:
    task = TASKS["binary"]
    algorithm, batch = normed("ERM", accumulation=3), tiny_batch(task)
    algorithm.update(batch, 0)
    x = batch.x.flatten(0, 1)
    other = normed("ERM")
    mean = torch.zeros(8, dtype=torch.float64)
    for part in x.chunk(3):
        mean = 0.9 * mean + 0.1 * other.network.featurizer[0](part).mean(0)  # type: ignore[index]
    layer = algorithm.network.featurizer[1]  # type: ignore[index]
    torch.testing.assert_close(layer.running_mean, mean)
    assert layer.num_batches_tracked == 3 and layer.momentum == 0.1


def test_a_step_may_be_of_some_environments() -> None:
    problem = Problem((4,), TASKS["binary"], tuple("abcdefgh"), 1000, seed=3)

    def drawn(seed: int, count: int, name: str = "ERM") -> list[list[int]]:
        of = replace(problem, seed=seed)
        algorithm = tiny_algorithm(algorithms.get(name), of, {"environments_per_step": count})
        return [list(algorithm.environments_at(step)) for step in range(400)]

    assert drawn(3, 0) == drawn(3, 8) == drawn(3, 9) == [list(range(8))] * 400
    some = drawn(3, 3)
    assert all(len(set(step)) == 3 for step in some)
    assert some == drawn(3, 3, "VREx") and some != drawn(4, 3)
    counts = torch.bincount(torch.tensor(some).flatten(), minlength=8)
    assert counts.sum() == 1200 and 110 < counts.min() and counts.max() < 190  # 150 expected
    assert algorithms.get("ERM").Hparams().environments_per_step == 0


def test_a_kind_that_is_none_is_told() -> None:
    class Odd(Algorithm):
        """Of a kind of its own."""

        kind = "penalties"

    with pytest.raises(UserError, match=r"unknown kind 'penalties' in the method Odd.*penalty"):
        register("Odd", paper="none")(Odd)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_trains_with_its_network_in_bfloat16(name: str) -> None:
    cls, task = solvable(name)
    algorithm = tiny_algorithm(cls, tiny_problem(task), dtype=torch.float32)
    algorithm.autocast = torch.bfloat16
    batch = tiny_batch(task)
    y = batch.y.float() if batch.y.is_floating_point() else batch.y
    batch = replace(batch, x=batch.x.float(), y=y)
    if batch.views is not None:
        batch = replace(batch, views=batch.views.float())
    for step in range(2):
        assert algorithm.update(batch, step)["loss"].isfinite()
    assert {p.dtype for p in algorithm.parameters()} == {torch.float32}
