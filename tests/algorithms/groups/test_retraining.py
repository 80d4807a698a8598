"""Methods that train the classifier anew, against both stages written out."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from oodbench.algorithms import Outputs, algorithms
from oodbench.conformance.tiny_problems import PLAIN, TASKS, tiny_batch
from oodbench.hparams import defaults
from oodbench.train.run import Run
from oodbench.train.settings import TrainSettings
from oodbench.train.vectorized import why_not
from tests.helpers.algorithms.methods import descend, require_same_weights, tiny
from tests.helpers.results.sweeps import DIGITS, ended, first

TASK = TASKS["multiclass"]
PROBLEM = {"steps": 6, "counts": ((9, 1, 4, 0, 2, 2),) * 5}
CLASSES = torch.tensor([10.0, 4.0, 4.0], dtype=torch.float64)


def crt(out: Outputs, head: Any, first_head: Any) -> Tensor:
    return out.losses.mean()


def reweighted(out: Outputs, head: Any, first_head: Any) -> Tensor:
    weights = 1 / CLASSES
    return ((weights / weights.mean())[out.targets] * out.losses).mean()


def dfr(out: Outputs, head: Any, first_head: Any) -> Tensor:
    loss: Tensor = out.losses.mean() + 0.3 * head.weight.abs().sum()
    return loss


def afr(out: Outputs, head: Any, first_head: Any) -> Tensor:
    shares = first_head(out.features.detach()).softmax(-1).detach()
    right = shares.gather(-1, out.targets.unsqueeze(-1)).squeeze(-1)
    weights = (-2.0 * right).exp() / CLASSES[out.targets]
    pairs = zip(head.parameters(), first_head.parameters(), strict=True)
    moved = sum((p - q.detach()).square().sum() for p, q in pairs)
    loss: Tensor = (weights * out.losses).sum() / weights.sum() + 0.2 * moved
    return loss


CASES: dict[str, tuple[Callable[[Outputs, Any, Any], Tensor], dict[str, Any]]] = {
    "CRT": (crt, {}),
    "ReWeightCRT": (reweighted, {}),
    "DFR": (dfr, {"penalty_weight": 0.3, "weight_decay": 0.5}),
    "AFR": (afr, {"gamma": 2.0, "penalty_weight": 0.2}),
}


@pytest.mark.parametrize("name", CASES)
def test_both_stages_are_those_that_the_method_says(name: str) -> None:
    second, values = CASES[name]
    values = {**PLAIN, "lr": 0.1, "first_stage": 0.5, **values}
    algorithm = tiny(name, TASK, 5, PROBLEM, **values)
    plain = {n: values[n] for n in defaults(algorithms.get("ERM").Hparams) if n in values}
    twin = tiny("ERM", TASK, 5, PROBLEM, **plain)
    start = copy.deepcopy(twin.network.classifier)
    for step in range(3):
        twin.train_step(tiny_batch(TASK, step), step)
        algorithm.train_step(tiny_batch(TASK, step), step)
    require_same_weights(algorithm.network, twin.network)
    ended = copy.deepcopy(twin.network.classifier)
    if name != "AFR":
        twin.network.classifier.load_state_dict(start.state_dict())
    for step in range(3, 6):
        out = twin.outputs(tiny_batch(TASK, step), step)
        descend(twin.network.classifier, second(out, twin.network.classifier, ended), 0.1)
        algorithm.train_step(tiny_batch(TASK, step), step)
        require_same_weights(algorithm.network, twin.network)


@pytest.mark.parametrize(
    ("name", "values", "anew"),
    [
        *((name, {"first_stage": 2}, [2]) for name in (*CASES, "JTT")),
        ("JTT", {"first_stage": 0}, []),
        ("ERMPlusPlus", {"head_only": 3}, [3]),
        *((name, {"burn_in": 3}, [3]) for name in ("EQRM", "RDM")),
        ("IRM", {"anneal_steps": 2, "reset_optimizer": True}, [2]),
        ("IRM", {"anneal_steps": 2, "reset_optimizer": False}, []),
        ("IRM", {"anneal_steps": 0, "reset_optimizer": True}, []),
        ("IB_IRM", {"anneal_steps": 4, "bottleneck_anneal_steps": 9}, [4, 9]),
    ],
)
def test_a_new_stage_begins_with_a_new_optimizer(
    name: str, values: dict[str, Any], anew: list[int]
) -> None:
    algorithm = tiny(name, TASK, **values)
    assert [step for step in range(12) if algorithm.rates(step).restart] == anew


def run_of(name: str, **values: object) -> Run:
    entry = {"name": name, "hparams": {"batch_size": 16, **values}}
    data = {**DIGITS, "copies": 3}
    return Run(first(algorithms=[entry], datasets=[data], steps=6), TrainSettings())


def places(run: Run, step: int) -> list[set[int]]:
    """The clusters of a batch's examples, by environment."""
    batch, found = run.batches_at(step)[step], []
    for e, name in enumerate(run.names):
        environment: Any = run.data.environments[name]
        same = (environment.x.flatten(1).unsqueeze(0) == batch.x[e].flatten(1).unsqueeze(1)).all(2)
        found.append({int(c) for c in environment.clusters[same.any(0)]})
    return found


@pytest.mark.parametrize("name", ["DFR", "AFR"])
def test_the_second_stage_is_of_scans_that_the_first_never_saw(name: str) -> None:
    run = run_of(name, first_stage=2, held_out=0.3)
    stages = [[places(run, step) for step in steps] for steps in ((0, 1), range(2, 6))]
    for e in range(len(run.names)):
        seen, held_out = (set.union(*(of_step[e] for of_step in stage)) for stage in stages)
        assert seen and held_out and not seen & held_out


@pytest.mark.parametrize(("sampling", "groups"), [("rwy", 2), ("rwg", 4), ("subg", 4)])
def test_the_second_stage_is_balanced(sampling: str, groups: int) -> None:
    run = run_of("DFR", first_stage=2, second_sampling=sampling, held_out=0.0)
    for steps, balanced in ((range(2), False), (range(2, 62), True)):
        labels = []
        for batch in (run.batches_at(step)[step] for step in steps):
            flipped = batch.x[:, :, 1].flatten(2).any(2)
            labels.append(batch.y.long() * 2 + flipped if groups == 4 else batch.y.long())
        counts = torch.bincount(torch.cat(labels, 1).flatten(), minlength=groups)
        assert (counts.min() > 0.75 * counts.max()) == balanced or groups == 2


def test_without_held_out_examples_the_first_stage_has_the_batches_of_erm() -> None:
    erm, run = run_of("ERM"), run_of("CRT", first_stage=2)
    assert torch.equal(run.batches_at(1)[1].x, erm.batches_at(1)[1].x)
    assert not torch.equal(run.batches_at(2)[2].x, erm.batches_at(2)[2].x)
    assert "stage" in str(why_not(run))


def test_a_run_with_both_stages_ends(tmp_path: Path) -> None:
    ended(run_of("DFR", first_stage=2).spec, tmp_path / "run")


def test_a_metric_of_the_second_stage_is_a_mean_over_its_steps() -> None:
    whole, by_step = run_of("DFR", first_stage=2), run_of("DFR", first_stage=2)
    whole.run_steps(4)
    for _ in range(4):
        by_step.run_steps(1)
    assert whole.sums == by_step.sums
    assert whole.counts == by_step.counts == {"loss": 4, "penalty": 2}
    mean = whole.sums["penalty"] / 2
    assert whole.record([], 0.0)["train"]["penalty"] == mean
