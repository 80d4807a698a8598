"""The frozen runs of a board as `Frames`, as if they had just been trained."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.compute as pc

from oodbench.notes import Note
from oodbench.results.boards import PROTOCOL_FILE, datasets_to_come, find_board, to_come
from oodbench.results.frames import Frames
from oodbench.results.parts import COUNT, OWN_COUNT, SCORE, VALUE, Part, read_parts
from oodbench.results.read import COSTS
from oodbench.results.run_spec import State
from oodbench.yaml_values import read_yaml


def frozen(name: str) -> Frames:
    """Return the frames of a board alone; raises UserError as `find_board` and `read_parts` do."""
    path = find_board(name)
    frames = board_frames(_in_order(read_parts(path), path))
    runs = frames.runs.assign(directory=path.name)
    coming = datasets_to_come(path)
    note = Note(
        f"{to_come(coming)}.", f"{len(coming)} dataset{'s' * (len(coming) != 1)} not frozen yet."
    )
    return replace(frames, runs=runs, notes=(note,) * bool(coming))


def board_frames(parts: Sequence[Part]) -> Frames:
    """Return the runs of parts in the form of `oodbench.results.frames`.

    The records are those of the chosen steps on the test environments alone. `Frames.scores` has the
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
    return Frames(runs, records.frame(ids)[list(Frames.METRIC_COLUMNS)], judged)


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
    """Return the columns of `Frames.runs` for a part."""
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
