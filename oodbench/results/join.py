"""Several results directories as one, in memory or on disk.

What is compared must have been made alike: sweeps that differ in protocol or code are refused
unless the user says that the difference is meant.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from oodbench.errors import UserError
from oodbench.files import whole_folder
from oodbench.results.data_files import DATA
from oodbench.results.directory import Results
from oodbench.results.frames import (
    CELL,
    Frames,
    load_frames,
    records_of,
    stacked,
    stacked_runs,
    sweep_runs,
)
from oodbench.results.provenance import code
from oodbench.results.run_spec import COMPLETE, RunSpec, State
from oodbench.results.stale import DIGESTED, stale_notes

PROTOCOL = (
    "steps",
    "evaluate_every",
    "holdout",
    "network",
    "network_hparams",
    "metric",
    "validation_environments",
    "draws",
)
"""The columns in which a dataset's runs must agree between directories; `draws` is how many a cell has."""


PLACE = ["dataset_label", "label", "test_environments", "draw", "trial"]
"""The columns of a run that name its place in a sweep."""
LEFT_OUT = ("lock", "heartbeat")
"""The files of a run that say who trains it."""


def joined(directories: Sequence[Path], allow_mixed: bool = False) -> Frames:
    """Return the runs of all directories as if they were one sweep; a run that is in several counts once.

    The runs' column `directory` has the one that a run is read from. A label that means other runs
    in a later directory gets that directory's name in brackets.
    Raises UserError if protocol or code differ, unless `allow_mixed`.
    """
    frames = [load_frames(Results(directory)) for directory in directories]
    if len(frames) == 1:
        runs = frames[0].runs.assign(directory=str(directories[0]))
        return Frames(runs, frames[0].metrics, notes=stale_notes(runs))
    tables = [
        completed(frame).assign(directory=str(d))
        for frame, d in zip(frames, directories, strict=True)
    ]
    runs = stacked_runs(tables)
    runs["better"] = runs["state"].isin(COMPLETE)
    runs = (
        runs.sort_values("better", ascending=False, kind="stable")
        .drop_duplicates("id")
        .sort_index()
    )
    if not allow_mixed:
        _check(runs)
    runs["label"] = _labels(runs)
    metrics = [
        records_of(frame.metrics, runs.loc[runs["directory"] == str(d), "id"])
        for frame, d in zip(frames, directories, strict=True)
    ]
    runs = runs.drop(columns=["better", "helper"]).reset_index(drop=True)
    return Frames(runs, stacked(metrics), notes=stale_notes(runs))


def completed(frames: Frames) -> pd.DataFrame:
    """Return the runs as `sweep_runs` has them, with every run of a transductive method marked as such.

    `sweep_runs` marks none on a dataset without other methods, which other directories may have.
    """
    runs = sweep_runs(frames)
    if "transductive" in frames.runs:
        runs["transductive"] = frames.runs["transductive"].eq(True).to_numpy()
    return runs


def _labels(runs: pd.DataFrame) -> "pd.Series[str]":
    """Return the labels, followed by the directory's name where an earlier one has other runs in that
    place.
    """
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


def check_protocol(runs: pd.DataFrame, names: Sequence[str] = PROTOCOL[:-1]) -> None:
    """Raise UserError if directories differ in one of these columns on a dataset and trials they share."""
    table = runs.assign(validation_environments=runs["validation_environments"].map(sorted))
    for dataset, of_dataset in table.groupby("dataset_label", sort=False):
        trials = of_dataset.groupby("directory")["trial"].agg(set)
        of_dataset = of_dataset[of_dataset["trial"].isin(set.intersection(*trials))]
        for name in names:
            _alike(of_dataset, name, f"in {name.replace('_', ' ')} of {dataset}")


def _check(runs: pd.DataFrame) -> None:
    """Raise UserError if directories that share a dataset differ in protocol, in code or in data.

    Code is compared by version and digests, and by commit for runs without digests. Runs of another
    program are not compared.
    """
    draws = runs.groupby([*CELL, "directory"])["draw"].transform("nunique")
    check_protocol(runs.assign(draws=draws), PROTOCOL)
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
        for name, of_name in runs.assign(digest=digests).groupby(column, sort=False):
            _alike(of_name, "digest", f"in the {'data' if kind == 'files' else 'code'} of {name}")


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


@dataclass(frozen=True)
class Merged:
    """The result of a merge."""

    runs: int
    """The number of planned runs."""
    codes: tuple[str, ...]
    """The version and commit of all code that trained one of them."""


def merge(directories: Sequence[Path], out: Path) -> Merged:
    """Write the runs of results directories of one sweep into a new one, whole or not at all.

    Of a run that several have, the copy that has got furthest is taken. Raises UserError if `out` is
    there, and if the sweeps have different names, settings or runs in one place.
    """
    if out.exists():
        raise UserError(f"{out} is there already; use another --out")
    plans = [Results(directory).plan() for directory in directories]
    _check_settings(directories, plans)
    runs = joined(directories, allow_mixed=True).runs
    check_protocol(runs)
    clash = runs[runs.duplicated(PLACE, keep=False)]
    if len(clash):
        first = clash.iloc[0]
        raise UserError(
            f"the directories hold different runs as draw {first['draw']}, trial {first['trial']} of "
            f"{first['label']} on {first['dataset_label']}: they are not of one sweep"
        )
    specs = {i: RunSpec.from_json(s) for plan in plans for i, s in plan["runs"].items()}
    settings = plans[0]["settings"]
    plugins = dict.fromkeys(p for plan in plans for p in plan["settings"].get("plugins", ()))
    out.parent.mkdir(parents=True, exist_ok=True)
    with whole_folder(out) as temporary:
        Results(temporary).write_plan(
            plans[0]["name"], settings | {"plugins": list(plugins)}, specs
        )
        for run_id in specs:
            copies = [Results(d).run(run_id) for d in directories]
            best = max(copies, key=lambda run: _progress(run.state(), run.records()))
            if best.path.is_dir():
                ignored = shutil.ignore_patterns(*LEFT_OUT)
                shutil.copytree(best.path, temporary / "runs" / run_id, ignore=ignored)
        for lists in (folder for d in directories if (folder := d / DATA).is_dir()):
            shutil.copytree(lists, temporary / DATA, dirs_exist_ok=True)
    return Merged(len(specs), tuple(sorted({code(p) for p in runs["provenance"] if p})))


def _progress(state: State, records: Sequence[Any]) -> tuple[bool, bool, int]:
    """Return the sort key of a run's copies, the largest being taken: complete, then ended, then most
    records.
    """
    return state.complete, state.final, len(records)


def _check_settings(directories: Sequence[Path], plans: Sequence[dict[str, Any]]) -> None:
    for directory, plan in zip(directories, plans, strict=True):
        if plan["name"] != plans[0]["name"]:
            raise UserError(
                f"{directories[0]} holds the sweep '{plans[0]['name']}' and {directory} "
                f"'{plan['name']}'; `table` and `compare` take directories of several sweeps"
            )
        first, other = plans[0]["settings"].get("sweep", {}), plan["settings"].get("sweep", {})
        for key in sorted({*first, *other}):
            if first.get(key) != other.get(key):
                raise UserError(
                    f"{directories[0]} and {directory} differ in {key} "
                    f"({first.get(key)} against {other.get(key)}): they are not of one sweep"
                )
