"""Targets of papers that are computed, or read off several sweeps, instead of trained by one.

An experiment names its computation; the files of this folder register theirs under that name.
"""

import importlib
import pkgutil
from collections.abc import Callable, Mapping

from oodbench.errors import unknown
from oodbench.results.frames import Frames

Values = dict[str, list[float]]
"""What was measured, to whose keys the targets' rows refer where they name no sweep."""
Computation = Callable[[int, Mapping[str, Frames]], Values]
"""Maps the number of trials and the sweeps' frames by name to values."""
_COMPUTATIONS: dict[str, Computation] = {}


def computation(name: str) -> Callable[[Computation], Computation]:
    """Register a computation under `name`."""

    def decorate(function: Computation) -> Computation:
        _COMPUTATIONS[name] = function
        return function

    return decorate


def find_computation(name: str) -> Computation:
    """Return the computation registered under `name`; raises UserError with the nearest names."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    if name not in _COMPUTATIONS:
        raise unknown("computation", name, _COMPUTATIONS)
    return _COMPUTATIONS[name]
