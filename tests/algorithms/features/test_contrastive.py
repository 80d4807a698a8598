"""CAD, CondCAD and SelfReg against sums over pairs of examples."""

from dataclasses import replace

import pytest
import torch
from oodbench.algorithms.self_reg import in_class_partners
from torch import Tensor

from oodbench.conformance.tiny_problems import TASKS, tiny_batch
from tests.helpers.algorithms.methods import BINARY, require_equation, tiny


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
def test_the_objective_and_its_gradient_are_those_of_the_equation(name: str, kind: str) -> None:
    task = TASKS[kind]
    algorithm = tiny(name, task, penalty_weight=0.3, temperature=0.05)
    out = algorithm.outputs(tiny_batch(task), 0)
    labels = out.targets if name == "CondCAD" else None
    wanted = out.risks.mean() + 0.3 * penalty(out.features, labels, 0.05)
    require_equation(algorithm.objective(out), wanted, algorithm.network)


def test_large_features_cost_much_and_stay_finite() -> None:
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
    algorithm = tiny("CondCAD")
    out = algorithm.outputs(tiny_batch(BINARY), 0)
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
def test_the_loss_and_its_gradient_are_those_of_all_pairs(kind: str, scale: float) -> None:
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


def test_every_permutation_within_a_class_is_as_likely() -> None:
    targets = torch.tensor([2.0, 0.0, 2.0, 1.0, 0.0, 2.0])
    generator, counts = torch.Generator().manual_seed(0), dict[tuple[int, ...], int]()
    for noise in torch.rand(1200, 6, generator=generator, dtype=torch.float64):
        found = in_class_partners(targets, noise)
        assert torch.equal(targets[found], targets) and sorted(found.tolist()) == list(range(6))
        counts[tuple(found.tolist())] = counts.get(tuple(found.tolist()), 0) + 1
    assert len(counts) == 12  # 3! 2! 1!
    assert min(counts.values()) > 60 and max(counts.values()) < 145  # 100 expected


def test_the_projection_normalises_by_its_batch() -> None:
    algorithm = tiny("SelfReg")
    width = algorithm.network.num_features
    h = algorithm.projection(3 + 2 * torch.randn(20, width, dtype=torch.float64))
    assert h.shape == (20, width) and (h < 0).any()
    torch.testing.assert_close(h.mean(0), torch.zeros_like(h[0]))
    torch.testing.assert_close(h.var(0, correction=0), torch.ones_like(h[0]), rtol=0.05, atol=0)


def test_the_projection_keeps_no_statistics_and_the_predictor_has_none() -> None:
    algorithm = tiny("SelfReg")
    assert dict(algorithm.named_buffers()) == {}
    x = tiny_batch(TASKS["binary"]).x[0]
    assert torch.equal(algorithm.predict(x), algorithm.network(x))
