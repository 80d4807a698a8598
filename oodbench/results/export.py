"""Records as one tidy data frame, and as a Parquet file. Imports no torch."""

from pathlib import Path

import pandas as pd

from oodbench.files import whole_file
from oodbench.results.frames import Frames, sweep_runs

TIMES = ("training_seconds", "waiting_seconds")
RUN_COLUMNS = (
    *("dataset", "label", "algorithm", "test_environments", "draw", "trial", "state"),
    *TIMES,
)


def tidy(frames: Frames) -> pd.DataFrame:
    """One evaluation a row; see `oodbench.load`."""
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
    place = pd.Index(runs["id"]).get_indexer(metrics["id"].cat.categories)
    rows = place[metrics["id"].cat.codes]
    wide = table.iloc[rows].reset_index(drop=True)
    names = list(Frames.METRIC_COLUMNS)
    values = metrics.reset_index(drop=True)
    parts = [values[["id"]], wide[list(RUN_COLUMNS)], values[names[1:]], wide[list(hparams)]]
    joined: pd.DataFrame = pd.concat(parts, axis=1)
    return joined


def write_parquet(frames: Frames, path: Path) -> int:
    """Write `tidy` as a Parquet file, whole or not at all; returns the number of rows."""
    table = tidy(frames)
    with whole_file(path) as file:
        table.to_parquet(file, index=False)
    return len(table)
