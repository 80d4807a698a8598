"""Sweeps: from a YAML file or from Python to finished runs."""

import inspect
import sys
from collections.abc import Mapping, Sequence
from os import PathLike
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, Unpack

from oodbench.sweep.file import Keys, takes_keys

if TYPE_CHECKING:
    import pandas as pd

    from oodbench.datasets import Dataset
    from oodbench.sweep.results import Results


@takes_keys
def sweep(
    datasets: "Sequence[str | type | Mapping[str, Any] | Dataset | pd.DataFrame]",
    algorithms: Sequence[str | type | Mapping[str, Any]] | Literal["all"],
    *,
    trials: int | Sequence[int] = 5,
    out: str | PathLike[str] | None = None,
    name: str = "",
    launcher: str = "local",
    workers: int | None = None,
    devices: str = "auto",
    threads: int = 1,
    data_dir: str | PathLike[str] | None = None,
    plugins: Sequence[str] = (),
    keep_weights: Sequence[str] = (),
    keep_predictions: bool = False,
    observers: Sequence[str] = (),
    failed: bool = False,
    retries: int = 0,
    stale: Literal["", "retrain", "keep"] = "",
    **keys: Unpack[Keys],
) -> "Results":
    """Train the runs of a sweep that have not ended yet, and return its results.

    The arguments are the keys of a sweep file and the options of `python -m oodbench.sweep launch`; the
    runs have the ids that such a file gives them. `out` is the results directory, by default results/NAME.
    Without `name` the sweep is named after the directory. Repeating the call resumes an interrupted sweep.

    An entry of `datasets` or `algorithms` is a name, or a mapping with the key `name` and options, as in a
    file. A class may replace a name: an `Algorithm`, a `Dataset` or, under `network`, a `Network`,
    including classes defined in a script or a notebook. A dataset may be an object that
    `oodbench.datasets.make` made. A mapping with the key `data` has a pandas data frame and options of
    `Table`, such as `{"data": frame, "target": "y", "environment": "site"}`; the frame's index is left out.

    With `failed`, failed runs are trained again. `retries` is how often a run that fails now is tried
    again. Runs whose code or data have changed since they were trained are refused, unless `stale` is
    `retrain` or `keep`. A failed run is reported and does not stop the others. The process's settings and
    random generators are restored afterwards.

    Raises UserError for what cannot be launched, and KeyboardInterrupt when it is interrupted.
    """
    arguments = locals()
    from oodbench.sweep import python

    return python.sweep({**arguments.pop("keys"), **arguments})


class _Callable(ModuleType):
    """Makes the package `oodbench.sweep` callable as its function `sweep`."""

    __call__ = staticmethod(sweep)


__signature__ = inspect.signature(sweep)
sys.modules[__name__].__class__ = _Callable
