"""Records as one tidy data frame, and as files that other programs read."""

from pathlib import Path

import pandas as pd

from oodbench.files import whole_file
from oodbench.results.frames import Frames, sweep_runs
from oodbench.terminal import printable

TIMES = ("training_seconds", "waiting_seconds")
RUN_COLUMNS = (
    *("dataset", "label", "algorithm", "test_environments", "draw", "trial", "state"),
    *TIMES,
)


def tidy(frames: Frames) -> pd.DataFrame:
    """Return all records as one table with an evaluation a row; see `oodbench.load`."""
    runs = sweep_runs(frames)
    runs["dataset"] = runs["dataset_label"]
    runs["test_environments"] = runs["test_environments"].map("+".join)
    runs = runs.astype(dict.fromkeys(TIMES, float))
    hparams = pd.DataFrame(list(runs["hparams"]), index=runs.index).add_prefix("hparams.")
    table = pd.concat([runs[list(RUN_COLUMNS)], hparams], axis=1)
    for name in table.select_dtypes(object):
        values = table[name]
        mixed = values.map(lambda v: isinstance(v, list | tuple | dict)).any()
        table[name] = (values.map(str) if mixed else values).astype("category")
    metrics = frames.metrics
    index_of = pd.Index(runs["id"]).get_indexer(metrics["id"].cat.categories)
    rows = index_of[metrics["id"].cat.codes]
    wide = table.iloc[rows].reset_index(drop=True)
    names = list(Frames.METRIC_COLUMNS)
    values = metrics.reset_index(drop=True)
    columns = [values[["id"]], wide[list(RUN_COLUMNS)], values[names[1:]], wide[list(hparams)]]
    joined: pd.DataFrame = pd.concat(columns, axis=1)
    return joined


FORMATS = ("parquet", "csv")
"""The formats of `write`."""


def write(frames: Frames, path: Path, format_: str) -> int:
    """Write `tidy` as a file, whole or not at all; returns the number of rows.

    Parquet, which programs read, has names as they were given. In CSV numbers have all their digits, NaN is
    empty, and control characters in names are escapes.
    """
    table = tidy(frames)
    if format_ == "csv":
        for name in table.select_dtypes("category"):
            table[name] = table[name].map(lambda v: printable(v) if isinstance(v, str) else v)
    with whole_file(path) as file:
        (table.to_csv if format_ == "csv" else table.to_parquet)(file, index=False)
    return len(table)
