"""CAD and CondCAD against sums over examples, one by one."""

from dataclasses import replace

import pytest
import torch
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
