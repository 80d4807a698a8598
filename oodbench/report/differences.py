"""Compare runs that were trained here with the frozen ones, and describe the differences."""

from collections import Counter
from contextlib import suppress
from enum import StrEnum
from typing import Any

import numpy as np
import pandas as pd

from oodbench.errors import UserError
from oodbench.metrics import is_proportion
from oodbench.notes import AnyNote, Note
from oodbench.report.statistics import BAND
from oodbench.results.provenance import made_by
from oodbench.results.tables import Tables, only, records_of, subset
from oodbench.selection.judge import judge
from oodbench.terminal import counted


class Agreement(StrEnum):
    """How a run that was trained again compares with the frozen one."""

    EQUAL = "equal bit for bit"
    """Every rule chooses the same step, with the same score and values."""
    CLOSE = "equal within round-off"
    """No score or value at the frozen steps is further off than half a point, or half a percent."""
    OFF = "off"
    MISSING = "without a result"


def compared(board: Tables, here: Tables) -> pd.DataFrame:
    """Compare runs of `board` with runs of `here` by id.

    Returns a row for each run of `board`: its columns in `Tables.runs`, its `agreement` and, for its
    dataset's metric at the frozen steps, the means `frozen` and `here`, the largest difference `gap`
    (infinite where one side has no number) and the largest `share`, a difference over max(1, |value|).
    """
    runs: pd.DataFrame = board.runs.set_index("id", drop=False)
    values, scores = _values(board, here), _scores(board, here)
    pairs = pd.concat([values, scores], ignore_index=True)
    gap = (pairs["value"] - pairs["value_here"]).abs().fillna(np.inf)
    gap = gap.mask(pairs["value"].isna() & pairs["value_here"].isna(), 0.0)
    share = gap / pairs["value"].abs().clip(lower=1.0).fillna(1.0)
    pairs = pairs.assign(gap=gap, share=share, equal=(gap == 0) & pairs["same_step"].ne(False))
    by_run = pairs.groupby("id").agg(equal=("equal", "all"), share=("share", "max"))
    by_run = by_run.reindex(runs.index)
    with_result = values[values["_merge"] == "both"]["id"].unique()
    agreement = np.select(
        [~runs.index.isin(with_result), by_run["equal"].eq(True), by_run["share"] <= BAND],
        [Agreement.MISSING, Agreement.EQUAL, Agreement.CLOSE],
        Agreement.OFF,
    )
    main = pairs[pairs["metric"] == pairs["id"].map(runs["metric"])].groupby("id")
    of_main = main.agg(
        frozen=("value", "mean"),
        here=("value_here", "mean"),
        gap=("gap", "max"),
        share=("share", "max"),
    )
    return runs.assign(agreement=list(map(Agreement, agreement)), **of_main.reindex(runs.index))


def _values(board: Tables, here: Tables) -> pd.DataFrame:
    key = ["id", "step", "environment", "split", "metric"]
    names = dict.fromkeys(("id", "environment", "split", "metric"), object)
    frozen: pd.DataFrame = records_of(board.records, board.runs["id"]).astype(names)
    again = records_of(here.records, board.runs["id"]).astype(names)[[*key, "value"]]
    return frozen.merge(again, on=key, how="left", suffixes=("", "_here"), indicator=True)


def _scores(board: Tables, here: Tables) -> pd.DataFrame:
    tables = []
    frozen: pd.DataFrame = board.scores
    here = subset(here, here.runs[here.runs["id"].isin(board.runs["id"])])
    for dataset in here.runs["dataset_label"].unique():
        for rule in frozen["rule"].unique():
            with suppress(UserError):  # a rule that the dataset does not serve
                ranked = judge(only(here, [str(dataset)]), rule).candidates
                first = ~ranked["id"].duplicated()
                tables.append(ranked.assign(rule=rule, same_step=first))
    frozen = frozen[frozen["id"].isin(board.runs["id"])]
    frozen = frozen.rename(columns={"score": "value"}).astype({"id": object, "rule": object})
    if not tables:
        return frozen.assign(value_here=np.nan, same_step=False)
    again = pd.concat(tables, ignore_index=True).rename(columns={"score": "value_here"})
    again = again[["id", "rule", "step", "value_here", "same_step"]]
    return frozen.merge(again, on=["id", "rule", "step"], how="left")


def outcome(table: pd.DataFrame) -> str:
    """Say how many of the `compared` runs have each agreement, and which run is furthest off."""
    counts = Counter(table["agreement"])
    if counts[Agreement.MISSING] == len(table):
        return f"none of {counted(len(table), 'run')} has a result"
    text = ", ".join(f"{counts[agreement]} {agreement}" for agreement in Agreement)
    unlike = table[~table["agreement"].isin((Agreement.EQUAL, Agreement.MISSING))]
    if unlike.empty:
        return text
    furthest = unlike.iloc[int(unlike["share"].fillna(0.0).to_numpy().argmax())]
    return f"{text}; furthest off is {named(furthest)}, {distance(furthest)}"


def named(run: "pd.Series[Any]") -> str:
    """A run's row, dataset, trial and draw."""
    return f"{run['label']} on {run['dataset_label']}, trial {run['trial']}, draw {run['draw']}"


def distance(run: "pd.Series[Any]") -> str:
    """How far a run is off, in the unit of its dataset's metric."""
    gap, metric = float(run["gap"]), str(run["metric"])
    if not np.isfinite(gap):
        return f"which has no {metric} on one side"
    if is_proportion(metric):
        return f"by {100 * gap:.1f} points of {metric}"
    return f"by {gap:.3g} in {metric}"


def equal_notes(rows: pd.DataFrame) -> list[Note]:
    """Notes on the rows that equal their frozen ones: `dataset`, `label`, `ended` and `planned` runs."""
    notes = []
    for dataset, of_dataset in rows.groupby("dataset", sort=False):
        ended, planned = of_dataset["ended"].sum(), of_dataset["planned"].sum()
        counts = f"{ended} of {planned} runs here are equal to the board's"
        text = f"{', '.join(of_dataset['label'])} on {dataset}: {counts}."
        notes.append(Note(text, f"On {dataset} {counts}."))
    return notes


def unlike_note(runs: pd.DataFrame, rows: pd.DataFrame, other_draws: int) -> Note:
    """The note on the rows that are shown twice: `dataset` and the `shown` label of those here.

    `runs` are theirs that are also frozen, as `compared` has them; the board lacks `other_draws` of them.
    """
    by_dataset = rows.groupby("dataset", sort=False)["shown"].agg(", ".join)
    names = "; ".join(f"{labels} on {dataset}" for dataset, labels in by_dataset.items())
    text = f"{names}: of {len(runs)} runs that are also on the board, {outcome(runs)}"
    if other_draws:
        text += f"; {other_draws} have other hyperparameters than the board's"
    short = ", ".join(f"{n} {agreement}" for agreement, n in Counter(runs["agreement"]).items())
    return Note(f"{text}.", f"Of {counted(len(runs), 'run')} also on the board: {short}.")


def origin(board: pd.DataFrame, here: pd.DataFrame | None = None) -> AnyNote:
    """A sentence on the versions and machines behind a board's runs, and other ones here."""
    frozen = made_by(board["provenance"])
    local = frozen if here is None else made_by(here["provenance"])
    if local in ("", frozen):
        return f"Trained by {frozen}."
    both = set(frozen.split(", ")) & set(local.split(", "))
    there, here_alone = (
        ", ".join(part for part in text.split(", ") if part not in both) for text in (frozen, local)
    )
    return Note(
        f"The board was trained by {frozen}; the runs here by {local}.",
        f"Trained by: board {there or frozen}; here {here_alone or local}.",
    )
