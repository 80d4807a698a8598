"""The runs that a report covers: results directories, a board, or both.

Runs that are also frozen on the board are compared with the frozen ones.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from oodbench.errors import UserError, counted
from oodbench.metrics import is_proportion
from oodbench.report.gaps import gaps_by_rule, losses
from oodbench.report.statistics import BAND
from oodbench.report.tables.remarks import range_notes, trained_by
from oodbench.results.boards import board_among, datasets_to_come, find_board
from oodbench.results.provenance import method_digest, versions
from oodbench.results.read import joined, read_board
from oodbench.results.run_spec import COMPLETE, SCORE, RunSpec
from oodbench.results.tables import (
    ROW,
    Tables,
    completed,
    only,
    records_of,
    stacked,
    stacked_runs,
    subset,
)
from oodbench.selection.judge import Booleans, judge_each

FIXED = ("dataset", "options", "noise", "steps", "evaluate_every", "holdout", "network", "metric")
"""The columns, besides environments, in which a dataset's runs must equal the board's."""
BATCH = ("batch_size", "environments_per_step")
"""The hyperparameters that fix the number of examples of a step, if all frozen runs agree on them."""
CHOICES = (
    ["test_environments"],
    ["trial"],
    ["draw"],
    ["test_environments", "trial", "validation_environments"],
    ["trial", "draw", "network_hparams"],
)
"""Groups of columns: some frozen run must have the same values in all columns of a group."""
RowName = tuple[Any, ...]
"""The dataset and the label of a row."""
SHOWN = 6
"""The most differences that an error lists."""


def frames_of(
    sources: str | Sequence[str],
    datasets: Sequence[str] = (),
    rows: Sequence[str] = (),
    baseline: str | None = None,
    allow_mixed: bool = False,
) -> Tables:
    """The runs of all sources as one sweep, restricted by `only`.

    Raises UserError as `board_among`, `beside_board`, `joined` and `only`.
    """
    board, directories = board_among(sources)
    if board is None:
        tables = only(joined(directories, allow_mixed), datasets)
    else:
        tables = beside_board(board, directories, datasets)
    shown = only(tables, (), rows, baseline)
    count = tables.runs["label"].nunique()
    note = f"Ranks, places and the best values are those among the rows shown, not all {count}."
    return replace(shown, notes=(*shown.notes, *[note] * (shown.runs["label"].nunique() < count)))


def beside_board(name: str, directories: Sequence[Path], datasets: Sequence[str] = ()) -> Tables:
    """The runs of a board and of results directories under its protocol, on `datasets` or all.

    Datasets without frozen runs are left out. All rows are cut to the datasets, trials and draws that the
    directories have for each of their rows, which a note says. Other notes name rows with other search
    ranges, and the code and machines behind both. A row that is also frozen appears once if the values are
    equal, and twice otherwise. Raises UserError for an unknown dataset, for results under another protocol,
    and for a label that the board gives to another method.
    """
    board = only(_ranked(name), datasets)
    if not directories:
        return replace(
            board, notes=(*board.notes, *range_notes(board.runs), trained_by(board.runs))
        )
    local = joined(directories, allow_mixed=True)  # `_check` compares each with the protocol
    here = ", ".join(map(str, directories))
    title = f"the board {Path(name).name}"
    runs = local.runs.assign(frozen=False)
    shown = runs["dataset_label"].isin(datasets or set(runs["dataset_label"]))
    shown &= ~runs["dataset_label"].isin(datasets_to_come(find_board(name)))
    local = subset(local, runs[shown])
    if local.runs.empty:
        raise UserError(f"{here} has no runs of {', '.join(datasets) or f'what {title} has'}")
    _check(local.runs, board.runs, here, title)
    local, cut, partial = _cut(local, board, here, title)
    ranges = range_notes(board.runs, local.runs)
    made = trained_by(cut.runs, local.runs)
    local, cut, repeated = _beside_frozen(local, cut, here, title)
    order = {label: i for i, label in enumerate(cut.runs["dataset_label"].unique())}
    runs = stacked_runs([cut.runs, local.runs]).sort_values(
        "dataset_label", key=lambda labels: labels.map(order), kind="stable", ignore_index=True
    )
    records = stacked([cut.records, local.records])
    notes = (*local.notes, *board.notes, *partial, *ranges, *repeated, made)
    return Tables(completed(runs), records, notes)


def _ranked(name: str) -> Tables:
    """The runs of a board; `selection` is the rule of its headline.

    Unless the protocol names one, it is the rule that loses least to the oracle on the most datasets.
    """
    tables = read_board(find_board(name))
    if tables.runs["selection"].notna().any():
        return tables
    rule = next(iter(losses(gaps_by_rule(tables))), None)
    return replace(tables, runs=tables.runs.assign(selection=rule))


def check_planned(specs: Iterable[RunSpec], frozen_runs: pd.DataFrame, name: str) -> None:
    """Raise UserError if planned runs are not under the protocol of a board."""
    rows = [vars(spec) | {"dataset_label": spec.dataset_name} for spec in specs]
    if rows:
        _check(pd.DataFrame(rows), frozen_runs, "the plan", f"the board {name}")


def _check(runs: pd.DataFrame, frozen_runs: pd.DataFrame, here: str, title: str) -> None:
    """Raise UserError with the differences, unless the board's protocol plans these runs."""
    frozen_runs, runs = map(_with_batches, (frozen_runs, runs))
    unlike: list[str] = []
    for dataset, local in runs.groupby("dataset_label", sort=False):
        known = frozen_runs[frozen_runs["dataset_label"] == dataset]
        if known.empty:
            raise UserError(f"{here} holds {dataset}, which {title} does not have")
        fixed = [[column] for column in FIXED if column in local]  # a plan has no metric
        batch = [[name] for name in BATCH if known[name].nunique() == 1]
        for columns in (*fixed, *batch, *CHOICES):
            allowed, texts = _texts(known, columns), _texts(local, columns)
            if strange := [text for text in texts if text not in set(allowed)]:
                there = f"and {_short(allowed[0])} there"
                there = there if len(allowed) == 1 else "which no frozen run has"
                name = columns[-1].replace("_", " ")
                unlike.append(f"{name} of {dataset} is {_short(strange[0])}, {there}")
    if unlike:
        more = f" (and {len(unlike) - SHOWN} more)" if len(unlike) > SHOWN else ""
        raise UserError(
            f"{here} is not under the protocol of {title}: {'; '.join(unlike[:SHOWN])}{more}"
        )


def _with_batches(runs: pd.DataFrame) -> pd.DataFrame:
    runs = runs[~runs["ceiling"]]
    return runs.assign(**{name: [h.get(name) for h in runs["hparams"]] for name in BATCH})


def _texts(runs: pd.DataFrame, columns: list[str]) -> list[tuple[str, ...]]:
    there = runs.dropna(subset=columns)[columns].itertuples(index=False, name=None)
    distinct = {repr(values): values for values in there}  # JSON of every run would take seconds
    return [
        tuple(json.dumps(value, sort_keys=True, default=str) for value in values)
        for values in distinct.values()
    ]


def _short(texts: tuple[str, ...]) -> str:
    return texts[-1] if len(texts[-1]) <= 80 else f"{texts[-1][:77]}..."


def _cut(local: Tables, board: Tables, here: str, title: str) -> tuple[Tables, Tables, list[str]]:
    """Restrict both to the datasets with results here, and to the trials and draws of all local rows.

    Also returns a note on what is left out, if anything is. Raises UserError if the local rows of a
    dataset have no trial or draw in common.
    """
    ended = local.runs[local.runs["state"].isin(COMPLETE)]
    shown = [*(local.runs if ended.empty else ended)["dataset_label"].unique()]
    every, parts = board.runs, defaultdict[str, set[str]](set)
    if len(shown) < (count := every["dataset_label"].nunique()):
        parts["dataset"].add(f"{len(shown)} of {count} datasets")
    local, board = only(local, shown), only(board, shown)
    here_runs, board_runs = local.runs, board.runs
    for dataset, runs in local.runs.groupby("dataset_label", sort=False):
        for column in ("trial", "draw"):
            common = set.intersection(*runs.groupby("label")[column].agg(set))
            planned = set(every.loc[every["dataset_label"] == dataset, column])
            if not common:
                raise UserError(f"the rows on {dataset} in {here} have no {column} in common")
            if common != planned:
                parts[column].add(f"{len(common)} of {len(planned)} {column}s")
            here_runs, board_runs = (
                table[(table["dataset_label"] != dataset) | table[column].isin(common)]
                for table in (here_runs, board_runs)
            )
    local, board = subset(local, here_runs), subset(board, board_runs)
    texts = [
        " or ".join(sorted(parts[kind])) for kind in ("dataset", "trial", "draw") if parts[kind]
    ]
    note = f"Partial: all rows are cut to {', '.join(texts)} of {title}: no more were trained here."
    return local, board, [note] * bool(texts)


def _beside_frozen(
    local: Tables, board: Tables, here: str, title: str
) -> tuple[Tables, Tables, list[str]]:
    """Drop local rows that equal frozen ones, and label the other repeated rows '(here)'.

    Also returns notes on the repeated rows. Raises UserError if a local and a frozen row share label and
    version, but not the method or its hyperparameters.
    """
    key = ["id", *ROW]
    ended = local.runs.loc[local.runs["state"].isin(COMPLETE), key]
    both = compared(subset(board, board.runs.merge(ended, on=key)), local)
    there, again = (dict(list(runs.groupby(ROW, sort=False))) for runs in (board.runs, both))
    equal, unlike = list[RowName](), list[RowName]()
    notes, other_draws = list[str](), 0
    for name, row in local.runs.groupby(ROW, sort=False):
        if (frozen_row := there.get(name)) is None:
            continue
        is_planned = row["id"].isin(frozen_row["id"])
        if is_planned.all() and again.get(name, both[:0])["agreement"].eq(Agreement.EQUAL).all():
            equal.append(name)
        else:
            dataset, label = name
            _check_same_row(row, frozen_row, f"{title} has a row '{label}' on {dataset}", here)
            unlike.append(name)
            other_draws += int((~is_planned).sum())
    for dataset in dict.fromkeys(dataset for dataset, _ in equal):
        names = [name for name in equal if name[0] == dataset]
        counts = f"{_are_of(both, names).sum()} of {_are_of(local.runs, names).sum()}"
        labels = ", ".join(label for _, label in names)
        notes.append(f"{labels} on {dataset}: {counts} runs here are equal to the board's.")
    local = subset(local, local.runs[~_are_of(local.runs, equal)])
    is_again = board.runs["id"].isin(both["id"]) & _are_of(board.runs, equal)
    board = replace(board, runs=board.runs.assign(rerun=board.runs["rerun"].eq(True) | is_again))
    if unlike:
        notes.append(_unlike_note(both, unlike, other_draws))
        labels = local.runs["label"] + np.where(_are_of(local.runs, unlike), " (here)", "")
        local = replace(local, runs=local.runs.assign(label=labels))
    return _apart(local, board), board, notes


def _are_of(runs: pd.DataFrame, rows: Collection[RowName]) -> Booleans:
    """Mask of the runs of these rows."""
    names = zip(*(runs[name] for name in ROW), strict=True)
    return np.array([name in rows for name in names], bool)


def _apart(local: Tables, board: Tables) -> Tables:
    """The local tables, in which runs whose id is also on the board have an id that ends with `@here`.

    A board has records of chosen steps only, which must not be mixed with the local ones.
    """
    frozen = set(board.runs["id"])

    def new(run_id: str) -> str:
        return f"{run_id}@here" if run_id in frozen else run_id

    ids = local.records["id"].cat.rename_categories(new)
    runs = local.runs.assign(id=local.runs["id"].map(new))
    return replace(local, runs=runs, records=local.records.assign(id=ids))


def _check_same_row(row: pd.DataFrame, frozen_row: pd.DataFrame, taken: str, here: str) -> None:
    """Raise UserError if two rows of the same label and version differ in method or draws."""
    made = [[p for p in runs["provenance"] if p] for runs in (row, frozen_row)]
    if versions(made[0]) != versions(made[1]):
        return  # another version may have changed the method or its ranges
    if not row["id"].isin(frozen_row["id"]).all():
        raise UserError(
            f"{taken} with other hyperparameters than {here}: give yours another `label`"
        )
    sources, frozen_sources = (
        ", ".join(sorted({str(method_digest(p)) for p in provenances})) or "none"
        for provenances in made
    )
    if sources != frozen_sources:
        raise UserError(
            f"{taken} of other code than {here} (digest {frozen_sources} of the method, "
            f"not {sources}): give yours another `label`"
        )


def _unlike_note(both: pd.DataFrame, rows: Collection[RowName], other_draws: int) -> str:
    by_dataset = {d: [f"{x} (here)" for of, x in rows if of == d] for d, _ in rows}
    labels = (f"{', '.join(names)} on {dataset}" for dataset, names in by_dataset.items())
    runs = both[_are_of(both, rows)]
    also = f"of {len(runs)} runs that are also on the board, {outcome(runs)}"
    others = f"; {other_draws} have other hyperparameters than the board's" * bool(other_draws)
    return f"{'; '.join(labels)}: {also}{others}."


class Agreement(StrEnum):
    """How a run that was trained again compares with the frozen run."""

    EQUAL = "equal bit for bit"
    """Every rule chooses the same step, with the same score and values."""
    CLOSE = "equal within round-off"
    """All scores and values at the frozen steps are within half a point, or half a percent."""
    OFF = "off"
    MISSING = "without a result"


def compared(board: Tables, here: Tables) -> pd.DataFrame:
    """The runs of `board`, each compared with the run of `here` that has its id.

    Adds columns to `board.runs`: `agreement`, and for the dataset's metric at the frozen steps the means
    `frozen` and `here`, the largest difference `gap` (infinite if one side has no number) and the largest
    `share`, the difference over max(1, |value|).
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
    metrics = board.runs.drop_duplicates("id").set_index("id")["metric"]
    main = pairs[pairs["metric"] == pairs["id"].map(metrics)].groupby("id")
    columns = {"frozen": ("value", "mean"), "here": ("value_here", "mean")}
    of_main = main.agg(**columns, gap=("gap", "max"), share=("share", "max"))
    return runs.assign(agreement=list(map(Agreement, agreement)), **of_main.reindex(runs.index))


def _values(board: Tables, here: Tables) -> pd.DataFrame:
    key = ["id", "step", "environment", "split", "metric"]
    names = dict.fromkeys(("id", "environment", "split", "metric"), object)
    frozen: pd.DataFrame = board.records[board.records["split"] != SCORE].astype(names)
    again = records_of(here.records, board.runs["id"]).astype(names)[[*key, "value"]]
    return frozen.merge(again, on=key, how="left", suffixes=("", "_here"), indicator=True)


def _scores(board: Tables, here: Tables) -> pd.DataFrame:
    frozen = board.scores.rename(columns={"score": "value"})
    here = subset(here, here.runs[here.runs["id"].isin(board.runs["id"])])
    again = [
        one.candidates.assign(rule=one.rule.full_name, same_step=~one.candidates["id"].duplicated())
        for _, one in judge_each(here, frozen["rule"].unique())
    ]
    if not again:
        return frozen.assign(value_here=np.nan, same_step=False)
    table = pd.concat(again, ignore_index=True).rename(columns={"score": "value_here"})
    table = table[["id", "rule", "step", "value_here", "same_step"]]
    table = table.drop_duplicates(["id", "rule", "step"])  # a run may stand in several rows
    return frozen.merge(table, on=["id", "rule", "step"], how="left")


def outcome(table: pd.DataFrame) -> str:
    """How many of the `compared` runs have each agreement, and which run is furthest off."""
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
    """A run's row, dataset, trial and draw as text."""
    return f"{run['label']} on {run['dataset_label']}, trial {run['trial']}, draw {run['draw']}"


def distance(run: "pd.Series[Any]") -> str:
    """How far a run is off, in the unit of its dataset's metric."""
    gap, metric = float(run["gap"]), str(run["metric"])
    if not np.isfinite(gap):
        return f"which has no {metric} on one side"
    if is_proportion(metric):
        return f"by {100 * gap:.1f} points of {metric}"
    return f"by {gap:.3g} in {metric}"
