"""Numbers as tables print them: values with their errors, gains, shares of the gap, ranks, counts."""

import math
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from oodbench.metrics import is_proportion

ROUND_OFF = 1e-8
"""The error below which a number is written with a power of ten, whatever its size."""


class Kind(StrEnum):
    """How a number is written."""

    VALUE = "value"
    """Of a metric, with its standard error."""
    GAIN = "gain"
    """A difference with its sign, and with its interval or half of its width."""
    SIZE = "size"
    """A difference without a sign."""
    SHARE = "share"
    """Of the gap, with its interval."""
    TAU = "correlation"
    RANK = "rank"
    PLACE = "place"
    """With its interval."""
    COUNT = "count"
    """With the planned number where some are missing."""


@dataclass(frozen=True)
class Number:
    """A number of a table; NaN of what it lacks."""

    value: float
    error: float = math.nan
    low: float = math.nan
    high: float = math.nan
    kind: Kind = Kind.VALUE
    metric: str = ""
    """Of values and gains: a proportion is written in %."""

    def __str__(self) -> str:
        """The text in tables; `-` for what is missing."""
        return _WRITTEN[self.kind](self)

    @property
    def parts(self) -> tuple[str, str]:
        """The text of the number, and that of its error, which is empty where it has none."""
        text, _, error = str(self).partition(" ± ")
        return text, error


@dataclass(frozen=True)
class Printed:
    """A number as somebody else prints it, and its error."""

    value: str
    error: str = ""

    def __str__(self) -> str:
        return f"{self.value} ± {self.error}" if self.error else self.value

    @property
    def parts(self) -> tuple[str, str]:
        """The texts of the number and of its error."""
        return self.value, self.error


def number(mean: float, stderr: float, metric: str) -> str:
    """A value as tables print it: a proportion in % with one decimal, others to 4 digits.

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
    """A difference of two values: points of % with one decimal, others to 3 digits; `-` for NaN."""
    if math.isnan(value):
        return "-"
    return f"{100 * value:{sign}.1f}" if is_proportion(metric) else f"{value:{sign}.3g}"


def with_unit(metric: str) -> str:
    """A metric as titles and axes name it; a proportion is shown in %."""
    return f"{metric} (%)" if is_proportion(metric) else metric


def unit_of_gains(metric: str) -> str:
    """The unit in which gains of a metric are written."""
    return "points" if is_proportion(metric) else metric


def _gain(n: Number) -> str:
    text = gain(n.value, n.metric)
    if not math.isnan(n.error):
        return f"{text} ± {gain(n.error, n.metric, '')}"
    if math.isnan(n.low):
        return text
    return f"{text} [{gain(n.low, n.metric)}, {gain(n.high, n.metric)}]"


def _share(n: Number) -> str:
    if math.isnan(n.value):
        return "-"
    return f"{n.value:z.2f}" + ("" if math.isnan(n.low) else f" [{n.low:z.2f}, {n.high:z.2f}]")


def _place(n: Number) -> str:
    if math.isnan(n.value):
        return "-"
    return f"{n.value:.0f}" + ("" if math.isnan(n.low) else f" [{n.low:.0f}, {n.high:.0f}]")


def _count(n: Number) -> str:
    return f"{n.value:.0f}" + ("" if n.high == n.value else f"/{n.high:.0f}")


_WRITTEN = {
    Kind.VALUE: lambda n: number(n.value, n.error, n.metric),
    Kind.GAIN: _gain,
    Kind.SIZE: lambda n: gain(n.value, n.metric, ""),
    Kind.SHARE: _share,
    Kind.TAU: lambda n: f"{n.value:z.2f}",
    Kind.RANK: lambda n: "-" if math.isnan(n.value) else f"{n.value:.2f}",
    Kind.PLACE: _place,
    Kind.COUNT: _count,
}


def count(n: int, planned: int) -> Number:
    """How many of the planned are there."""
    return Number(n, high=planned, kind=Kind.COUNT)


def share(value: float, low: float = math.nan, high: float = math.nan) -> Number:
    """A share of the gap."""
    return Number(value, low=low, high=high, kind=Kind.SHARE)


def measured(mean: float, error: float) -> Printed:
    """A value in the unit of a paper, to two digits of its error; to 4 digits where it has none."""
    if math.isnan(error) or error == 0:
        return Printed(f"{mean:.4g}")
    digits = max(0, 1 - math.floor(math.log10(error)))
    return Printed(f"{mean:.{digits}f}", f"{error:.{digits}f}")
