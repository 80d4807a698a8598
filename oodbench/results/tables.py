"""Runs and their records in memory, and as one tidy table."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import cache, cached_property
from pathlib import Path, PurePath
from typing import Any

import pandas as pd
from pandas.api.types import is_object_dtype, union_categoricals

from oodbench.errors import counted, unknown
from oodbench.notes import AnyNote
from oodbench.results.parquet import CATEGORIES, RECORDS
from oodbench.results.run_spec import SCORE
from oodbench.yaml_values import read_yaml

PRETRAINING = Path(__file__).with_name("pretraining.yaml")
"""What is known about published weights: the datasets whose pictures they were trained on, with sources."""


@dataclass(frozen=True)
class Tables:
    """A results directory in memory."""

    runs: Any
    """The planned runs. A run that belongs to several rows of a table appears once for each, with the same
    `id`. Every source of runs gives all columns:

    - `id` and the fields of `RunSpec`; KINDS are among them;
    - `state`, `error` (of a failed run, or empty), `provenance`, `last_step`, `records` (their number),
      `training_seconds`, `waiting_seconds`, `evaluation_seconds` and `memory_mb`;
    - from the run's context, missing if the run never started: `training_environments`, `classes`,
      `metric`, `higher_is_better`, `constant`, `family`, `shift`, `data_notes`, `read_as`;
    - `selection` (the rule that the sweep names for its tables, or None), `plugins` (the modules that it
      imports), `hparams_from` (how an earlier sweep chose hyperparameters, or None);
    - `findings` (what the audit found in the dataset, each a `Finding` as a dict), if there are any;
    - `directory` (where the run was read), `frozen` (whether that is a board; None if no board is read),
      `rerun` (whether a directory has a frozen run with equal numbers), `helper` (whether the run only
      serves the rule `leave_one_out`, and has no cell)."""
    records: Any
    """One value per row: the columns `oodbench.results.parquet.RECORDS`; CATEGORIES are
    categorical. A value that was not finite is NaN. Metrics of the predictor itself have no `environment`
    and `split`.

    Frozen runs have records of their chosen steps on the test environments, and validation scores: records
    of the split SCORE whose `metric` is the selection rule."""
    notes: tuple[AnyNote, ...] = ()
    """Sentences printed below every table of these runs."""

    @cached_property
    def scores(self) -> pd.DataFrame:
        """The validation scores of frozen runs: `id`, `rule`, `step`, `score`."""
        scores: pd.DataFrame = self.records[self.records["split"] == SCORE]
        scores = scores.rename(columns={"metric": "rule", "value": "score"})
        return scores[["id", "rule", "step", "score"]].astype({"id": object, "rule": object})


KINDS = ("ceiling", "transductive", "reference")
"""The columns that mark rows which are not ranked as methods."""
ROW = ["dataset_label", "label"]
"""The columns that identify a row of a table."""
CELL = [*ROW, "test_environments", "trial"]
"""The columns that identify a cell."""


def plugins_of(frames: Tables) -> list[str]:
    """The plug-ins of these runs' sweeps, which may define rules and metrics that are not imported."""
    of_runs = frames.runs["plugins"].dropna().unique()
    return list(dict.fromkeys(plugin for plugins in of_runs for plugin in plugins))


def completed(runs: pd.DataFrame) -> pd.DataFrame:
    """Add the column `helper` to runs."""
    return runs.reset_index(drop=True).assign(helper=_helps(runs).to_numpy())


def _helps(runs: pd.DataFrame) -> "pd.Series[bool]":
    """Whether a run only serves `leave_one_out` selection.

    That is so for a pair of test environments if one of them is also held out alone and in a pair with
    every other environment of the dataset. The user asked for all other pairs.
    """
    helps = pd.Series(False, runs.index)
    columns = ["dataset_label", "test_environments", "training_environments"]
    for dataset, known in runs[columns].drop_duplicates().groupby("dataset_label", sort=False):
        sets = {frozenset(tests) for tests in known["test_environments"]}
        names = set().union(*known["test_environments"], *known["training_environments"])
        judged = {
            name for name in names if all(frozenset((name, other)) in sets for other in names)
        }
        serving = [t for t in sets if len(t) == 2 and not judged.isdisjoint(t)]
        if serving:
            of = runs["dataset_label"] == dataset
            helps |= of & runs["test_environments"].map(frozenset).isin(serving)
    return helps


def origins(runs: pd.DataFrame) -> dict[str, str]:
    """The origin of each row: `board`, `here` or `board, here`; empty if no board is read."""
    if runs["frozen"].isna().all():
        return {}
    frozen, again = (runs[name].eq(True) for name in ("frozen", "rerun"))
    places = {"board": {*runs.loc[frozen, "label"]}, "here": {*runs.loc[~frozen | again, "label"]}}
    return {
        str(label): ", ".join(place for place, labels in places.items() if label in labels)
        for label in runs["label"].unique()
    }


@cache
def _pretraining() -> Any:
    return read_yaml(PRETRAINING)


def weights_of(values: object, dataset: str = "") -> str:
    """The pretrained weights in a network's hyperparameters, and whether they have seen the dataset.

    Published weights are given by name, files by name and the beginning of their SHA-256. Empty for random
    initial weights.
    """
    if not isinstance(values, Mapping) or values.get("weights", "none") == "none":
        return ""
    model, weights = values.get("model"), str(values.get("file") or values["weights"])
    name = str(model) if weights == "cached" and model else PurePath(weights).name
    checksum = str(values.get("sha256") or "")
    text = f"{name} ({checksum[:8]})" if checksum else name
    seen, _ = seen_by(values, dataset)
    return f"{text}: {seen}" if seen else text


def seen_by(values: Mapping[str, Any], dataset: str) -> tuple[str, str]:
    """Whether weights have `seen` a dataset, and a sentence with the source; empty if it is not listed."""
    names = [str(values.get(key) or "") for key in ("weights", "model")]
    names += [str(values.get("sha256") or "")[:8]]
    for data, patterns in _pretraining()["weights"].items():
        if any(fnmatch(name, str(pattern)) for name in names for pattern in patterns):
            seen, source = _pretraining()["seen"].get(data, {}).get(dataset, ("", ""))
            return seen, f"{data} on {dataset}: {seen}; {source}." if seen else ""
    return "", ""


def pretraining(runs: pd.DataFrame) -> dict[tuple[str, str], str]:
    """`weights_of` each row of a table, by dataset and label."""
    found: dict[tuple[str, str], list[str]] = {}
    for row, dataset, values in _starts(runs):
        found.setdefault(row, []).append(weights_of(values, dataset))
    texts = {row: ", ".join(filter(None, dict.fromkeys(of_row))) for row, of_row in found.items()}
    return texts if any(texts.values()) else {}


def seen_before(runs: pd.DataFrame) -> list[str]:
    """Sentences on pretrained weights that have seen pictures of these runs' datasets."""
    sentences = [seen_by(v, dataset)[1] for _, dataset, v in _starts(runs) if weights_of(v)]
    return list(dict.fromkeys(filter(None, sentences)))


def _starts(runs: pd.DataFrame) -> Iterator[tuple[tuple[str, str], str, Any]]:
    columns = ["dataset_label", "label", "dataset", "options"]
    for name in ("network_hparams", "options"):
        shared = runs[name].map(id)  # the runs of a row share them
        firsts = ~runs[["dataset_label", "label"]].assign(shared=shared).duplicated()
        of_firsts = runs.loc[firsts, [*columns, name]].to_numpy()
        for dataset_label, label, dataset, options, values in of_firsts:
            of = options.get("of") if isinstance(options, Mapping) else None
            yield (dataset_label, label), str(of or dataset), values


def only(
    frames: Tables,
    datasets: Sequence[str] = (),
    rows: Sequence[str] = (),
    baseline: str | None = None,
    place: str = "",
) -> Tables:
    """Restrict tables to datasets and rows, given by their labels; an empty sequence means all.

    A text in `rows` may be several labels separated by commas. The baseline and ceilings are kept. Raises
    UserError for an unknown name.
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
                raise unknown(noun, name, there, place)
    if datasets:
        runs = runs[runs["dataset_label"].isin(datasets)]
    if labels:
        runs = runs[runs["label"].isin([*labels, baseline]) | runs["ceiling"]]
    return subset(frames, runs)


def subset(frames: Tables, runs: pd.DataFrame) -> Tables:
    """Restrict tables to these runs."""
    records = records_of(frames.records, runs["id"])
    return replace(frames, runs=runs.reset_index(drop=True), records=records)


def records_of(metrics: pd.DataFrame, ids: "pd.Series[str]") -> pd.DataFrame:
    """The records of the runs with these ids."""
    return metrics[metrics["id"].cat.categories.isin(ids)[metrics["id"].cat.codes]]


def stacked_runs(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Concatenate tables of runs; columns that a table lacks are missing values."""
    runs = pd.concat([table.dropna(axis=1, how="all") for table in tables], ignore_index=True)
    return runs.reindex(columns=list(dict.fromkeys(name for table in tables for name in table)))


def stacked(metrics: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Concatenate tables of records; texts stay categorical."""
    filled = [frame for frame in metrics if len(frame)] or metrics  # an empty one has no types
    return pd.DataFrame(
        {
            name: union_categoricals([frame[name] for frame in filled])
            if name in CATEGORIES
            else pd.concat([frame[name] for frame in filled]).to_numpy()
            for name in RECORDS.names
        }
    )


def with_records(records: pd.DataFrame, rows: Iterable[tuple[object, ...]]) -> pd.DataFrame:
    """Append records, each a tuple in the order of the columns RECORDS."""
    more = pd.DataFrame(list(rows), columns=RECORDS.names)
    return stacked([records, more.astype(dict.fromkeys(CATEGORIES, "category"))])


def records_at(
    tables: Tables, chosen: pd.DataFrame, metrics: Collection[str] | None = None
) -> pd.DataFrame:
    """Join each row of `chosen` with the records at its `id` and `step`, of `metrics` or of all."""
    records = records_of(tables.records, chosen["id"])
    if metrics is not None:
        names = records["metric"].cat
        records = records[names.categories.isin(metrics)[names.codes]]
    found = records.astype(dict.fromkeys(CATEGORIES, object))
    joined: pd.DataFrame = found.merge(chosen, on=["id", "step"])
    return joined


TIMES = ("training_seconds", "waiting_seconds")
RUN_COLUMNS = [
    *("dataset", "label", "algorithm", "test_environments", "draw", "trial", "state"),
    *TIMES,
]


def tidy(frames: Tables) -> pd.DataFrame:
    """All records as one table with one row per evaluation; see `oodbench.load`."""
    tests = frames.runs["test_environments"].map("+".join)
    runs = frames.runs.assign(dataset=frames.runs["dataset_label"], test_environments=tests)
    runs = runs.astype(dict.fromkeys(TIMES, float))
    hparams = pd.DataFrame(list(runs["hparams"]), index=runs.index).add_prefix("hparams.")
    table = pd.concat([runs[RUN_COLUMNS], hparams], axis=1)
    for name in [name for name in table if is_object_dtype(table[name])]:
        if table[name].map(lambda v: isinstance(v, list | tuple | dict)).any():
            table[name] = table[name].map(str)
    values = frames.records[RECORDS.names].astype(dict.fromkeys(CATEGORIES, object))
    joined: pd.DataFrame = values.merge(pd.concat([runs["id"], table], axis=1), on="id")
    return pd.DataFrame(joined[["id", *RUN_COLUMNS, *RECORDS.names[1:], *hparams]])


def chosen_once(about: Mapping[str, Any]) -> str:
    """How an earlier sweep has chosen hyperparameters, see `oodbench.sweep.chosen`."""
    draws, trials = counted(about["draws"], "draw"), counted(len(about["trials"]), "other trial")
    return f"chosen once, by {about['rule']} in {about['results']}, among {draws} in {trials}"
