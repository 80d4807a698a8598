import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binom

from oodbench.algorithms import Batch
from oodbench.verify.computations import and_mask
from oodbench.verify.computations.and_mask import correlations, pearson, sampled_sizes
from oodbench.verify.targets import load_experiment


def expected_sizes(environments: int, tau: float, n: int, sigma: float) -> tuple[float, float]:
    """The exact squared norms of the mean of d gradients, unmasked and masked.

    Given k positive signs the magnitudes are independent half-normals, with the mean
    sigma sqrt(2/pi) and the variance sigma^2 (1 - 2/pi), so that the mean of the d gradients has
    the second moment (sigma/d)^2 (d (1 - 2/pi) + (2k - d)^2 2/pi). The mask keeps |2k - d| >= tau d,
    and k is binomial. For tau = 1 this is n sigma^2 2^(1-d) (2/pi + (1 - 2/pi)/d), for tau = 0 it
    is n sigma^2 / d.
    """
    k = np.arange(environments + 1)
    net = np.abs(2 * k - environments)
    weight = binom.pmf(k, environments, 0.5) * (net >= tau * environments - 1e-4)
    moment = environments * (1 - 2 / np.pi) + net**2 * 2 / np.pi
    masked = n * (sigma / environments) ** 2 * float(weight @ moment)
    return n * sigma**2 / environments, masked


def test_the_figure_has_a_draw_for_each_trial() -> None:
    found = and_mask.random_gradients(4, {})
    assert found["AND-mask, tau 1, d = 4"] == sampled_sizes(4, 1.0, 3000, 1.0, 4)[1]
    assert found["unmasked, d = 200"] == sampled_sizes(200, 0.6, 3000, 1.0, 4)[0]


@pytest.mark.parametrize(("environments", "tau"), [(2, 0.6), (5, 0.6), (9, 1 / 3), (10, 0.6)])
def test_the_mask_on_random_gradients_meets_the_exact_size(environments: int, tau: float) -> None:
    exact = expected_sizes(environments, tau, 2000, 0.5)
    found = sampled_sizes(environments, tau, 2000, 0.5, 40)
    for sizes, wanted in zip(found, exact, strict=True):
        error = np.std(sizes, ddof=1) / math.sqrt(len(sizes))
        assert abs(np.mean(sizes) - wanted) < 4 * error
        assert error < 0.05 * wanted


def test_more_than_a_hundred_environments_mask_everything() -> None:
    unmasked, masked = sampled_sizes(101, 0.6, 3000, 1.0, 3)
    assert masked == [0, 0, 0]
    assert min(unmasked) > 0


def test_permuting_moves_some_inputs_within_each_environment() -> None:
    x = torch.arange(2 * 20 * 4.0).view(2, 20, 4)
    batch = Batch(x.clone(), torch.zeros(2, 20))
    found = and_mask.permuted(batch, slice(1, 3), 0).x
    assert torch.equal(batch.x, x)
    assert torch.equal(found[..., [0, 3]], x[..., [0, 3]])
    assert not torch.equal(found, x)
    assert torch.equal(found[..., 1:3].sort(1).values, x[..., 1:3])
    assert torch.equal(found[..., 2] - found[..., 1], torch.ones(2, 20))


def test_pearson_is_numpys() -> None:
    a, b = torch.randn(2, 50, generator=torch.Generator().manual_seed(0))
    assert pearson(a, b) == pytest.approx(np.corrcoef(a, b)[0, 1])
    assert np.isnan(pearson(a[:2], b[:2]))
    assert np.isnan(pearson(a, torch.ones(50)))


@pytest.mark.slow
def test_agreement_is_where_the_mechanism_is() -> None:
    """The thesis: about .4 without a mask, more with AND-mask, less with XOR-mask."""
    options: dict[str, Any] = {"num_environments": 16, "num_examples": 256, "standardize": False}
    options |= {"shortcut_dims": 32, "shortcut_scale": 0.1}
    found = np.mean([correlations(options, [0.125, 0.75, 1.0], trial) for trial in range(3)], 0)
    (xor_low, _, xor_all), (and_low, and_high, _) = found
    mechanism, shortcut, share = range(3)
    assert list(and_mask.SIGNALS) == ["mechanism", "shortcut"]
    assert 0.25 < xor_all[mechanism] < 0.6 < xor_all[shortcut]
    assert xor_low[mechanism] < xor_all[mechanism] < and_low[mechanism] < and_high[mechanism]
    assert xor_low[share] + and_low[share] == pytest.approx(1)


def test_without_a_shortcut_all_signal_is_the_mechanisms() -> None:
    options: dict[str, Any] = {"num_environments": 4, "num_examples": 64}
    options |= {"shortcut_dims": 8, "shortcut_scale": 0.0}
    found = correlations(options, [0.0], 0)[1, 0]
    assert found[0] == pytest.approx(1)
    assert found[1] < 0.999


@pytest.mark.slow
def test_correlations_beside_the_thesis_have_a_value_for_each_trial() -> None:
    measured = and_mask.gradient_correlation(1, {})
    first = correlations(and_mask.PAPER, [0.0, 0.25], 0)
    assert measured["AND-mask, mechanism, tau 0"] == [pytest.approx(first[1, 0, 0])]
    assert measured["XOR-mask, shortcut, tau 0.25"] == [pytest.approx(first[0, 1, 1])]
    less = first[0, 1, 0] - first[1, 0, 0]
    assert measured["XOR-mask less none, mechanism, tau 0.25"] == [pytest.approx(less)]
    assert measured["AND-mask less none, shortcut, tau 0"] == [0.0]
    assert "XOR-mask, mechanism, tau 0" not in measured  # it keeps nothing


def test_what_the_decay_leaves() -> None:
    weight, rate = 1.0, 0.3
    for _ in range(1001):
        rate *= 0.9995
        weight -= 0.01 * rate * weight
    assert pytest.approx(weight) == and_mask.SHRINKING


@pytest.mark.nightly
def test_every_printed_run_ends_as_printed() -> None:
    found = and_mask.ilc_linear(1, {})
    assert set(found) == {t.row for t in load_experiment("ilc-linear").targets if not t.sweep}
    assert len(found) == len(and_mask.PRINTED) == 9
    for row, (difference,) in found.items():
        assert difference < (1e-4 if row.startswith("ERM") else 1e-3), row
