"""Freeze results: a board has the runs of its protocol, and of their records those that rules choose."""

import hashlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from oodbench.board.checks import ROW, refuse, wrong_results
from oodbench.board.protocol import label_of, name_of, protocol_of
from oodbench.errors import UserError
from oodbench.results.boards import PROTOCOL_FILE, RECORDS_FILE, RUNS_FILE, lock
from oodbench.results.directory import Results
from oodbench.results.parquet import (
    CATEGORIES,
    RECORDS,
    RUNS,
    read_table,
    records_frame,
    runs_frame,
    table_of,
    write_table,
)
from oodbench.results.predictions import freeze_predictions, predictions_file
from oodbench.results.provenance import method_digest
from oodbench.results.read import FURTHER, read_board, read_results
from oodbench.results.run_spec import BEFORE, SCORE
from oodbench.results.tables import Tables, only, stacked, stacked_runs, subset
from oodbench.selection import Chosen, find_rule, judge, rule_names
from oodbench.sweep.file import Sweep

WORST_GROUP = "worst_group_accuracy"
MADE_BY = (
    *("oodbench", "commit", "torch", "python"),
    *("machine", "device", "threads", "arithmetic"),
)
"""The fields of the runs' provenance that a board keeps."""
Row = tuple[str, str]
"""A row of a table: its dataset and its label."""


def frozen_rules() -> list[str]:
    """Return the rules whose choices are frozen where a dataset serves them, also by worst groups."""
    rules = [rule for rule in map(find_rule, rule_names()) if rule.frozen]
    by_group = [f"{rule.name}:{WORST_GROUP}" for rule in rules if not rule.sees_test]
    return [*(rule.name for rule in rules), *by_group]


@dataclass(frozen=True)
class Frozen:
    """The rows that freezing added or left alone."""

    added: tuple[Row, ...]
    there: tuple[Row, ...]
    """The rows that were there, with the same numbers."""


def freeze(
    results: Path, board: Path, data_dir: Path | None = None, predictions: bool = False
) -> Frozen:
    """Add all rows of a results directory to a board, whose protocol must be there.

    With `predictions`, those of the steps that rules choose are frozen, too. Raises UserError, and
    writes nothing, if a run is missing, stale or under another protocol, a row was trained by several
    codes, or a row is frozen already with other numbers.
    """
    if not (board / PROTOCOL_FILE).is_file():
        raise UserError(f"{board} is no board yet: copy its sweep to {board / PROTOCOL_FILE}")
    protocol = protocol_of(board)
    refuse(wrong_results(results, protocol, data_dir), f"{results} cannot be frozen")
    runs, records = frozen_tables(read_results(Results(results)))
    with lock(board):
        known, known_records = tables_of(board)
        there = _rows(known)
        for row in _rows(runs):
            ids = runs.loc[(runs[ROW] == list(row)).all(axis=1), "id"]
            ids = ids if row in there else ids[ids.isin(known["id"])]
            if _numbers(known_records, ids) != _numbers(records, ids):
                raise UserError(
                    f"{row[1]} on {row[0]} is frozen with other numbers: what changes a row is a new "
                    "version of the board, under a new name"
                )
        is_new = pd.Series(
            [r not in there for r in zip(*(runs[n] for n in ROW), strict=True)], runs.index
        )
        if is_new.any():
            both = stacked_runs([known, _with_data(runs[is_new], data_dir)])
            of_new = records["id"].isin(runs.loc[is_new, "id"]) & ~records["id"].isin(known["id"])
            values = [
                f.astype(dict.fromkeys(CATEGORIES, "category"))
                for f in (known_records, records[of_new])
            ]
            _write(board, _in_order(both, protocol), stacked(values))
        if predictions:
            _freeze_predictions(Results(results), board, set(runs["id"]))
    added = _rows(runs[is_new])
    return Frozen(tuple(added), tuple(row for row in _rows(runs) if row not in added))


def _write(board: Path, runs: pd.DataFrame, records: pd.DataFrame) -> None:
    """Write the two tables, the records in the order of the runs."""
    place = pd.Index(runs["id"].unique()).get_indexer(records["id"])
    records = records.iloc[place.argsort(kind="stable")].astype(dict.fromkeys(CATEGORIES, object))
    write_table(table_of(records, RECORDS), board / RECORDS_FILE)
    write_table(table_of(runs, RUNS), board / RUNS_FILE)


def _freeze_predictions(results: Results, board: Path, ids: set[str]) -> None:
    """Freeze the predictions of these runs where a table of the board shows them by any rule."""
    tables = read_board(board)
    tables = subset(tables, tables.runs[_bare(tables.runs["id"]).isin(ids)])
    tests = dict(zip(_bare(tables.runs["id"]), tables.runs["test_environments"], strict=True))
    for dataset, by_rule in _judged_by_rule(tables).items():
        tied = pd.concat([one.tied[["id", "step"]] for one in by_rule.values()])
        steps = sorted(set(zip(_bare(tied["id"]), map(int, tied["step"]), strict=True)))
        chosen = [(results.run(run_id), step, tests[run_id]) for run_id, step in steps]
        freeze_predictions(predictions_file(board, dataset), chosen)


def _bare(ids: "pd.Series[str]") -> "pd.Series[str]":
    """Return the ids without the labels that tell the rows of one run apart in memory."""
    return ids.astype(str).str.replace("@.*", "", regex=True)


def tables_of(board: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the two tables of a board as they are on the disk, empty if nothing is frozen yet."""
    if not (board / RUNS_FILE).is_file():
        return runs_frame(RUNS.empty_table()), records_frame([])
    runs = runs_frame(read_table(board / RUNS_FILE, RUNS))
    return runs, records_frame([read_table(board / RECORDS_FILE, RECORDS)])


def _rows(runs: pd.DataFrame) -> list[Row]:
    return list(runs[ROW].drop_duplicates().itertuples(index=False, name=None))


def _numbers(records: pd.DataFrame, ids: "pd.Series[str]") -> object:
    """Return what a training of runs gives again, in an order that it cannot change."""
    own = records[records["id"].isin(ids)].astype(dict.fromkeys(CATEGORIES, object)).fillna("")
    return own.sort_values(RECORDS.names).to_numpy().tolist()


def _in_order(runs: pd.DataFrame, protocol: Sweep) -> pd.DataFrame:
    """Return the runs by dataset and row in the order of the protocol; what it does not list comes last."""
    places = {
        "dataset_label": [name_of(entry) for entry in protocol.datasets],
        "label": [label_of(row) for row in protocol.algorithms],
    }
    ranks = {
        f"rank of {column}": runs[column]
        .map({n: i for i, n in enumerate(names)})
        .fillna(len(names))
        for column, names in places.items()
    }
    table = runs.assign(**ranks).sort_values([*ranks, *ROW], kind="stable", ignore_index=True)
    return table.drop(columns=list(ranks))


def frozen_tables(tables: Tables) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return runs that have all ended, and their records at the steps that rules choose, as a board has
    them.

    The columns are `oodbench.results.parquet.RUNS` and RECORDS. Of a step's records those of the `in`
    splits of test environments are kept, by the metric that ranks the dataset and by worst groups, and
    those of the predictor itself. A validation score is a record of the split `score`.
    """
    chosen, runs = _chosen(tables), tables.runs
    about = runs.set_index("id")[["metric", "test_environments"]].add_suffix("_main")
    steps = chosen[["id", "step"]].drop_duplicates()
    at = tables.records.astype(dict.fromkeys(CATEGORIES, object)).merge(steps, on=["id", "step"])
    at = at.join(about, on="id")
    places = zip(at["environment"], at["split"], at["test_environments_main"], strict=True)
    is_test = pd.Series([e in tests and s == "in" for e, s, tests in places], at.index)
    is_main = at["metric"].str.removesuffix(BEFORE).eq(at["metric_main"])
    kept = is_test & (is_main | at["metric"].eq(WORST_GROUP)) | at["environment"].isna()
    scores = chosen.rename(columns={"rule": "metric", "score": "value"})
    scores = scores.assign(environment=None, split=SCORE, count=1)
    records = pd.concat([at.loc[kept, RECORDS.names], scores[RECORDS.names]], ignore_index=True)
    order = dict(zip(runs["id"], range(len(runs)), strict=True))
    records = records.sort_values(
        ["id", "step"], key=lambda c: c.map(order) if c.name == "id" else c, kind="stable"
    )
    sizes = records.groupby("id").size()
    spent = runs[["training_seconds", "evaluation_seconds"]].astype(float).sum(axis=1)
    contexts = runs[list(FURTHER[:3])].to_dict(orient="records")
    known = [{k: v for k, v in each.items() if v is not None} for each in contexts]
    frozen = runs.assign(
        state=runs["state"].astype(str),
        training_seconds=spent,
        waiting_seconds=None,
        evaluation_seconds=None,
        memory_mb=None,
        records=runs["id"].map(sizes),
        constant=_constants(runs),
        context=known,
        provenance=_provenances(runs),
    )
    records = records.assign(id=_bare(records["id"])).drop_duplicates(RECORDS.names[:5])
    return frozen.assign(id=_bare(frozen["id"])).reindex(columns=RUNS.names), records


def _chosen(tables: Tables) -> pd.DataFrame:
    """Return the `id`, `rule`, `step` and `score` of each run's candidate by each rule that its dataset
    serves.
    """
    found = [
        by_rule.candidates.drop_duplicates("id")[["id", "step", "score"]].assign(rule=rule)
        for of_dataset in _judged_by_rule(tables).values()
        for rule, by_rule in of_dataset.items()
    ]
    if not found:
        raise UserError("the runs serve no selection rule: nothing can be chosen")
    return pd.concat(found, ignore_index=True)


def _judged_by_rule(tables: Tables) -> dict[str, dict[str, Chosen]]:
    """Judge the runs of each dataset by the rules that it serves."""
    found: dict[str, dict[str, Chosen]] = {}
    for dataset in map(str, tables.runs["dataset_label"].unique()):
        of_dataset = only(tables, [dataset])
        for rule in frozen_rules():
            with suppress(UserError):
                by_rule = judge(of_dataset, rule)
                if len(by_rule.candidates):
                    found.setdefault(dataset, {})[rule] = by_rule
    return found


def _provenances(runs: pd.DataFrame) -> "pd.Series[Any]":
    """Return the provenance of each run: that of its row, which one code has trained."""
    made = pd.Series([{}] * len(runs), runs.index, dtype=object)
    for _, row in runs.groupby(ROW, sort=False):
        of_row = _provenance(row["provenance"])
        shared = {v: of_row | {"vectorized": v} for v in (False, True)}
        made[row.index] = [shared[bool(p.get("vectorized", False))] for p in row["provenance"]]
    return made


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


def _constants(runs: pd.DataFrame) -> "pd.Series[Any]":
    """Return the constant answers of the runs, on the `in` splits of their test environments."""
    known: dict[tuple[int, tuple[str, ...]], Any] = {}
    for answer, tests in zip(runs["constant"], runs["test_environments"], strict=True):
        if isinstance(answer, Mapping) and (id(answer), tests) not in known:
            known[id(answer), tests] = {
                metric: {e: {"in": v["in"]} for e, v in of_metric.items() if e in tests}
                for metric, of_metric in answer.items()
            }
    places = zip(runs["constant"], runs["test_environments"], strict=True)
    return pd.Series([known.get((id(a), tests)) for a, tests in places], runs.index, dtype=object)


def _with_data(runs: pd.DataFrame, data_dir: Path | None) -> pd.DataFrame:
    """Return the runs with digests of the data of their rows in the provenance."""
    known: dict[str, dict[str, str]] = {}
    for _, row in runs.groupby(ROW, sort=False):
        name, options = row["dataset"].iloc[0], row["options"].iloc[0]
        trials = sorted(set(map(int, row["trial"])))
        key = repr((name, sorted(options.items()), trials))
        if key not in known:
            known[key] = data_digests(name, options, trials, data_dir)
        for made in {id(p): p for p in row["provenance"]}.values():
            made["data"] = known[key]
    return runs


def data_digests(
    name: str, options: Mapping[str, Any], trials: Iterable[int], data_dir: Path | None
) -> dict[str, str]:
    """Return a digest of the inputs and targets of each environment, over these trials in order.

    Inputs that are not held in memory are represented by the checksums of the dataset's files.
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
