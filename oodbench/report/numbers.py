"""Numbers as tables print them: values with their errors, gains, shares of the gap, ranks, counts."""

import math
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from oodbench.metrics import is_proportion

UNDEFINED = "undefined"
"""The text for a value that is not defined, as the AUROC of one class; it counts nowhere."""
ROUND_OFF = 1e-8
"""The error below which a number is written with a power of ten, however large it is."""


class Kind(StrEnum):
    """How a number is written."""

    VALUE = "value"  # of a metric
    GAIN = "gain"  # a difference with its sign
    SIZE = "size"  # a difference without a sign
    SHARE = "share"  # of the gap
    TAU = "correlation"
    RANK = "rank"
    PLACE = "place"
    COUNT = "count"  # `high` is the planned number


DIGITS = {Kind.SHARE: "z.2f", Kind.TAU: "z.2f", Kind.RANK: ".2f", Kind.PLACE: ".0f"}


@dataclass(frozen=True)
class Number:
    """A number of a table with its error or its interval; NaN for what is missing."""

    value: float
    error: float = math.nan
    low: float = math.nan
    high: float = math.nan
    kind: Kind = Kind.VALUE
    metric: str = ""
    """The metric of a value or gain; a proportion is written in %."""

    def __str__(self) -> str:
        """The text in tables; `-` for a number that is missing."""
        if self.kind is Kind.VALUE:
            return number(self.value, self.error, self.metric)
        if self.kind is Kind.COUNT:
            return f"{self.value:.0f}" + f"/{self.high:.0f}" * (self.high != self.value)
        if math.isnan(self.value) and self.kind is not Kind.TAU:
            return "-"
        text = self._written(self.value)
        if not math.isnan(self.error):
            return f"{text} ± {gain(self.error, self.metric, '')}"
        if math.isnan(self.low):
            return text
        return f"{text} [{self._written(self.low)}, {self._written(self.high)}]"

    def _written(self, value: float) -> str:
        if self.kind in DIGITS:
            return format(value, DIGITS[self.kind])
        return gain(value, self.metric, "+" * (self.kind is Kind.GAIN))

    @property
    def parts(self) -> tuple[str, str]:
        """The texts of the number and of its error, which may be empty."""
        text, _, error = str(self).partition(" ± ")
        return text, error


@dataclass(frozen=True)
class Printed:
    """A number and its error as a paper prints them."""

    value: str
    error: str = ""

    def __str__(self) -> str:
        return " ± ".join(filter(None, self.parts))

    @property
    def parts(self) -> tuple[str, str]:
        """The texts of the number and of its error, which may be empty."""
        return self.value, self.error


def number(mean: float, stderr: float, metric: str) -> str:
    """A value as tables print it: a proportion in % with one decimal, others to 4 digits.

    The error, to 2 digits, has a power of ten if the value has one.
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
    """A difference of two values: points of % with one decimal, others to 3 digits; `-` for NaN."""
    if math.isnan(value):
        return "-"
    return f"{100 * value:{sign}.1f}" if is_proportion(metric) else f"{value:{sign}.3g}"


def with_unit(metric: str) -> str:
    """A metric as titles and axes name it; a proportion is shown in %."""
    return f"{metric} (%)" if is_proportion(metric) else metric


def scale(metric: str) -> float:
    """The factor of a metric's values where they are shown: 100 for proportions, else 1."""
    return 100.0 if is_proportion(metric) else 1.0


def unit_of_gains(metric: str) -> str:
    """The unit in which gains of a metric are written."""
    return "points" if is_proportion(metric) else metric


def count(n: int, planned: int) -> Number:
    """How many of the planned are there."""
    return Number(n, high=planned, kind=Kind.COUNT)


def share(value: float, low: float = math.nan, high: float = math.nan) -> Number:
    """A share of the gap."""
    return Number(value, low=low, high=high, kind=Kind.SHARE)


def measured(mean: float, error: float) -> Printed:
    """A value in a paper's unit, to two digits of its error; to 4 digits without an error."""
    if math.isnan(error) or error == 0:
        return Printed(f"{mean:.4g}")
    digits = max(0, 1 - math.floor(math.log10(error)))
    return Printed(f"{mean:.{digits}f}", f"{error:.{digits}f}")
