"""Runs trained here beside the frozen runs of a board, as if all were one sweep. Imports no torch."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from oodbench.board.files import find_board
from oodbench.board.frames import board_frames, in_order
from oodbench.board.parts import Part, read_parts
from oodbench.errors import UserError
from oodbench.results.frames import Frames
from oodbench.results.join import completed, joined, of_runs, records_of, stacked
from oodbench.results.run_spec import COMPLETE, RunSpec

FIXED = ("dataset", "options", "steps", "evaluate_every", "holdout", "network", "metric", "search")
"""What all runs of a dataset share with those of the board, besides the environments."""
BASELINE = "ERM"
"""The row whose hyperparameters are those that all methods share."""
BATCH = ("batch_size", "environments_per_step")
"""The hyperparameters by which a step sees more or fewer examples: where a protocol fixes them, for all."""


def frozen(name: str) -> Frames:
    """The runs of a board alone; raises UserError as `find_board` and `read_parts` do."""
    path = find_board(name)
    found = board_frames(in_order(read_parts(path), path))
    return replace(found, runs=found.runs.assign(directory=path.name))


def beside_board(name: str, directories: Sequence[Path], allow_mixed: bool = False) -> Frames:
    """The runs of a board and those of results directories under its protocol.

    All rows are cut to the datasets that have results in the directories, and to the trials and draws
    that every row of them has; the notes of the frames say so. They also name the rows whose ranges are
    not those of the others. A run that is frozen, too, counts once if both have the same values; else
    its row is shown twice, once as trained here.
    Raises UserError for results under another protocol, and for a label that the board has
    for another method.
    """
    board = frozen(name)
    if not directories:
        return replace(board, notes=(*board.notes, *range_notes(board.runs)))
    own = joined(directories, allow_mixed)
    here = ", ".join(map(str, directories))
    runs = completed(own).drop(columns="helper").assign(frozen=False)
    title = f"the board {Path(name).name}"
    _check(runs, board.runs, here, title)
    own, cut, notes = _cut(replace(own, runs=runs), board, here, title)
    notes += range_notes(board.runs, own.runs)
    own, cut, further = _twice(own, cut, here, title)
    parts = (cut.runs, own.runs)
    everything = pd.concat([part.dropna(axis=1, how="all") for part in parts], ignore_index=True)
    everything = everything.reindex(columns=list(dict.fromkeys(n for part in parts for n in part)))
    order = {label: i for i, label in enumerate(cut.runs["dataset_label"].unique())}
    everything = everything.sort_values(
        "dataset_label", key=lambda labels: labels.map(order), kind="stable", ignore_index=True
    )
    return Frames(
        everything,
        stacked([cut.metrics, own.metrics]),
        cut.scores,
        (*own.notes, *notes, *further),
    )


def check_planned(specs: Iterable[RunSpec], parts: Sequence[Part], name: str) -> None:
    """Raise UserError if runs that are still to be trained could not stand beside the parts of a board."""
    rows = [vars(spec) | {"dataset_label": spec.dataset_name} for spec in specs]
    if rows:
        _check(pd.DataFrame(rows), board_frames(parts).runs, "the plan", f"the board {name}")


def _texts(values: "pd.Series[Any]") -> "pd.Series[str]":
    return values.map(lambda value: json.dumps(value, sort_keys=True, default=str))


def _check(own: pd.DataFrame, board: pd.DataFrame, here: str, title: str) -> None:
    """Raise UserError unless the runs are some of those that the board's protocol plans."""
    plain, theirs = own[~own["ceiling"]], board[~board["ceiling"].eq(True)]
    for dataset, runs in plain.groupby("dataset_label", sort=False):
        frozen = theirs[theirs["dataset_label"] == dataset]
        if frozen.empty:
            raise UserError(f"{here} holds {dataset}, which {title} has not")
        for column in FIXED:
            if column in runs:  # a plan has no metric yet
                _within(runs, frozen, [column], here, title)
        for hparam in BATCH:
            ours, known = (t.assign(**{hparam: _hparams(t, hparam)}) for t in (runs, frozen))
            if known[hparam].nunique() == 1:
                _within(ours, known, [hparam], here, title)
        for columns in (
            ["test_environments"],
            ["trial"],
            ["draw"],
            ["test_environments", "trial", "validation_environments"],
            ["trial", "draw", "network_hparams"],
        ):
            _within(runs, frozen, columns, here, title)


def _hparams(runs: pd.DataFrame, name: str) -> "pd.Series[Any]":
    """The hyperparameter of each run; None where it has none of that name."""
    return runs["hparams"].map(lambda values: values.get(name))


def _within(
    runs: pd.DataFrame, frozen: pd.DataFrame, columns: list[str], here: str, title: str
) -> None:
    """Raise UserError if runs of a dataset have values in these columns that no frozen one has."""
    there = frozen.dropna(subset=columns)
    known = set(zip(*(_texts(there[name]) for name in columns), strict=True))
    told = runs.dropna(subset=columns)
    for values in zip(*(_texts(told[name]) for name in columns), strict=True):
        if values not in known:
            word = columns[-1].replace("_", " ")
            dataset = runs["dataset_label"].iloc[0]
            raise UserError(
                f"{here} is not under the protocol of {title}: {word} of {dataset} is "
                f"{_short(values[-1])}, which no frozen run has"
            )


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."


def _cut(own: Frames, board: Frames, here: str, title: str) -> tuple[Frames, Frames, list[str]]:
    """Both with the datasets alone that have results here and the trials and draws that all own rows
    have, and what is left out.

    Raises UserError if the own rows of a dataset have no trial or draw in common.
    """
    runs, mine, notes = board.runs, own.runs, []
    datasets = list(runs["dataset_label"].unique())
    ended = set(mine.loc[mine["state"].isin(COMPLETE), "dataset_label"])
    there = [d for d in datasets if d in (ended or set(mine["dataset_label"]))]
    kept, ours = pd.Series(False, runs.index), pd.Series(False, mine.index)
    parts: dict[str, set[str]] = {"trials": set(), "draws": set()}
    for dataset in there:
        rows = mine[mine["dataset_label"] == dataset].groupby("label")
        frozen, fresh = runs["dataset_label"] == dataset, mine["dataset_label"] == dataset
        whole = runs[frozen]
        for column in ("trial", "draw"):
            common = set.intersection(*(set(group[column]) for _, group in rows))
            planned = set(whole[column])
            if not common:
                raise UserError(f"the rows on {dataset} in {here} have no {column} in common")
            if common != planned:
                parts[f"{column}s"].add(f"{len(common)} of {len(planned)} {column}s")
            frozen &= runs[column].isin(common)
            fresh &= mine[column].isin(common)
        kept |= frozen
        ours |= fresh
    said = [" or ".join(sorted(texts)) for texts in parts.values() if texts]
    if len(there) < len(datasets):
        said.insert(0, f"{len(there)} of {len(datasets)} datasets")
    if said:
        notes.append(
            f"Partial: {', '.join(said)} of {title} are compared, for all rows: those that the rows "
            "here have."
        )
    return of_runs(own, mine[ours]), of_runs(board, runs[kept]), notes


def _twice(own: Frames, board: Frames, here: str, title: str) -> tuple[Frames, Frames, list[str]]:
    """Both without the runs here that the board has with the same values; and what is to be said.

    A row of which a run here has other values than the board's gets another label, and the frozen
    runs other ids.
    """
    frozen_ids = set(board.runs["id"])
    notes: list[str] = []
    runs, metrics, others = own.runs, own.metrics, board
    for (dataset, label), group in own.runs.groupby(["dataset_label", "label"], sort=False):
        theirs = board.runs.query("dataset_label == @dataset and label == @label")
        if theirs.empty:
            continue
        taken = f"{title} has a row '{label}' on {dataset}"
        if not set(group["id"]) <= set(theirs["id"]):
            raise UserError(
                f"{taken} with other hyperparameters than {here}: give yours another `label`"
            )
        complete = group.loc[group["state"].isin(COMPLETE), "id"]
        same, different, furthest = _compared(own, board, complete)
        if different and _sources(group) != _sources(theirs):
            raise UserError(
                f"{taken} of other code than {here} (digest {_sources(theirs)} of the method's file, "
                f"not {_sources(group)}): give yours another `label`"
            )
        ids = set(group["id"])
        if not different:
            runs = runs[~runs["id"].isin(ids)]
            metrics = records_of(metrics, runs["id"])
            others = replace(
                others,
                runs=others.runs.assign(
                    rerun=others.runs["id"].isin(set(complete))
                    | others.runs.get("rerun", pd.Series(False, others.runs.index))
                ),
            )
            notes.append(
                f"{label} on {dataset}: {same} of {len(group)} runs here are equal to the board's."
            )
            continue
        runs = runs.assign(
            label=runs["label"].mask(runs["id"].isin(ids), f"{label} (here)"),
        )
        others = _renamed(others, ids & frozen_ids)
        notes.append(
            f"{label} on {dataset}: {different} of {len(complete)} runs here differ from the "
            f"board's, by {furthest:.2g} at most, and stand in a row of their own."
        )
    return replace(own, runs=runs.reset_index(drop=True), metrics=metrics), others, notes


def _sources(runs: pd.DataFrame) -> str:
    """The digests of the files of the methods that trained these runs."""
    known = {str(p.get("source")) for p in runs["provenance"] if p}
    return ", ".join(sorted(known)) or "none"


def _compared(own: Frames, board: Frames, ids: "pd.Series[str]") -> tuple[int, int, float]:
    """How many of these runs have the board's values at its chosen steps, how many others, and the
    largest difference.
    """
    key = ["id", "step", "environment", "split", "metric"]
    names = dict.fromkeys(key[:1] + key[2:], object)
    theirs = records_of(board.metrics, ids).astype(names)
    mine = records_of(own.metrics, ids).astype(names)
    both = theirs.merge(mine[[*key, "value"]], on=key, how="left", suffixes=("", "_here"))
    known = both["value"].isna() & both["value_here"].isna()
    both["gap"] = (both["value"] - both["value_here"]).abs().mask(known, 0.0).fillna(float("inf"))
    gaps = both.groupby("id")["gap"].max()
    return int((gaps == 0).sum()), int((gaps > 0).sum()), float(gaps.max() if len(gaps) else 0.0)


def _renamed(board: Frames, ids: set[str]) -> Frames:
    """The frames of a board with other ids for these runs, which are there twice."""
    new = {run_id: f"{run_id}@board" for run_id in ids}
    metrics = board.metrics
    scores = board.scores
    return replace(
        board,
        runs=board.runs.assign(id=board.runs["id"].replace(new)),
        metrics=metrics.assign(id=metrics["id"].cat.rename_categories(new)),
        scores=scores.assign(id=scores["id"].replace(new)),
    )


def range_notes(*tables: pd.DataFrame) -> list[str]:
    """The rows with own hyperparameters of several ranges, and those with shared ones of their own.

    A draw of a trial takes a hyperparameter at one quantile on all datasets: an own one has several
    ranges where its values for a trial and draw differ between datasets. A shared one is a row's own
    where its value is not that of the baseline's run of the same dataset, trial and draw.
    """
    columns = ["dataset_label", "trial", "draw", "label", "hparams"]
    told = pd.concat([runs.loc[~runs["ceiling"].eq(True), columns] for runs in tables])
    plain = told[told["label"] == BASELINE]
    if plain.empty:
        return []
    shared = {tuple(key): hparams for *key, _, hparams in plain.itertuples(index=False, name=None)}
    several: dict[str, None] = {}
    others: dict[str, set[str]] = {}
    first: dict[tuple[object, ...], object] = {}
    for dataset, trial, draw, label, hparams in told.itertuples(index=False, name=None):
        base = shared.get((dataset, trial, draw), {})
        for name, value in hparams.items():
            if name in base:
                if base[name] != value:
                    others.setdefault(label, set()).add(name)
            elif first.setdefault((label, trial, draw, name), value) != value:
                several[label] = None
    notes = []
    if several:
        notes.append(
            f"{', '.join(several)}: own hyperparameters in ranges that follow the kind of data, not in one."
        )
    if others:
        names = ", ".join(sorted(set().union(*others.values())))
        notes.append(f"{', '.join(others)}: not {BASELINE}'s values of {names} in each draw.")
    return notes
