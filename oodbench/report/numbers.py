"""Numbers as tables print them: values with errors, gains, shares of the gap, places and counts."""

import math
from collections.abc import Callable
from decimal import Decimal
from typing import NamedTuple

from oodbench.metrics import is_proportion

UNDEFINED = "undefined"
"""The text of an undefined value, such as the AUROC of one class."""
ROUND_OFF = 1e-8
"""A number with a smaller error is written with a power of ten."""


class Number(NamedTuple):
    """A number of a table and its error, which each format combines in its own way."""

    text: str
    error: str = ""

    def __str__(self) -> str:
        """Both, as screens show them."""
        return f"{self.text} ± {self.error}" if self.error else self.text


Cell = str | Number
"""A cell of a table."""


def with_error(mean: float, stderr: float, metric: str) -> Number:
    """A value and its error: a proportion in % with one decimal, others to 4 and 2 digits.

    The error has a power of ten if the value has one.
    """
    if is_proportion(metric):
        text, error = (f"{100 * v:.1f}" for v in (mean, stderr))
    else:
        text, error = f"{mean:#.4g}".rstrip("."), f"{stderr:.2g}"
        if "e" not in text and 0 < stderr < ROUND_OFF:
            text = f"{mean:.3e}"
        if "e" in text:
            error = f"{stderr:.1e}" if stderr else error
        elif "e" in error:
            error = f"{Decimal(error):f}"
    return Number(text, "" if math.isnan(stderr) else error)


def gain(value: float, metric: str, sign: str = "+") -> str:
    """A difference of two values: points of % with one decimal, others to 3 digits; `-` for NaN."""
    if math.isnan(value):
        return "-"
    return f"{100 * value:{sign}.1f}" if is_proportion(metric) else f"{value:{sign}.3g}"


def with_unit(metric: str) -> str:
    """A metric's name in titles and axes, with (%) for a proportion."""
    return f"{metric} (%)" if is_proportion(metric) else metric


def scale(metric: str) -> float:
    """The factor by which a metric's values are multiplied to be shown: 100 for proportions, else 1."""
    return 100.0 if is_proportion(metric) else 1.0


def unit_of_gains(metric: str) -> str:
    """The unit in which gains of a metric are written."""
    return "points" if is_proportion(metric) else metric


def count(n: float, planned: float) -> str:
    """`n`, or `n/planned` if they differ."""
    return f"{n:.0f}" if n == planned else f"{n:.0f}/{planned:.0f}"


def bracketed(value: float, low: float, high: float, written: Callable[[float], str]) -> str:
    """A number with its interval, if it has one; `-` for NaN."""
    if math.isnan(value):
        return "-"
    text = written(value)
    return text if math.isnan(low) else f"{text} [{written(low)}, {written(high)}]"


def share(value: float, low: float = math.nan, high: float = math.nan) -> str:
    """A share of the gap, with its interval."""
    return bracketed(value, low, high, "{:z.2f}".format)


def place(value: float, low: float = math.nan, high: float = math.nan) -> str:
    """A place among rows, with its interval."""
    return bracketed(value, low, high, "{:.0f}".format)


def printed(mean: float, error: float) -> Number:
    """A value with two digits of its error, as papers print it; with 4 digits if it has no error."""
    if math.isnan(error) or error == 0:
        return Number(f"{mean:.4g}")
    digits = max(0, 1 - math.floor(math.log10(error)))
    return Number(f"{mean:.{digits}f}", f"{error:.{digits}f}")
