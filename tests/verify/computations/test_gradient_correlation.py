import pytest

from oodbench.diagnose.gradient_correlation import (
    PAPER,
    correlations,
)
from oodbench.verify.computations.gradient_correlation import gradient_correlation


@pytest.mark.slow
def test_correlations_beside_the_thesis_have_a_value_for_each_trial() -> None:
    measured = gradient_correlation(1, {})
    first = correlations(PAPER, [0.0, 0.25], 0)
    assert measured.values["AND-mask, mechanism, tau 0"] == [pytest.approx(first[1, 0, 0])]
    assert measured.values["XOR-mask, shortcut, tau 0.25"] == [pytest.approx(first[0, 1, 1])]
    less = first[0, 1, 0] - first[1, 0, 0]
    assert measured.values["XOR-mask less none, mechanism, tau 0.25"] == [pytest.approx(less)]
    assert measured.values["AND-mask less none, shortcut, tau 0"] == [0.0]
    assert "XOR-mask, mechanism, tau 0" not in measured.values  # it keeps nothing
    assert [panel.title for panel in measured.panels] == ["XOR-mask", "AND-mask"]
