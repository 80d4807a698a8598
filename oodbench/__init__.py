"""A benchmark harness for out-of-distribution generalization."""

from collections.abc import Sequence
from importlib import import_module
from os import PathLike
from typing import TYPE_CHECKING, Any

from oodbench.version import __version__ as __version__

if TYPE_CHECKING:
    import pandas as pd

    from oodbench.adaptations.base import adapt as adapt
    from oodbench.sweep import sweep as sweep
    from oodbench.sweep.python import run as run
    from oodbench.sweep.results import Results as Results
    from oodbench.train.models import evaluate as evaluate
    from oodbench.train.models import load_model as load_model

Source = str | PathLike[str]
_PLACES = {
    "Results": "oodbench.sweep.results",
    "adapt": "oodbench.adaptations.base",
    "evaluate": "oodbench.train.models",
    "load_model": "oodbench.train.models",
    "run": "oodbench.sweep.python",
    "sweep": "oodbench.sweep",
}
"""Modules of functions that are imported at their first use, since they import torch or pandas."""


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'oodbench' has no attribute '{name}'")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})


def load(source: "Source | Sequence[Source]") -> "pd.DataFrame":
    """All records of results directories and boards, a value a row, with what is known of its run.

    `source` is a results directory, a board (its name or folder), or a list of these. Columns: `source`
    (of several), `id`, `dataset` and `label` as tables call them, `algorithm`, `test_environments` (joined
    by `+`), `draw`, `trial`, `state`, `training_seconds` of the run and, of these, `waiting_seconds` for
    data, `step`, `environment`, `split`, `metric`, `value`, `count`, and a column `hparams.NAME` for every
    hyperparameter. Validation scores of a board have the split `score` and the metric of their rule's
    name. Raises `oodbench.errors.UserError` for what is neither a board nor a results directory.
    """
    from oodbench.results.read import records_of_sources

    return records_of_sources([source] if isinstance(source, str | PathLike) else source)
