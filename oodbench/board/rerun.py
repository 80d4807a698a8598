"""Train frozen runs again, and check whether they equal the board's."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from oodbench.algorithms import algorithms
from oodbench.board.freeze import data_digests
from oodbench.board.protocol import name_of, possible, protocol_of
from oodbench.errors import unknown
from oodbench.report.differences import Agreement, compared, distance, named, origin, outcome
from oodbench.results.directory import Results
from oodbench.results.load import board_frames, load_frames
from oodbench.results.parts import Part, read_parts
from oodbench.results.run_spec import RunSpec
from oodbench.results.tables import subset
from oodbench.sweep.launch import LaunchOptions, launch_specs


@dataclass(frozen=True)
class Rerun:
    """The comparison of runs that were trained again with the frozen ones."""

    table: pd.DataFrame
    """The runs, as `compared` has them."""
    sentences: list[str]
    agree: bool
    """Whether every run has a result, and none is off."""


def rerun(
    board: Path, count: int, seed: int, options: LaunchOptions, rows: Sequence[str] = ()
) -> Rerun:
    """Train random frozen runs again, of `rows` or all, and compare.

    Datasets that lack data or a package are left out. A run has the same bits whichever runs are trained
    beside it: here the others of the sample. Raises UserError for an unknown row, and for a method
    that is not registered.
    """
    parts = read_parts(board)
    labels = {part.label for part in parts}
    for row in rows:
        if row not in labels:
            raise unknown("algorithm", row, labels, f"the board {board.name}")
    kept = {name_of(entry) for entry in possible(protocol_of(board), options.data_dir).datasets}
    parts = [p for p in parts if p.dataset in kept and (not rows or p.label in rows)]
    ids = [(i, run_id) for i, part in enumerate(parts) for run_id in part.ids]
    sample = dict.fromkeys(random.Random(seed).sample(ids, min(count, len(ids))))
    parts = [parts[i] for i in sorted({i for i, _ in sample})]
    changed = changed_data(parts, options.data_dir)
    chosen = {run_id for _, run_id in sample}
    specs = [spec for part in parts for spec in part.specs().values() if spec.id in chosen]
    again = load_frames(train_frozen(board, specs, options))
    frozen = board_frames(parts)
    frozen = subset(frozen, frozen.runs[frozen.runs["id"].isin(chosen)])
    table = compared(frozen, again)
    failed = table[table["agreement"].isin((Agreement.MISSING, Agreement.OFF))]
    errors = again.runs.set_index("id")["error"]
    sentences = [
        *(_failure(run, str(errors.get(run["id"], ""))) for _, run in failed.iterrows()),
        *(f"{text}." for text in changed),
        f"Of {len(table)} runs of {board.name} that were trained again: {outcome(table)}.",
        str(origin(frozen.runs, again.runs)),
    ]
    return Rerun(table, sentences, failed.empty)


def _failure(run: "pd.Series[Any]", error: str) -> str:
    """Return a clause on a run that is off, or that has no result, with its error if there was one."""
    text = f"{run['agreement']}: {named(run)} (run {run['id']})"
    if run["agreement"] is Agreement.OFF:
        return f"{text}, {distance(run)}"
    return f"{text}: {error}" if error else text


def train_frozen(board: Path, specs: Sequence[RunSpec], options: LaunchOptions) -> Results:
    """Train the frozen runs that have not ended in `options.out`."""
    for name in {spec.algorithm for spec in specs}:
        algorithms.get(name)
    results = Results(options.out)
    left = [spec.id for spec in specs if results.run(spec.id).end() is None]
    launch_specs(board.name, {spec.id: spec for spec in specs}, left, options)
    return results


def changed_data(parts: Sequence[Part], data_dir: Path | None) -> list[str]:
    """Return sentences on the parts whose data have other digests than when they were frozen."""
    changed = []
    for part in parts:
        known = part.about.provenance.get("data")
        if not known:
            continue
        trials = sorted({int(t) for t in part.runs()["trial"]})
        spec = part.about.spec
        now = data_digests(spec["dataset"], spec["options"], trials, data_dir)
        unlike = [name for name, digest in known.items() if now.get(name) != digest]
        if unlike:
            changed.append(
                f"the data of {part.dataset} are not those that {part.label} was trained on: "
                f"environment {', '.join(unlike)} has another digest"
            )
    return changed
