"""Checks of results before they are frozen, and of a board's files."""

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from oodbench.algorithms import algorithms
from oodbench.board.protocol import label_of, name_of, protocol_of, restricted
from oodbench.errors import UserError
from oodbench.hparams import neutral_values
from oodbench.results.boards import ENTRIES_FILE, part_files
from oodbench.results.directory import Results
from oodbench.results.load import load_frames
from oodbench.results.parts import COUNT, SCORE, Part, read_file, value_column
from oodbench.results.provenance import code, method_digest
from oodbench.results.run_spec import COMPLETE, RunSpec
from oodbench.results.schemas import DamagedFile
from oodbench.results.stale import stale_runs
from oodbench.selection import sees_test
from oodbench.sweep.file import Component, DatasetSettings, Row, Sweep, training_of
from oodbench.sweep.plan import make_plan
from oodbench.sweep.sources import indices, trials_of

LARGEST = 10 * 2**20
"""The most bytes that the parts of a board may have."""

ENTRY = ("row", "author", "date", "paper", "pretraining")
"""The columns of a board's entries.csv."""
ALIKE = (
    *("dataset", "options", "network", "steps", "evaluate_every", "holdout"),
    *("precision", "channels_last", "arithmetic"),
)
"""The fields of specs that all rows of a dataset share, ceilings apart."""

Cell = tuple[int, int, tuple[str, ...]]
"""A trial, a draw and a test set."""
Rows = dict[tuple[str, str], dict[str, RunSpec]]
"""Specs by id of every (dataset, label)."""


def planned_rows(
    protocol: Sweep, labels: Sequence[str], data_dir: Path | None, datasets: Sequence[str] = ()
) -> Rows:
    """Return the specs that the protocol plans for rows, on `datasets` or all; raises as `make_plan`."""
    rows: Rows = {}
    chosen = restricted(protocol, labels, datasets=datasets)
    plan = make_plan(chosen, data_dir, to_train=False)
    for spec in plan.runs.values():
        rows.setdefault((spec.dataset_name, spec.label), {})[spec.id] = spec
    return rows


def wrong_results(results: Path, protocol: Sweep, data_dir: Path | None) -> list[str]:
    """Return the reasons, a sentence each, why a results directory cannot be frozen under a protocol."""
    runs = load_frames(Results(results)).runs.assign(directory=str(results))
    labels = [str(label) for label in runs["label"].unique()]
    entries = {name_of(entry) for entry in protocol.datasets}  # others may lack their data here
    trained = [str(name) for name in runs["dataset_label"].unique() if name in entries]
    planned = planned_rows(protocol, labels, data_dir, trained)
    wrong = []
    for (dataset, label), group in runs.groupby(["dataset_label", "label"], sort=False):
        ended = set(group.loc[group["state"].isin(COMPLETE), "id"])
        specs = planned.get((str(dataset), str(label)))
        if specs is None:
            wrong.append(f"{label} on {dataset}: the protocol plans no such row")
        else:
            wrong += _wrong_row(f"{label} on {dataset}", group, ended, specs, results)
            wrong += _several_codes(f"{label} on {dataset}", group["provenance"])
    return wrong + [reason.sentence for reason in stale_runs(runs) if reason.is_known]


def _several_codes(row: str, provenances: Iterable[Any]) -> list[str]:
    """Return a sentence if the runs of a row were trained by several codes, or versions of its method."""
    made = [provenance for provenance in provenances if provenance]
    if len(several := {code(p) for p in made}) > 1:
        return [f"{row} was trained by several codes: {', '.join(sorted(several))}"]
    if len({digest for p in made if (digest := method_digest(p))}) > 1:
        return [f"{row} was trained by several versions of the method"]
    return []


def _wrong_row(
    row: str, runs: pd.DataFrame, ended: set[str], planned: Mapping[str, RunSpec], results: Path
) -> list[str]:
    """Return the mistakes in the runs of a row, of which `ended` have results."""
    unplanned = runs[~runs["id"].isin(planned)]
    if len(unplanned):
        first = unplanned.iloc[0]
        file = results / "runs" / first["id"] / "run.json"
        return [
            f"{row}: {len(unplanned)} of {len(runs)} runs are under another protocol, first {file}: "
            f"{', '.join(_differing(first, planned.values()))}"
        ]
    cells = [(s.trial, s.draw, s.test_environments) for s in planned.values()]
    return _missing(row, runs[runs["id"].isin(ended)], cells)


def _differing(run: "pd.Series[Any]", planned: Iterable[RunSpec]) -> list[str]:
    """Return the keys of a run's spec that differ from the planned one closest to it, with both values."""

    def unlike(spec: RunSpec) -> list[str]:
        return [name for name, value in vars(spec).items() if name in run and run[name] != value]

    closest = min(planned, key=lambda spec: len(unlike(spec)))
    return [f"{name} is {run[name]}, not {getattr(closest, name)}" for name in unlike(closest)]


def _missing(row: str, runs: pd.DataFrame, planned: Sequence[Cell]) -> list[str]:
    """Return sentences on the trials, draws and test sets in which a row lacks runs."""
    wrong = []
    names = {"trial": "trial", "draw": "draw", "test_environments": "test set"}
    for (column, what), values in zip(names.items(), zip(*planned, strict=True), strict=True):
        each = list(dict.fromkeys(values))
        missing = [value for value in each if value not in set(runs[column])]
        texts = ["+".join(v) if isinstance(v, tuple) else str(v) for v in missing]
        if missing:
            wrong.append(f"{row}: {what} {', '.join(texts)} missing ({len(each)} are planned)")
    if not wrong and len(runs) < len(planned):
        wrong.append(f"{row}: {len(runs)} of {len(planned)} runs have results")
    return wrong


def wrong_board(board: Path) -> list[str]:
    """Return the mistakes in a board, a sentence each; raises UserError if its protocol cannot be read.

    A board is compared with its protocol's file and its parts' records, not with this version's ranges,
    defaults and data: the version that trained it may have had others.
    """
    files: dict[Path, list[Part]] = {}
    wrong: list[str] = []
    for path in part_files(board):
        try:
            files[path] = read_file(path)
        except DamagedFile as error:
            wrong.append(str(error))
    if not files:
        return [*wrong, f"{board} has no part that can be read"]
    size = sum(path.stat().st_size for path in part_files(board))
    if size > LARGEST:
        most = f"a board has at most {LARGEST / 2**20:.0f}"
        wrong.append(f"the parts have {size / 2**20:.1f} MB; {most}")
    protocol = protocol_of(board)
    for path, parts in files.items():
        wrong += [f"{path}: {text}" for text in _wrong_parts(parts, protocol)]
    wrong += _wrong_entries(board, {part.label for parts in files.values() for part in parts})
    return wrong


def _wrong_entries(board: Path, labels: set[str]) -> list[str]:
    """Return a sentence on the lines of `entries.csv` that are no entry of a row of the board."""
    file = board / ENTRIES_FILE
    if not file.is_file():
        return []
    try:
        entries = pd.read_csv(file, dtype=str, keep_default_na=False)
    except (ValueError, OSError) as error:
        return [f"{file} is no table: {error}"]
    if tuple(entries) != ENTRY:
        return [f"{file} must have the columns {', '.join(ENTRY)}"]
    strange = [row for row in entries["row"] if row not in labels]
    return [f"{file} names rows that the board has not: {', '.join(strange)}"] * bool(strange)


def _wrong_parts(parts: Sequence[Part], protocol: Sweep) -> list[str]:
    """Return the mistakes, a sentence each, of a dataset's parts under a protocol."""
    sets = dict.fromkeys(tests for part in parts for tests in part.test_sets)
    trials = {name_of(entry): trials_of(protocol, _training(entry)) for entry in protocol.datasets}
    places = Counter((part.label, part.dataset) for part in parts)
    twice = (f"{label} on {dataset}" for (label, dataset), count in places.items() if count > 1)
    wrong = [f"{row} stands there twice" for row in twice]
    for part in parts:
        try:
            part.specs()
        except DamagedFile as error:
            wrong.append(str(error))
            continue
        row, runs = f"{part.label} on {part.dataset}", part.runs()
        unlike = _wrong_numbers(part) + _wrong_part(part, parts)
        unlike += _unlike_protocol(part, runs, protocol)
        wrong += [f"{row}: {text}" for text in unlike]
        if part.dataset in trials:
            draws = indices(protocol.hparam_draws, "hparam_draws")
            planned = itertools.product(trials[part.dataset], draws, sets)
            wrong += _wrong_cells(row, runs, list(planned))
    return wrong


def _wrong_cells(row: str, runs: pd.DataFrame, planned: Sequence[Cell]) -> list[str]:
    """Return the mistakes of a row, which must have exactly one run for each trial, draw and test set."""
    known = runs[["trial", "draw", "test_environments"]].apply(tuple, axis=1).isin(planned)
    if not known.all():
        strange = f"{(~known).sum()} of {len(runs)} runs are under another protocol, first run"
        return [f"{row}: {strange} {runs.loc[~known, 'id'].iloc[0]}"]
    if len(runs) > len(planned):
        return [f"{row}: {len(runs)} runs, and {len(planned)} are planned"]
    return _missing(row, runs, planned)


def _unlike_protocol(part: Part, runs: pd.DataFrame, protocol: Sweep) -> list[str]:
    """Return the mistakes, a sentence each, where a part's specs differ from the protocol's file."""
    entries = {name_of(entry): entry for entry in protocol.datasets}
    rows = {label_of(row): row for row in protocol.algorithms}
    spec = part.about.spec
    if part.dataset not in entries:
        return ["the protocol has no such dataset"]
    if part.label not in (*rows, spec["algorithm"]):
        return ["the protocol plans no such row"]
    row = rows.get(part.label, part.label)
    row = Row(name=row) if isinstance(row, str) else row
    entry = entries[part.dataset]
    options: dict[str, Any] = {} if isinstance(entry, str) else dict(entry)
    training = _training(entry)
    ceiling = {**options.pop("ceiling", {}), **row.options} if row.ceiling else {}
    others = ("name", "label", "training")
    options = {k: v for k, v in options.items() if k not in others} | ceiling
    network = protocol.network if training.network is None else training.network
    network = Component(name=network) if isinstance(network, str) else network
    average, recorded = (
        {"average": value.get("name"), **value} if isinstance(value, dict) else {"average": value}
        for value in (row.average, spec["average"] or "none")
    )
    numbers = {
        name: getattr(training, name, None) or getattr(protocol, name)
        for name in ("steps", "evaluate_every")
    }
    pairs: list[tuple[Mapping[str, Any], Mapping[str, Any]]] = [
        ({"algorithm": row.name, "ceiling": row.ceiling, **numbers}, spec),
        ({"network": network.name}, spec),
        (options, spec["options"]),
        (average, recorded),
        ({"adapt": _adaptation(row.adapt)}, {"adapt": _adaptation(spec.get("adapt") or "none")}),
    ]
    hparams = {**training.hparams, **row.hparams}
    hparams = {name: v for name, v in hparams.items() if not isinstance(v, list | dict)}
    neutral = neutral_values(algorithms.get(row.name).Hparams) if row.name in algorithms else {}
    first = {name: "" for pair in pairs for name in _unlike(*pair)}
    of_network = {**network.hparams, **row.network}
    for run in runs.to_dict(orient="records"):
        unlike = _unlike(hparams, {**neutral, **run["hparams"]})
        for name in (*unlike, *_unlike(of_network, run["network_hparams"])):
            first.setdefault(name, f", first in run {run['id']}")
    return [f"{name.replace('_', ' ')} is not the protocol's{run}" for name, run in first.items()]


def _training(dataset: str | dict[str, Any]) -> DatasetSettings:
    """Return the settings of the training on a dataset of a protocol."""
    values = {} if isinstance(dataset, str) else dataset.get("training", {})
    return training_of(values, f"the training on {name_of(dataset)}")


def _adaptation(adapt: str | Mapping[str, Any]) -> str:
    """Return the name of the adaptation of a row or run, or `none`."""
    return adapt if isinstance(adapt, str) else str(adapt.get("name"))


def _unlike(declared: Mapping[str, Any], values: Mapping[str, Any]) -> list[str]:
    """Return the declared names with another value; `default` and names without a value pass."""
    return [n for n, value in declared.items() if value not in ("default", values.get(n, value))]


def _wrong_part(part: Part, beside: Sequence[Part]) -> list[str]:
    """Return the mistakes in a part's settings, rules, environments and data, beside the parts of its
    dataset.
    """
    first = next(p for p in beside if p.about.spec["ceiling"] == part.about.spec["ceiling"])
    wrong = []
    if {*part.rules} != {*first.rules}:
        wrong.append(f"has the rules {part.rules}, and {first.label} has {first.rules}")
    for what in ("context", "constants", "selection"):
        if getattr(part.about, what) != getattr(first.about, what):
            wrong.append(f"has not the {what} of {first.label}")
    for name in ALIKE:
        if part.about.spec.get(name) != first.about.spec.get(name):
            wrong.append(f"{name.replace('_', ' ')} is not that of {first.label}")
    if part.rules and all(map(sees_test, part.rules)):
        seeing = " and ".join(part.rules)
        wrong.append(f"has no rule but {seeing}, which sees the test environments")
    if strange := _environments(part) - _environments(first):
        wrong.append(f"has other environments than {first.label} in trial {min(strange)[0]}")
    if {*first.about.provenance.get("data", ())} - {*part.about.provenance.get("data", ())}:
        wrong.append("has no digest of its data")
    return wrong


def _environments(part: Part) -> set[tuple[Any, ...]]:
    """Return the trials of a part, each with its test, validation and training environments."""
    columns = (part.table[f"{name}_environments"] for name in ("test", "validation", "training"))
    names = zip(*([tuple(row) for row in column.to_pylist()] for column in columns), strict=True)
    return {(t, *of_run) for t, of_run in zip(part.table["trial"].to_pylist(), names, strict=True)}


def _wrong_numbers(part: Part) -> list[str]:
    """Return the mistakes in a part's numbers: steps that stand twice, and what is missing."""
    table, wrong = part.table, list[str]()
    places = table.select(["id", "step"]).to_pandas()

    def note(text: str, off: Sequence[bool] | npt.NDArray[np.bool_]) -> None:
        """Add a mistake with the run of the first row that is off, if any is."""
        if np.any(off):
            wrong.append(f"{text}, first run {places['id'].iloc[int(np.argmax(off))]}")

    note("has a step of a run twice", places.duplicated().to_numpy())
    for rule in part.rules:
        given = pd.Series(table[f"{SCORE}{rule}"].is_valid().to_numpy())
        per_run = given.groupby(places["id"]).transform("sum")
        note(f"has not one score by {rule} of each run", per_run.ne(1).to_numpy())
    tests = table["test_environments"].to_pylist()
    for environment in sorted({name for names in tests for name in names}):
        here = np.array([environment in names for names in tests])
        value = value_column(str(part.about.context["metric"]), environment)
        for name in (value, f"{COUNT}{environment}"):
            there = table[name].is_valid().to_numpy() if name in table.column_names else False
            note(f"has runs without {name}", here & ~np.asarray(there))
    seconds = table["seconds"].to_numpy()
    note("has seconds that cannot be", ~(np.isfinite(seconds) & (seconds >= 0)))
    return wrong


def refuse(wrong: Sequence[str], what: str) -> None:
    """Raise UserError with the first few of these sentences, if there are any."""
    if wrong:
        more = f" (and {len(wrong) - 3} more)" if len(wrong) > 3 else ""
        raise UserError(f"{what}: {'; '.join(wrong[:3])}{more}")
