"""Train frozen runs again, and check whether they equal the board's."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from oodbench.algorithms import algorithms
from oodbench.board.checks import ROW
from oodbench.board.freeze import data_digests
from oodbench.datasets import make
from oodbench.errors import MissingError, UserError, counted
from oodbench.notes import AnyNote
from oodbench.report.differences import Agreement, compared, distance, named, origin, outcome
from oodbench.results.directory import Directory
from oodbench.results.parquet import specs_of
from oodbench.results.read import read_board, read_results
from oodbench.results.run_spec import RunSpec
from oodbench.results.tables import only, subset
from oodbench.sweep.launch import LaunchOptions, launch_specs
from oodbench.sweep.resolve import check_packages

Labels = Sequence[str]
Check = Callable[[pd.DataFrame], None]


@dataclass(frozen=True)
class Rerun:
    """The comparison of runs that were trained again with the frozen ones."""

    table: pd.DataFrame
    """The runs, as `compared` has them."""
    sentences: list[AnyNote]
    agree: bool
    """Whether every run has a result, and none is off."""


def rerun(
    board: Path, count: int, seed: int, options: LaunchOptions, rows: Labels, datasets: Labels
) -> Rerun:
    """Train random frozen runs again, of `rows` and `datasets` or all, and compare.

    Runs that lack data or a package are left out. A run has the same bits whichever runs are trained
    with it: here the others of the sample. Raises UserError for an unknown row or dataset, for a method
    that is not registered, and where no run is left.
    """
    tables, changed, left_out = read_board(board), list[str](), Counter[str]()
    runs = only(tables, datasets, rows, place=f"the board {board.name}").runs
    runs = runs[runs["label"].isin(rows)] if rows else runs

    def check_data(of: pd.DataFrame) -> None:
        make(of["dataset"].iloc[0], of["options"].iloc[0], options.data_dir).check()

    def check_method(of: pd.DataFrame) -> None:
        if algorithm := algorithms.find(name := of["algorithm"].iloc[0]):
            check_packages({name: algorithm})

    def check_digests(of: pd.DataFrame) -> None:
        changed.extend(changed_data(of, tables.runs, options.data_dir))

    runs = _possible(runs, "dataset_label", check_data, left_out)
    runs = _possible(runs, "algorithm", check_method, left_out)
    chosen = random.Random(seed).sample(list(runs["id"]), min(count, len(runs)))
    runs = _possible(runs[runs["id"].isin(chosen)], ROW, check_digests, left_out)
    absent = [f"{counted(n, 'run')} left out: {reason}" for reason, n in left_out.items()]
    if runs.empty:
        raise UserError(f"{board.name} has no such run to train here; {'; '.join(absent)}")
    specs = specs_of(runs)
    again = read_results(train_frozen(board, specs, options))
    frozen = subset(tables, runs)
    table = compared(frozen, again)
    failed = table[table["agreement"].isin((Agreement.MISSING, Agreement.OFF))]
    errors = again.runs.set_index("id")["error"]
    sentences: list[AnyNote] = [
        *(_failure(run, str(errors.get(run["id"], ""))) for _, run in failed.iterrows()),
        *(f"{text}." for text in [*changed, *absent]),
        f"Of {len(table)} runs of {board.name} that were trained again: {outcome(table)}.",
        origin(frozen.runs, again.runs),
    ]
    return Rerun(table, sentences, failed.empty)


def _possible(
    runs: pd.DataFrame, by: str | list[str], check: Check, left_out: Counter[str]
) -> pd.DataFrame:
    """The runs without groups for which `check` raises MissingError, which are counted by reason."""
    for _, of in runs.groupby(by, sort=False, observed=True):
        try:
            check(of)
        except MissingError as error:
            left_out[str(error)] += len(of)
            runs = runs[~runs["id"].isin(of["id"])]
    return runs


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
