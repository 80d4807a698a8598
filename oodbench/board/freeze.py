"""Freezes results on a board: runs under its protocol, and their records at the steps that rules choose.

Results are checked before they are frozen; `board validate` checks the board.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from filelock import FileLock

from oodbench.board.checks import wrong_results
from oodbench.board.protocol import protocol_of
from oodbench.errors import UserError
from oodbench.files import nearest
from oodbench.results.boards import PROTOCOL_FILE, RECORDS_FILE, RUNS_FILE
from oodbench.results.directory import Directory
from oodbench.results.parquet import CATEGORIES, RECORDS, RUNS, table_of, write_table
from oodbench.results.predictions import freeze_predictions, predictions_file
from oodbench.results.provenance import method_digest
from oodbench.results.read import FURTHER, board_tables, read_board, read_results
from oodbench.results.run_spec import BEFORE, SCORE
from oodbench.results.tables import ROW, Tables, stacked_runs, subset
from oodbench.selection import find_rule, rule_names
from oodbench.selection.judge import judge_each
from oodbench.sweep.file import Sweep

WORST_GROUP = "worst_group_accuracy"
MADE_BY = (
    *("oodbench", "commit", "torch", "python"),
    *("machine", "device", "threads", "arithmetic"),
)
"""The fields of a run's provenance that a board keeps."""
RowName = tuple[str, str]
"""The dataset and the label of a row."""
TEXTS = dict.fromkeys(CATEGORIES, object)


def frozen_rules() -> list[str]:
    """The rules whose choices are frozen, if they can judge the runs; each also by the worst group."""
    rules = [rule for rule in map(find_rule, rule_names()) if rule.frozen]
    by_group = [f"{rule.name}:{WORST_GROUP}" for rule in rules if not rule.sees_test]
    return [*(rule.name for rule in rules), *by_group]


def freeze(
    results: Path, board: Path, data_dir: Path | None = None, predictions: bool = False
) -> tuple[list[RowName], list[RowName]]:
    """Add all rows of a results directory to a board, whose folder has its protocol.

    Returns the new rows, and the rows that were frozen already with the same numbers. `predictions` freezes
    kept predictions at the chosen steps, too. Raises UserError, and writes nothing, if a run is missing,
    stale or under another protocol, if several codes trained a row, or if a row is frozen with other
    numbers.
    """
    if not (board / PROTOCOL_FILE).is_file():
        copied = f"a new one has a copy of its sweep in {board / PROTOCOL_FILE}"
        near = nearest(board) * (not board.is_dir())
        raise UserError(f"{board} is not a board yet{near} ({copied})")
    protocol = protocol_of(board)
    if wrong := wrong_results(results, protocol, data_dir):
        more = f" (and {len(wrong) - 3} more)" if len(wrong) > 3 else ""
        raise UserError(f"{results} cannot be frozen: {'; '.join(wrong[:3])}{more}")
    runs, records = frozen_tables(read_results(Directory(results)))
    rows = _rows(runs)
    with FileLock(board / ".lock"):
        known, known_records = board_tables(board)
        known_rows = _rows(known)
        there = [row for row in rows if row in known_rows]
        for row in rows:
            ids = runs.loc[(runs[ROW] == list(row)).all(axis=1), "id"]
            ids = ids if row in there else ids[ids.isin(known["id"])]
            if _numbers(known_records, ids) != _numbers(records, ids):
                raise UserError(
                    f"{row[1]} on {row[0]} is frozen with other numbers: what changes a row is a new "
                    "version of the board, under a new name"
                )
        added = [row for row in rows if row not in there]
        new = runs[[row in added for row in runs[ROW].itertuples(index=False, name=None)]]
        if len(new):
            new = new.assign(provenance=pd.Series(_provenances(new, data_dir), new.index))
            of_new = records["id"].isin(new["id"]) & ~records["id"].isin(known["id"])
            values = pd.concat([known_records.astype(TEXTS), records[of_new]])
            _write(board, _in_order(stacked_runs([known, new]), protocol), values)
        if predictions:
            _freeze_predictions(Directory(results), board, set(runs["id"]))
    return added, there


def _write(board: Path, runs: pd.DataFrame, records: pd.DataFrame) -> None:
    run = pd.Index(runs["id"].unique()).get_indexer(records["id"])
    in_order = records.iloc[np.lexsort((records["step"], run))]
    write_table(table_of(in_order, RECORDS), board / RECORDS_FILE)
    write_table(table_of(runs, RUNS), board / RUNS_FILE)


def _freeze_predictions(results: Directory, board: Path, ids: set[str]) -> None:
    tables = read_board(board)
    tables = subset(tables, tables.runs[tables.runs["id"].isin(ids)])
    tests = dict(zip(tables.runs["id"], tables.runs["test_environments"], strict=True))
    by_dataset: dict[str, set[tuple[str, int]]] = defaultdict(set)
    for dataset, by_rule in judge_each(tables, frozen_rules()):
        tied = by_rule.tied
        by_dataset[dataset] |= set(zip(tied["id"], map(int, tied["step"]), strict=True))
    for dataset, steps in by_dataset.items():
        chosen = [(results.run(run_id), step, tests[run_id]) for run_id, step in sorted(steps)]
        freeze_predictions(predictions_file(board, dataset), chosen)


def _rows(runs: pd.DataFrame) -> list[RowName]:
    return list(runs[ROW].drop_duplicates().itertuples(index=False, name=None))


def _numbers(records: pd.DataFrame, ids: "pd.Series[str]") -> object:
    """The records of runs, sorted so that they can be compared."""
    of_runs = records[records["id"].isin(ids)].astype(TEXTS).fillna("")
    return of_runs.sort_values(RECORDS.names).to_numpy().tolist()


def _in_order(runs: pd.DataFrame, protocol: Sweep) -> pd.DataFrame:
    """The runs by dataset and row in the order of the protocol, then those of other rows."""
    listed = {
        "dataset_label": [entry.title for entry in protocol.datasets],
        "label": [row.title for row in protocol.algorithms],
    }

    def place(names: "pd.Series[str]") -> "pd.Series[int]":
        known = dict.fromkeys([*listed[str(names.name)], *sorted(set(names))])
        return names.map({name: i for i, name in enumerate(known)})

    return runs.sort_values(ROW, key=place, kind="stable", ignore_index=True)


def frozen_tables(tables: Tables) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A board's two tables, RUNS and RECORDS of `oodbench.results.parquet`, from runs that have all ended.

    At the steps that rules choose, these keep the records of the test environments' `in` splits for the
    dataset's metric and the worst group, and all records of the predictor. Validation scores are records of
    the split SCORE.
    """
    scores, runs = _scores(tables), tables.runs
    records = pd.concat([_kept(tables, scores), scores[RECORDS.names]], ignore_index=True)
    records = records.drop_duplicates(RECORDS.names[:5])
    contexts = runs[list(FURTHER[:3])].to_dict(orient="records")
    answers = zip(runs["constant"], runs["test_environments"], strict=True)
    frozen = runs.assign(
        state=runs["state"].astype(str),
        training_seconds=runs[["training_seconds", "evaluation_seconds"]].astype(float).sum(axis=1),
        **dict.fromkeys(("waiting_seconds", "evaluation_seconds", "memory_mb")),
        records=runs["id"].map(records.groupby("id").size()),
        constant=[_constant(answer, tests) for answer, tests in answers],
        context=[{k: v for k, v in each.items() if v is not None} for each in contexts],
    )
    return frozen.reindex(columns=RUNS.names), records


def _constant(answer: Any, tests: tuple[str, ...]) -> dict[str, Any] | None:
    if not isinstance(answer, Mapping):
        return None
    return {
        metric: {e: {"in": values["in"]} for e, values in of_metric.items() if e in tests}
        for metric, of_metric in answer.items()
    }


def _kept(tables: Tables, scores: pd.DataFrame) -> pd.DataFrame:
    about = tables.runs.drop_duplicates("id").set_index("id")
    about = about[["metric", "test_environments"]].add_suffix("_main")
    steps = scores[["id", "step"]].drop_duplicates()
    at = tables.records.astype(TEXTS).merge(steps, on=["id", "step"]).join(about, on="id")
    places = zip(at["environment"], at["split"], at["test_environments_main"], strict=True)
    is_test = pd.Series([e in tests and s == "in" for e, s, tests in places], at.index)
    is_main = at["metric"].str.removesuffix(BEFORE).eq(at["metric_main"])
    kept = is_test & (is_main | at["metric"].eq(WORST_GROUP)) | at["environment"].isna()
    records: pd.DataFrame = at.loc[kept, RECORDS.names]
    return records


def _scores(tables: Tables) -> pd.DataFrame:
    """A record for each run's best score by each rule."""
    about = {"environment": None, "split": SCORE, "count": 1}
    found = [
        by_rule.candidates.drop_duplicates("run").assign(metric=by_rule.rule.full_name, **about)
        for _, by_rule in judge_each(tables, frozen_rules())
    ]
    if not found:
        raise UserError("the runs serve no selection rule: nothing can be chosen")
    return pd.concat(found, ignore_index=True).rename(columns={"score": "value"})


def _provenances(runs: pd.DataFrame, data_dir: Path | None) -> list[dict[str, Any]]:
    """The provenance of each run: that of the row, which one code trained, with digests of the data."""
    made: dict[Any, dict[str, Any]] = {}
    digests: dict[str, dict[str, str]] = {}
    for row, of_row in runs.groupby(ROW, sort=False):
        name, options = of_row["dataset"].iloc[0], of_row["options"].iloc[0]
        trials = sorted(set(map(int, of_row["trial"])))
        key = repr((name, sorted(options.items()), trials))
        if key not in digests:
            digests[key] = data_digests(name, options, trials, data_dir)
        made[row] = _provenance(of_row["provenance"]) | {"vectorized": False, "data": digests[key]}
    keys = runs[ROW].itertuples(index=False, name=None)
    return [
        made[row] | {"vectorized": bool(of_run.get("vectorized", False))}
        for row, of_run in zip(keys, runs["provenance"], strict=True)
    ]


def _provenance(provenances: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    made = [p for p in provenances if p]
    sources = {digest for p in made if (digest := method_digest(p))}
    days = sorted(str(p["started"])[:10] for p in made if "started" in p)
    known: dict[str, Any] = {
        name: ", ".join(values) if len(values) > 1 else values[0]
        for name in MADE_BY
        if (values := list(dict.fromkeys(p[name] for p in made if p.get(name) is not None)))
    }
    known["dates"] = [days[0], days[-1]] if days else []
    return known | ({"source": sources.pop()} if sources else {})


def data_digests(
    name: str, options: Mapping[str, Any], trials: Iterable[int], data_dir: Path | None
) -> dict[str, str]:
    """A digest of each environment's inputs and targets in these trials.

    Inputs that are not in memory are represented by the checksums of the dataset's files.
    """
    import torch

    from oodbench.data.preparation import load_checked
    from oodbench.datasets import make

    dataset = make(name, options, data_dir)
    hashes: dict[str, Any] = {}
    for trial in trials:
        for environment, data in load_checked(dataset, trial).items():
            digest = hashes.setdefault(environment, hashlib.sha256())
            for tensor in (data.x, data.y):
                if isinstance(tensor, torch.Tensor):
                    digest.update(tensor.detach().contiguous().cpu().numpy().tobytes())
    files = "".join(f"{k}{v}" for k, v in sorted(dataset.checksums.items()))
    for digest in hashes.values():
        digest.update(files.encode())
    return {environment: digest.hexdigest()[:16] for environment, digest in hashes.items()}
