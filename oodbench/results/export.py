"""Records as one tidy data frame, and as files that other programs read."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from oodbench.errors import UserError, missing_package
from oodbench.files import whole_file, whole_folder
from oodbench.results.frames import Frames, sweep_runs
from oodbench.terminal import printable

TIMES = ("training_seconds", "waiting_seconds")
RUN_COLUMNS = (
    *("dataset", "label", "algorithm", "test_environments", "draw", "trial", "state"),
    *TIMES,
)


def tidy(frames: Frames) -> pd.DataFrame:
    """All records as one table with an evaluation a row; see `oodbench.load`."""
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
    columns = [values[["id"]], wide[list(RUN_COLUMNS)], values[names[1:]], wide[list(hparams)]]
    joined: pd.DataFrame = pd.concat(columns, axis=1)
    return joined


def write_parquet(frames: Frames, path: Path) -> int:
    """Write `tidy` as a Parquet file, whole or not at all; returns the number of rows.

    Names are as they were given, control characters included: the file is read by programs.
    """
    table = tidy(frames)
    with whole_file(path) as file:
        table.to_parquet(file, index=False)
    return len(table)


def write_csv(frames: Frames, path: Path) -> int:
    """Write `tidy` as a CSV file, whole or not at all; returns the number of rows.

    Numbers have all their digits, NaN is empty, control characters in names are escapes.
    """
    table = tidy(frames)
    for name in table.select_dtypes("category"):
        table[name] = table[name].map(lambda v: printable(v) if isinstance(v, str) else v)
    with whole_file(path) as file:
        table.to_csv(file, index=False)
    return len(table)


def write_tensorboard(frames: Frames, folder: Path) -> int:
    """Write TensorBoard's event files, a run a folder, whole or not at all; returns the number of values.

    A value's tag is METRIC/ENVIRONMENT/SPLIT, a metric of the predictor has its name alone; control
    characters in names are escapes. Raises UserError if the folder is there, and MissingError without
    the package `tensorboard`.
    """
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError as error:
        raise missing_package("the export to event files", "tensorboard", "tensorboard") from error
    if folder.exists():
        raise UserError(f"{folder} is there already; use another --out")
    table = tidy(frames)
    with whole_folder(folder) as temporary:
        for _, records in table.groupby("id", sort=False, observed=True):
            writer = EventFileWriter(str(temporary / _run_folder(records.iloc[0])))
            for record in records.to_dict(orient="records"):
                place = [record[k] for k in ("metric", "environment", "split")]
                tag = "/".join(printable(name) for name in place if isinstance(name, str))
                value = Summary.Value(tag=tag, simple_value=record["value"])
                writer.add_event(Event(step=record["step"], summary=Summary(value=[value])))
            writer.close()
    return len(table)


def _run_folder(record: "pd.Series[Any]") -> str:
    """A run's folder by its place in the sweep, without what file systems do not take."""
    where = [record["dataset"], record["label"], record["test_environments"]]
    last = f"draw {record['draw']} trial {record['trial']} {record['id'][:8]}"
    return "/".join(re.sub(r"[^\w+=,() -]", "_", str(name))[:80] for name in (*where, last))


WRITERS: Mapping[str, Callable[[Frames, Path], int]] = {
    "parquet": write_parquet,
    "csv": write_csv,
    "tensorboard": write_tensorboard,
}
"""The functions that write all records, by the name of the format; each returns the number of values."""
