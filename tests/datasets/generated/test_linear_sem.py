import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from oodbench.datasets import Dataset, Environment, make
from oodbench.networks.base import build

VARIANTS = ["".join(letters) for letters in itertools.product("FP", "OE", "US")]


def least_squares(environments: dict[str, Environment]) -> Tensor:
    """Pooled weights of the inputs, (2k, 1), without intercept."""
    x = torch.cat([e.x for e in environments.values()]).double()
    y = torch.cat([e.y for e in environments.values()]).double()
    solution: Tensor = torch.linalg.lstsq(x, y).solution
    return solution


def population(variant: str, model: tuple[Tensor, ...], scales: list[float]) -> Tensor:
    """The pooled least-squares weights of (X, Z) in the limit, from the model's covariances."""
    hx, hy, hz, xy, yz = model
    k = len(hx)
    one, zero = torch.eye(k).double(), torch.zeros(k, k).double()
    second, cross = torch.zeros(2 * k, 2 * k).double(), torch.zeros(2 * k, 1).double()
    for e in scales:
        sy, sz = (1.0, e) if variant[1] == "O" else (e, 1.0)
        # each variable as a combination of independent noises (H, X's, Y's, Z's)
        x = torch.cat([hx * e, one * e, zero, zero])
        y = x @ xy + torch.cat([hy * e, zero, one * sy, zero])
        z = y @ yz + torch.cat([hz * e, zero, zero, one * sz])
        inputs = torch.cat([x, z], 1)
        second += inputs.T @ inputs
        cross += inputs.T @ y.sum(1, keepdim=True)
    weights: Tensor = torch.linalg.solve(second, cross)
    return weights


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("unit_weights", [pytest.param(True, marks=pytest.mark.nightly), False])
def test_pooled_regression_has_weights_in_closed_form(variant: str, unit_weights: bool) -> None:
    options = {"variant": variant, "num_examples": 100_000, "unit_weights": unit_weights}
    dataset: Any = make("LinearSEM", options)
    assert (dataset.environments, dataset.test_environments) == (("0.2", "2", "5"), ("5",))
    model = dataset.model(3)
    weights = model.scrambling @ least_squares(dataset.load(3))
    coefficients = (model.hx, model.hy, model.hz, model.xy, model.yz)
    expected = population(variant, coefficients, [0.2, 2.0, 5.0])
    torch.testing.assert_close(weights, expected, atol=0.02, rtol=0)


@pytest.mark.parametrize("variant", [v for v in VARIANTS if v[0] == "F"])
def test_fully_observed_weights_and_their_errors(variant: str) -> None:
    dataset: Any = make("LinearSEM", {"variant": variant, "num_examples": 100_000})
    model = dataset.model(0)
    weights = least_squares(dataset.load(0))
    causal, noncausal = (0.90637, 0.09363) if variant[1] == "O" else (0.09363, 0.90637)
    expected = torch.tensor([causal] * 5 + [noncausal] * 5).double().unsqueeze(1)
    torch.testing.assert_close(model.scrambling @ weights, expected, atol=0.02, rtol=0)
    metrics = dataset.predictor_metrics(lambda x: x @ weights.float() + 3, 0)
    assert metrics == {
        "causal_error": pytest.approx((1 - causal) ** 2, abs=0.02),
        "noncausal_error": pytest.approx(noncausal**2, abs=0.02),
        "weight_error": pytest.approx((metrics["causal_error"] + metrics["noncausal_error"]) / 2),
    }


@pytest.mark.parametrize("variant", VARIANTS)
def test_true_weights_have_no_error(variant: str) -> None:
    dataset: Any = make("LinearSEM", {"variant": variant, "unit_weights": False})
    model = dataset.model(1)
    true = torch.cat([model.xy.sum(1), torch.zeros(5).double()])
    weights = (model.scrambling.T @ true).float().unsqueeze(1)
    found = dataset.predictor_metrics(lambda x: x @ weights, 1)
    assert found == {name: pytest.approx(0, abs=1e-12) for name in found} and len(found) == 3
    scrambled = (model.scrambling.T @ true).square().mean().item()
    other = dataset.predictor_metrics(lambda x: 2 * x @ weights, 1)
    assert other["weight_error"] == pytest.approx(scrambled, rel=1e-4)
    assert other["causal_error"] == pytest.approx(model.xy.sum(1).square().mean().item(), rel=1e-4)


@pytest.mark.parametrize("name", ["FourPoints", "IRMExample", "LinearSEM"])
def test_predictors_that_are_not_linear_have_no_weights(name: str) -> None:
    dataset = make(name, {})
    torch.manual_seed(0)
    hidden = build("MLP", {}, dataset.input_shape, 1, 0).requires_grad_(False)
    assert dataset.predictor_metrics(hidden, 0) == {}
    assert dataset.predictor_metrics(lambda x: x[:, :1] ** 2, 0) == {}


def test_broken_predictors_have_broken_errors() -> None:
    found = make("LinearSEM", {}).predictor_metrics(lambda x: x[:, :1] * float("nan"), 0)
    assert all(value != value for value in found.values()) and len(found) == 3


def test_scrambling_is_a_rotation_of_the_same_data() -> None:
    plain = make("LinearSEM", {"variant": "POU"})
    scrambled = make("LinearSEM", {"variant": "POS"})
    rotation = scrambled.model(2).scrambling  # type: ignore[attr-defined]
    torch.testing.assert_close(rotation @ rotation.T, torch.eye(10).double())
    assert not torch.allclose(rotation, torch.eye(10).double(), atol=0.1)
    for name, environment in plain.load(2).items():
        expected = (environment.x.double() @ rotation).float()
        torch.testing.assert_close(scrambled.load(2)[name].x, expected, rtol=1e-4, atol=1e-4)
        assert torch.equal(scrambled.load(2)[name].y, environment.y)


@pytest.mark.parametrize("variant", ["FOU", "POU"])
def test_size_of_the_coefficients(variant: str) -> None:
    options = {"variant": variant, "dim": 50, "unit_weights": False}
    model = make("LinearSEM", options).model(0)  # type: ignore[attr-defined]
    confounded = [model.hx, model.hy, model.hz] if variant == "POU" else []
    for coefficients in [model.xy, model.yz, *confounded]:
        assert coefficients.std().item() == pytest.approx(1 / 100, rel=0.07)
    if not confounded:
        assert torch.equal(model.hx, torch.eye(50).double())
        assert not model.hy.any() and not model.hz.any()


def test_as_in_the_test_environment_every_scale_is_its() -> None:
    options = {"variant": "PEU", "scales": (0.2, 2.0, 5.0)}
    plain, alike = (make("LinearSEM", {**options, "as_test": a}).load(0) for a in (False, True))
    assert list(plain) == list(alike) and (plain["5"].x == alike["5"].x).all()
    # the causes are of the same draws, at the scale 5 instead of 0.2
    assert torch.allclose(alike["0.2"].x[:, :5], 25 * plain["0.2"].x[:, :5], rtol=1e-5)


# Pooled least squares on models 0, 1 and 199: the causal and noncausal errors that
# synthetic_results.txt, stored with the code of arXiv:1907.02893, has in these places.
STORED = {
    "FOU": [(0.00874, 0.00880), (0.00821, 0.00899), (0.00907, 0.00823)],
    "FOS": [(0.01018, 0.00922), (0.00708, 0.00801), (0.01017, 0.00973)],
    "FEU": [(0.81684, 0.81761), (0.80755, 0.81280), (0.83498, 0.83133)],
    "FES": [(0.82235, 0.82528), (0.82983, 0.83852), (0.81443, 0.81609)],
    "POU": [(0.00934, 0.00949), (0.00907, 0.01001), (0.00940, 0.01250)],
    "POS": [(0.01613, 0.01327), (0.02017, 0.01514), (0.02384, 0.01598)],
    "PEU": [(0.78084, 0.81704), (0.70278, 0.67268), (0.75881, 0.78932)],
    "PES": [(0.79254, 0.79294), (0.63569, 0.65050), (0.78079, 0.78481)],
}


def pooled_errors(dataset: Dataset, trial: int) -> tuple[float, float]:
    data = dataset.load(trial)
    weights = least_squares({n: data[n] for n in dataset.environments[:-1]}).float()
    found = dataset.predictor_metrics(lambda x: x @ weights, trial)
    return found["causal_error"], found["noncausal_error"]


@pytest.mark.parametrize("variant", STORED)
def test_these_are_the_models_whose_results_are_stored(variant: str) -> None:
    dataset = make("PublishedSEM", {"variant": variant})
    for trial, stored in zip((0, 1, 199), STORED[variant], strict=True):
        assert pooled_errors(dataset, trial) == pytest.approx(stored, abs=6e-6)


@pytest.mark.parametrize("variant", STORED)
def test_one_stream_begins_with_the_model_of_seed_0_and_goes_on(variant: str) -> None:
    own = make("PublishedSEM", {"variant": variant})
    stream = make("PublishedSEM", {"variant": variant, "one_stream": True})
    assert pooled_errors(stream, 0) == pooled_errors(own, 0)
    assert pooled_errors(stream, 1) != pytest.approx(pooled_errors(own, 1), abs=1e-5)


def test_random_coefficients_are_drawn_first() -> None:
    options = {"variant": "PES", "unit_weights": False}
    model = make("PublishedSEM", options).model(3)  # type: ignore[attr-defined]
    generator = torch.Generator().manual_seed(3)
    for found in (model.xy, model.yz):
        expected = torch.randn(5, 5, generator=generator) / 10
        torch.testing.assert_close(found.float(), expected)
    rotation = torch.linalg.qr(torch.randn(10, 10, generator=generator))[0]
    torch.testing.assert_close(model.scrambling.float(), rotation, atol=1e-5, rtol=1e-5)


def test_the_test_environment_is_of_our_own_noise() -> None:
    data = make("PublishedSEM", {}).load(0)
    assert list(data) == ["0.2", "2", "5", "10"]
    assert data["10"].x[:, :5].std() == pytest.approx(10 * 2**0.5, rel=0.05)
