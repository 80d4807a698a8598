import pytest

from oodbench.verify.computations.ilc_linear import PRINTED, SHRINKING, ilc_linear
from oodbench.verify.targets import load_experiment


def test_what_the_decay_leaves() -> None:
    weight, rate = 1.0, 0.3
    for _ in range(1001):
        rate *= 0.9995
        weight -= 0.01 * rate * weight
    assert pytest.approx(weight) == SHRINKING


@pytest.mark.slow
def test_every_printed_run_ends_as_printed() -> None:
    found = ilc_linear(1, {}).values
    assert set(found) == {t.row for t in load_experiment("ilc-linear").targets if not t.sweep}
    assert len(found) == len(PRINTED) == 9
    for row, (difference,) in found.items():
        assert difference < (1e-4 if row.startswith("ERM") else 1e-3), row
