import math

import numpy as np
import pytest

from oodbench.diagnose.random_gradients import expected_size, random_gradients, sampled_sizes
from oodbench.errors import UserError
from oodbench.verify.computations import random_gradients as computed


@pytest.mark.parametrize("environments", [1, 2, 7, 16])
def test_the_closed_forms_at_both_ends_of_tau(environments: int) -> None:
    n, sigma, d = 3000, 1.5, environments
    every = expected_size(d, 0.0, n, sigma)
    assert every.masked == pytest.approx(every.unmasked) == pytest.approx(n * sigma**2 / d)
    assert every.kept == pytest.approx(1)
    full = expected_size(d, 1.0, n, sigma)
    wanted = n * sigma**2 * 2 ** (1 - d) * (2 / math.pi + (1 - 2 / math.pi) / d)
    assert full.masked == pytest.approx(wanted)
    assert full.kept == pytest.approx(2 ** (1 - d))


def test_the_figure_has_a_draw_for_each_trial() -> None:
    found = computed.random_gradients(4, {})
    assert found.values["AND-mask, tau 1, d = 4"] == sampled_sizes(4, 1.0, 3000, 1.0, 4, 0)[1]
    assert found.values["unmasked, d = 200"] == sampled_sizes(200, 0.6, 3000, 1.0, 4, 0)[0]


def test_values_found_by_simulation_elsewhere() -> None:
    for environments, value in {2: 1227.5, 4: 272.8, 6: 65.4, 8: 16.0}.items():
        assert expected_size(environments, 1.0, 3000).masked == pytest.approx(value, rel=2e-3)


def test_the_pure_noise_that_eighty_examples_let_pass() -> None:
    shares = {0.05: 0.738, 0.1: 0.434, 0.2: 0.0929, 0.4: 4.5e-4, 0.6: 5.9e-8, 0.8: 5.4e-14}
    for tau, share in shares.items():
        assert expected_size(80, tau, 1).kept == pytest.approx(share, rel=0.02)


@pytest.mark.parametrize(("environments", "tau"), [(2, 0.6), (5, 0.6), (9, 1 / 3), (10, 0.6)])
def test_the_mask_on_random_gradients_meets_the_exact_size(environments: int, tau: float) -> None:
    exact = expected_size(environments, tau, 2000, 0.5)
    for sizes, wanted in zip(
        sampled_sizes(environments, tau, 2000, 0.5, 40, 0),
        (exact.unmasked, exact.masked),
        strict=True,
    ):
        error = np.std(sizes, ddof=1) / math.sqrt(len(sizes))
        assert abs(np.mean(sizes) - wanted) < 4 * error
        assert error < 0.05 * wanted


def test_more_than_a_hundred_environments_mask_everything() -> None:
    unmasked, masked = sampled_sizes(101, 0.6, 3000, 1.0, 3, 0)
    assert masked == [0, 0, 0]
    assert min(unmasked) > 0


def test_the_table() -> None:
    finding = random_gradients([2, 100], components=100, draws=3)
    assert [row[0] for row in finding.rows] == ["2", "100"]
    assert finding.rows[0][1] == "50"
    assert finding.rows[1][4] == "0 ± 0"


def test_mistakes() -> None:
    with pytest.raises(UserError, match=r"tau must be in \[0, 1\], not 1.5"):
        random_gradients([4], tau=1.5)
    with pytest.raises(UserError, match="at least 1 environment"):
        random_gradients([0])
