import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from oodbench.algorithms import Algorithm, Batch, Problem, algorithms, why_skipped
from oodbench.conformance.tiny_problems import (
    PLAIN,
    TASKS,
    network_step,
    tiny_algorithm,
    tiny_batch,
    tiny_problem,
)
from oodbench.errors import UserError
from oodbench.gradients.backward import stacked_gradients
from oodbench.networks.base import build
from oodbench.steps import configure, outputs, reduction_of, units, update
from oodbench.tasks import Task

ANDMASK: Any = algorithms.get("ANDMask")


def and_mask(environments: int = 5, **values: object) -> Algorithm:
    names = tuple(f"e{i}" for i in range(environments))
    return tiny_algorithm(ANDMASK, tiny_problem(TASKS["binary"], names), values)


def random_gradients(environments: int) -> Tensor:
    """(E, 15, 20), a tenth of them zero."""
    generator = torch.Generator().manual_seed(environments)
    values = torch.randn(environments, 15, 20, generator=generator, dtype=torch.float64)
    return values * (torch.rand(values.shape, generator=generator) > 0.1)


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
@pytest.mark.parametrize("environments", [2, 3, 4, 5])
def test_it_is_the_definition_in_every_component(
    environments: int, rescale: bool, geometric: bool
) -> None:
    gradients = random_gradients(environments)
    for level in range(environments + 1):
        tau = Fraction(level, environments)
        values = {"tau": float(tau), "rescale": rescale, "geometric_mean": geometric}
        found = and_mask(environments, **values).combine(gradients)
        wanted = plain_loop(gradients, tau, rescale, geometric)
        assert torch.equal(found == 0, wanted == 0)
        torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-15)


def test_normalised_gradients_of_weights_count_with_length_one() -> None:
    """Those of a bias do not: the code of arXiv:2102.10867."""
    values = {"tau": 0.9, "rescale": False, "normalize": True}
    weight, bias = random_gradients(3), torch.tensor([[1.0], [2.0], [3.0]])
    lengths = torch.tensor([0.1, 1.0, 10.0]).view(3, 1, 1)
    wanted = plain_loop(
        weight / weight.square().sum((1, 2)).sqrt().view(3, 1, 1), Fraction(1), False, False
    )
    torch.testing.assert_close(and_mask(3, **values).combine(lengths * weight), wanted)
    assert and_mask(3, **values).combine(bias).tolist() == [2.0]


def test_a_normalised_step_takes_the_gradients_themselves_not_their_signs() -> None:
    task, batch = TASKS["binary"], tiny_batch(TASKS["binary"])
    values = {**PLAIN, "tau": 0.0, "rescale": False, "normalize": True}
    masked = tiny_algorithm(ANDMASK, tiny_problem(task), values)
    gradients = []
    for risk in outputs(masked, batch, 0).risks:
        each = torch.autograd.grad(risk, list(masked.network.parameters()), retain_graph=True)
        gradients.append(torch.cat([(g / g.norm() if g.dim() > 1 else g).flatten() for g in each]))
    wanted = torch.stack(gradients).mean(0)
    torch.testing.assert_close(network_step(masked, batch, 0), wanted)


@pytest.mark.parametrize("environments", [7, 49, 80])
def test_thresholds_on_a_boundary_are_counted_in_environments(environments: int) -> None:
    for net in range(environments % 2, environments + 1, 2):
        positive = (environments + net) // 2
        gradients = torch.ones(environments, 1)
        gradients[positive:] = -1
        kept = {"tau": net / environments, "rescale": False, "geometric_mean": True}
        assert and_mask(environments, **kept).combine(gradients).item() != 0 or net == 0
        if net < environments:
            above = {**kept, "tau": (net + 1) / environments}
            assert and_mask(environments, **above).combine(gradients).item() == 0


def test_round_off_in_the_threshold_masks_nothing() -> None:
    assert 0.14 * 100 > 14
    gradients = torch.ones(100, 1, dtype=torch.float64)
    gradients[57:] = -1
    assert and_mask(100, tau=0.14).combine(gradients).item() == pytest.approx(0.14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_fully_masked_tensor_is_zero(dtype: torch.dtype) -> None:
    found = and_mask(2).combine(torch.tensor([[1.0, -2.0], [-1.0, 2.0]], dtype=dtype))
    assert found.tolist() == [0, 0]
    assert found.dtype == dtype


def test_each_tensor_is_rescaled_by_what_it_kept() -> None:
    gradients = torch.tensor([[1.0, 1.0, 1.0, 1.0], [3.0, -1.0, 5.0, -1.0]]).double()
    found = and_mask(2).combine(gradients)
    torch.testing.assert_close(found, torch.tensor([4.0, 0.0, 6.0, 0.0]).double())


def test_the_decay_of_a_masked_weight_enters_adams_moments() -> None:
    """So a weight whose gradients all disagree moves by lr * sign(w), whatever the decay."""
    problem = Problem((3,), Task("regression"), ("up", "down"), 100)
    x = torch.eye(3, dtype=torch.float64).expand(2, 3, 3)
    y = torch.stack([torch.full((3, 1), 10.0), torch.full((3, 1), -10.0)]).double()
    for decay in (1e-3, 1e-2):
        hparams = ANDMASK.Hparams(lr=0.01, weight_decay=decay, batch_size=0)
        network = build("Linear", {}, (3,), 1, 0)
        algorithm = ANDMASK(network, problem, hparams).double()
        configure(algorithm)
        phi = network.get_parameter("featurizer.1.weight")
        update(algorithm, Batch(x, y), 0)
        assert phi.grad is not None and (phi.grad == 0).all()
        wanted = torch.eye(3, dtype=torch.float64) * (1 - 0.01)
        torch.testing.assert_close(phi.detach(), wanted, rtol=0, atol=1e-6)


def descend(algorithm: Algorithm, environments: list[int], seed: int) -> Tensor:
    """Gradient descent on the linear example of the released notebook; theta (5,) at its end.

    Environment i has the one example x = 3 e_i + 0.3 e_5 with y = 1 and the loss (x theta - y)^2 / 2.
    """
    x = torch.cat([3 * torch.eye(4), torch.full((4, 1), 0.3)], 1).double()[environments]
    generator = torch.Generator().manual_seed(seed)
    theta = 0.1 * torch.randn(5, generator=generator, dtype=torch.float64)
    for step in range(1, 1002):
        lr = 0.3 * 0.9995**step
        residual = x @ theta - 1
        theta = theta - lr * algorithm.combine(residual.unsqueeze(1) * x)
        theta = theta - 0.01 * lr * theta
    return theta


@pytest.mark.parametrize("seed", range(3))
def test_the_patchwork_and_the_invariant_solution(seed: int) -> None:
    """The optima that the notebook prints: its starting points are its own, hence the ranges."""
    mean = and_mask(4, tau=0.0)
    everywhere = torch.tensor([0.31931, 0.31931, 0.31931, 0.31931, 0.12607]).double()
    torch.testing.assert_close(descend(mean, [0, 1, 2, 3], seed), everywhere, atol=0.02, rtol=0)
    first_two = descend(mean, [0, 1], seed)
    torch.testing.assert_close(first_two[:2], torch.full((2,), 0.326).double(), atol=0.01, rtol=0)

    for geometric in (False, True):
        masked = and_mask(4, rescale=False, geometric_mean=geometric)
        for environments in ([0, 1, 2, 3], [0, 1], [2, 3]):
            theta = descend(masked, environments, seed)
            assert theta[:4].abs().max() < 0.05
            assert 2.7 < theta[4] < 1 / 0.3


@pytest.mark.parametrize("name", ["ANDMask", "XORMask"])
@pytest.mark.parametrize("rescale", [False, True])
def test_the_signs_and_the_mean_are_enough(name: str, rescale: bool) -> None:
    gradients = random_gradients(5)
    for tau in (0.0, 0.2, 0.5, 1.0):
        problem = tiny_problem(TASKS["binary"])
        algorithm = tiny_algorithm(algorithms.get(name), problem, {"tau": tau, "rescale": rescale})
        reduction = reduction_of(algorithm)
        assert reduction is not None and reduction.combine_signs is not None
        found = reduction.combine_signs(gradients.sign().sum(0), gradients.mean(0), 5)
        assert torch.equal(found, algorithm.combine(gradients))


@pytest.mark.parametrize("tau", [0.2, 0.5, 1.0])
def test_the_xor_mask_is_the_rest(tau: float) -> None:
    gradients = random_gradients(5)
    values = {"tau": tau, "rescale": False}
    problem = tiny_problem(TASKS["binary"])
    kept = and_mask(5, **values).combine(gradients)
    rest = tiny_algorithm(algorithms.get("XORMask"), problem, values).combine(gradients)
    assert ((kept == 0) | (rest == 0)).all()
    assert torch.equal(kept + rest, gradients.mean(0))


def expected_square(units: int, tau: Fraction) -> float:
    """E[u^2] of a masked mean of standard normal numbers without rescaling.

    Given a net count S of signs, the mean of the U numbers has E[u^2] = (U + (S^2 - U) 2/pi) / U^2,
    since the magnitudes are independent of the signs, with means sqrt(2/pi).
    """
    total = 0.0
    for positive in range(units + 1):
        net = abs(2 * positive - units)
        if Fraction(net, units) >= tau:
            square = (units + (net**2 - units) * 2 / math.pi) / units**2
            total += math.comb(units, positive) / 2**units * square
    return total


@pytest.mark.parametrize("units", [2, 5, 8])
def test_masked_noise_has_the_expected_magnitude(units: int) -> None:
    """Full agreement: 2^(1 - U) (2/pi + (1 - 2/pi) / U); everything: 1 / U (arXiv:2009.00329, 3.2)."""
    whole = 2 ** (1 - units) * (2 / math.pi + (1 - 2 / math.pi) / units)
    assert expected_square(units, Fraction(1)) == pytest.approx(whole)
    assert expected_square(units, Fraction(0)) == pytest.approx(1 / units)
    generator = torch.Generator().manual_seed(units)
    noise = torch.randn(units, 400_000, generator=generator)
    for tau in (Fraction(0), Fraction(1, 2), Fraction(1)):
        squares = and_mask(units, tau=float(tau), rescale=False).combine(noise).double().square()
        error = 4 * float(squares.std()) / math.sqrt(len(squares))
        assert float(squares.mean()) == pytest.approx(expected_square(units, tau), abs=error)


@given(st.integers(0, 10**6), st.integers(2, 5), st.integers(1, 6), st.floats(0, 1))
@settings(max_examples=30)
def test_masked_descent_meets_the_bound(seed: int, units: int, size: int, tau: float) -> None:
    """Proposition 1: min_k |m * g|^2 <= 2 L(theta_0) / (eta K) for eta <= 1 / (smoothness), L >= 0."""
    generator = torch.Generator().manual_seed(seed)
    options: Any = {"generator": generator, "dtype": torch.float64}
    roots = torch.randn(units, size, size, **options)
    matrices, centres = roots @ roots.mT, torch.randn(units, size, **options)
    theta = torch.randn(size, **options)
    algorithm = and_mask(units, tau=tau, rescale=False)
    rate = 1 / float(torch.linalg.eigvalsh(matrices.mean(0)).max())

    def risks(theta: Tensor) -> Tensor:
        away = theta - centres
        return torch.einsum("ui,uij,uj->u", away, matrices, away) / 2

    start, squares = float(risks(theta).mean()), []
    for _ in range(25):
        gradients = torch.einsum("uij,uj->ui", matrices, theta - centres)
        masked = algorithm.combine(gradients)
        squares.append(float(masked.square().sum()))
        theta = theta - rate * masked
    assert min(squares) <= 2 * start / (rate * len(squares)) * (1 + 1e-9)


@pytest.mark.parametrize("tau", [-0.1, 1.1, float("nan")])
def test_tau_outside_its_range_is_named(tau: float) -> None:
    with pytest.raises(UserError, match=r"'tau' in the hyperparameters of ANDMask must be"):
        and_mask(2, tau=tau)


def test_examples_are_units_of_any_environment() -> None:
    """Ten examples, stacked as one or as five environments, give the same gradient."""
    one, five = tiny_batch(TASKS["binary"], 0, 1, 10), tiny_problem(TASKS["binary"])
    example: Any = algorithms.get("ExampleANDMask")
    assert why_skipped(example, tiny_problem(TASKS["binary"], ("a",))) is None
    split = Batch(one.x.view(5, 2, 4), one.y.view(5, 2))
    found = [network_step(tiny_algorithm(example, five, PLAIN), batch, 0) for batch in (one, split)]
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("name", ["ANDMask", "ExampleANDMask"])
def test_one_unit_keeps_all_that_is_not_zero(name: str) -> None:
    problem = tiny_problem(TASKS["regression"], ("a",))
    batch = tiny_batch(TASKS["regression"], 0, 1, 1)
    values = {**PLAIN, "tau": 1.0, "rescale": False}
    found = network_step(tiny_algorithm(algorithms.get(name), problem, values), batch, 0)
    erm = network_step(tiny_algorithm(Algorithm, problem, PLAIN), batch, 0)
    torch.testing.assert_close(found, erm)


def test_a_threshold_between_two_counts_is_not_rounded() -> None:
    """Two and a half of five environments: a net count of two is masked, of three kept."""
    gradients = torch.tensor([[1.0, 1.0], [1.0, 1.0], [0.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    found = and_mask(5, tau=0.5, rescale=False).combine(gradients.double())
    assert found.tolist() == [0.0, pytest.approx(0.6)]


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
        stacks = stacked_gradients(algorithm.network, units(algorithm, batch, 0))
        assert {stack.dtype for stack in stacks.values()} == {torch.float32}
        signs.append(torch.cat([stack.sign().flatten() for stack in stacks.values()]))
    flipped = (signs[0] != signs[1]).double().mean()
    assert 0 < flipped < 0.03
