import pytest
import torch

from oodbench.datasets import Dataset, make

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
    names = dataset.environments[:-1]
    x, y = (torch.cat([getattr(data[n], k) for n in names]).double() for k in ("x", "y"))
    weights = torch.linalg.lstsq(x, y).solution.float()
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
    for found, size in ((model.xy, 10), (model.yz, 10)):
        expected = torch.randn(5, 5, generator=generator) / size
        torch.testing.assert_close(found.float(), expected)
    rotation = torch.linalg.qr(torch.randn(10, 10, generator=generator))[0]
    torch.testing.assert_close(model.scrambling.float(), rotation, atol=1e-5, rtol=1e-5)


def test_the_test_environment_is_of_our_own_noise() -> None:
    data = make("PublishedSEM", {}).load(0)
    assert list(data) == ["0.2", "2", "5", "10"]
    assert data["10"].x[:, :5].std() == pytest.approx(10 * 2**0.5, rel=0.05)
