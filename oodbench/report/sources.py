"""The runs a report covers: results directories, a board, or a board together with directories."""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from oodbench.errors import UserError
from oodbench.metrics import PredictionMetric, of_predictions
from oodbench.notes import Note
from oodbench.report.differences import Agreement, compared, equal_notes, origin, unlike_note
from oodbench.report.gaps import BASELINE, gaps_by_rule, losses
from oodbench.results.boards import board_among, datasets_to_come, find_board
from oodbench.results.directory import Directory
from oodbench.results.predictions import predictions_of_runs
from oodbench.results.provenance import method_digest, versions
from oodbench.results.read import joined, read_board, read_results
from oodbench.results.run_spec import COMPLETE, RunSpec
from oodbench.results.tables import Tables, completed, only, renamed, stacked, stacked_runs, subset
from oodbench.selection.judge import judge, served

FIXED = ("dataset", "options", "noise", "steps", "evaluate_every", "holdout", "network", "metric")
"""The columns, besides the environments, in which a dataset's runs must equal the board's."""
BATCH = ("batch_size", "environments_per_step")
"""The hyperparameters that say how many examples a step sees: fixed where all frozen runs agree."""
CHOICES = (
    ["test_environments"],
    ["trial"],
    ["draw"],
    ["test_environments", "trial", "validation_environments"],
    ["trial", "draw", "network_hparams"],
)
"""Groups of columns: a run's values in each group must occur together in some frozen run."""
SHOWN = 6
"""The most differences to a protocol that an error names."""


def frames_of(
    sources: Sequence[str],
    datasets: Sequence[str] = (),
    rows: Sequence[str] = (),
    baseline: str | None = None,
    allow_mixed: bool = False,
) -> Tables:
    """The runs of all sources as one sweep, restricted as `only` does.

    Raises UserError as `board_among`, `beside_board` and `joined` do, and for unknown datasets or rows.
    """
    board, directories = board_among(sources)
    if board is None:
        tables = only(joined(directories, allow_mixed), datasets)
    else:
        tables = beside_board(board, directories, datasets)
    shown, count = only(tables, (), rows, baseline), tables.runs["label"].nunique()
    note = f"Ranks, places and the best values are those among the rows shown, not all {count}."
    return replace(shown, notes=(*shown.notes, *[note] * (shown.runs["label"].nunique() < count)))


def beside_board(name: str, directories: Sequence[Path], datasets: Sequence[str] = ()) -> Tables:
    """The runs of a board and of results directories under its protocol, on `datasets` or all.

    Results on datasets without frozen runs are left out. All rows are cut to the datasets that
    have results in the directories, and to the trials and draws that every row of them has; a note says so.
    Further notes name the rows with other search ranges, and the code and machines that trained the board
    and the rows here. A row that is also frozen is shown once if both have the same values, else twice.
    Raises UserError for an unknown dataset, for results under another protocol, and for a label that the
    board has for another method.
    """
    board = only(_ranked(name), datasets)
    if not directories:
        return replace(board, notes=(*board.notes, *range_notes(board.runs), origin(board.runs)))
    local = joined(directories, allow_mixed=True)  # `_check` compares each with the protocol
    here, title = ", ".join(map(str, directories)), f"the board {Path(name).name}"
    runs = local.runs.assign(frozen=False)
    shown = runs["dataset_label"].isin(datasets or set(runs["dataset_label"]))
    shown &= ~runs["dataset_label"].isin(datasets_to_come(find_board(name)))
    local = subset(local, runs[shown])
    if local.runs.empty:
        raise UserError(f"{here} has no runs of {', '.join(datasets) or f'what {title} has'}")
    _check(local.runs, board.runs, here, title)
    local, shown_board, notes = _cut(_matched(local, board), board, here, title)
    notes += range_notes(board.runs, local.runs)
    made = origin(shown_board.runs, local.runs)
    local, shown_board, repeated = _beside_frozen(local, shown_board, here, title)
    order = {label: i for i, label in enumerate(shown_board.runs["dataset_label"].unique())}
    runs = stacked_runs([shown_board.runs, local.runs]).sort_values(
        "dataset_label", key=lambda labels: labels.map(order), kind="stable", ignore_index=True
    )
    records = stacked([shown_board.records, local.records])
    sentences = (*local.notes, *board.notes, *notes, *repeated, made)
    return Tables(completed(runs), records, shown_board.scores, sentences)


def _matched(local: Tables, board: Tables) -> Tables:
    """Give each run here the id of the frozen run of its row, or else one that the board has not.

    A run here may also stand on the board under another label.
    """

    def keyed(runs: pd.DataFrame) -> list[tuple[str, str, str]]:
        plain = runs["id"].str.partition("@")[0]
        return list(zip(plain, runs["dataset_label"], runs["label"], strict=True))

    frozen = dict(zip(keyed(board.runs), board.runs["id"], strict=True))
    runs, known = local.runs, set(board.runs["id"])
    ids = {
        run_id: frozen.get(key) or (f"{run_id}@here" if run_id in known else run_id)
        for run_id, key in zip(runs["id"], keyed(runs), strict=True)
    }
    named = runs.assign(id=runs["id"].map(ids))
    return replace(local, runs=named, records=renamed(local.records, ids))


def _ranked(name: str) -> Tables:
    """The runs of a board with the rule of its headline as `selection`, if the protocol names none.

    Among the rules that judge most datasets it is the one that loses least to the oracle.
    """
    frames = read_board(find_board(name))
    if frames.runs["selection"].notna().any():
        return frames
    rule = next(iter(losses(gaps_by_rule(frames, trained_alone=True))), None)
    return replace(frames, runs=frames.runs.assign(selection=rule))


def check_planned(specs: Iterable[RunSpec], frozen_runs: pd.DataFrame, name: str) -> None:
    """Raise UserError if runs that are still to be trained could not stand beside the parts of a board."""
    rows = [vars(spec) | {"dataset_label": spec.dataset_name} for spec in specs]
    if rows:
        _check(pd.DataFrame(rows), frozen_runs, "the plan", f"the board {name}")


def _check(runs: pd.DataFrame, frozen_runs: pd.DataFrame, here: str, title: str) -> None:
    """Raise UserError, which names all differences, unless the board's protocol plans these runs."""
    frozen_runs, runs = (t[~t["ceiling"]] for t in (frozen_runs, runs))
    for name in BATCH:
        frozen_runs, runs = (
            t.assign(**{name: [hparams.get(name) for hparams in t["hparams"]]})
            for t in (frozen_runs, runs)
        )
    unlike: list[str] = []
    for dataset, local in runs.groupby("dataset_label", sort=False):
        known = frozen_runs[frozen_runs["dataset_label"] == dataset]
        if known.empty:
            raise UserError(f"{here} holds {dataset}, which {title} has not")
        fixed = [[column] for column in FIXED if column in local]  # a plan has no metric yet
        batch = [[name] for name in BATCH if known[name].nunique() == 1]
        for columns in (*fixed, *batch, *CHOICES):
            unlike += _differences(local, known, columns)
    if unlike:
        more = f" (and {len(unlike) - SHOWN} more)" if len(unlike) > SHOWN else ""
        texts = "; ".join(dict.fromkeys(unlike[:SHOWN]))
        raise UserError(f"{here} is not under the protocol of {title}: {texts}{more}")


def _differences(runs: pd.DataFrame, known: pd.DataFrame, columns: list[str]) -> list[str]:
    allowed = _texts(known, columns)
    strange = [values for values in _texts(runs, columns) if values not in set(allowed)]
    if not strange:
        return []
    key, dataset = columns[-1].replace("_", " "), runs["dataset_label"].iloc[0]
    frozen = (
        f"and {_short(allowed[0][-1])} there" if len(allowed) == 1 else "which no frozen run has"
    )
    return [f"{key} of {dataset} is {_short(strange[0][-1])}, {frozen}"]


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."


def _texts(runs: pd.DataFrame, columns: list[str]) -> list[tuple[str, ...]]:
    there = runs.dropna(subset=columns)[columns].itertuples(index=False, name=None)
    distinct = {repr(values): values for values in there}  # JSON of every run would take seconds
    return [
        tuple(json.dumps(value, sort_keys=True, default=str) for value in values)
        for values in distinct.values()
    ]


def _cut(local: Tables, board: Tables, here: str, title: str) -> tuple[Tables, Tables, list[Note]]:
    """Restrict both to the datasets with results here and to the trials and draws of all local rows.

    The last value returned holds a note on what is left out, if anything is. Raises UserError if the local
    rows of a dataset have no trial or draw in common.
    """
    runs, frozen_runs = local.runs, board.runs
    ended = set(runs.loc[runs["state"].isin(COMPLETE), "dataset_label"])
    shown = set(runs["dataset_label"]) & (ended or set(runs["dataset_label"]))
    datasets = [d for d in frozen_runs["dataset_label"].unique() if d in shown]
    count = frozen_runs["dataset_label"].nunique()
    texts = [f"{len(datasets)} of {count} datasets"] * (len(datasets) < count)
    runs, frozen_runs = (t[t["dataset_label"].isin(datasets)] for t in (runs, frozen_runs))
    planned = frozen_runs.groupby("dataset_label")[["trial", "draw"]].agg(lambda v: set(v))
    of_rows = runs.groupby(["dataset_label", "label"])[["trial", "draw"]].agg(lambda v: set(v))
    common = of_rows.groupby("dataset_label").agg(lambda sets: set.intersection(*sets))
    for column in ("trial", "draw"):
        counts = set()
        for dataset in datasets:
            kept, there = common.loc[dataset, column], planned.loc[dataset, column]
            if not kept:
                raise UserError(f"the rows on {dataset} in {here} have no {column} in common")
            if kept != there:
                counts.add(f"{len(kept)} of {len(there)} {column}s")
        texts += [" or ".join(sorted(counts))] * bool(counts)
        allowed = {(d, value) for d, values in common[column].items() for value in values}
        runs, frozen_runs = (
            t[pd.MultiIndex.from_frame(t[["dataset_label", column]]).isin(allowed)]
            for t in (runs, frozen_runs)
        )
    note = Note(
        f"Partial: all rows are cut to {', '.join(texts)} of {title}: no more were trained here.",
        f"Partial: all rows are cut to {', '.join(texts)}.",
    )
    return subset(local, runs), subset(board, frozen_runs), [note] * bool(texts)


def _beside_frozen(
    local: Tables, board: Tables, here: str, title: str
) -> tuple[Tables, Tables, list[Note]]:
    """Drop local rows that equal frozen ones, and relabel the other repeated rows '(here)'.

    The frozen runs of a row that is shown twice get other ids. Also returns notes on the repeated rows.
    Raises UserError where a row and a frozen one share label and version, but not the method or its
    hyperparameters.
    """
    ended = local.runs.loc[local.runs["state"].isin(COMPLETE), "id"]
    both = compared(subset(board, board.runs[board.runs["id"].isin(ended)]), local)
    reruns: pd.Series[bool] = board.runs.get("rerun", pd.Series(False, board.runs.index))
    equal, unlike, other_draws = [], [], 0
    for (dataset, label), row in local.runs.groupby(["dataset_label", "label"], sort=False):
        is_row = (board.runs["dataset_label"] == dataset) & (board.runs["label"] == label)
        frozen_row, again = board.runs[is_row], both[both["id"].isin(row["id"])]
        planned_there = row["id"].isin(frozen_row["id"])
        if frozen_row.empty:
            continue
        if planned_there.all() and again["agreement"].eq(Agreement.EQUAL).all():
            local = subset(local, local.runs[~local.runs["id"].isin(row["id"])])
            reruns = reruns | board.runs["id"].isin(again["id"])
            board = replace(board, runs=board.runs.assign(rerun=reruns))
            equal.append((str(dataset), str(label), len(again), len(row)))
        else:
            _check_same_row(row, frozen_row, f"{title} has a row '{label}' on {dataset}", here)
            names = local.runs["label"].mask(local.runs["id"].isin(row["id"]), f"{label} (here)")
            local = replace(local, runs=local.runs.assign(label=names))
            board = _renamed(board, set(row["id"]))
            unlike.append((str(dataset), str(label), f"{label} (here)"))
            other_draws += int((~planned_there).sum())
    notes = equal_notes(pd.DataFrame(equal, columns=["dataset", "label", "ended", "planned"]))
    if unlike:
        places = pd.MultiIndex.from_frame(both[["dataset_label", "label"]])
        runs = both[places.isin([row[:2] for row in unlike])]
        rows = pd.DataFrame(unlike, columns=["dataset", "label", "shown"])
        notes.append(unlike_note(runs, rows, other_draws))
    return local, board, notes


def _check_same_row(row: pd.DataFrame, frozen_row: pd.DataFrame, taken: str, here: str) -> None:
    """Raise UserError if two rows of one label and version differ in method or draws."""
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


def _renamed(board: Tables, ids: set[str]) -> Tables:
    """Give these frozen runs, which were also trained here, ids of their own."""
    new = {run_id: f"{run_id}@board" for run_id in ids}
    runs, records, scores = board.runs, board.records, board.scores
    return replace(
        board,
        runs=runs.assign(id=runs["id"].replace(new)),
        records=records.assign(id=records["id"].cat.rename_categories(new)),
        scores=scores.assign(id=scores["id"].replace(new)),
    )


def range_notes(*tables: pd.DataFrame) -> list[Note]:
    """Write notes on the rows whose search ranges depend on the dataset or differ from the baseline's.

    A draw takes a hyperparameter at the same quantile on every dataset, so that its values show the
    ranges. A row's range depends on the dataset where one draw of one trial has several values. It differs
    from the baseline's where a shared hyperparameter has another value than in the baseline's run of the
    same dataset, trial and draw.
    """
    columns = ["dataset_label", "trial", "draw", "label", "hparams"]
    plain = pd.concat([runs.loc[~runs["ceiling"], columns] for runs in tables])
    plain = plain.drop_duplicates(["dataset_label", "draw", "label"])  # trials have the same draws
    baseline = plain[plain["label"] == BASELINE].itertuples(index=False, name=None)
    of_baseline = {tuple(place): hparams for *place, _, hparams in baseline}
    varying: dict[str, None] = {}
    others: dict[str, set[str]] = {}
    first: dict[tuple[object, ...], object] = {}
    for *place, label, hparams in plain.itertuples(index=False, name=None) if of_baseline else ():
        base = of_baseline.get(tuple(place), {})
        for name, value in hparams.items():
            if name in base:
                if base[name] != value:
                    others.setdefault(label, set()).add(name)
            elif first.setdefault((label, *place[1:], name), value) != value:
                varying[label] = None
    notes: list[Note] = []
    if varying:
        text = f"The search ranges of {', '.join(varying)} depend on the kind of data."
        short = f"Among all rows, the search ranges of {len(varying)} depend on the kind of data."
        notes.append(Note(text, short))
    if others:
        names = ", ".join(sorted(set().union(*others.values())))
        text = f"other values of {names} than {BASELINE} in the same draw"
        notes.append(
            Note(f"Rows with {text}: {', '.join(others)}.", f"Rows with {text}: {len(others)}.")
        )
    return notes


def with_prediction_metrics(
    frames: Tables, rules: Sequence[str | None], metrics: Iterable[str | None]
) -> Tables:
    """Add to the tables of `joined` the metrics that are computed from predictions, of the runs shown.

    Runs that recorded a metric keep its values, and a metric that is not computed from predictions
    changes nothing; an environment whose task the metric does not take has no value. Raises UserError
    where no predictions are kept, and for a rule that chooses nothing.
    """
    for metric in dict.fromkeys(metrics):
        computed = None if metric is None or not rules else of_predictions(metric)
        if metric is not None and computed is not None:
            values = pd.DataFrame(
                _computed(frames, rules, metric, computed), columns=list(Tables.RECORD_COLUMNS)
            )
            if len(values):
                names = dict.fromkeys(("id", "environment", "split", "metric"), "category")
                frames = replace(frames, records=stacked([frames.records, values.astype(names)]))
    return frames


def _computed(
    frames: Tables, rules: Sequence[str | None], metric: str, computed: PredictionMetric
) -> Iterator[tuple[object, ...]]:
    """Yield the records of a metric at the steps that the rules chose."""
    recorded = frames.records.loc[frames.records["metric"] == metric, "id"].unique()
    if len(recorded) == frames.records["id"].nunique():
        return
    tied = [judge(frames, rule).tied[["id", "step"]] for rule in rules]
    chosen = pd.concat(tied).drop_duplicates()
    chosen = chosen[~chosen["id"].isin(recorded)]
    read = predictions_of_runs(frames.runs)
    for run_id, step in zip(chosen["id"], chosen["step"], strict=True):
        for environment, p in read(str(run_id), int(step)).items():
            for split, mask in (("in", ~p.out), ("out", p.out)):
                if mask.any() and p.kind in computed.kinds:
                    part = replace(
                        p, logits=p.logits[mask], targets=p.targets[mask], out=p.out[mask]
                    )
                    with np.errstate(
                        all="ignore"
                    ):  # a metric may divide by zero where it is undefined
                        value = computed.of_predictions(part)
                    value = value if math.isfinite(value) else math.nan
                    yield str(run_id), int(step), environment, split, metric, value, int(mask.sum())


def spare(results: Directory) -> list[Path]:
    """The files of predictions that no table shows by any rule; none before all runs have ended."""
    files = list(results.path.glob("kept/*/predictions/*.npz"))
    frames = read_results(results) if files else None
    if frames is None or not frames.runs["state"].isin(COMPLETE).all():
        return []
    chosen: set[tuple[str, str]] = set()
    for rule in served(frames):
        tied = judge(frames, rule).tied
        chosen |= set(zip(tied["id"], tied["step"].map(str), strict=True))
    keys = [(file.parent.parent.name, file.stem) for file in files]
    chosen_runs = {run_id for run_id, _ in chosen}
    return [
        file
        for file, (run_id, step) in zip(files, keys, strict=True)
        if (run_id, step) not in chosen and not (step == "examples" and run_id in chosen_runs)
    ]
