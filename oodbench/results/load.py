"""Whatever runs are in, as `Tables`: a results directory, several as one, or a board.

What is compared must have been made alike: sweeps that differ in protocol or code are refused
unless the user says that the difference is meant.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.compute as pc

from oodbench.errors import UserError
from oodbench.notes import Note
from oodbench.results.boards import PROTOCOL_FILE, datasets_to_come, find_board, to_come
from oodbench.results.directory import Results
from oodbench.results.tables import CELL, Tables, completed, records_of, stacked, stacked_runs
from oodbench.results.parts import COUNT, OWN_COUNT, SCORE, VALUE, Part, read_parts
from oodbench.results.provenance import code
from oodbench.results.read import COSTS, read_frames
from oodbench.results.run_spec import COMPLETE, RunSpec, State
from oodbench.results.stale import DIGESTED, stale_notes
from oodbench.yaml_values import read_yaml

PROTOCOL = (
    *("steps", "evaluate_every", "holdout", "network", "network_hparams", "metric"),
    *("validation_environments", "draws"),
)
"""The columns in which a dataset's runs must agree between directories; `draws` is how many a cell has."""


def load_frames(results: Results, runs: Mapping[str, RunSpec] | None = None) -> Tables:
    """Return the planned runs, or these (by id), and their records.

    Raises UserError if there is no sweep, it plans no run, or a line of JSON is no record.
    """
    frames = Tables(*read_frames(results, runs))
    return replace(frames, runs=completed(frames.runs))


def joined(directories: Sequence[Path], allow_mixed: bool = False) -> Tables:
    """Return the runs of all directories as if they were one sweep; a run that is in several counts once.

    The runs' column `directory` has the one that a run is read from. A label that means other runs
    in a later directory gets that directory's name in brackets.
    Raises UserError if protocol or code differ, unless `allow_mixed`.
    """
    frames = [load_frames(Results(directory)) for directory in directories]
    tables = [f.runs.assign(directory=str(d)) for f, d in zip(frames, directories, strict=True)]
    if len(frames) == 1:
        return replace(frames[0], runs=tables[0], notes=stale_notes(tables[0]))
    runs = stacked_runs(tables)
    first = (~runs["state"].isin(COMPLETE)).sort_values(kind="stable").index
    runs = runs.loc[first].drop_duplicates("id").sort_index()
    if not allow_mixed:
        _check(runs)
    runs["label"] = _labels(runs)
    metrics = [
        records_of(frame.records, runs.loc[runs["directory"] == str(d), "id"])
        for frame, d in zip(frames, directories, strict=True)
    ]
    runs = completed(runs)
    return Tables(runs, stacked(metrics), notes=stale_notes(runs))


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


def frozen(name: str) -> Tables:
    """Return the frames of a board alone; raises UserError as `find_board` and `read_parts` do."""
    path = find_board(name)
    frames = board_frames(_in_order(read_parts(path), path))
    runs = frames.runs.assign(directory=path.name)
    coming = datasets_to_come(path)
    note = Note(
        f"{to_come(coming)}.", f"{len(coming)} dataset{'s' * (len(coming) != 1)} not frozen yet."
    )
    return replace(frames, runs=runs, notes=(note,) * bool(coming))


def board_frames(parts: Sequence[Part]) -> Tables:
    """Return the runs of parts in the form of `oodbench.results.tables`.

    The records are those of the chosen steps on the test environments alone. `Tables.scores` has the
    validation scores, by which selection rules choose. The column `frozen` of the runs is true.
    """
    tables = [_run_columns(part) for part in parts]
    columns = dict.fromkeys(name for table in tables for name in table)
    runs = pd.DataFrame(
        {name: [v for t in tables for v in t.get(name, [None] * len(t["id"]))] for name in columns}
    )
    records, scores = _Stack(), _Stack()
    first = 0
    for part, table in zip(parts, tables, strict=True):
        _stack_numbers(part, first, records, scores)
        first += len(table["id"])
    ids = pd.Index(runs["id"])
    judged = scores.frame(ids).rename(columns={"value": "score"})
    judged = judged.astype({"id": object, "rule": object})[["id", "rule", "step", "score"]]
    return Tables(completed(runs), records.frame(ids)[list(Tables.RECORD_COLUMNS)], judged)


class _Stack:
    """Arrays of numbers, each labelled by names such as its environment and metric, to be concatenated."""

    def __init__(self) -> None:
        self.numbers: list[tuple[Any, ...]] = []
        self.names: list[dict[str, str]] = []

    def add(self, *numbers: Any, **names: str) -> None:
        """Add arrays of one length (run, step, value and perhaps count), labelled by these names."""
        self.numbers.append(numbers)
        self.names.append(names)

    def frame(self, ids: "pd.Index[str]") -> pd.DataFrame:
        """Concatenate the arrays as a table; `id` and names are categorical, an empty name is missing."""
        run, *numbers = (np.concatenate(column) for column in zip(*self.numbers, strict=True))
        columns: dict[str, Any] = {"id": pd.Categorical.from_codes(run, ids)}
        sizes = [len(arrays[0]) for arrays in self.numbers]
        for name in self.names[0]:
            code, known = pd.factorize(np.array([names[name] or None for names in self.names]))
            columns[name] = pd.Categorical.from_codes(np.repeat(code, sizes), pd.Index(known))
        return pd.DataFrame(columns | dict(zip(("step", "value", "count"), numbers, strict=False)))


def _stack_numbers(part: Part, first: int, records: _Stack, scores: _Stack) -> None:
    """Add the values and the scores of a part, whose runs are counted from `first`."""
    step = part.table["step"].to_numpy()
    run = first + pd.factorize(part.table["id"].to_numpy())[0]
    columns = set(part.table.column_names)
    for name in part.table.column_names:
        prefix, slash, place = name.partition("/")
        if prefix + slash not in (SCORE, VALUE):
            continue
        rows = np.flatnonzero(pc.is_valid(part.table[name]).to_numpy())
        numbers = run[rows], step[rows], part.table[name].to_numpy()[rows]
        if prefix + slash == SCORE:
            scores.add(*numbers, rule=place)
            continue
        metric, _, environment = place.partition("/")
        own_count = f"{OWN_COUNT}{place}"
        counts = part.table[own_count if own_count in columns else f"{COUNT}{environment}"]
        records.add(
            *(*numbers, counts.to_numpy()[rows].astype(np.int32)),
            environment=environment,
            split="in" if environment else "",
            metric=metric.replace("%2f", "/").replace("%25", "%"),
        )


def _run_columns(part: Part) -> dict[str, list[Any]]:
    """Return the columns of `Tables.runs` for a part."""
    about, runs = part.about, part.run_columns()
    vectorized, diverged, seconds = (runs.pop(n) for n in ("vectorized", "diverged", "seconds"))
    shared: dict[str, Any] = {
        **about.spec,
        **about.context,
        **dict.fromkeys(COSTS),
        "dataset_label": part.dataset,
        "error": "",
        "selection": about.selection,
        "frozen": True,
    }
    constants = {(tuple(c["test_environments"]), c["trial"]): c["values"] for c in about.constants}
    provenances = {v: dict(about.provenance) | {"vectorized": v} for v in (False, True)}
    places = zip(runs["test_environments"], runs["trial"], strict=True)
    return {
        **{name: [value] * len(diverged) for name, value in shared.items()},
        **runs,
        "state": [State.DIVERGED if d else State.DONE for d in diverged],
        "provenance": [provenances[v] for v in vectorized],
        "constant": [constants.get(place) for place in places],
        "training_seconds": seconds,
    }


def _in_order(parts: Sequence[Part], board: Path) -> list[Part]:
    """Return the parts in the order of the board's protocol; a part that it does not list comes last."""
    protocol = read_yaml(board / PROTOCOL_FILE)
    datasets, rows = protocol.get("datasets", []), protocol.get("algorithms", [])
    labels = [r.get("label") or r.get("name") if isinstance(r, dict) else r for r in rows]

    def place(part: Part) -> tuple[int, int, str, str]:
        dataset = next((i for i, d in enumerate(datasets) if _is_of(part, d)), len(datasets))
        row = labels.index(part.label) if part.label in labels else len(labels)
        return dataset, row, part.dataset, part.label

    return sorted(parts, key=place)


def _is_of(part: Part, entry: str | Mapping[str, Any]) -> bool:
    """Return whether a part is of the dataset that an entry of the protocol names."""
    options = {"name": entry} if isinstance(entry, str) else dict(entry)
    name, label = options.pop("name", None), options.pop("label", None)
    if label is not None:
        return bool(label == part.dataset)
    spec = part.about.spec
    return name == spec["dataset"] and all(
        spec["options"].get(option, value) == value for option, value in options.items()
    )
