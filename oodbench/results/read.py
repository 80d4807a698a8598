"""The one reader of results: directories, boards, and several of both as one.

What is compared must have been made alike: sweeps that differ in protocol or code are refused
unless the user says that the difference is meant.
"""

import gc
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from oodbench.errors import UserError
from oodbench.notes import Note
from oodbench.results.boards import (
    PROTOCOL_FILE,
    RECORDS_FILE,
    RUNS_FILE,
    board_among,
    called,
    datasets_to_come,
    find_board,
    to_come,
)
from oodbench.results.directory import Results, RunDirectory
from oodbench.results.ended import Ended, ended
from oodbench.results.parquet import (
    CATEGORIES,
    RECORDS,
    RUNS,
    SPEC,
    read_table,
    records_frame,
    runs_frame,
    spec_columns,
    table_of,
)
from oodbench.results.provenance import code
from oodbench.results.records import Column, Columns, costs_of, whole_lines
from oodbench.results.run_spec import COMPLETE, SCORE, TRAIN, RunSpec, State
from oodbench.results.schemas import DamagedFile, RunFile
from oodbench.results.stale import DIGESTED, stale_notes
from oodbench.results.tables import (
    CELL,
    Tables,
    chosen_once,
    completed,
    records_of,
    renamed,
    stacked,
    stacked_runs,
    tidy,
)
from oodbench.yaml_values import read_yaml

ABOUT = [*(name for name in RUNS.names if name not in SPEC.names), "error"]
"""The columns of a run that its plan does not have."""
CONTEXT = ("training_environments", "metric", "higher_is_better", "constant")
"""The fields of a run's context that have a column of their own."""
FURTHER = ("classes", "family", "shift", "data_notes", "read_as")
"""The fields of a run's context that are columns in memory alone."""
PROTOCOL = (
    *("steps", "evaluate_every", "holdout", "network", "network_hparams", "metric"),
    *("validation_environments", "draws"),
)
"""The columns in which a dataset's runs must agree between directories; `draws` is how many a cell has."""
CHUNK = 250
"""The number of runs that are parsed together."""


@dataclass
class Folders:
    """What is in the folders of some runs."""

    ids: list[str] = field(default_factory=list)
    about: list[dict[str, Any]] = field(default_factory=list)
    """The columns of RUNS that no plan has, and `error`, of each run."""
    lines: list[Sequence[Mapping[str, Any]]] = field(default_factory=list)
    columns: list[Mapping[str, Column]] = field(default_factory=list)

    def only_complete(self) -> "Folders":
        """Return the runs that have ended well."""
        return self._only([i for i, run in enumerate(self.about) if run["state"].complete])

    def records(self) -> pa.Table:
        """Return the values of all records, with the columns RECORDS."""
        ids, steps, values, places = [], [], [], []
        for run_id, lines, columns in zip(self.ids, self.lines, self.columns, strict=True):
            for line in lines:
                of_line = [(columns[key], value) for key, value in line.items() if key in columns]
                places += [place for place, _ in of_line]
                values += [value for _, value in of_line]
                steps += [line["step"]] * len(of_line)
                ids += [run_id] * len(of_line)
        environments, splits, metrics, counts = zip(*places, strict=True) if places else [()] * 4
        columns_ = (ids, steps, environments, splits, metrics, values, counts)
        arrays = [pa.array(v, c.type) for v, c in zip(columns_, RECORDS, strict=True)]
        return pa.Table.from_arrays(arrays, schema=RECORDS)

    def without(self, ids: Collection[str]) -> "Folders":
        """Return the runs whose ids are none of these."""
        return self._only([i for i, run_id in enumerate(self.ids) if run_id not in ids])

    def _only(self, kept: Sequence[int]) -> "Folders":
        names = ("ids", "about", "lines", "columns")
        return Folders(*([getattr(self, name)[i] for i in kept] for name in names))

    def frame(self) -> pd.DataFrame:
        """Return `about` as a frame by id."""
        return pd.DataFrame(self.about, pd.Index(self.ids, dtype=object), ABOUT)

    def runs(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return the runs in the rows of a plan, with the columns RUNS."""
        planned = rows[rows["id"].isin(self.ids)]
        joined: pd.DataFrame = planned.join(self.frame(), on="id")[RUNS.names]
        return joined


def read_folders(results: Path, ids: Sequence[str]) -> Folders:
    """Read the folders of runs.

    A broken run has no records; one that has not ended has those before a torn or damaged line.
    """
    directories = [Results(results).run(run_id) for run_id in ids]

    def chunk_from(start: int) -> list[tuple[dict[str, Any], Any, Any]]:
        return [_folder(directory) for directory in directories[start : start + CHUNK]]

    with _no_collection(), ThreadPoolExecutor(os.cpu_count()) as pool:  # a disk may be slow
        chunks = list(pool.map(chunk_from, range(0, len(ids), CHUNK)))
    found = Folders(list(ids))
    for about, lines, columns in (run for chunk in chunks for run in chunk):
        found.about.append(about)
        found.lines.append(lines)
        found.columns.append(columns)
    return found


def _folder(
    directory: RunDirectory,
) -> tuple[dict[str, Any], Sequence[Mapping[str, Any]], Mapping[str, Column]]:
    """Return what is known of a run, its lines, and what their keys stand for."""
    state, reason = directory.state_and_reason()
    run: RunFile | None = None
    text = b""
    try:
        run = directory.info()
        text = b"" if state is State.BROKEN else directory.read("metrics.jsonl") or b""
    except DamagedFile:
        pass
    if run is None or run.spec.id != directory.id:
        return _about({}, {}, state, reason, [], 0), [], {}
    lines, columns = whole_lines(text), Columns.of(run).by_key
    count = sum(key in columns for line in lines for key in line)
    about = _about(dict(run.context), dict(run.provenance), state, reason, lines, count)
    return about, lines, columns


def _about(
    context: dict[str, Any],
    provenance: dict[str, Any],
    state: State,
    reason: str,
    lines: Sequence[Mapping[str, Any]],
    count: int,
) -> dict[str, Any]:
    own = {name: context.pop(name, None) for name in CONTEXT}
    own["training_environments"] = tuple(own["training_environments"] or ())
    context.pop("dataset_label", None)
    named = {"state": state, "error": reason, "records": count, "context": context}
    return {**own, **named, "provenance": provenance, **costs_of(lines)}


@contextmanager
def _no_collection() -> Iterator[None]:
    """Pause the garbage collector, which would search all objects again and again while many are made."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def read_results(results: Results, specs: Mapping[str, RunSpec] | None = None) -> Tables:
    """Return the planned runs of a directory, or these (by id), and their records.

    A run that stands in several rows is there once for each; see `Tables.runs`. Raises UserError if
    there is no sweep, or it plans no run.
    """
    with _no_collection():
        rows, settings = _planned(results, specs)
        if rows.empty:
            raise UserError("the sweep plans no run")
        ids = pd.Index(rows["id"].unique())
        with_folder = _names_in(results.path / "runs")
        # folders first: a run that is moved meanwhile is then in the tables
        folders = read_folders(results.path, [i for i in ids if i in with_folder])
        moved = ended(results.path)
        known = moved.runs[moved.runs["id"].isin(ids)].drop_duplicates("id").set_index("id")
        live = folders.without(known.index)
        of_ended, wrong = _checked(moved, known)
        known = known.assign(error=[wrong.get(i, "") for i in known.index])
        known["state"] = [State.BROKEN if i in wrong else s for i, s in known["state"].items()]
        of_both = [f.reset_index(names="id") for f in (known[ABOUT], live.frame())]
        about = stacked_runs(of_both).set_index("id")
        runs = _expanded(rows.join(about, on="id"), settings)
        records = _in_order([*of_ended, live.records()], ids)
        notes = (*moved.wrong, *moved.contradicted.values())
        return Tables(*_each_once(completed(runs), records), notes=tuple(f"{n}." for n in notes))


def _planned(
    results: Results, specs: Mapping[str, RunSpec] | None
) -> tuple[pd.DataFrame, Mapping[str, Any]]:
    """Return the rows of the plan, or of these runs, and the settings of the sweep."""
    if specs is not None:
        return runs_frame(table_of(spec_columns([*specs.values()], [*specs]), SPEC)), {}
    stored = results.plan()
    return stored["rows"], stored["settings"]


def _names_in(folder: Path) -> set[str]:
    try:
        return set(os.listdir(folder))  # noqa: PTH208 (fast)
    except OSError:
        return set()


def _checked(moved: Ended, known: pd.DataFrame) -> tuple[list[pa.Table], dict[str, str]]:
    """Return the records of ended runs, and a sentence on each run that has not as many as it should."""
    tables: list[pa.Table] = []
    wrong: dict[str, str] = {}
    for i, part in enumerate(moved.parts):
        own = known[known["part"] == i]
        try:
            table = part.records
        except DamagedFile as error:
            wrong |= dict.fromkeys(own.index, str(error))
            continue
        encoded = table["id"].combine_chunks()
        counts = np.bincount(encoded.indices.to_numpy(), minlength=len(encoded.dictionary))
        there = pd.Series(counts, encoded.dictionary.to_pylist()).reindex(own.index).fillna(0)
        unlike = there.index[there != own["records"]]
        wrong |= {
            run_id: f"{part.place} has {there[run_id]:.0f} values of {own['records'][run_id]}"
            for run_id in unlike
        }
        whole = own.index.difference(unlike)
        if len(whole) < len(encoded.dictionary):
            table = table.filter(pc.is_in(encoded, pa.array(whole, pa.string())))
        tables.append(table)
    return tables, wrong


def _in_order(tables: Sequence[pa.Table], ids: "pd.Index[str]") -> pd.DataFrame:
    """Return evaluations as one frame, the runs in the order of their ids."""
    frame = records_frame(tables)
    frame = frame[frame["split"] != TRAIN].reset_index(drop=True)
    frame["metric"] = frame["metric"].cat.remove_unused_categories()
    codes = ids.get_indexer(frame["id"].cat.categories)[frame["id"].cat.codes]
    frame["id"] = pd.Categorical.from_codes(codes, ids)
    if (np.diff(codes) < 0).any():
        frame = frame.iloc[np.argsort(codes, kind="stable")].reset_index(drop=True)
    return frame


def _expanded(runs: pd.DataFrame, settings: Mapping[str, Any]) -> pd.DataFrame:
    """Return runs with the columns of `Tables.runs` that their context and their sweep have."""
    runs["state"] = runs["state"].astype(object).fillna(State.PLANNED).map(str)  # plain texts
    runs["error"] = runs["error"].astype(object).fillna("")
    contexts = [c if isinstance(c, dict) else {} for c in runs.pop("context")]
    for name in FURTHER:
        runs[name] = [context.get(name) for context in contexts]
    made = [p if isinstance(p, dict) else {} for p in runs["provenance"]]
    runs["provenance"] = pd.Series(made, runs.index, dtype=object)
    nothing: tuple[str, ...] = ()
    of_runs = runs["training_environments"]
    known = [e if isinstance(e, tuple) else nothing for e in of_runs]
    runs["training_environments"] = pd.Series(known, runs.index, dtype=object)
    runs["dataset_label"] = runs["dataset_label"].where(
        runs["dataset_label"] != "", runs["dataset"]
    )
    runs["selection"] = settings.get("selection")
    runs["plugins"] = [tuple(settings.get("plugins", ()))] * len(runs)
    if chosen := settings.get("sweep", {}).get("hparams_from"):
        runs["hparams_from"] = chosen_once(chosen)
    return runs


def _each_once(runs: pd.DataFrame, records: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Give a run of several rows an id of its own (ID@1, ...), and records, in all but the first."""
    again = runs.duplicated("id")
    if not again.any():
        return runs, records
    several = runs[again]
    new = several["id"] + "@" + (several.groupby("id").cumcount() + 1).astype(str)
    copies = []
    for run_id, own in zip(several["id"], new, strict=True):
        of_run = records_of(records, pd.Series([run_id])).astype({"id": object}).assign(id=own)
        copies.append(of_run.astype(dict.fromkeys(CATEGORIES, "category")))
    runs = runs.assign(id=runs["id"].mask(again, new.reindex(runs.index)))
    return runs, stacked([records, *copies])


def read_board(board: Path) -> Tables:
    """Return the runs of a board, of which `frozen` is true, and their records.

    The records are those of the chosen steps on the test environments alone; `Tables.scores` has the
    validation scores. Raises UserError if nothing is frozen yet, and DamagedFile.
    """
    file = board / RUNS_FILE
    if not file.is_file():
        raise UserError(f"the board {board.name} has no row yet")
    runs = runs_frame(read_table(file, RUNS))
    values = records_frame([read_table(board / RECORDS_FILE, RECORDS)])
    strange = set(values["id"].cat.categories) - set(runs["id"])
    if strange:
        raise DamagedFile(f"{board / RECORDS_FILE} has records of no run: {min(strange)}")
    runs, values = _each_once(runs, values)
    is_score = values["split"].eq(SCORE)
    scores = values[is_score].astype({"id": object, "metric": object})
    names = {"metric": "rule", "value": "score"}
    scores = scores.rename(columns=names)[["id", "rule", "step", "score"]].reset_index(drop=True)
    runs = runs.assign(error="")
    runs = _expanded(runs, {"selection": read_yaml(board / PROTOCOL_FILE).get("selection")})
    runs = runs.drop(columns="plugins").assign(frozen=True, directory=called(board))
    records = values[~is_score].reset_index(drop=True)
    return Tables(completed(runs), records, scores, _to_come(board))


def _to_come(board: Path) -> tuple[Note, ...]:
    coming = datasets_to_come(board)
    count = f"{len(coming)} dataset{'s' * (len(coming) != 1)}"
    return (Note(f"{to_come(coming)}.", f"{count} not frozen yet."),) * bool(coming)


def joined(directories: Sequence[Path], allow_mixed: bool = False) -> Tables:
    """Return the runs of all directories as if they were one sweep; a run that is in several counts once.

    The runs' column `directory` has the one that a run is read from. A label that means other runs
    in a later directory gets that directory's name in brackets.
    Raises UserError if protocol or code differ, unless `allow_mixed`.
    """
    frames = [read_results(Results(directory)) for directory in directories]
    tables = [f.runs.assign(directory=str(d)) for f, d in zip(frames, directories, strict=True)]
    if len(frames) == 1:
        return replace(frames[0], runs=tables[0], notes=(*frames[0].notes, *stale_notes(tables[0])))
    runs = stacked_runs(tables)
    runs["run"] = runs["id"].str.partition("@")[0]
    first = (~runs["state"].isin(COMPLETE)).sort_values(kind="stable").index
    runs = runs.loc[first].drop_duplicates(["run", "dataset_label", "label"]).sort_index()
    if not allow_mixed:
        _check(runs)
    runs["label"] = _labels(runs)
    number = runs.groupby("run").cumcount()  # of the rows that a run stands in
    runs["new"] = runs["run"].where(number == 0, runs["run"] + "@" + number.astype(str))
    metrics = [
        renamed(records_of(frame.records, of["id"]), dict(zip(of["id"], of["new"], strict=True)))
        for frame, d in zip(frames, directories, strict=True)
        for of in [runs[runs["directory"] == str(d)]]
    ]
    runs = completed(runs.assign(id=runs["new"]).drop(columns=["run", "new"]))
    damaged = [note for frame in frames for note in frame.notes]
    return Tables(runs, stacked(metrics), notes=(*damaged, *stale_notes(runs)))


def _labels(runs: pd.DataFrame) -> "pd.Series[str]":
    """Return the labels, with the directory's name where an earlier one has other runs in that place."""
    place = [*CELL, "draw"]
    first = runs.groupby(place)["directory"].transform("first")
    clash = runs[first != runs["directory"]]
    renamed = set(zip(clash["label"], clash["directory"], strict=True))
    return pd.Series(
        [
            f"{label} ({Path(directory).name})" if (label, directory) in renamed else label
            for label, directory in zip(runs["label"], runs["directory"], strict=True)
        ],
        runs.index,
    )


def _check(runs: pd.DataFrame) -> None:
    """Raise UserError if directories that share a dataset differ in protocol, in code or in data.

    A protocol is compared on the trials that directories share. Code is compared by version and digests,
    and by commit for runs without digests. Runs of another program are not compared.
    """
    draws = runs.groupby([*CELL, "directory"])["draw"].transform("nunique")
    validation = runs["validation_environments"].map(sorted)
    table = runs.assign(draws=draws, validation_environments=validation)
    for dataset, of_dataset in table.groupby("dataset_label", sort=False):
        trials = of_dataset.groupby("directory")["trial"].agg(set)
        of_dataset = of_dataset[of_dataset["trial"].isin(set.intersection(*trials))]
        for name in PROTOCOL:
            _alike(of_dataset, name, f"in {name.replace('_', ' ')} of {dataset}")
    if "hparams_from" in runs:
        how = runs["hparams_from"].fillna("chosen in every trial")
        _alike(runs.assign(how=how), "how", "in how hyperparameters were chosen")
    runs = runs[runs["provenance"].map(lambda p: bool(p) and "code" not in p)]
    _alike(
        runs.assign(version=[p.get("oodbench") for p in runs["provenance"]]),
        "version",
        "in oodbench",
    )
    codes: Any = [None if "digests" in p else code(p) for p in runs["provenance"]]
    _alike(runs.assign(code=codes), "code", "in code")
    for kind, column in DIGESTED.items():
        digests = [_by_file_name(p.get("digests", {}).get(kind)) for p in runs["provenance"]]
        for subject, of_it in runs.assign(digest=digests).groupby(column, sort=False):
            _alike(of_it, "digest", f"in the {'data' if kind == 'files' else 'code'} of {subject}")


def _by_file_name(digest: Any) -> Any:
    """Return a recorded digest of code as digests by the files' names alone; one of data files as it is."""
    if not isinstance(digest, Mapping):
        return digest
    return {Path(path).name: of_file for path, of_file in digest["files"].items()}


def _alike(runs: pd.DataFrame, column: str, where: str) -> None:
    """Raise UserError if directories have different values in a column, which `where` describes."""
    known = runs.dropna(subset=[column])
    texts = known[column].map(lambda value: json.dumps(value, sort_keys=True, default=str))
    groups = texts.groupby(known["directory"], sort=False)
    values = {str(directory): ", ".join(sorted(set(group))) for directory, group in groups}
    first = next(iter(values), "")
    for directory, text in values.items():
        if text != values[first]:
            raise UserError(
                f"{first} and {directory} differ {where} ({values[first]} against {text}); "
                "--allow-mixed compares them all the same"
            )


def records_of_sources(sources: Sequence[str | PathLike[str]]) -> pd.DataFrame:
    """Return the records of results directories and boards as one table, see `oodbench.load`."""
    tables = []
    for source in map(str, sources):
        board, _ = board_among([source])
        read = read_board(find_board(source)) if board else read_results(Results(Path(source)))
        tables.append(tidy(read))
        if len(sources) > 1:
            tables[-1].insert(0, "source", source)
    if not tables:
        raise UserError("oodbench.load: no results directory or board is named")
    joined: pd.DataFrame = pd.concat(tables, ignore_index=True) if tables[1:] else tables[0]
    return joined
