"""Checks of results before they are frozen, and of a board's files."""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from oodbench.algorithms import algorithms
from oodbench.board.protocol import entry_of, label_of, name_of, protocol_of, restricted
from oodbench.errors import UserError
from oodbench.hparams import neutral_values
from oodbench.results.boards import ENTRIES_FILE, RECORDS_FILE, RUNS_FILE
from oodbench.results.directory import Directory
from oodbench.results.parquet import specs_of
from oodbench.results.provenance import code, method_digest
from oodbench.results.read import read_board, read_results
from oodbench.results.run_spec import COMPLETE, RunSpec
from oodbench.results.schemas import DamagedFile
from oodbench.results.stale import stale_runs
from oodbench.results.tables import Tables
from oodbench.selection import sees_test
from oodbench.sweep.file import Component, DatasetSettings, Row, Sweep, training_of
from oodbench.sweep.plan import make_plan
from oodbench.sweep.sources import indices, trials_of

LARGEST = 10 * 2**20
"""The most bytes of a board's two tables."""
ROW = ["dataset_label", "label"]
"""The columns of a run that say which row it is of."""
ENTRY = ("row", "author", "date", "paper", "pretraining")
"""The columns of a board's entries.csv."""
ALIKE = (
    *("dataset", "options", "network", "steps", "evaluate_every", "holdout"),
    *("noise", "precision", "channels_last", "arithmetic"),
)
"""The fields of specs that all rows of a dataset share, ceilings apart."""
ABOUT_DATA = ("metric", "higher_is_better", "classes", "family", "shift")
"""What all rows of a dataset know of it."""

Cell = tuple[int, int, tuple[str, ...]]
"""A trial, a draw and a test set."""


def wrong_results(results: Path, protocol: Sweep, data_dir: Path | None) -> list[str]:
    """The reasons, a sentence each, why a results directory cannot be frozen under a protocol."""
    runs = read_results(Directory(results)).runs
    runs["id"] = runs["id"].str.partition("@")[0]  # of a run in several rows
    labels = [str(label) for label in runs["label"].unique()]
    entries = {name_of(entry) for entry in protocol.datasets}  # others may lack their data here
    trained = [str(name) for name in runs["dataset_label"].unique() if name in entries]
    plan = make_plan(restricted(protocol, labels, datasets=trained), data_dir, to_train=False)
    planned: dict[tuple[str, str], dict[str, RunSpec]] = defaultdict(dict)
    for spec in plan.rows:
        planned[spec.dataset_name, spec.label][spec.id] = spec
    wrong = []
    for (dataset, label), row in runs.groupby(ROW, sort=False):
        specs = planned.get((str(dataset), str(label)))
        unlike = ["the protocol plans no such row"]
        if specs is not None:
            unlike = _unplanned(row, specs) or _missing(
                row[row["state"].isin(COMPLETE)],
                [(s.trial, s.draw, s.test_environments) for s in specs.values()],
            )
        wrong += [f"{label} on {dataset}: {text}" for text in unlike]
        if specs is not None:
            wrong += _several_codes(f"{label} on {dataset}", row["provenance"])
    return wrong + [reason.sentence for reason in stale_runs(runs) if reason.is_known]


def _several_codes(row: str, provenances: Iterable[Any]) -> list[str]:
    made = [provenance for provenance in provenances if provenance]
    if len(several := {code(p) for p in made}) > 1:
        return [f"{row} was trained by several codes: {', '.join(sorted(several))}"]
    if len({digest for p in made if (digest := method_digest(p))}) > 1:
        return [f"{row} was trained by several versions of the method"]
    return []


def _unplanned(runs: pd.DataFrame, planned: Mapping[str, RunSpec]) -> list[str]:
    """How the first run that the protocol does not plan differs from the planned one closest to it."""
    others = runs[~runs["id"].isin(planned)]
    if others.empty:
        return []
    run = others.iloc[0]

    def unlike(spec: RunSpec) -> list[str]:
        values = ((f.name, getattr(spec, f.name)) for f in fields(spec))
        return [f"{n} is {run[n]}, not {value}" for n, value in values if run[n] != value]

    closest = min(map(unlike, planned.values()), key=len)
    return [
        f"{len(others)} of {len(runs)} runs are under another protocol, first run {run['id']}: "
        f"{', '.join(closest)}"
    ]


def _missing(runs: pd.DataFrame, planned: Sequence[Cell]) -> list[str]:
    """The trials, draws and test sets in which a row lacks runs."""
    wrong = []
    columns = {"trial": "trial", "draw": "draw", "test_environments": "test set"}
    for (column, noun), values in zip(columns.items(), zip(*planned, strict=True), strict=True):
        each = list(dict.fromkeys(values))
        missing = [value for value in each if value not in set(runs[column])]
        texts = ["+".join(v) if isinstance(v, tuple) else str(v) for v in missing]
        if missing:
            wrong.append(f"{noun} {', '.join(texts)} missing ({len(each)} are planned)")
    if not wrong and len(runs) < len(planned):
        wrong.append(f"{len(runs)} of {len(planned)} runs have results")
    return wrong


def wrong_board(board: Path) -> list[str]:
    """The mistakes in a board, a sentence each; raises UserError if its protocol cannot be read.

    A board is compared with its protocol's file and its own records, not with this version's ranges,
    defaults and data: the version that trained it may have had others.
    """
    try:
        tables = read_board(board)
    except DamagedFile as error:
        return [str(error)]
    runs, protocol = tables.runs, protocol_of(board)
    wrong: list[str] = []
    size = sum((board / name).stat().st_size for name in (RUNS_FILE, RECORDS_FILE))
    if size > LARGEST:
        most = f"a board has at most {LARGEST / 2**20:.0f}"
        wrong.append(f"the tables have {size / 2**20:.1f} MB; {most}")
    off = _off(tables)
    scored = tables.scores.merge(runs[["id", *ROW]], on="id")
    rules = scored.groupby(ROW)["rule"].agg(set).to_dict()
    entries = {name_of(entry): entry for entry in protocol.datasets}
    sets = {
        name: list(t.unique()) for name, t in runs.groupby("dataset_label")["test_environments"]
    }
    firsts: dict[tuple[str, bool], pd.DataFrame] = {}
    for (dataset, label), row in runs.groupby(ROW, sort=False):
        first = firsts.setdefault((dataset, bool(row["ceiling"].iloc[0])), row)
        unlike = _wrong_ids(row)
        unlike += [
            f"{text}, first run {row['id'].iloc[int(np.argmax(flags[row.index]))]}"
            for text, flags in off.items()
            if flags[row.index].any()
        ]
        unlike += _unlike_first(row, first)
        of_row, of_first = (rules.get((*t[ROW].iloc[0],), set()) for t in (row, first))
        unlike += _wrong_rules(of_row, of_first, first["label"].iloc[0])
        if dataset in entries:
            unlike += _unlike_protocol(row, protocol, entries[dataset])
            unlike += _wrong_cells(row, _cells(protocol, entries[dataset], sets[dataset]))
        else:
            unlike.append("the protocol has no such dataset")
        wrong += [f"{label} on {dataset}: {text}" for text in unlike]
    return wrong + _wrong_entries(board, set(runs["label"]))


def _wrong_ids(row: pd.DataFrame) -> list[str]:
    for run_id, spec in zip(row["id"], specs_of(row), strict=True):
        try:
            found = replace(spec).id
        except (TypeError, ValueError, AttributeError, RecursionError) as error:
            return [f"run {run_id} has no spec that can be: {error}"]
        if found != run_id.partition("@")[0]:
            return [f"run {run_id} has the spec of {found}"]
    return []


def _off(tables: Tables) -> dict[str, "pd.Series[bool]"]:
    """Which runs lack numbers, or have them twice, by what is wrong with them."""
    runs, records = tables.runs, tables.records
    ids, row = runs["id"], runs.groupby(ROW, sort=False).ngroup()
    counts = pd.crosstab(tables.scores["id"], tables.scores["rule"]).reindex(ids, fill_value=0)
    counts.index = runs.index
    has_rule = counts.groupby(row).transform("max").gt(0)
    off = {
        f"has not one score by {rule} of each run": counts[rule].ne(1) & has_rule[rule]
        for rule in counts
    }
    key = ["id", "step", "environment", "split", "metric"]
    off["has a value twice"] = ids.isin(records.loc[records.duplicated(key), "id"])
    metric = records["id"].astype(object).map(runs.set_index("id")["metric"])
    main = records[records["metric"].astype(object) == metric]
    there = set(zip(main["id"], main["environment"], strict=True))
    pairs = zip(ids, runs["test_environments"], strict=True)
    missing = [any((run_id, name) not in there for name in tests) for run_id, tests in pairs]
    off["has runs without a value on each test environment"] = pd.Series(missing, runs.index)
    seconds = runs["training_seconds"]
    off["has seconds that cannot be"] = ~(np.isfinite(seconds) & (seconds >= 0))
    return off


def _wrong_rules(rules: set[str], of_first: set[str], label: str) -> list[str]:
    if rules != of_first:
        return [f"has the rules {sorted(rules)}, and {label} has {sorted(of_first)}"]
    if rules and all(map(sees_test, rules)):
        seeing = " and ".join(sorted(rules))
        return [f"has no rule but {seeing}, which sees the test environments"]
    return []


def _unlike_first(row: pd.DataFrame, first: pd.DataFrame) -> list[str]:
    """Where a row's settings, environments or data differ from its dataset's first row."""
    label = first["label"].iloc[0]
    wrong = [
        f"{name.replace('_', ' ')} is not that of {label}"
        for name in (*ALIKE, *ABOUT_DATA)
        if repr(row[name].iloc[0]) != repr(first[name].iloc[0])
    ]
    names = ["trial", *(f"{kind}_environments" for kind in ("test", "validation", "training"))]
    places, known = (set(zip(*(t[name] for name in names), strict=True)) for t in (row, first))
    if strange := places - known:
        wrong.append(f"has other environments than {label} in trial {min(strange)[0]}")
    names = ["trial", "test_environments", "constant"]
    constants, answers = (
        {(trial, tests): repr(c) for trial, tests, c in zip(*(t[n] for n in names), strict=True)}
        for t in (row, first)
    )
    if any(answers.get(place, text) != text for place, text in constants.items()):
        wrong.append(f"has not the constant answers of {label}")
    data, of_data = (set(t["provenance"].iloc[0].get("data", ())) for t in (row, first))
    if of_data - data:
        wrong.append("has no digest of its data")
    return wrong


def _wrong_entries(board: Path, labels: set[str]) -> list[str]:
    """What is wrong with the lines of `entries.csv`, each of which is on a row of the board."""
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


def _cells(
    protocol: Sweep, entry: str | dict[str, Any], sets: Sequence[tuple[str, ...]]
) -> list[Cell]:
    trials = trials_of(protocol, _training(entry))
    draws = indices(protocol.hparam_draws, "hparam_draws")
    return list(itertools.product(trials, draws, sets))


def _wrong_cells(runs: pd.DataFrame, planned: Sequence[Cell]) -> list[str]:
    """The mistakes of a row, which must have exactly one run for each trial, draw and test set."""
    known = runs[["trial", "draw", "test_environments"]].apply(tuple, axis=1).isin(planned)
    if not known.all():
        strange = f"{(~known).sum()} of {len(runs)} runs are under another protocol, first run"
        return [f"{strange} {runs.loc[~known, 'id'].iloc[0]}"]
    if len(runs) > len(planned):
        return [f"{len(runs)} runs, and {len(planned)} are planned"]
    return _missing(runs, planned)


def _unlike_protocol(runs: pd.DataFrame, protocol: Sweep, entry: str | dict[str, Any]) -> list[str]:
    """Where a row's specs differ from what the protocol's file declares."""
    spec = {str(name): value for name, value in runs.iloc[0].items()}
    rows = {label_of(row): row for row in protocol.algorithms}
    if spec["label"] not in (*rows, spec["algorithm"]):
        return ["the protocol plans no such row"]
    row = rows.get(spec["label"], spec["label"])
    row = Row(name=row) if isinstance(row, str) else row
    training = _training(entry)
    network = protocol.network if training.network is None else training.network
    network = Component(name=network) if isinstance(network, str) else network
    options = dict(entry_of(entry))
    ceiling = {**options.pop("ceiling", {}), **row.options} if row.ceiling else {}
    not_options = ("name", "label", "training")
    options = {k: v for k, v in options.items() if k not in not_options} | ceiling
    declared = {"algorithm": row.name, "ceiling": row.ceiling, "network": network.name}
    for name in ("steps", "evaluate_every"):
        declared[name] = getattr(training, name, None) or getattr(protocol, name)
    declared["adapt"], spec["adapt"] = _adaptation(row.adapt), _adaptation(spec["adapt"] or "none")
    of_row = _unlike(declared, spec) + _unlike(options, spec["options"])
    of_row += _unlike(_average(row.average), _average(spec["average"] or "none"))
    first = dict.fromkeys(of_row, "")
    hparams = {**training.hparams, **row.hparams}
    hparams = {name: v for name, v in hparams.items() if not isinstance(v, list | dict)}
    neutral = neutral_values(algorithms.get(row.name).Hparams) if row.name in algorithms else {}
    of_network = {**network.hparams, **row.network}
    names = ("id", "hparams", "network_hparams")
    for run_id, own, own_network in zip(*(runs[name] for name in names), strict=True):
        for name in _unlike(hparams, {**neutral, **own}) + _unlike(of_network, own_network):
            first.setdefault(name, f", first in run {run_id}")
    return [f"{name.replace('_', ' ')} is not the protocol's{run}" for name, run in first.items()]


def _average(value: Any) -> dict[str, Any]:
    """An average of a row or run as `average`, its name, and its numbers."""
    if isinstance(value, dict):
        return {"average": value.get("name"), **value}
    return {"average": value}


def _training(dataset: str | dict[str, Any]) -> DatasetSettings:
    """The settings of the training on a dataset of a protocol."""
    values = entry_of(dataset).get("training", {})
    return training_of(values, f"the training on {name_of(dataset)}")


def _adaptation(adapt: str | Mapping[str, Any]) -> str:
    return adapt if isinstance(adapt, str) else str(adapt.get("name"))


def _unlike(declared: Mapping[str, Any], values: Mapping[str, Any]) -> list[str]:
    """The declared names with another value; `default` and names without a value pass."""
    return [n for n, value in declared.items() if value not in ("default", values.get(n, value))]


def refuse(wrong: Sequence[str], what: str) -> None:
    """Raise UserError with the first few of these sentences, if there are any."""
    if wrong:
        more = f" (and {len(wrong) - 3} more)" if len(wrong) > 3 else ""
        raise UserError(f"{what}: {'; '.join(wrong[:3])}{more}")
