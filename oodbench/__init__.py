"""A benchmark harness for out-of-distribution generalization.

sweep(datasets, algorithms, out=...)   train the missing runs of a sweep on all cores; returns Results
run(dataset, algorithm)                train one run in this process; returns its records
Results(directory)                     tables, comparisons and models of a sweep or a board
load(directory)                        all records as a data frame
load_model(directory, rule=...)        a trained model, from weights that the sweep kept
evaluate(model, dataset)               the metrics of any torch module on a dataset's environments
adapt(model, inputs, adaptation)       predictions of a model that adapts to unlabelled test inputs
critical_samples(model, inputs)        inputs near which a model's predicted class changes

`help(oodbench.sweep)` has the arguments of each. Your own classes derive from `Algorithm` of
`oodbench.algorithms`, `Dataset` of `oodbench.datasets`, `Network` of `oodbench.networks`,
`RecordedMetric` of `oodbench.metrics` or `Rule` of `oodbench.selection`. A `UserError` of
`oodbench.errors` says in one sentence what to change. `python -m oodbench` lists the commands.
"""

from collections.abc import Sequence
from importlib import import_module
from os import PathLike
from typing import TYPE_CHECKING, Any

from oodbench.version import __version__ as __version__

if TYPE_CHECKING:
    import pandas as pd

    from oodbench.adaptations import adapt as adapt
    from oodbench.gradients.critical import critical_samples as critical_samples
    from oodbench.sweep import sweep as sweep
    from oodbench.sweep.python import run as run
    from oodbench.sweep.results import Results as Results
    from oodbench.train.models import evaluate as evaluate
    from oodbench.train.models import load_model as load_model

__all__ = [
    *("Results", "adapt", "critical_samples", "evaluate"),
    *("load", "load_model", "run", "sweep"),
]
Source = str | PathLike[str]
_PLACES = {
    "Results": "oodbench.sweep.results",
    "adapt": "oodbench.adaptations",
    "critical_samples": "oodbench.gradients.critical",
    "evaluate": "oodbench.train.models",
    "load_model": "oodbench.train.models",
    "run": "oodbench.sweep.python",
    "sweep": "oodbench.sweep",
}
"""Modules of functions that are imported at their first use, since they import torch or pandas."""
_MODULES = set(
    "adaptations algorithms arithmetic conformance datasets errors hparams metrics networks optimizers "
    "registry selection steps tasks".split()
)
"""Modules that users write their classes with, imported at their first use, too."""


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"oodbench.{name}")
    if name not in _PLACES:
        raise AttributeError(f"module 'oodbench' has no attribute '{name}'")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES, *_MODULES})


def load(source: "Source | Sequence[Source]") -> "pd.DataFrame":
    """All records of results directories and boards, one row per value, with the facts of its run.

    `source` is a results directory, a board (its name or folder), or a list of these. Columns: `source` (if
    there are several), `id`, `dataset` and `label` as in tables, `algorithm`, `test_environments` (joined
    by `+`), `draw`, `trial`, `state`, `training_seconds` of the run, which include `waiting_seconds` for
    data, `step`, `environment`, `split`, `metric`, `value`, `count`, and a column `hparams.NAME` for every
    hyperparameter. Validation scores of a board have the split `score` and the selection rule's name as
    metric. Raises `oodbench.errors.UserError` for a source that is neither a board nor a results directory.
    """
    from oodbench.results.read import records_of_sources

    return records_of_sources([source] if isinstance(source, str | PathLike) else source)
