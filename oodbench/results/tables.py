"""Runs and their records in memory, and as one tidy table."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype, union_categoricals

from oodbench.errors import UserError, unknown
from oodbench.notes import AnyNote
from oodbench.results.run_spec import SCORE


@dataclass(frozen=True)
class Tables:
    """A results directory in memory."""

    RECORD_COLUMNS = ("id", "step", "environment", "split", "metric", "value", "count")

    runs: Any
    """The planned runs, one a row: `id`, the fields of `RunSpec`, `state`, `provenance`, KINDS, and the
    run's context: `dataset_label`, `training_environments`, `classes`, `metric`, `higher_is_better` (all
    but the first missing if never started); `helper`: whether its pair of test environments is there for
    `leave_one_out` alone, and makes no cell of its own;
    `error` (of a failed run, or empty), `last_step`, `training_seconds`, `waiting_seconds`,
    `evaluation_seconds` and `memory_mb` as recorded up to then; `selection` (the rule that the sweep
    names for its tables; missing if it names none) and `plugins` (the modules that the sweep imports;
    missing of frozen runs)."""
    records: Any
    """Evaluations, one a row: RECORD_COLUMNS; `environment` and `split` are None for the predictor's own;
    a value that was not finite is NaN. `id` and the three names are categorical."""
    scores: Any = None
    """The validation scores of frozen runs (those in a column `frozen` of the runs), whose other
    records are not here: `id`, `rule`, `step`, `score`, a row for a run's candidate by a rule. None
    without such runs."""
    notes: tuple[AnyNote, ...] = ()
    """Sentences on these runs that stand below every table of them."""


KINDS = ("ceiling", "transductive", "reference")
"""The columns that mark the runs of rows which are no plain methods."""
CELL = ["dataset_label", "label", "test_environments", "trial"]
"""The columns of a run that make its cell."""


def frozen_scores(tables: Tables) -> "pd.DataFrame | None":
    """The validation scores of frozen runs: `id`, `rule`, `step`, `score`; None without such runs."""
    scores: pd.DataFrame | None = tables.scores
    return scores


def plugins_of(frames: Tables) -> list[str]:
    """Return the plug-ins of these runs' sweeps; they may define rules or metrics not known here."""
    if "plugins" not in frames.runs:
        return []
    of_runs = frames.runs["plugins"].dropna().unique()
    return list(dict.fromkeys(plugin for plugins in of_runs for plugin in plugins))


def completed(runs: pd.DataFrame) -> pd.DataFrame:
    """The planned runs with the column `helper`; raises UserError if none is planned."""
    if runs.empty:
        raise UserError("the sweep plans no run")
    return runs.reset_index(drop=True).assign(helper=_helps(runs).to_numpy())


def _helps(runs: pd.DataFrame) -> "pd.Series[bool]":
    """Return whether a run serves `leave_one_out` alone.

    One of its two test environments is then also held out alone, and in a pair with every other
    environment of the dataset. Any other pair is one that a user wants to see.
    """
    helps = pd.Series(False, runs.index)
    columns = ["dataset_label", "test_environments", "training_environments"]
    known = runs[columns].drop_duplicates()
    for dataset, of_dataset in known.groupby("dataset_label", sort=False):
        sets = {frozenset(tests) for tests in of_dataset["test_environments"]}
        names = set().union(*of_dataset["test_environments"], *of_dataset["training_environments"])
        judged = {
            name for name in names if all(frozenset((name, other)) in sets for other in names)
        }
        serving = [t for t in sets if len(t) == 2 and not judged.isdisjoint(t)]
        if serving:
            of = runs["dataset_label"] == dataset
            helps |= of & runs["test_environments"].map(frozenset).isin(serving)
    return helps


def origins(runs: pd.DataFrame) -> dict[str, str]:
    """Return where each row of a table beside a board is from: `board`, `here` or `board, here`."""
    if "frozen" not in runs:
        return {}
    frozen = runs["frozen"].eq(True)
    again = runs["rerun"].eq(True) if "rerun" in runs else ~frozen
    places = {
        "board": set(runs.loc[frozen, "label"]),
        "here": set(runs.loc[~frozen | again, "label"]),
    }
    return {
        str(label): ", ".join(place for place, labels in places.items() if label in labels)
        for label in runs["label"].unique()
    }


def pretraining(runs: pd.DataFrame) -> dict[tuple[str, str], str]:
    """Return the weights that the networks of a table's rows began with, by dataset and label; empty if
    random.

    Files go by their names and the beginning of their SHA-256, published weights by theirs.
    """
    if "network_hparams" not in runs:
        return {}
    rows = runs[["dataset_label", "label"]].reset_index(drop=True)
    known: dict[Any, list[str]] = {
        row: [] for row in rows.drop_duplicates().itertuples(index=False, name=None)
    }
    for name in ("network_hparams", "options"):
        values: Any = runs[name].to_numpy() if name in runs else []
        shared = pd.Series(
            map(id, values), dtype=np.int64
        )  # the runs of a board share their values
        firsts = rows[: len(values)].assign(shared=shared).drop_duplicates()
        for place, dataset, label in firsts[["dataset_label", "label"]].itertuples(name=None):
            known[dataset, label].append(_weights(values[place]))
    texts = {row: ", ".join(filter(None, dict.fromkeys(of_row))) for row, of_row in known.items()}
    return texts if any(texts.values()) else {}


def _weights(values: object) -> str:
    """Return the name of the weights among a network's hyperparameters or a dataset's options."""
    if not isinstance(values, Mapping) or values.get("weights", "none") == "none":
        return ""
    model, weights = values.get("model"), str(values.get("file") or values["weights"])
    name = str(model) if weights == "cached" and model else PurePath(weights).name
    checksum = str(values.get("sha256") or "")
    return f"{name} ({checksum[:8]})" if checksum else name


def only(
    frames: Tables,
    datasets: Sequence[str] = (),
    rows: Sequence[str] = (),
    baseline: str | None = None,
) -> Tables:
    """Return the runs and records of these datasets and rows, by their labels; of all where none is given.

    A text of `rows` may hold several labels with commas. The baseline and ceilings stay. Raises UserError
    for an unknown name.
    """
    if not (datasets or rows):
        return frames
    runs = frames.runs
    places, known = ([str(x) for x in runs[c].unique()] for c in ("dataset_label", "label"))
    labels = [
        label.strip() for text in rows for label in ([text] if text in known else text.split(","))
    ]
    for noun, names, there in (("dataset", datasets, places), ("algorithm", labels, known)):
        for name in names:
            if name not in there:
                raise unknown(noun, name, there)
    if datasets:
        runs = runs[runs["dataset_label"].isin(datasets)]
    if labels:
        runs = runs[runs["label"].isin([*labels, baseline]) | runs["ceiling"]]
    return subset(frames, runs)


def subset(frames: Tables, runs: pd.DataFrame) -> Tables:
    """Return the frames, restricted to these runs."""
    ids, scores = runs["id"], frames.scores
    if scores is not None:
        scores = scores[scores["id"].isin(ids)]
    metrics = records_of(frames.records, ids)
    return replace(frames, runs=runs.reset_index(drop=True), records=metrics, scores=scores)


def records_of(metrics: pd.DataFrame, ids: "pd.Series[str]") -> pd.DataFrame:
    """Return the records of the runs with these ids."""
    return metrics[metrics["id"].cat.categories.isin(ids)[metrics["id"].cat.codes]]


def renamed(records: pd.DataFrame, ids: Mapping[str, str]) -> pd.DataFrame:
    """Return records with other ids of runs; those of runs that `ids` lacks are not among them."""
    known = records["id"].cat.remove_unused_categories()
    return records.assign(id=known.cat.rename_categories(lambda run_id: ids[run_id]))


def stacked_runs(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Concatenate tables of runs; the result has the columns of all."""
    runs = pd.concat([table.dropna(axis=1, how="all") for table in tables], ignore_index=True)
    return runs.reindex(columns=list(dict.fromkeys(name for table in tables for name in table)))


def stacked(metrics: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Concatenate tables of metrics; the names stay categorical."""
    columns: dict[str, Any] = {}
    filled = [frame for frame in metrics if len(frame)] or metrics  # an empty one has no types
    for name in Tables.RECORD_COLUMNS:
        columns_of = [frame[name] for frame in filled]
        categorical = name in ("id", "environment", "split", "metric")
        columns[name] = (
            union_categoricals(columns_of) if categorical else pd.concat(columns_of).to_numpy()
        )
    return pd.DataFrame(columns)


def records_at(
    tables: Tables, chosen: pd.DataFrame, metrics: Collection[str] | None = None
) -> pd.DataFrame:
    """The records (of these metrics) at the `id` and `step` of each row of `chosen`, and its other columns.

    An id stands in one row.
    """
    records = tables.records
    places = pd.Index(chosen["id"]).get_indexer(records["id"].cat.categories)
    row = places[records["id"].cat.codes.to_numpy()]
    there = row >= 0
    if metrics is not None:
        names = records["metric"].cat
        there &= names.categories.isin(metrics)[names.codes.to_numpy()]
    kept = np.flatnonzero(there)
    kept = kept[records["step"].to_numpy()[kept] == chosen["step"].to_numpy()[row[kept]]]
    names = dict.fromkeys(("id", "environment", "split", "metric"), object)
    found = records.iloc[kept].astype(names).reset_index(drop=True)
    others = chosen.drop(columns=["id", "step"]).iloc[row[kept]].reset_index(drop=True)
    joined: pd.DataFrame = pd.concat([found, others], axis=1)
    return joined


TIMES = ("training_seconds", "waiting_seconds")
RUN_COLUMNS = (
    *("dataset", "label", "algorithm", "test_environments", "draw", "trial", "state"),
    *TIMES,
)


def tidy(frames: Tables) -> pd.DataFrame:
    """Return all records as one table with an evaluation a row; see `oodbench.load`."""
    tests = frames.runs["test_environments"].map("+".join)
    runs = frames.runs.assign(dataset=frames.runs["dataset_label"], test_environments=tests)
    runs = runs.astype(dict.fromkeys(TIMES, float))
    hparams = pd.DataFrame(list(runs["hparams"]), index=runs.index).add_prefix("hparams.")
    table = pd.concat([runs[list(RUN_COLUMNS)], hparams], axis=1)
    for name in [name for name in table if not is_numeric_dtype(table[name])]:
        values = table[name]
        mixed = values.map(lambda v: isinstance(v, list | tuple | dict)).any()
        table[name] = (values.map(str) if mixed else values).astype("category")
    metrics = frames.records
    if frames.scores is not None:
        metrics = stacked([metrics, _as_records(frames.scores)])
    index_of = pd.Index(runs["id"]).get_indexer(metrics["id"].cat.categories)
    rows = index_of[metrics["id"].cat.codes]
    wide = table.iloc[rows].reset_index(drop=True)
    names = list(Tables.RECORD_COLUMNS)
    values = metrics.reset_index(drop=True)
    columns = [values[["id"]], wide[list(RUN_COLUMNS)], values[names[1:]], wide[list(hparams)]]
    joined: pd.DataFrame = pd.concat(columns, axis=1)
    plain = joined["id"].astype(object).str.partition("@")[0]  # of runs that stand in several rows
    return joined.assign(id=plain.astype("category"))


def _as_records(scores: pd.DataFrame) -> pd.DataFrame:
    """Return validation scores as records of the split `score`."""
    records = scores.rename(columns={"rule": "metric", "score": "value"})
    records = records.assign(environment=None, split=SCORE, count=1)[list(Tables.RECORD_COLUMNS)]
    return records.astype(dict.fromkeys(("id", "environment", "split", "metric"), "category"))


def chosen_once(about: Mapping[str, Any]) -> str:
    """Return how an earlier sweep has chosen hyperparameters, see `oodbench.sweep.resolve`."""
    draws, trials = about["draws"], len(about["trials"])
    return (
        f"chosen once, by {about['rule']} in {about['results']}, among {draws} draw{'s' * (draws != 1)} "
        f"in {trials} other trial{'s' * (trials != 1)}"
    )
