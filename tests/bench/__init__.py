"""The cost of the harness itself, for its developers: `python -m tests.bench`."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    what: str
    """The measured quantity, with its unit unless it is a ratio."""
    reach: str
    """The target, such as `<= 1.15`, or `-`."""
    measured: str
    domainbed: str = "-"
    """DomainBed's figure for the same, where there is one."""


def paired(
    works: Sequence[Callable[[], object]],
    repeat: int,
    clock: Callable[[], float] = time.process_time,
    rounds: int = 15,
) -> list[float]:
    """Median seconds of each work by a clock, in turns A B A B ..., so that drifts affect all equally."""
    times: list[list[float]] = [[] for _ in works]
    for _ in range(rounds):
        for work, seconds in zip(works, times, strict=True):
            start = clock()
            for _ in range(repeat):
                work()
            seconds.append((clock() - start) / repeat)
    return [statistics.median(seconds) for seconds in times]
