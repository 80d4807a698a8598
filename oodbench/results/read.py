"""The only reader of results: of a directory, of a board, and of several together.

Directories are read together only if their protocol and code agree, unless the user allows differences.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from oodbench.errors import UserError, counted
from oodbench.notes import Note
from oodbench.results.boards import (
    PROTOCOL_FILE,
    RECORDS_FILE,
    RUNS_FILE,
    board_among,
    called,
    datasets_to_come,
    find_board,
    nothing_frozen,
    to_come,
)
from oodbench.results.directory import ROW_LABELS, Directory
from oodbench.results.ended import ended
from oodbench.results.parquet import (
    RECORDS,
    RUNS,
    SPEC,
    of_runs,
    read_table,
    records_frame,
    runs_frame,
    spec_columns,
    table_of,
)
from oodbench.results.provenance import code
from oodbench.results.run_spec import COMPLETE, TRAIN, RunSpec, State
from oodbench.results.stale import DIGESTED, stale_notes
from oodbench.results.tables import (
    CELL,
    ROW,
    Tables,
    chosen_once,
    completed,
    records_of,
    stacked,
    stacked_runs,
    tidy,
)
from oodbench.yaml_values import read_yaml

FURTHER = ("classes", "family", "shift", "data_notes", "read_as")
"""The fields of a run's context that are columns in memory, but not in files."""
PROTOCOL = (
    *("steps", "evaluate_every", "holdout", "network", "network_hparams", "metric", "noise"),
    *("validation_environments", "draws", "options"),
)
"""The columns in which a dataset's runs must agree between directories, except that ceilings may have other
`options`; `draws` is the number of draws in a cell."""


def read_results(results: Directory, specs: Mapping[str, RunSpec] | None = None) -> Tables:
    """The planned runs of a directory, or those in `specs` (by id), and their records.

    Raises UserError if the directory has no plan, or an empty one.
    """
    if specs is None:
        stored = results.plan()
        rows, settings = stored["rows"], stored["settings"]
    else:
        rows = runs_frame(table_of(spec_columns([*specs.values()], [*specs]), SPEC))
        settings = {}
    if rows.empty:
        raise UserError("the sweep plans no run")
    ids = pd.Index(rows["id"].unique())
    # folders first: a run that is moved meanwhile is then in the tables
    there = results.names("runs")
    live, live_records = results.read_folders([i for i in ids if i in there])
    moved = ended(results.path)
    known = moved.runs[moved.runs["id"].isin(ids)].drop_duplicates("id").set_index("id")
    known["error"] = ""
    live = live[~live.index.isin(known.index)]
    about = stacked_runs([f.reset_index(names="id") for f in (known[[*live]], live)])
    runs = _expanded(rows.join(about.set_index("id"), on="id"), settings)
    runs["directory"] = str(results.path)
    if findings := results.findings():
        runs["findings"] = runs["dataset_label"].map(findings)
    records = of_runs(moved.records, known.index), of_runs(live_records, live.index)
    notes = tuple(f"{sentence}." for sentence in moved.wrong)
    return Tables(completed(runs), _in_order(records, ids), notes=notes)


def _in_order(tables: Sequence[pa.Table], ids: "pd.Index[str]") -> pd.DataFrame:
    frame = records_frame(tables)
    frame = frame[frame["split"] != TRAIN].reset_index(drop=True)
    frame["metric"] = frame["metric"].cat.remove_unused_categories()
    codes = ids.get_indexer(frame["id"].cat.categories)[frame["id"].cat.codes]
    frame["id"] = pd.Categorical.from_codes(codes, ids)
    if (np.diff(codes) < 0).any():
        frame = frame.iloc[np.argsort(codes, kind="stable")].reset_index(drop=True)
    return frame


def _expanded(runs: pd.DataFrame, settings: Mapping[str, Any]) -> pd.DataFrame:
    """Complete the columns of `Tables.runs` from the runs' context and the settings of their sweep."""

    def known(name: str, kind: type) -> list[Any]:
        return [value if isinstance(value, kind) else kind() for value in runs[name]]

    def objects(values: Sequence[Any]) -> "pd.Series[Any]":
        return pd.Series(values, runs.index, dtype=object)

    contexts, chosen = known("context", dict), settings.get("sweep", {}).get("hparams_from")
    return runs.drop(columns="context").assign(
        state=objects([str(state or State.PLANNED) for state in known("state", str)]),
        error=runs["error"].astype(object).fillna(""),
        provenance=objects(known("provenance", dict)),
        training_environments=objects(known("training_environments", tuple)),
        dataset_label=runs["dataset_label"].where(runs["dataset_label"] != "", runs["dataset"]),
        **{name: objects([context.get(name) for context in contexts]) for name in FURTHER},
        selection=settings.get("selection"),
        plugins=objects([tuple(settings.get("plugins", ()))] * len(runs)),
        hparams_from=chosen_once(chosen) if chosen else None,
        frozen=None,
        rerun=False,
    )


def board_tables(board: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The two tables of a board as stored; empty if nothing is frozen. Raises DamagedFile."""
    file = board / RUNS_FILE
    if not file.is_file():
        return runs_frame(RUNS.empty_table()), records_frame([])
    runs = runs_frame(read_table(file, RUNS), str(file))
    return runs, records_frame([read_table(board / RECORDS_FILE, RECORDS)])


def read_board(board: Path) -> Tables:
    """The runs of a board (with `frozen` true) and their records, see `Tables`.

    Raises UserError if nothing is frozen yet, and DamagedFile.
    """
    runs, records = board_tables(board)
    if runs.empty:
        raise UserError(f"the board {board.name} has {nothing_frozen(board)}")
    settings = {"selection": read_yaml(board / PROTOCOL_FILE).get("selection")}
    runs = _expanded(runs.assign(error=""), settings).assign(frozen=True, directory=called(board))
    coming = datasets_to_come(board)
    brief = f"{counted(len(coming), 'dataset')} not frozen yet."
    notes = (Note(f"{to_come(coming)}.", brief),) * bool(coming)
    return Tables(completed(runs), records, notes)


def joined(directories: Sequence[Path], allow_mixed: bool = False) -> Tables:
    """The runs of all directories as one sweep; a run that several directories contain counts once.

    If a label stands for different runs in a later directory, that directory's name is added in brackets.
    Raises UserError if protocol or code differ, unless `allow_mixed`.
    """
    frames = [read_results(Directory(directory)) for directory in directories]
    if len(frames) == 1:
        (only,) = frames
        return replace(only, notes=(*only.notes, *stale_notes(only.runs)))
    runs = stacked_runs([frame.runs for frame in frames])
    ended_first = runs.loc[(~runs["state"].isin(COMPLETE)).sort_values(kind="stable").index]
    rows = ended_first.drop_duplicates(["id", *ROW]).sort_index()
    if not allow_mixed:
        _check(rows)
    rows = rows.assign(label=_labels(rows))[["id", *ROW_LABELS]]
    once = ended_first.drop_duplicates("id")  # a run that has ended in one directory has ended
    read = zip(frames, directories, strict=True)
    records = [records_of(f.records, once.loc[once["directory"] == str(d), "id"]) for f, d in read]
    runs = completed(rows.merge(once.drop(columns=ROW_LABELS), on="id")[list(runs)])
    damaged = [note for frame in frames for note in frame.notes]
    return Tables(runs, stacked(records), notes=(*damaged, *stale_notes(runs)))


def _labels(runs: pd.DataFrame) -> list[str]:
    """The labels, with the directory's name added if an earlier directory has other runs under it."""
    first = runs.groupby([*CELL, "draw"])["directory"].transform("first")
    row = list(zip(runs["label"], runs["directory"], strict=True))
    clashing = {row[i] for i in np.flatnonzero(first != runs["directory"])}
    return [f"{each[0]} ({Path(each[1]).name})" if each in clashing else each[0] for each in row]


def _check(runs: pd.DataFrame) -> None:
    """Raise UserError if directories that share a dataset differ in protocol, in code or in data.

    Protocols are compared on shared trials. Code is compared by version and digests, or by commit if runs
    have no digests. Imported runs of other programs are not compared.
    """
    draws = runs.groupby([*CELL, "directory"])["draw"].transform("nunique")
    validation = runs["validation_environments"].map(sorted)
    noise = runs["noise"].map(lambda value: value if isinstance(value, Mapping) else "none")
    options = runs["options"].mask(runs["ceiling"].eq(True))
    table = runs.assign(
        draws=draws, validation_environments=validation, noise=noise, options=options
    )
    for dataset, of_dataset in table.groupby("dataset_label", sort=False):
        trials = of_dataset.groupby("directory")["trial"].agg(set)
        of_dataset = of_dataset[of_dataset["trial"].isin(set.intersection(*trials))]
        for name in PROTOCOL:
            _alike(of_dataset, name, f"in {name.replace('_', ' ')} of {dataset}")
    how = runs["hparams_from"].astype(object).fillna("chosen in every trial")
    _alike(runs.assign(how=how), "how", "in how hyperparameters were chosen")
    runs = runs[runs["provenance"].map(lambda p: bool(p) and "code" not in p)]
    made: list[Mapping[str, Any]] = list(runs["provenance"])
    versions: Any = [p.get("oodbench") for p in made]
    _alike(runs.assign(version=versions), "version", "in oodbench")
    codes: Any = [None if "digests" in p else code(p) for p in made]
    _alike(runs.assign(code=codes), "code", "in code")
    for kind, column in DIGESTED.items():
        digests = [_by_file_name(p.get("digests", {}).get(kind)) for p in made]
        for subject, of_it in runs.assign(digest=digests).groupby(column, sort=False):
            _alike(of_it, "digest", f"in the {'data' if kind == 'files' else 'code'} of {subject}")


def _by_file_name(digest: Any) -> Any:
    """Digests of code by file name, without folders; a digest of data files is returned as it is."""
    if not isinstance(digest, Mapping):
        return digest
    return {Path(path).name: of_file for path, of_file in digest["files"].items()}


def _alike(runs: pd.DataFrame, column: str, where: str) -> None:
    known = runs.dropna(subset=[column])
    texts = known[column].map(lambda value: json.dumps(value, sort_keys=True, default=str))
    groups = texts.groupby(known["directory"], sort=False)
    values = {str(directory): ", ".join(sorted(set(group))) for directory, group in groups}
    first = next(iter(values), "")
    for directory, text in values.items():
        if text != values[first]:
            raise UserError(
                f"{first} and {directory} differ {where} ({values[first]} against {text}); "
                "`report table --allow-mixed` compares them all the same"
            )


def records_of_sources(sources: Sequence[str | PathLike[str]]) -> pd.DataFrame:
    """The records of results directories and boards as one table, see `oodbench.load`."""
    tables = []
    for source in map(str, sources):
        board, _ = board_among([source])
        read = read_board(find_board(source)) if board else read_results(Directory(Path(source)))
        tables.append(tidy(read))
        if len(sources) > 1:
            tables[-1].insert(0, "source", source)
    if not tables:
        raise UserError("oodbench.load: no results directory or board is named")
    joined: pd.DataFrame = pd.concat(tables, ignore_index=True) if tables[1:] else tables[0]
    return joined
