"""Numbers as texts: values with their errors, and gains."""

import math
from decimal import Decimal

from oodbench.metrics import is_proportion

ROUND_OFF = 1e-8
"""The error below which a number is written with a power of ten, whatever its size."""


def number(mean: float, stderr: float, metric: str) -> str:
    """Return a value as tables print it: a proportion in % with one decimal, others to 4 digits.

    Its error, to 2 digits, has a power of ten if the value has one.
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
    return text if math.isnan(stderr) else f"{text} ± {error}"


def gain(value: float, metric: str, sign: str = "+") -> str:
    """Return a difference of two values: points of % with one decimal, others to 3 digits; `-` for NaN."""
    if math.isnan(value):
        return "-"
    return f"{100 * value:{sign}.1f}" if is_proportion(metric) else f"{value:{sign}.3g}"


def measured(mean: float, error: float) -> str:
    """Return a value in the unit of a paper, to two digits of its error; to 4 digits where it has none."""
    if math.isnan(error) or error == 0:
        return f"{mean:.4g}"
    digits = max(0, 1 - math.floor(math.log10(error)))
    return f"{mean:.{digits}f} ± {error:.{digits}f}"
