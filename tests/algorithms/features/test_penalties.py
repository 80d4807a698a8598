"""CORAL, MMD, CAD, SelfReg, IB, SD and MIRO: penalties of features and logits against loops."""

import copy
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from oodbench.algorithms import Batch, Outputs, Problem, algorithms
from oodbench.conformance.tiny_problems import LAST, PLAIN, TASKS, tiny_batch
from oodbench.networks.base import build
from oodbench.tasks import Task
from tests.helpers.algorithms.methods import (
    BINARY,
    ON_EVERY_TASK,
    require_equation,
    require_same_weights,
    risks_of,
    scale_gradient,
    tiny,
)

NAMES = ["CORAL", "MMD", "CausIRL_CORAL", "CausIRL_MMD"]


def coral(x: Tensor, y: Tensor) -> Tensor:
    means = (x.mean(0) - y.mean(0)).square().mean()
    return means + (torch.cov(x.T) - torch.cov(y.T)).square().mean()


def mmd(x: Tensor, y: Tensor) -> Tensor:
    def mean(left: Tensor, right: Tensor) -> Tensor:
        distances = torch.stack([(a - b).square().sum() for a in left for b in right])
        return torch.stack([(-(10.0**p) * distances).exp() for p in range(-3, 4)]).sum(0).mean()

    return mean(x, x) + mean(y, y) - 2 * mean(x, y)


def brute(name: str, out: Outputs) -> Tensor:
    distance = mmd if name.endswith("MMD") else coral
    if name.startswith("CausIRL"):
        cuts = out.batch.noise["cut"].tolist()
        first = [x for e, cut in enumerate(cuts) for x in out.features[e][:cut]]
        other = [x for e, cut in enumerate(cuts) for x in out.features[e][cut:]]
        return distance(torch.stack(first), torch.stack(other))
    pairs = [distance(x, y) for x, y in combinations(out.features, 2)]
    return torch.stack(pairs).mean()


def made(
    name: str,
    task: Task = BINARY,
    environments: int = 5,
    examples: int = 6,
    step: int = LAST,
    **values: Any,
) -> tuple[Any, Any]:
    """A method and what its objective is given at a step."""
    algorithm = tiny(name, task, environments, **values)
    batch = algorithm.prepared(tiny_batch(task, 3, environments, examples), step)
    return algorithm, algorithm.outputs(batch, step)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sizes", [(2, 9), (2, 3), (4, 2)])  # of 8 features
def test_the_penalty_and_its_gradient_are_those_of_the_equation(
    name: str, sizes: tuple[int, int]
) -> None:
    algorithm, out = made(name, BINARY, *sizes, penalty_weight=0.7)
    out.batch.noise["cut"] = torch.arange(1, sizes[0] + 1).clamp(max=sizes[1] - 1)
    wanted = out.risks.mean() + 0.7 * brute(name, out)
    require_equation(algorithm.objective(out), wanted, algorithm)


@pytest.mark.parametrize("name", ["CausIRL_CORAL", "CausIRL_MMD"])
@pytest.mark.parametrize("cuts", [[0, 0, 0], [1, 0, 0], [6, 6, 5], [1, 1, 0], [6, 5, 5]], ids=str)
def test_two_examples_have_a_penalty_and_fewer_have_none(name: str, cuts: list[int]) -> None:
    algorithm, out = made(name, environments=3)
    out.batch.noise["cut"] = torch.tensor(cuts)
    loss = algorithm.objective(out)
    assert torch.equal(loss, out.risks.mean()) == (not 2 <= sum(cuts) <= 16)
    gradients = torch.autograd.grad(loss, list(algorithm.parameters()))
    assert all(g.isfinite().all() for g in gradients)


def test_a_cut_may_fall_before_any_example() -> None:
    algorithm, _ = made("CausIRL_MMD")
    batch = tiny_batch(BINARY)
    cuts = torch.stack([algorithm.noise_at(batch, step)["cut"] for step in range(400)])
    counts = torch.bincount(cuts.flatten(), minlength=6)
    assert len(counts) == 6 and 270 < counts.min() and counts.max() < 400  # 333 expected


def test_features_that_are_far_apart_stay_finite_in_float32() -> None:
    algorithm, out = made("MMD")
    features = (1e4 * out.features.detach()).float().requires_grad_()
    distance = algorithm.distance(Outputs(**{**vars(out), "features": features}))
    (gradient,) = torch.autograd.grad(distance, features)
    assert distance.isfinite() and gradient.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_a_step_of_one_environment_is_erms_or_finite(name: str) -> None:
    algorithm = tiny(name, environments_per_step=1)
    assert algorithm.train_step(tiny_batch(BINARY), LAST)["loss"].isfinite()


def penalty(features: Tensor, labels: Tensor | None, temperature: float) -> Tensor:
    """T / .07 times the mean over i of -log of the other environments' part, of (E, B, F) features."""
    count, examples = features.shape[:2]
    places = [(e, i) for e in range(count) for i in range(examples)]
    terms = []
    for e, i in places:
        others, every = [], []
        for d, j in places:
            same_class = labels is None or labels[d, j] == labels[e, i]
            if (d, j) != (e, i) and same_class:
                score = torch.dot(features[e, i], features[d, j]) / temperature
                every.append(score)
                others += [score] if d != e else []
        if others:
            terms.append(torch.stack(every).logsumexp(0) - torch.stack(others).logsumexp(0))
    return temperature / 0.07 * torch.stack(terms).mean()


@pytest.mark.parametrize("name", ["CAD", "CondCAD"])
@pytest.mark.parametrize("kind", ["binary", "multiclass"])
def test_cad_is_a_sum_over_pairs_of_examples(name: str, kind: str) -> None:
    task = TASKS[kind]
    algorithm, out = made(name, task, penalty_weight=0.3, temperature=0.05)
    labels = out.targets if name == "CondCAD" else None
    wanted = out.risks.mean() + 0.3 * penalty(out.features, labels, 0.05)
    require_equation(algorithm.objective(out), wanted, algorithm.network)


def test_large_features_cost_cad_much_and_stay_finite() -> None:
    algorithm, batch = tiny("CAD").float(), tiny_batch(BINARY)
    batch = replace(batch, x=1e4 * batch.x.float(), y=batch.y.float())
    out = algorithm.outputs(batch, 0)
    found = algorithm.penalty(out)
    found.backward()
    assert found.isfinite() and found > 100
    grads = [p.grad for p in algorithm.network.featurizer.parameters() if p.grad is not None]
    assert grads and all(g.isfinite().all() for g in grads)


def test_an_example_without_a_partner_does_not_count() -> None:
    """Class 1 is in one environment alone: only class 0 has a mean."""
    algorithm, out = made("CondCAD")
    out.targets.zero_()
    out.targets[2, :3] = 1.0
    torch.testing.assert_close(
        algorithm.penalty(out), penalty(out.features, out.targets, algorithm.hparams.temperature)
    )
    out.targets.copy_(torch.arange(30.0).view(5, 6))
    assert algorithm.penalty(out) == 0


def partners(targets: list[float], noise: list[float]) -> list[int]:
    """The examples of each class in order take those of the class in the order of their noise."""
    found = [0] * len(targets)
    for y in set(targets):
        members = [i for i, t in enumerate(targets) if t == y]
        shuffled = sorted(members, key=lambda i: noise[i])
        for i, j in zip(members, shuffled, strict=True):
            found[i] = j
    return found


@pytest.mark.parametrize("kind", ["binary", "multiclass"])
@pytest.mark.parametrize("scale", [0.1, 10.0], ids=["low risk", "high risk"])
def test_self_reg_is_a_sum_over_pairs_of_a_class(kind: str, scale: float) -> None:
    task, batch = TASKS[kind], tiny_batch(TASKS[kind])
    algorithm = tiny("SelfReg", task)
    algorithm.network.classifier.weight.data.mul_(scale)
    batch = algorithm.prepared(batch, 4)
    out = algorithm.outputs(batch, 4)
    y, l = batch.y.flatten(), batch.noise["share"]  # noqa: E741
    phi = algorithm.network.featurizer(batch.x.flatten(0, 1))
    z, h = algorithm.network.classifier(phi), algorithm.projection(phi)
    p, q = (partners(y.tolist(), each.flatten().tolist()) for each in batch.noise["noise"])
    risk, penalty = task.losses(z, y).mean(), torch.zeros((), dtype=torch.float64)

    def mse(a: Tensor, b: Tensor) -> Tensor:
        return (a - b).square().mean() / len(y)

    for i in range(len(y)):
        z_mix, h_mix = l * z[p[i]] + (1 - l) * z[q[i]], l * h[p[i]] + (1 - l) * h[q[i]]
        penalty = penalty + l * (mse(z[i], z[p[i]]) + 0.3 * mse(phi[i], h[p[i]]))
        penalty = penalty + (1 - l) * (mse(z[i], z_mix) + 0.3 * mse(phi[i], h_mix))
    assert (risk > 1) == (scale > 1 or kind == "multiclass")  # of which chance is 1.1
    wanted = risk + min(risk.item(), 1.0) * penalty
    require_equation(algorithm.objective(out), wanted, algorithm)


def test_the_projection_normalises_by_its_batch_and_the_predictor_has_none() -> None:
    algorithm = tiny("SelfReg")
    width = algorithm.network.num_features
    h = algorithm.projection(3 + 2 * torch.randn(20, width, dtype=torch.float64))
    assert h.shape == (20, width) and (h < 0).any() and not dict(algorithm.named_buffers())
    torch.testing.assert_close(h.mean(0), torch.zeros_like(h[0]))
    torch.testing.assert_close(h.var(0, correction=0), torch.ones_like(h[0]), rtol=0.05, atol=0)
    x = tiny_batch(BINARY).x[0]
    assert torch.equal(algorithm.predict(x), algorithm.network(x))


def variances(values: Tensor) -> Tensor:
    """The mean over environments and coordinates of (E, B, K) of the variances over examples."""
    squares = (values - values.mean(1, keepdim=True)).square().sum(1)
    return (squares / (values.shape[1] - 1)).mean()


@ON_EVERY_TASK
def test_sd_penalises_the_mean_squared_logit(task: Task) -> None:
    algorithm, out = made("SD", task, penalty_weight=0.3)
    wanted = out.risks.mean() + 0.3 * out.logits.square().mean()
    require_equation(algorithm.objective(out), wanted, algorithm)


def test_sd_can_be_the_papers_code_of_colored_mnist() -> None:
    values: dict[str, Any] = {"initial_weight": 2e-5, "penalty_weight": 1.0, "anneal_steps": 450}
    for step, scale, weight in ((449, 1.0, 2e-5), (450, 2e-5, 1.0)):
        algorithm, out = made("SD", step=step, divide_by_weight=True, **values)
        wanted = scale * (out.risks.mean() + weight * out.logits.square().mean())
        torch.testing.assert_close(algorithm.objective(out), wanted)


@ON_EVERY_TASK
@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("of", ["features", "logits"])
def test_ib_erm_penalises_the_variance(task: Task, of: str, pooled: bool) -> None:
    values: dict[str, Any] = {"penalty_weight": 0.3, "variance_of": of, "pooled": pooled}
    algorithm, out = made("IB_ERM", task, **values)
    given = out.features if of == "features" else out.logits
    if pooled:
        given = given.flatten(0, 1).unsqueeze(0)
    wanted = out.risks.mean() + 0.3 * variances(given)
    require_equation(algorithm.objective(out), wanted, algorithm)


@pytest.mark.parametrize(("step", "weights"), [(2, (1, 0)), (4, (50, 0)), (9, (50, 0.3))])
@pytest.mark.parametrize("divided", [False, True])
def test_ib_irm_has_both_penalties_each_from_a_step_of_its_own(
    step: int, weights: tuple[float, float], divided: bool
) -> None:
    values: Any = {"penalty_weight": 50.0, "anneal_steps": 4, "divide_by_weight": divided}
    values |= {"bottleneck_weight": 0.3, "bottleneck_anneal_steps": 9}
    algorithm, out = made("IB_IRM", step=step, **values)
    gradients = [scale_gradient(BINARY, out.logits[e], out.targets[e]) ** 2 for e in range(5)]
    irm, ib = weights
    wanted = out.risks.mean() + irm * torch.stack(gradients).mean() + ib * variances(out.features)
    wanted = wanted / (50 if divided and step >= 4 else 1)
    require_equation(algorithm.objective(out), wanted, algorithm)


@ON_EVERY_TASK
def test_miro_minimises_its_equation_and_learns_the_variances_faster(task: Task) -> None:
    algorithm = tiny("MIRO", task, **{**PLAIN, "ld": 0.7})
    batch = tiny_batch(task)
    first = copy.deepcopy(algorithm.network)
    with torch.no_grad():
        for p in algorithm.network.parameters():
            p.add_(0.1)
        algorithm.spreads[0].copy_(torch.linspace(-2, 1, len(algorithm.spreads[0])))
    twin, spread = copy.deepcopy(algorithm.network), algorithm.spreads[0].detach().clone()
    spread.requires_grad_()
    f, f0 = (n.featurizer(batch.x.flatten(0, 1)) for n in (twin, first))
    v = torch.log(1 + spread.exp()) + 1e-5
    penalty = (((f - f0.detach()) ** 2 / v + v.log()) / 2).mean()
    loss = risks_of(twin, task, batch).mean() + 0.7 * penalty
    wanted = torch.autograd.grad(loss, [*twin.parameters(), spread])
    now = [*algorithm.network.parameters(), algorithm.spreads[0]]
    before = [p.detach().clone() for p in now]
    found = algorithm.train_step(batch, 0)
    torch.testing.assert_close(found["loss"], loss.detach())
    torch.testing.assert_close(found["distance"], penalty.detach())
    for i, (p, was, gradient) in enumerate(zip(now, before, wanted, strict=True)):
        rate = 0.1 if i == len(now) - 1 else 0.01
        torch.testing.assert_close(was - p.detach(), rate * gradient)
    require_same_weights(algorithm.original, first, rtol=0, atol=0)


def test_variances_start_at_a_tenth_one_for_each_channel_of_each_stage() -> None:
    network = build("ResNet18", {}, (3, 32, 32), 2, 0)
    problem = Problem((3, 32, 32), Task("multiclass", 2), ("a",), 10, pretrained=True)
    cls: Any = algorithms.get("MIRO")
    algorithm = cls(network, problem, cls.Hparams())
    assert [len(s) for s in algorithm.spreads] == [64, 64, 128, 256, 512]
    for spread in algorithm.spreads:
        variance = nn.functional.softplus(spread) + 1e-5
        torch.testing.assert_close(variance, torch.full_like(variance, 0.1))
    algorithm.optimizers = algorithm.configure()
    algorithm.train()
    assert not algorithm.original.training
    batch = Batch(torch.randn(1, 4, 3, 32, 32), torch.ones(1, 4).long())
    assert algorithm.train_step(batch, 0)["loss"].isfinite()
    copy.deepcopy(algorithm).train_step(batch, 1)
