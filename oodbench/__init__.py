"""A benchmark harness for out-of-distribution generalization."""

from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oodbench.version import __version__ as __version__

if TYPE_CHECKING:
    import pandas as pd

    from oodbench.adaptations.base import adapt as adapt
    from oodbench.report.table import table as table
    from oodbench.sweep.launch import run as run
    from oodbench.train.models import evaluate as evaluate
    from oodbench.train.models import load_model as load_model

_PLACES = {
    "adapt": "oodbench.adaptations.base",
    "evaluate": "oodbench.train.models",
    "load_model": "oodbench.train.models",
    "run": "oodbench.sweep.launch",
    "table": "oodbench.report.table",
}
"""Modules of functions that are imported at their first use, since they import torch or pandas."""


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'oodbench' has no attribute '{name}'")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})


def load(directory: str | PathLike[str]) -> "pd.DataFrame":
    """Return all records of a results directory, one evaluation a row, with what is known of its run.

    Columns: `id`, `dataset`, `label`, `algorithm`, `test_environments` (joined by `+`), `draw`,
    `trial`, `state`, `training_seconds` of the run and, of these, `waiting_seconds` for data, `step`,
    `environment`, `split`, `metric`, `value`, `count`, and a column `hparams.NAME` for every
    hyperparameter. Raises `oodbench.errors.UserError` if there is no sweep.
    """
    from oodbench.results.directory import Results
    from oodbench.results.load import load_frames
    from oodbench.results.tables import tidy

    return tidy(load_frames(Results(Path(directory))))
