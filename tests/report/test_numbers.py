import math

import pytest

from oodbench.report.numbers import with_error


@pytest.mark.parametrize(
    ("mean", "error", "text"),
    [
        (249.1, 15.0, "249.1 ± 15"),
        (249.1, 150.0, "249.1 ± 150"),
        (249.1, 99.6, "249.1 ± 100"),
        (0.003634, 0.00026, "0.003634 ± 0.00026"),
        (0.0002469, 0.000071, "0.0002469 ± 0.000071"),
        (12340.0, 2300.0, "1.234e+04 ± 2.3e+03"),
        (12340.0, 12.0, "1.234e+04 ± 1.2e+01"),
        (12340.0, 0.0, "1.234e+04 ± 0"),
        (1.0, 3e-17, "1.000e+00 ± 3.0e-17"),
        (1.0, 0.0, "1.000 ± 0"),
        (12345.6, 7.0, "1.235e+04 ± 7.0e+00"),
        (0.1, 0.012345, "0.1000 ± 0.012"),
        (1234.5, math.nan, "1234"),
        (12340.0, math.nan, "1.234e+04"),
        (math.inf, math.nan, "inf"),
    ],
)
def test_a_value_and_its_error_have_one_notation(mean: float, error: float, text: str) -> None:
    assert str(with_error(mean, error, "mse")) == text
