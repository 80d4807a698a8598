"""The runs that a report is of: results directories, a board, or a board with directories beside it."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from oodbench.errors import UserError
from oodbench.metrics import of_predictions
from oodbench.notes import Note
from oodbench.report.differences import Agreement, compared, equal_notes, origin, unlike_note
from oodbench.report.gaps import BASELINE, gaps_by_rule, losses
from oodbench.results.boards import board_among, datasets_to_come, find_board
from oodbench.results.directory import Results
from oodbench.results.predictions import predictions_of_runs
from oodbench.results.provenance import method_digest, versions
from oodbench.results.read import joined, read_board, read_results
from oodbench.results.run_spec import COMPLETE, RunSpec
from oodbench.results.tables import Tables, completed, only, renamed, stacked, stacked_runs, subset
from oodbench.selection import judge, served

FIXED = ("dataset", "options", "steps", "evaluate_every", "holdout", "network", "metric")
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
    """The runs of some sources as those of one sweep, restricted as `only` does.

    Raises UserError as `board_among`, `beside_board` and `joined` do, and for unknown datasets or rows.
    """
    board, directories = board_among(sources)
    if board is None:
        return only(joined(directories, allow_mixed), datasets, rows, baseline)
    return only(beside_board(board, directories, datasets), (), rows, baseline)


def beside_board(name: str, directories: Sequence[Path], datasets: Sequence[str] = ()) -> Tables:
    """The frames of a board and of results directories under its protocol, on `datasets` or all.

    Results on datasets of which nothing is frozen yet are left out. All rows are cut to the datasets that
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
    here = ", ".join(map(str, directories))
    title = f"the board {Path(name).name}"
    local = replace(local, runs=local.runs.assign(frozen=False))
    left_out = datasets_to_come(find_board(name))
    shown = local.runs["dataset_label"].isin(datasets or set(local.runs["dataset_label"]))
    local = subset(local, local.runs[shown & ~local.runs["dataset_label"].isin(left_out)])
    if local.runs.empty:
        raise UserError(f"{here} has no runs of {', '.join(datasets) or f'what {title} has'}")
    _check(local.runs, board.runs, here, title)
    local, shown, notes = _cut(_matched(local, board), board, here, title)
    notes += range_notes(board.runs, local.runs)
    made = origin(shown.runs, local.runs)
    local, shown, repeated = _beside_frozen(local, shown, here, title)
    order = {label: i for i, label in enumerate(shown.runs["dataset_label"].unique())}
    runs = stacked_runs([shown.runs, local.runs]).sort_values(
        "dataset_label", key=lambda labels: labels.map(order), kind="stable", ignore_index=True
    )
    metrics = stacked([shown.records, local.records])
    sentences = (*local.notes, *board.notes, *notes, *repeated, made)
    return Tables(completed(runs), metrics, shown.scores, sentences)


def _matched(local: Tables, board: Tables) -> Tables:
    """Give each run here the id of the frozen run of its row, or else one that the board has not.

    A run here may also stand on the board under another label.
    """
    place = ["dataset_label", "label"]

    def keyed(runs: pd.DataFrame) -> list[tuple[str, str, str]]:
        plain = runs["id"].str.partition("@")[0]
        return list(zip(plain, *(runs[name] for name in place), strict=True))

    frozen = dict(zip(keyed(board.runs), board.runs["id"], strict=True))
    runs, known = local.runs, set(board.runs["id"])
    ids = {
        run_id: frozen.get(key) or (f"{run_id}@here" if run_id in known else run_id)
        for run_id, key in zip(runs["id"], keyed(runs), strict=True)
    }
    return replace(
        local, runs=runs.assign(id=runs["id"].map(ids)), records=renamed(local.records, ids)
    )


def _ranked(name: str) -> Tables:
    """The runs of a board with the rule of its headline as `selection`, if the protocol names none.

    It is the one that loses least to the oracle of those that judge most datasets.
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
    frozen_runs = frozen_runs[~frozen_runs["ceiling"]]
    unlike: list[str] = []
    for dataset, local in runs[~runs["ceiling"]].groupby("dataset_label", sort=False):
        known = frozen_runs[frozen_runs["dataset_label"] == dataset]
        if known.empty:
            raise UserError(f"{here} holds {dataset}, which {title} has not")
        for column in FIXED:
            if column in local:  # a plan has no metric yet
                unlike += _differences(local, known, [column])
        for hparam in BATCH:
            local, known = (
                table.assign(**{hparam: table["hparams"].map(lambda h, name=hparam: h.get(name))})
                for table in (local, known)
            )
            if known[hparam].nunique() == 1:
                unlike += _differences(local, known, [hparam])
        for columns in CHOICES:
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
    datasets = list(frozen_runs["dataset_label"].unique())
    ended = set(runs.loc[runs["state"].isin(COMPLETE), "dataset_label"])
    shown = [d for d in datasets if d in (ended or set(runs["dataset_label"]))]
    kept, kept_frozen = list[pd.DataFrame](), list[pd.DataFrame]()
    cuts: dict[str, set[str]] = {"trial": set(), "draw": set()}
    for dataset in shown:
        of_both = [t[t["dataset_label"] == dataset] for t in (runs, frozen_runs)]
        rows = of_both[0].groupby("label")
        for column, counts in cuts.items():
            common = set.intersection(*(set(row[column]) for _, row in rows))
            planned = frozen_runs.loc[frozen_runs["dataset_label"] == dataset, column].unique()
            if not common:
                raise UserError(f"the rows on {dataset} in {here} have no {column} in common")
            if common != set(planned):
                counts.add(f"{len(common)} of {len(planned)} {column}s")
            of_both = [table[table[column].isin(common)] for table in of_both]
        kept.append(of_both[0])
        kept_frozen.append(of_both[1])
    texts = [" or ".join(sorted(counts)) for counts in cuts.values() if counts]
    if len(shown) < len(datasets):
        texts.insert(0, f"{len(shown)} of {len(datasets)} datasets")
    note = Note(
        f"Partial: all rows are cut to {', '.join(texts)} of {title}: no more were trained here.",
        f"Partial: all rows are cut to {', '.join(texts)}.",
    )
    local = subset(local, pd.concat(kept).sort_index())
    board = subset(board, pd.concat(kept_frozen).sort_index())
    return local, board, [note] * bool(texts)


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
    made, frozen_by = ([p for p in runs["provenance"] if p] for runs in (row, frozen_row))
    if versions(made) != versions(frozen_by):
        return  # another version may have changed the method or its ranges
    if not row["id"].isin(frozen_row["id"]).all():
        raise UserError(
            f"{taken} with other hyperparameters than {here}: give yours another `label`"
        )
    sources, frozen_sources = (
        ", ".join(sorted({str(method_digest(p)) for p in provenances})) or "none"
        for provenances in (made, frozen_by)
    )
    if sources != frozen_sources:
        raise UserError(
            f"{taken} of other code than {here} (digest {frozen_sources} of the method, "
            f"not {sources}): give yours another `label`"
        )


def _renamed(board: Tables, ids: set[str]) -> Tables:
    """Give these frozen runs, which were also trained here, ids of their own."""
    new = {run_id: f"{run_id}@board" for run_id in ids}
    metrics, scores = board.records, board.scores
    return replace(
        board,
        runs=board.runs.assign(id=board.runs["id"].replace(new)),
        records=metrics.assign(id=metrics["id"].cat.rename_categories(new)),
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
    """Add to the frames of `joined` the metrics that are computed from predictions, of the runs shown.

    Runs that recorded a metric keep its values, and a metric that is not computed from predictions
    changes nothing; an environment whose task the metric does not take has no value. Raises UserError
    where no predictions are kept, and for a rule that chooses nothing.
    """
    for metric in dict.fromkeys(metrics):
        if metric is not None and rules:
            frames = _with_metric(frames, rules, metric)
    return frames


def _with_metric(frames: Tables, rules: Sequence[str | None], metric: str) -> Tables:
    recorded = frames.records.loc[frames.records["metric"] == metric, "id"].unique()
    if len(recorded) == frames.records["id"].nunique():
        return frames
    computed = of_predictions(metric)
    if computed is None:
        return frames
    tied = [judge(frames, rule).tied[["id", "step"]] for rule in rules]
    chosen = pd.concat(tied).drop_duplicates()
    chosen = chosen[~chosen["id"].isin(recorded)]
    if chosen.empty:
        return frames
    rows = []
    read = predictions_of_runs(frames.runs)
    for run_id, step in zip(chosen["id"], chosen["step"], strict=True):
        for environment, p in read(str(run_id), int(step)).items():
            for split, mask in (("in", ~p.out), ("out", p.out)):
                if mask.any() and p.kind in computed.kinds:
                    subset = replace(
                        p, logits=p.logits[mask], targets=p.targets[mask], out=p.out[mask]
                    )
                    value, count = computed.of_predictions(subset), int(mask.sum())
                    rows.append((str(run_id), int(step), environment, split, metric, value, count))
    if not rows:
        return frames
    values = pd.DataFrame(rows, columns=list(Tables.RECORD_COLUMNS))
    names = dict.fromkeys(("id", "environment", "split", "metric"), "category")
    return replace(frames, records=stacked([frames.records, values.astype(names)]))


def spare(results: Results) -> list[Path]:
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
