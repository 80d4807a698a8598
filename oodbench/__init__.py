"""A benchmark harness for out-of-distribution generalization."""

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from oodbench.version import __version__ as __version__

if TYPE_CHECKING:
    import pandas as pd


def load(directory: str | PathLike[str]) -> "pd.DataFrame":
    """All records of a results directory, one evaluation a row, with what is known of its run.

    Columns: `id`, `dataset`, `label`, `algorithm`, `test_environments` (joined by `+`), `draw`,
    `trial`, `state`, `training_seconds` of the run and, of these, `waiting_seconds` for data, `step`,
    `environment`, `split`, `metric`, `value`, `count`, and a column `hparams.NAME` for every
    hyperparameter. Raises `oodbench.errors.UserError` if there is no sweep.
    """
    from oodbench.results.directory import Results
    from oodbench.results.export import tidy
    from oodbench.results.frames import load_frames

    return tidy(load_frames(Results(Path(directory))))
