"""The AND-mask, its complement, the SAND-mask and the temporal one, component by component."""

import copy
import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import torch
from oodbench.algorithms.temporal_and_mask import TemporalANDMask
from torch import Tensor, nn

from oodbench.algorithms import Batch, Problem, algorithms, why_skipped
from oodbench.conformance.tiny_problems import (
    PLAIN,
    TASKS,
    network_step,
    tiny_batch,
    tiny_problem,
)
from oodbench.gradients.backward import stacked_gradients
from oodbench.networks.base import build
from oodbench.tasks import Task
from tests.helpers.algorithms.methods import (
    BINARY,
    gradient,
    gradients_of_step,
    require_same_weights,
    tiny,
)

ANDMASK: Any = algorithms.get("ANDMask")


def random_gradients(environments: int) -> Tensor:
    """(E, 15, 20), a tenth of them zero."""
    generator = torch.Generator().manual_seed(environments)
    values = torch.randn(environments, 15, 20, generator=generator, dtype=torch.float64)
    return values * (torch.rand(values.shape, generator=generator) > 0.1)


def of_every_count(environments: int) -> Tensor:
    """(E, E + 1): 1 in a number of environments, which grows from 0 to E, and -1 in the others."""
    ranks = torch.arange(environments).unsqueeze(1)
    return torch.where(ranks < torch.arange(environments + 1), 1.0, -1.0).double()


def plain_loop(gradients: Tensor, tau: Fraction, rescale: bool, geometric: bool) -> Tensor:
    """The definition, component by component; the threshold in exact arithmetic."""
    count = len(gradients)
    combined, kept = [], 0
    for column in gradients.flatten(1).T.tolist():
        net = sum(g > 0 for g in column) - sum(g < 0 for g in column)
        keep = Fraction(abs(net), count) >= tau
        kept += keep
        mean = sum(column) / count
        if geometric:
            magnitude = math.exp(sum(math.log(abs(g) + 1e-10) for g in column) / count)
            mean = math.copysign(magnitude, mean) if mean else 0.0
        combined.append(mean if keep else 0.0)
    factor = 1 / (1e-10 + kept / len(combined)) if rescale else 1.0
    return (torch.tensor(combined, dtype=torch.float64) * factor).view(gradients.shape[1:])


@pytest.mark.parametrize("geometric", [False, True])
@pytest.mark.parametrize("rescale", [False, True])
@pytest.mark.parametrize("environments", [2, 3, 4, 5, 49, 100])
def test_the_and_mask_is_the_definition_in_every_component(
    environments: int, rescale: bool, geometric: bool
) -> None:
    """A threshold on a count is met, also by round-off such as 0.14 * 100 > 14; others lie between two."""
    few = environments <= 5
    gradients = random_gradients(environments) if few else of_every_count(environments)
    for level in range(0, 2 * environments + 1, 1 if few else 7):
        tau = Fraction(level, 2 * environments)
        values = {"tau": float(tau), "rescale": rescale, "geometric_mean": geometric}
        found = tiny("ANDMask", BINARY, environments, **values).combine(gradients)
        wanted = plain_loop(gradients, tau, rescale, geometric)
        assert torch.equal(found == 0, wanted == 0)
        torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-15)


def test_a_normalised_step_takes_gradients_of_weights_with_length_one() -> None:
    """Those of a bias as they are: the code of arXiv:2102.10867. Signs do not suffice."""
    batch = tiny_batch(BINARY)
    masked = tiny("ANDMask", **PLAIN, tau=0.0, rescale=False, normalize=True)
    gradients = []
    for risk in masked.outputs(batch, 0).risks:
        each = torch.autograd.grad(risk, list(masked.network.parameters()), retain_graph=True)
        gradients.append(torch.cat([(g / g.norm() if g.dim() > 1 else g).flatten() for g in each]))
    wanted = torch.stack(gradients).mean(0)
    torch.testing.assert_close(network_step(masked, batch, 0), wanted)


def test_the_decay_of_a_masked_weight_enters_adams_moments() -> None:
    """So a weight whose gradients all disagree moves by lr * sign(w), whatever the decay."""
    problem = Problem((3,), Task("regression"), ("up", "down"), 100)
    x = torch.eye(3, dtype=torch.float64).expand(2, 3, 3)
    y = torch.stack([torch.full((3, 1), 10.0), torch.full((3, 1), -10.0)]).double()
    for decay in (1e-3, 1e-2):
        hparams = ANDMASK.Hparams(lr=0.01, weight_decay=decay, batch_size=0)
        network = build("Linear", {}, (3,), 1, 0)
        algorithm = ANDMASK(network, problem, hparams).double()
        algorithm.optimizers = algorithm.configure()
        phi = network.get_parameter("featurizer.1.weight")
        found = gradients_of_step(algorithm, Batch(x, y), 0)
        assert (found["featurizer.1.weight"] == 0).all()
        wanted = torch.eye(3, dtype=torch.float64) * (1 - 0.01)
        torch.testing.assert_close(phi.detach(), wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("tau", [0.2, 0.5, 1.0])
def test_the_xor_mask_is_the_rest(tau: float) -> None:
    gradients = random_gradients(5)
    values: dict[str, Any] = {"tau": tau, "rescale": False}
    kept = tiny("ANDMask", BINARY, 5, **values).combine(gradients)
    rest = tiny("XORMask", **values).combine(gradients)
    assert ((kept == 0) | (rest == 0)).all()
    assert torch.equal(kept + rest, gradients.mean(0))


def test_examples_are_units_of_any_environment() -> None:
    """Ten examples, stacked as one or as five environments, give the same gradient."""
    one = tiny_batch(BINARY, 0, 1, 10)
    assert why_skipped(algorithms.get("ExampleANDMask"), tiny_problem(BINARY, ("a",))) is None
    split = Batch(one.x.view(5, 2, 4), one.y.view(5, 2))
    found = [network_step(tiny("ExampleANDMask", **PLAIN), batch, 0) for batch in (one, split)]
    torch.testing.assert_close(*found)


@pytest.mark.parametrize(("network", "shape"), [("MLP", (16,)), ("MNISTCNN", (1, 8, 8))])
def test_in_bfloat16_few_signs_flip(network: str, shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    task, names = TASKS["multiclass"], ("a", "b", "c")
    problem = Problem(shape, task, names, 100)
    algorithm = ANDMASK(build(network, {}, shape, 3, 0), problem, ANDMASK.Hparams())
    x = torch.randn(3, 32, *shape, generator=generator)
    batch = Batch(x, torch.randint(3, (3, 32), generator=generator))
    signs = []
    for precision in (None, torch.bfloat16):
        algorithm.problem = replace(problem, autocast=precision)
        stacks = stacked_gradients(algorithm.network, algorithm.units(batch, 0))
        assert {stack.dtype for stack in stacks.values()} == {torch.float32}
        signs.append(torch.cat([stack.sign().flatten() for stack in stacks.values()]))
    flipped = (signs[0] != signs[1]).double().mean()
    assert 0 < flipped < 0.03


def layers(network: nn.Module) -> dict[str, list[nn.Parameter]]:
    found: dict[str, list[nn.Parameter]] = {}
    for name, parameter in network.named_parameters():
        found.setdefault(name.rpartition(".")[0], []).append(parameter)
    return found


@pytest.mark.parametrize("name", ["ANDMask", "ExampleANDMask", "XORMask"])
def test_every_update_says_what_it_kept_of_each_layer(name: str) -> None:
    algorithm = tiny(name, TASKS["multiclass"], tau=0.6, weight_decay=0.1)
    batch = tiny_batch(TASKS["multiclass"])
    out, wanted = algorithm.outputs(batch, 0), {}
    units = out.losses.flatten() if name == "ExampleANDMask" else out.risks
    for layer, parameters in layers(algorithm.network).items():
        gradients = torch.stack([gradient(unit, parameters) for unit in units])
        agree = gradients.sign().sum(0).abs() >= 0.6 * len(units) - 1e-4
        kept = (agree != (name == "XORMask")) & (gradients != 0).any(0)
        wanted[f"kept {layer}"] = kept.double().mean().item()
        norm = torch.cat([p.detach().flatten() for p in parameters]).norm()
        wanted[f"weight norm {layer}"] = norm.item()
    metrics = algorithm.train_step(batch, 0)
    assert len(wanted) > 4
    assert {key: metrics[key].item() for key in wanted} == pytest.approx(wanted)


@pytest.mark.parametrize(("tau", "k"), [(0.0, 0.5), (0.4, 2.0), (0.6, 1e3)])
def test_the_sand_mask_is_the_definition_in_every_component(tau: float, k: float) -> None:
    generator = torch.Generator().manual_seed(0)
    gradients = torch.randn(5, 40, generator=generator, dtype=torch.float64)
    weights, means = [], []
    for column in gradients.T.tolist():
        mean = sum(column) / 5
        variance = sum((g - mean) ** 2 for g in column) / 4
        net = abs(sum(math.copysign(1, g) for g in column)) / 5
        weights.append(max(0.0, math.tanh(k / variance * (net - tau))))
        means.append(mean)
    scale = 1e-10 + sum(weights) / len(weights)
    wanted = torch.tensor([w * m / scale for w, m in zip(weights, means, strict=True)]).double()
    torch.testing.assert_close(tiny("SANDMask", tau=tau, k=k).combine(gradients), wanted)


def test_the_size_of_the_pieces_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    gradients = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(1)).double()
    whole = tiny("SANDMask").combine(gradients)
    monkeypatch.setattr("oodbench.algorithms.sand_mask.PIECE", 7)
    assert torch.equal(tiny("SANDMask").combine(gradients), whole)


def test_equal_gradients_have_full_weight_and_zeros_none() -> None:
    gradients = torch.tensor([[1.0, 0.0], [1.0, 0.0]]).double()
    assert tiny("SANDMask", tau=0.5).combine(gradients).tolist() == pytest.approx([2.0, 0.0])
    assert tiny("SANDMask", tau=1.0).combine(gradients).tolist() == [0.0, 0.0]


GRADIENTS = torch.tensor([[1.0, -2.0, 0.0], [0.3, 0.1, -0.7], [1.0, -1.0, 0.2], [2.0, -0.5, 0.0]])
GRADIENTS = GRADIENTS.double()


def steps(**values: Any) -> Tensor:
    """The parameters after every update with GRADIENTS, (4, 3)."""
    parameter = nn.Parameter(torch.tensor([1.0, -1.0, 2.0]).double())
    optimizer = TemporalANDMask([parameter], **values)
    found = []
    for given in GRADIENTS:
        parameter.grad = given.clone()
        optimizer.step()
        found.append(parameter.detach().clone())
    return torch.stack(found)


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("decay", ["after", "coupled"])
@pytest.mark.parametrize("tau", [0.0, 0.3, 0.9])
def test_the_temporal_mask_is_algorithm_1(tau: float, decay: str, corrected: bool) -> None:
    b1, b2, b3, lr, eps, wd = 0.5, 0.9, 0.7, 0.1, 1e-3, 0.2
    found = steps(
        betas=(b1, b2, b3), lr=lr, eps=eps, weight_decay=wd, tau=tau, decay=decay,
        bias_correction=corrected,
    )  # fmt: skip
    theta = [1.0, -1.0, 2.0]
    m, v, a = [0.0] * 3, [0.0] * 3, [0.0] * 3
    for t, given in enumerate(GRADIENTS.tolist(), 1):
        for i, loss_gradient in enumerate(given):
            g = loss_gradient + (wd * theta[i] if decay == "coupled" else 0.0)
            sign = (loss_gradient > 0) - (loss_gradient < 0)
            m[i] = b1 * m[i] + (1 - b1) * g
            v[i] = b2 * v[i] + (1 - b2) * g * g
            a[i] = b3 * a[i] + (1 - b3) * sign
            c1, c2, c3 = (1 - b**t if corrected else 1.0 for b in (b1, b2, b3))
            if abs(a[i] / c3) >= tau:
                theta[i] -= lr * (m[i] / c1) / (v[i] / c2 + eps) ** 0.5
            if decay == "after":
                theta[i] -= lr * wd * theta[i]
        torch.testing.assert_close(found[t - 1], torch.tensor(theta).double())


def test_every_environment_has_its_turn_in_every_round() -> None:
    turns = []
    for seed in (0, 1):
        algorithm = tiny("TemporalANDMask", problem={"seed": seed})
        turns.append([e for step in range(150) for e in algorithm.environments_at(step)])
    rounds = [tuple(turns[0][start : start + 5]) for start in range(0, 150, 5)]
    assert all(sorted(turn) == [0, 1, 2, 3, 4] for turn in rounds)
    assert len(set(rounds)) > 20 and turns[0] != turns[1]


def test_a_step_sees_one_environment() -> None:
    task = TASKS["regression"]
    batch, other = tiny_batch(task, 0), tiny_batch(task, 1)
    first, second = (tiny("TemporalANDMask", task) for _ in range(2))
    network = copy.deepcopy(first.network)
    (e,) = first.environments_at(7)
    other.x[e], other.y[e] = batch.x[e], batch.y[e]
    losses = [float(a.train_step(b, 7)["loss"]) for a, b in ((first, batch), (second, other))]
    wanted = task.losses(network(batch.x[e]), batch.y[e]).mean().item()
    assert losses == pytest.approx([wanted, wanted])
    require_same_weights(first, second, rtol=0, atol=0)
