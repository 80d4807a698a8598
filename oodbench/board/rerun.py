"""Trains frozen runs again and compares them with the board; and the quickstart's screen."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from oodbench.algorithms import algorithms
from oodbench.board.freeze import data_digests
from oodbench.datasets import make
from oodbench.errors import MissingError, UserError, counted
from oodbench.notes import AnyNote
from oodbench.report.cells import METHOD
from oodbench.report.comparison import board_sheet
from oodbench.report.sources import Agreement, compared, distance, named, outcome
from oodbench.report.tables import Sheet
from oodbench.report.tables.leaderboard import is_mean, leaderboard
from oodbench.report.tables.remarks import trained_by
from oodbench.report.tables.sheet import value_cell
from oodbench.results.directory import Directory
from oodbench.results.parquet import specs_of
from oodbench.results.read import read_board, read_results
from oodbench.results.run_spec import CONSTANT
from oodbench.results.tables import ROW, Tables, only, origins, subset
from oodbench.sweep.launch import LaunchOptions, launch_specs
from oodbench.sweep.resolve import check_packages

BOARD, DATASET, TRIALS = "small.v3", "SEM, FOU", 8
"""The board, dataset and number of trials of the quickstart."""
ROWS = ("ERM", "VREx", "GroupDRO", "CVaR")
"""Rows with distinct values on DATASET, whose runs are vectorized."""


def rerun(
    board: Path,
    count: int,
    seed: int,
    options: LaunchOptions,
    rows: Sequence[str],
    datasets: Sequence[str],
) -> tuple[list[AnyNote], bool]:
    """Train a random sample of frozen runs again and compare; `rows` and `datasets` restrict the sample.

    Returns sentences on the comparison, and whether every run has a result that agrees with the board's.
    Runs whose data or package are missing are left out. Runs of the sample may be trained as one program,
    which changes no bit. Raises UserError for an unknown row, dataset or method, and without any run to
    train.
    """
    tables, left_out = read_board(board), Counter[str]()
    runs = only(tables, datasets, rows, place=f"the board {board.name}").runs
    runs = runs[runs["label"].isin(rows)] if rows else runs

    def check_data(of: pd.DataFrame) -> None:
        make(of["dataset"].iloc[0], of["options"].iloc[0], options.data_dir).check()

    def check_method(of: pd.DataFrame) -> None:
        if algorithm := algorithms.find(name := of["algorithm"].iloc[0]):
            check_packages({name: algorithm})

    runs = _possible(runs, "dataset_label", check_data, left_out)
    runs = _possible(runs, "algorithm", check_method, left_out)
    chosen = random.Random(seed).sample(range(len(runs)), min(count, len(runs)))
    runs = runs.iloc[sorted(chosen)]

    changed: list[str] = []

    def check_digests(of: pd.DataFrame) -> None:
        changed.append(changed_data(of, tables.runs, options.data_dir))

    runs = _possible(runs, ROW, check_digests, left_out)
    absent = [f"{counted(n, 'run')} left out: {reason}" for reason, n in left_out.items()]
    if runs.empty:
        raise UserError(
            f"{board.name} has only runs that cannot be trained here; {'; '.join(absent)}"
        )
    specs = {spec.id: spec for spec in specs_of(runs)}
    for spec in specs.values():
        algorithms.get(spec.algorithm)
    launch_specs(board.name, specs, [*specs], options)
    again = read_results(Directory(options.out))
    table = compared(subset(tables, runs), again)
    failed = table[table["agreement"].isin((Agreement.MISSING, Agreement.OFF))]
    errors = again.runs.set_index("id")["error"]
    sentences: list[AnyNote] = [
        *(_failure(run, str(errors.get(run["id"], ""))) for _, run in failed.iterrows()),
        *(f"{text}." for text in [*filter(None, changed), *absent]),
        f"Of {len(table)} runs of {board.name} that were trained again: {outcome(table)}.",
        trained_by(runs, again.runs),
    ]
    return sentences, failed.empty


def _possible(
    runs: pd.DataFrame,
    by: str | list[str],
    check: Callable[[pd.DataFrame], None],
    left_out: Counter[str],
) -> pd.DataFrame:
    """The runs of groups for which `check` does not raise MissingError; `left_out` counts the others."""
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


def changed_data(row: pd.DataFrame, runs: pd.DataFrame, data_dir: Path | None) -> str:
    """A sentence if the data of a row, some of whose runs are given, have changed; else an empty text."""
    dataset, label = row[ROW].iloc[0]
    of_row = runs[(runs[ROW] == [dataset, label]).all(axis=1)]
    first, trials = of_row.iloc[0], sorted(set(map(int, of_row["trial"])))
    known = first["provenance"].get("data", {})
    now = known and data_digests(first["dataset"], first["options"], trials, data_dir)
    unlike = [name for name, digest in known.items() if now.get(name) != digest]
    if not unlike:
        return ""
    return (
        f"the data of {dataset} have changed since {label} was trained: environment "
        f"{', '.join(unlike)} has another digest"
    )


def quickstart_sheet(frames: Tables) -> Sheet:
    """The tables of the quickstart, with only three notes if all runs equal the board's."""
    tables = board_sheet(frames, short=True)
    by_row = origins(frames.runs)
    if "here" in by_row.values():
        return tables
    again = [label for label, origin in by_row.items() if "here" in origin]
    count = frames.runs["label"].isin(again).sum()
    equal = f"All {count} runs here are equal to the board's, bit for bit."
    return replace(tables, notes=(*tables.notes[:2], equal))


def next_lines(frames: Tables, page: Path) -> list[str]:
    """The quickstart's last lines: what its runs show, the page, and the next step."""
    clauses = []
    for rule in ("train_val", "val_env"):
        board = leaderboard(frames, rule)
        means = board.frame[is_mean(board.frame)].set_index("label")
        texts = {label: value_cell(row) for label, row in means.to_dict("index").items()}
        methods = means.loc[means["kind"] == METHOD, "mean"]
        best = methods.idxmax() if board.higher[means["metric"].iloc[0]] else methods.idxmin()
        clauses.append(f"by {rule} {best} has {texts[best]}, ERM {texts['ERM']}")
    return [
        f"What this shows: {'; '.join(clauses)}; the constant answer {texts[CONSTANT]}.",
        f"The page: open {page}",
        "Next: a method of your own, one class in one file: docs/tutorials/your_method.md",
    ]
