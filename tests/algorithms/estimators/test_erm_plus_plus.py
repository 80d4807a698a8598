"""ERM++ against its two trainings, and WiSE-FT against its equation."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from oodbench.algorithms.plateau import Plateau
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from oodbench.algorithms import algorithms
from oodbench.conformance.tiny_problems import PLAIN, TASKS, tiny_batch, tiny_problem
from oodbench.networks.base import build
from oodbench.results.run_spec import RunSpec
from oodbench.tasks import Task
from oodbench.train.run import Run
from oodbench.train.settings import TrainSettings
from tests.helpers.algorithms.methods import ON_EVERY_TASK, require_same_weights, tiny
from tests.helpers.kills import checkpoint_every, killed_and_resumed
from tests.helpers.results.sweeps import DIGITS, first

NUMBERS: dict[str, Any] = {"head_only": 2, "head_lr": 0.3, "average_start": 4}


@ON_EVERY_TASK
def test_predictions_are_those_of_the_mean_of_the_weights_from_its_start_on(task: Task) -> None:
    algorithm, path = tiny("ERMPlusPlus", task, **PLAIN, **NUMBERS), []
    for step in range(8):
        algorithm.train_step(tiny_batch(task, step), step)
        path.append(parameters_to_vector(algorithm.network.parameters()).detach())
        mean = parameters_to_vector(algorithm.mean.parameters())
        wanted = path[-1] if step < 3 else torch.stack(path[2:]).mean(0)
        torch.testing.assert_close(mean, wanted)
    x = tiny_batch(task).x.flatten(0, 1)
    assert torch.equal(algorithm.predict(x), algorithm.mean(x))


def test_the_head_begins_alone_at_its_own_rate() -> None:
    task = Task("binary")
    algorithm = tiny("ERMPlusPlus", task, **PLAIN, **NUMBERS)
    plain = tiny("ERM", task, **{**PLAIN, "lr": 0.3}, head_only=2)
    for step in range(2):
        for method in (algorithm, plain):
            method.train_step(tiny_batch(task), step)
        require_same_weights(algorithm.network, plain.network)
    body = algorithm.network.featurizer[1].weight.clone()
    algorithm.train_step(tiny_batch(task), 2)
    assert not torch.equal(algorithm.network.featurizer[1].weight, body)


def test_statistics_of_the_mean_network_come_from_passes_of_its_own() -> None:
    task = Task("binary")
    algorithm = tiny("ERMPlusPlus", task, **PLAIN, head_only=0, average_start=0)
    for network in (algorithm.network, algorithm.mean):
        network.featurizer.append(nn.BatchNorm1d(8).double())
    batch = tiny_batch(task)
    algorithm.train_step(batch, 0)
    norm = algorithm.network.featurizer[-1]
    features = algorithm.mean.featurizer[:-1](batch.x.flatten(0, 1))
    wanted = 0.9 * norm.running_mean / 2 + 0.1 * features.mean(0)
    torch.testing.assert_close(algorithm.mean.featurizer[-1].running_mean, wanted)


@pytest.mark.parametrize("seed", range(12))
def test_the_rate_falls_where_that_of_torch_does_and_for_the_last_time_after_three_falls(
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    noise = torch.rand(40, generator=generator, dtype=torch.float64)
    losses = torch.linspace(1.0, 0.2 * (seed % 4), 40) + 10.0 ** -(seed % 6) * noise
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    peer = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "min", patience=1)
    plateau, falls = Plateau(1000), list[int]()
    for step, loss in enumerate(losses.tolist(), start=1):
        before = optimizer.param_groups[0]["lr"]
        plateau.validated(loss, step)
        peer.step(loss)
        falls += [step] if optimizer.param_groups[0]["lr"] < before else []
    wanted = [*falls[:3], 1000, 1000, 1000][:3]
    assert plateau.at.tolist() == wanted
    other = Plateau(1000)
    other.load_state_dict(plateau.state_dict())
    for step in range(45):
        count = sum(step >= fall for fall in wanted)
        assert plateau.falls(step) == other.falls(step) == count


def test_the_second_training_repeats_the_rates_of_the_first_from_its_weights() -> None:
    task, lr, length = Task("multiclass", 3), 0.05, 12
    values = {**PLAIN, **NUMBERS, "optimizer": "adam", "lr": lr, "weight_decay": 1e-2}
    staged = {**values, "first_stage": 0.5, "lr_schedule": "drop", "warm_up": 0.5}
    method = tiny("ERMPlusPlus", task, problem={"steps": 2 * length}, **staged)
    losses = [3.0, 2.0, *[1.0] * 10]
    for start in (0, length):
        once = tiny("ERMPlusPlus", task, problem={"steps": length}, **values)
        for step in range(length):
            method.train_step(tiny_batch(task, start + step), start + step)
            falls = sum(step >= fall for fall in (5, 7, 9))
            if falls < 3:
                once.hparams = replace(once.hparams, lr=lr * 0.1**falls)
                once.train_step(tiny_batch(task, start + step), step)
            require_same_weights(method.network, once.network)
            require_same_weights(method.mean, once.mean)
            if not start:
                method.validated(losses[step], step + 1)
    assert method.plateau.at.tolist() == [5, 7, 9]


def run_twice(lr: float = 0.05) -> RunSpec:
    values = {"batch_size": 16, "lr": lr, "first_stage": 0.5, "held_out": 0.3}
    row = {"name": "ERMPlusPlus", "hparams": values}
    mlp = {"name": "MLP", "hparams": {"width": 8, "depth": 1}}
    plan: dict[str, Any] = {"steps": 80, "evaluate_every": 4, "network": mlp}
    return first(algorithms=[row], datasets=[{**DIGITS, "copies": 2}], **plan)


def test_the_first_training_is_validated_on_examples_that_it_does_not_see() -> None:
    run = Run(run_twice(), TrainSettings())
    environments, splits = run.set_aside.environments, run.set_aside.splits
    assert [*environments] == [*splits] == [*run.names]
    whole = {name: len(run.data.splits[name]["in"]) for name in run.names}

    def seen(steps: range, e: int, name: str) -> int:
        """How many of the inputs set aside are in the batches."""
        drawn = {row.numpy().tobytes() for step in steps for row in run.batches_at(step)[step].x[e]}
        return len(drawn & {row.numpy().tobytes() for row in environments[name].x})

    for e, name in enumerate(run.names):
        assert len(environments[name].y) == pytest.approx(0.3 * whole[name], rel=0.1)
        assert seen(range(40), e, name) == 0
        assert seen(range(40, 80), e, name) > 0
    plateau: Any = run.algorithm.get_submodule("plateau")
    for stop in (3, 4, 41):
        run.run_steps(stop - run.step)
        before = float(plateau.least)
        run.evaluate()
        predicted = [(run.algorithm.predict(e.x), e.y) for e in environments.values()]
        losses = torch.stack([run.problem.task.losses(z, y).mean() for z, y in predicted])
        # up to step 4 the head alone is trained, and at step 40 the second training begins
        wanted = float(losses.mean()) if stop == 4 else before
        assert float(plateau.least) == pytest.approx(wanted)


@pytest.mark.slow
def test_both_trainings_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rate falls after 16, 24 and 32 steps of each training."""
    checkpoint_every(4, monkeypatch)
    records = killed_and_resumed(run_twice(lr=0.3), tmp_path, (22, 38, 46, 66))
    of_steps = {record["step"]: record["evaluations"] for record in records}
    for end in (40, 80):
        assert of_steps[end - 8] == of_steps[end - 4] == of_steps[end]
        assert of_steps[end - 8] != of_steps[end - 12]
    assert of_steps[44] != of_steps[40]


def test_with_a_head_that_stays_as_it_is_no_steps_are_of_the_head_alone() -> None:
    linear = {"name": "Linear", "hparams": {}}
    spec = first(algorithms=["ERMPlusPlus"], network=linear, steps=20, evaluate_every=20)
    run = Run(spec, TrainSettings())
    start = parameters_to_vector(run.algorithm.network.parameters()).clone()
    assert run.run_steps(1) is None
    assert not torch.equal(parameters_to_vector(run.algorithm.network.parameters()), start)


def test_a_head_that_shares_its_weights_with_the_featurizer_is_trained_alone_at_first() -> None:
    network = build("MLP", {"width": 3, "depth": 1}, (3,), 3, seed=0)
    network.classifier = network.featurizer[1]  # type: ignore[index]
    problem = replace(tiny_problem(Task("multiclass", 3)), steps=40)
    cls: Any = algorithms.get("ERMPlusPlus")
    method = cls(network, problem, cls.Hparams())
    assert [method.trains_head_only(step) for step in (0, 3, 4)] == [True, True, False]


def test_predictions_are_under_weights_between_the_trained_head_and_the_end() -> None:
    """While the head alone is trained they are those of the network itself."""
    task = TASKS["multiclass"]
    algorithm, batch = tiny("WiSEFT", task, alpha=0.3, head_only=2, lr=0.1), tiny_batch(task)
    first = copy.deepcopy(algorithm.network)
    x = batch.x.flatten(0, 1)
    for step in range(2):
        assert torch.equal(algorithm.predict(x), algorithm.network(x))
        algorithm.train_step(batch, step)
    assert torch.equal(algorithm.predict(x), algorithm.network(x))
    start = copy.deepcopy(algorithm.network)
    assert torch.equal(*(parameters_to_vector(n.featurizer.parameters()) for n in (first, start)))
    assert not torch.equal(*(parameters_to_vector(n.parameters()) for n in (first, start)))
    for step in range(2, 6):
        algorithm.train_step(batch, step)
    between = copy.deepcopy(start)
    ends = [parameters_to_vector(n.parameters()).detach() for n in (start, algorithm.network)]
    vector_to_parameters(0.7 * ends[0] + 0.3 * ends[1], between.parameters())
    with torch.no_grad():
        torch.testing.assert_close(algorithm.predict(x), between(x))
        assert not torch.allclose(algorithm.predict(x), algorithm.network(x))
