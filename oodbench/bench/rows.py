"""The table that the benchmarks fill."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measured figure."""

    what: str
    """What was measured, with its unit if it is no ratio."""
    reach: str = "-"
    """What it is to reach, such as `<= 1.15`."""
    measured: str
    domainbed: str = "-"
    """DomainBed's figure for the same, where there is one."""
