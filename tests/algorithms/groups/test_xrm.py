"""XRM against a loop written after its authors' code, before other methods, and on a shortcut."""

import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from oodbench.algorithms.xrm import XRM, InferringHparams
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from oodbench.algorithms import Batch, algorithms, why_skipped
from oodbench.conformance.tiny_problems import TASKS, tiny_algorithm, tiny_batch, tiny_problem
from oodbench.tasks import Task
from tests.helpers.algorithms.methods import BINARY, require_same_weights, tiny
from tests.helpers.results import sweeps

MULTICLASS = TASKS["multiclass"]
SIX = 6 / 12
"""A first stage of six steps of twelve."""


def twelve(task: Task, cls: Any = XRM, **values: Any) -> Any:
    """The method on a problem of twelve steps."""
    problem = replace(tiny_problem(task), steps=12)
    return tiny_algorithm(cls, problem, {"first_stage": SIX, **values})


def of_classes(network: nn.Module, x: Tensor) -> Tensor:
    logits: Tensor = network(x)
    return torch.cat([0 * logits, logits], 1) if logits.shape[1] == 1 else logits


class Authors:
    """The first stage of their code on all examples of a batch, with random numbers that are given."""

    def __init__(self, network: Any, classes: int, lr: float, decay: float) -> None:
        self.a, self.b = copy.deepcopy(network), copy.deepcopy(network)
        for head in (self.a.classifier, self.b.classifier):
            for p in head.parameters():
                p.data *= 0
        parameters = [*self.a.parameters(), *self.b.parameters()]
        self.optimizer = torch.optim.Adam(parameters, lr=lr, weight_decay=decay)
        self.classes = classes

    def step(self, x: Tensor, y: Tensor, assigned: Tensor, uniform: Tensor) -> Tensor:
        """An update; the labels after it."""
        a, b = of_classes(self.a, x), of_classes(self.b, x)
        within = a * assigned + b * (1 - assigned)
        without = a * (1 - assigned) + b * assigned
        losses = F.cross_entropy(within, y, reduction="none")
        loss = torch.stack([losses[y == c].mean() for c in set(y.tolist())]).sum()
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        sure, guess = without.softmax(1).detach().max(1)
        chance = (sure - 1 / self.classes) * self.classes / (self.classes - 1)
        flip = (uniform < chance).long()
        return flip * guess + (1 - flip) * y


def steps_of_a_trial(task: Task) -> list[Batch]:
    """Six batches of the same labels, whose inputs differ."""
    first = tiny_batch(task)
    return [replace(first, x=tiny_batch(task, seed).x) for seed in range(6)]


@pytest.mark.parametrize("task", [BINARY, MULTICLASS], ids=lambda task: task.kind)
def test_six_updates_of_the_first_stage_are_those_of_the_authors_code(task: Task) -> None:
    values = {"lr": 0.02, "weight_decay": 1e-3, "optimizer": "adam"}
    ours = twelve(task, **values)
    theirs = Authors(ours.network, task.classes, 0.02, 1e-3)
    start = parameters_to_vector(ours.twins.parameters()).clone()
    assigned = ours.assigned.double().view(-1, 1)
    label = steps_of_a_trial(task)[0].y.long().flatten()
    for step, batch in enumerate(steps_of_a_trial(task)):
        uniform = ours.noise_at(batch, step)["flips"].flatten()
        x, y = batch.x.flatten(0, 1), batch.y.long().flatten()
        predicted = [of_classes(n, x).argmax(1) for n in (theirs.a, theirs.b)]
        label = theirs.step(x, label, assigned, uniform)
        metrics = ours.train_step(batch, step)
        assert torch.equal(ours.label.flatten(), label)
        mistakes = torch.logical_or(*(guess.ne(y) for guess in predicted))
        assert torch.equal(ours.mistaken.flatten(), mistakes.long())
        assert metrics["flipped"].item() == pytest.approx((label != y).double().mean().item())
    found = parameters_to_vector(ours.twins.parameters())
    wanted = parameters_to_vector([*theirs.a.parameters(), *theirs.b.parameters()])
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-8)
    assert (found - start).abs().max() > 0.05 and metrics["flipped"] > 0
    without = twelve(task, **values)  # labels that never change give other weights
    for step, batch in enumerate(steps_of_a_trial(task)):
        without.train_step(batch, step)
        without.label.fill_(-1)
    moved = parameters_to_vector(without.twins.parameters()) - wanted
    assert moved.abs().max() > 1e-3


@pytest.mark.parametrize("over", ["groups", "environments"])
def test_the_second_stage_is_group_dro_on_what_was_inferred(over: str) -> None:
    ours = twelve(BINARY, lr=0.02, eta=0.3, over=over, optimizer="adam")
    start = copy.deepcopy(ours.network)
    for step, batch in enumerate(steps_of_a_trial(BINARY)):
        ours.train_step(batch, step)
    require_same_weights(ours.network, start, rtol=0, atol=0)
    ours.mistaken.copy_(torch.randint(2, (5, 6), generator=torch.Generator().manual_seed(0)))
    mistaken, values = ours.mistaken.flatten(), {"lr": 0.02, "eta": 0.3, "over": over}
    theirs = tiny("GroupDRO", BINARY, 2, {"steps": 12}, optimizer="adam", **values)
    for step in range(6, 12):
        batch = tiny_batch(BINARY, seed=step)
        draws, x, y = ours.noise_at(batch, step)["draws"], batch.x.flatten(0, 1), batch.y.flatten()
        members = [(mistaken == e).nonzero().flatten() for e in range(2)]
        chosen = torch.stack([m[(d * len(m)).long()] for m, d in zip(members, draws, strict=True)])
        attributes = torch.arange(2).unsqueeze(1).expand_as(chosen)
        theirs.train_step(Batch(x[chosen], y[chosen], attributes=attributes), step)
        ours.train_step(batch, step)
    require_same_weights(ours.network, theirs.network, rtol=0, atol=1e-8)
    found, before = (parameters_to_vector(n.parameters()) for n in (ours.network, start))
    assert (found - before).abs().max() > 0.05


@pytest.mark.parametrize("name", ["ERM", "IRM", "ANDMask", "MLDG", "JTT", "ISR_Mean", "SelfReg"])
def test_the_stage_stands_before_a_method_of_any_level(name: str) -> None:
    method: Any = algorithms.get(name)

    @dataclass(frozen=True, kw_only=True)
    class Values(method.Hparams, InferringHparams):  # type: ignore[misc]
        pass

    of_class = {"before": method, "Hparams": Values, "__doc__": "XRM before another method."}
    before: Any = type(f"XRM{name}", (XRM,), of_class)
    algorithm = twelve(BINARY, before)
    assert why_skipped(before, algorithm.problem) == why_skipped(method, algorithm.problem) is None
    algorithm.fit_examples(tiny_batch(BINARY).x.flatten(0, 1), tiny_batch(BINARY).y.flatten())
    batches = steps_of_a_trial(BINARY)
    metrics = [algorithm.train_step(batches[step % 6], step) for step in range(12)]
    assert all(each["loss"].isfinite() for each in metrics)
    assert algorithm.method.problem.environments == ("without mistakes", "cross-mistakes")
    assert algorithm.predict(batches[0].x.flatten(0, 1)).shape == (30, 1)


def test_an_environment_that_a_batch_lacks_has_all_of_the_batch() -> None:
    algorithm = twelve(BINARY)
    batch = algorithm.prepared(tiny_batch(BINARY), 6)
    places = torch.arange(5).unsqueeze(1), batch.index
    inner = algorithm._inferred(batch, places)
    assert inner.x.shape == (2, 15, 4) and inner.y.shape == (2, 15)
    rows = {tuple(row) for row in batch.x.flatten(0, 1).tolist()}
    assert {tuple(row) for row in inner.x.flatten(0, 1).tolist()} <= rows
    assert not inner.attributes.any()
    algorithm.mistaken[2] = 1
    inner = algorithm._inferred(batch, places)
    assert inner.attributes.tolist() == [[0] * 15, [1] * 15]
    assert {*(inner.index[1] // 6).tolist()} == {2}


def test_without_a_first_stage_it_is_its_method_on_the_training_environments() -> None:
    values: dict[str, Any] = {"first_stage": 0, "over": "environments", "eta": 0.5}
    xrm, alone = tiny("XRM", **values), tiny("GroupDRO", eta=0.5)
    for step in range(3):
        for algorithm in (xrm, alone):
            algorithm.train_step(tiny_batch(BINARY, seed=step), step)
    require_same_weights(xrm.network, alone.network, rtol=0, atol=0)


def test_a_class_of_one_example_is_impossible_in_the_plan(tmp_path: Path) -> None:
    lines = [f"{i % 7},{'pq'[i % 2]},{'abc'[i // 40]}" for i in range(120)]
    text = "\n".join(["x,target,environment", *lines, "0.5,r,a"])
    (tmp_path / "data.csv").write_text(text)
    table = {"name": "Table", "file": str(tmp_path / "data.csv"), "test_environments": ["c"]}
    plan = sweeps.tiny(datasets=[table], algorithms=["ERM", "XRM"], holdout=0)
    (cell,) = plan.impossible
    assert cell.reason == "each twin needs examples of every class, and class 2 has only one"


def test_each_class_needs_two_examples_and_targets_are_classes() -> None:
    def reason(*values: dict[str, Any], **changes: Any) -> str:
        return str(why_skipped(XRM, replace(tiny_problem(BINARY), **changes), *values))

    assert "class 1 has only one" in reason(counts=((2, 0, 1, 0), (1, 1, 0, 0)))
    assert reason(counts=((1, 0, 1, 0), (1, 0, 0, 1))) == "None"
    assert "needs a class as each target" in reason(task=Task("regression"))
    assert "`first_stage` is 0" in reason({"first_stage": 0, "over": "groups"})
