import pytest
import torch

from oodbench.datasets import make

SCALES = {"0.1": 0.1, "1": 1.0, "test 0.01": 0.01, "test 0.1": 0.1, "test 1": 1.0}


def test_the_variances_are_those_of_the_model() -> None:
    dataset = make("IRMExample", {"num_examples": 100_000})
    data = dataset.load(0)
    assert list(data) == list(dataset.environments) == list(SCALES)
    assert dataset.test_environments == ("test 0.01", "test 0.1", "test 1")
    for name, environment in data.items():
        s = SCALES[name] ** 2
        second = (environment.x.T @ environment.x / 100_000).double()
        wanted = torch.tensor([[s, 0, s, 0], [0, s, 0, s], [s, 0, 2 * s + 1, 0]]).double()
        torch.testing.assert_close(second[:3], wanted, atol=0.03, rtol=0.02)
        residual = environment.y - environment.x[:, :2].sum(1, keepdim=True)
        assert residual.var().item() == pytest.approx(2 * s, rel=0.03)


def test_environments_of_one_scale_differ() -> None:
    environments = make("IRMExample", {}).load(0)
    assert not torch.equal(environments["1"].x, environments["test 1"].x)


def test_pooled_weights_are_those_of_the_closed_form() -> None:
    dataset = make("IRMExample", {"num_examples": 1_000_000})
    data = [dataset.load(0)[name] for name in ("0.1", "1")]
    second = sum(e.x.double().T @ e.x.double() for e in data)
    weights = torch.linalg.solve(second, sum(e.x.double().T @ e.y.double() for e in data))
    found = dataset.predictor_metrics(lambda x: x @ weights.float(), 0)
    for name, wanted in zip(found, [0.66445, 0.66445, 0.33555, 0.33555], strict=True):
        assert found[name] == pytest.approx(wanted, abs=4e-3)
