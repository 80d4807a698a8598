"""A results directory in memory. Imports no torch, and pandas only to load one."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oodbench.records import Results, RunSpec


@dataclass(frozen=True)
class Frames:
    """A results directory in memory."""

    METRIC_COLUMNS = ("id", "step", "environment", "split", "metric", "value", "count")

    runs: Any
    """A run a row: `id`, the fields of `RunSpec`, `state`, `provenance`, and the run's context:
    `dataset_label`, `training_environments`, `metric`, `higher_is_better` (missing if never started);
    `error` (of a failed run, or empty), `last_step`, `training_seconds`, `waiting_seconds`,
    `evaluation_seconds` and `memory_mb` as recorded up to then; `search` (how its draw was
    chosen) and `search_draws` (how many draws the search of its cell will have; missing for random
    draws)."""
    metrics: Any
    """An evaluation a row: METRIC_COLUMNS; `environment` and `split` are None for the predictor's own;
    a value that was not finite is NaN. `id` and the three names are categorical."""


def load_frames(results: Results, runs: Mapping[str, RunSpec] | None = None) -> Frames:
    """The planned runs, or these (by id), and their records as two data frames.

    Raises UserError if there is no sweep or a line of JSON is no record.
    """
    from oodbench.cache import load

    return Frames(*load(results, runs))
