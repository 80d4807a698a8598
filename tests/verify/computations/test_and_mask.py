import pytest

from oodbench.verify.computations.and_mask import (
    PAPER,
    PRINTED,
    SHRINKING,
    correlations,
    gradient_correlation,
    ilc_linear,
)
from oodbench.verify.targets import load_experiment


@pytest.mark.slow
def test_correlations_beside_the_thesis_have_a_value_for_each_trial() -> None:
    measured = gradient_correlation(1, {})
    first = correlations(PAPER, [0.0, 0.25], 0)
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
    assert pytest.approx(weight) == SHRINKING


@pytest.mark.nightly
def test_every_printed_run_ends_as_printed() -> None:
    found = ilc_linear(1, {})
    assert set(found) == {t.row for t in load_experiment("ilc-linear").targets if not t.sweep}
    assert len(found) == len(PRINTED) == 9
    for row, (difference,) in found.items():
        assert difference < (1e-4 if row.startswith("ERM") else 1e-3), row
