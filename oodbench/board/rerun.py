"""Train frozen runs again, and check whether they equal the board's."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from oodbench.algorithms import algorithms
from oodbench.board.checks import ROW
from oodbench.board.freeze import data_digests
from oodbench.board.protocol import name_of, possible, protocol_of
from oodbench.errors import unknown
from oodbench.notes import AnyNote
from oodbench.report.differences import Agreement, compared, distance, named, origin, outcome
from oodbench.results.directory import Directory
from oodbench.results.parquet import specs_of
from oodbench.results.read import read_board, read_results
from oodbench.results.run_spec import RunSpec
from oodbench.results.tables import subset
from oodbench.sweep.launch import LaunchOptions, launch_specs


@dataclass(frozen=True)
class Rerun:
    """The comparison of runs that were trained again with the frozen ones."""

    table: pd.DataFrame
    """The runs, as `compared` has them."""
    sentences: list[AnyNote]
    agree: bool
    """Whether every run has a result, and none is off."""


def rerun(
    board: Path, count: int, seed: int, options: LaunchOptions, rows: Sequence[str] = ()
) -> Rerun:
    """Train random frozen runs again, of `rows` or all, and compare.

    Datasets that lack data or a package are left out. A run has the same bits whichever runs are trained
    with it: here the others of the sample. Raises UserError for an unknown row, and for a method
    that is not registered.
    """
    tables = read_board(board)
    labels = list(tables.runs["label"].unique())
    for row in rows:
        if row not in labels:
            raise unknown("algorithm", row, labels, f"the board {board.name}")
    kept = {name_of(entry) for entry in possible(protocol_of(board), options.data_dir).datasets}
    runs = tables.runs[tables.runs["dataset_label"].isin(kept)]
    runs = runs[runs["label"].isin(rows)] if rows else runs
    chosen = random.Random(seed).sample(list(runs["id"]), min(count, len(runs)))
    runs = runs[runs["id"].isin(chosen)]
    changed = changed_data(runs, tables.runs, options.data_dir)
    specs = specs_of(runs)
    again = read_results(train_frozen(board, specs, options))
    frozen = subset(tables, runs)
    table = compared(frozen, again)
    failed = table[table["agreement"].isin((Agreement.MISSING, Agreement.OFF))]
    errors = again.runs.set_index("id")["error"]
    sentences: list[AnyNote] = [
        *(_failure(run, str(errors.get(run["id"], ""))) for _, run in failed.iterrows()),
        *(f"{text}." for text in changed),
        f"Of {len(table)} runs of {board.name} that were trained again: {outcome(table)}.",
        origin(frozen.runs, again.runs),
    ]
    return Rerun(table, sentences, failed.empty)


def _failure(run: "pd.Series[Any]", error: str) -> str:
    text = f"{run['agreement']}: {named(run)} (run {run['id']})"
    if run["agreement"] is Agreement.OFF:
        return f"{text}, {distance(run)}"
    return f"{text}: {error}" if error else text


def train_frozen(board: Path, specs: Sequence[RunSpec], options: LaunchOptions) -> Directory:
    """Train the frozen runs that have not ended in `options.out`."""
    for name in {spec.algorithm for spec in specs}:
        algorithms.get(name)
    results = Directory(options.out)
    left = [spec.id for spec in specs if results.run(spec.id).end() is None]
    launch_specs(board.name, {spec.id: spec for spec in specs}, left, options)
    return results


def changed_data(chosen: pd.DataFrame, runs: pd.DataFrame, data_dir: Path | None) -> list[str]:
    """A sentence on each row of the chosen runs, among all `runs`, whose data are no longer the same."""
    changed = []
    of_rows = dict(iter(runs.groupby(ROW, sort=False)))
    for dataset, label in chosen[ROW].drop_duplicates().itertuples(index=False, name=None):
        of_row = of_rows[dataset, label]
        first = of_row.iloc[0]
        known = first["provenance"].get("data", {})
        trials = sorted(set(map(int, of_row["trial"])))
        now = known and data_digests(first["dataset"], first["options"], trials, data_dir)
        unlike = [name for name, digest in known.items() if now.get(name) != digest]
        if unlike:
            changed.append(
                f"the data of {dataset} are not those that {label} was trained on: "
                f"environment {', '.join(unlike)} has another digest"
            )
    return changed
