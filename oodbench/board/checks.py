"""Checks results before they are frozen, and boards."""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from oodbench.algorithms import algorithms
from oodbench.board.protocol import protocol_of, restricted
from oodbench.hparams import neutral_values
from oodbench.results.boards import ENTRIES_FILE
from oodbench.results.directory import Directory
from oodbench.results.parquet import specs_of
from oodbench.results.provenance import code, method_digest
from oodbench.results.read import read_board, read_results
from oodbench.results.run_spec import COMPLETE, SCORE, RunSpec
from oodbench.results.schemas import DamagedFile
from oodbench.results.stale import stale_runs
from oodbench.results.tables import ROW, Tables
from oodbench.selection import sees_test
from oodbench.sweep.file import Entry, Row, Sweep, component
from oodbench.sweep.plan import make_plan

WITHIN_ROW = ["trial", "draw", "test_environments"]
"""The columns that differ among the runs of a row."""
ENTRY = ["row", "author", "date", "paper", "pretraining"]
"""The columns of a board's entries.csv."""
ALIKE = (
    *("dataset", "options", "network", "steps", "evaluate_every", "holdout"),
    *("noise", "precision", "channels_last", "arithmetic"),
    *("metric", "higher_is_better", "classes", "family", "shift"),
)
"""The columns in which all rows of a dataset agree, or all ceilings."""


def wrong_results(results: Path, protocol: Sweep, data_dir: Path | None) -> list[str]:
    """The reasons why a results directory cannot be frozen under a protocol, a sentence each."""
    runs = read_results(Directory(results)).runs
    labels = [str(label) for label in runs["label"].unique()]
    entries = {entry.title for entry in protocol.datasets}
    # only datasets with results, as others may lack their data here
    trained = [str(name) for name in runs["dataset_label"].unique() if name in entries]
    plan = make_plan(restricted(protocol, labels, datasets=trained), data_dir, to_train=False)
    planned: dict[tuple[str, str], dict[str, RunSpec]] = defaultdict(dict)
    for spec in plan.rows:
        planned[spec.dataset_name, spec.label][spec.id] = spec
    wrong = []
    for (dataset, label), row in runs.groupby(ROW, sort=False):
        unlike = ["the protocol does not plan this row"]
        if specs := planned.get((str(dataset), str(label))):
            cells = [(s.trial, s.draw, s.test_environments) for s in specs.values()]
            ended = row[row["state"].isin(COMPLETE)]
            unlike = _unplanned(row, specs) or _missing(ended, cells)
            unlike += _several_codes(row["provenance"])
        wrong += [f"{label} on {dataset}: {text}" for text in unlike]
    return wrong + [reason.sentence for reason in stale_runs(runs) if reason.is_known]


def _several_codes(provenances: Iterable[Any]) -> list[str]:
    made = [p for p in provenances if p]
    if len(codes := {code(p) for p in made}) > 1:
        return [f"its runs were trained by several codes: {', '.join(sorted(codes))}"]
    digests = {method_digest(p) for p in made} - {None}
    return ["its runs were trained by several versions of the method"] * (len(digests) > 1)


def _unplanned(runs: pd.DataFrame, planned: Mapping[str, RunSpec]) -> list[str]:
    """How the first unplanned run differs from the closest planned run."""
    others = runs[~runs["id"].isin(planned)]
    if others.empty:
        return []
    run = others.iloc[0]

    def unlike(spec: RunSpec) -> list[str]:
        values = ((f.name, getattr(spec, f.name)) for f in fields(spec))
        return [f"{n} is {run[n]}, not {value}" for n, value in values if run[n] != value]

    closest = min(map(unlike, planned.values()), key=len)
    return [_of_another_protocol(others, runs) + f": {', '.join(closest)}"]


def _of_another_protocol(others: pd.DataFrame, runs: pd.DataFrame) -> str:
    first = others["id"].iloc[0]
    return f"{len(others)} of {len(runs)} runs are under another protocol, first run {first}"


def _missing(runs: pd.DataFrame, planned: Sequence[tuple[int, int, tuple[str, ...]]]) -> list[str]:
    wrong = []
    for column, values in zip(WITHIN_ROW, zip(*planned, strict=True), strict=True):
        each = list(dict.fromkeys(values))
        missing = [value for value in each if value not in set(runs[column])]
        if missing:
            texts = ["+".join(v) if isinstance(v, tuple) else str(v) for v in missing]
            noun = column.replace("_environments", " set")
            wrong.append(f"{noun} {', '.join(texts)} missing ({len(each)} are planned)")
    if not wrong and len(runs) < len(planned):
        wrong.append(f"{len(runs)} of {len(planned)} runs have results")
    return wrong


def wrong_board(board: Path) -> list[str]:
    """What is wrong with a board, a sentence each; raises UserError if its protocol cannot be read.

    A board is compared with its protocol and records. It is not compared with ranges, defaults and data of
    this version, as another version may have trained it.
    """
    try:
        tables = read_board(board)
    except DamagedFile as error:
        return [str(error)]
    runs, protocol, wrong = tables.runs, protocol_of(board), list[str]()
    off, entries = _off(tables), {entry.title: entry for entry in protocol.datasets}
    scored = tables.scores.merge(runs[["id", *ROW]], on="id")
    rules = scored.groupby(ROW)["rule"].agg(lambda names: sorted(set(names))).to_dict()
    sets = runs.groupby("dataset_label")["test_environments"].unique()
    firsts: dict[tuple[str, bool], tuple[str, pd.DataFrame]] = {}
    for (dataset, label), row in runs.groupby(ROW, sort=False):
        name, first = firsts.setdefault((dataset, bool(row["ceiling"].iloc[0])), (label, row))
        unlike = _wrong_ids(row)
        unlike += [
            f"{text}, first run {row['id'].iloc[int(np.argmax(flags[row.index]))]}"
            for text, flags in off.items()
            if flags[row.index].any()
        ]
        unlike += [f"{text} {name}" for text in _unlike_first(row, first)]
        of_row, of_first = (rules.get((dataset, each), []) for each in (label, name))
        if of_row != of_first:
            unlike.append(f"has the rules {of_row}, and {name} has {of_first}")
        elif all(map(sees_test, of_row)):
            unlike.append("has no score by a rule that does not see the test environments")
        if dataset in entries:
            unlike += _unlike_protocol(row, protocol, entries[dataset])
            unlike += _wrong_cells(row, protocol, entries[dataset], sets[dataset])
        else:
            unlike.append("the protocol does not have this dataset")
        wrong += [f"{label} on {dataset}: {text}" for text in unlike]
    return wrong + _strays(tables) + _wrong_entries(board / ENTRIES_FILE, set(runs["label"]))


def _strays(tables: Tables) -> list[str]:
    found = set(tables.records["id"].unique()) - set(tables.runs["id"])
    return [
        f"there are records of {run}, which is not a run of the board" for run in sorted(found)[:1]
    ]


def _wrong_ids(row: pd.DataFrame) -> list[str]:
    for run_id, spec in zip(row["id"], specs_of(row), strict=True):
        try:
            found = replace(spec).id
        except (TypeError, ValueError, AttributeError, RecursionError) as error:
            return [f"run {run_id} has no spec that can be: {error}"]
        if found != run_id:
            return [f"run {run_id} has the spec of {found}"]
    return []


def _off(tables: Tables) -> dict[str, "pd.Series[bool]"]:
    """Masks of runs with missing, repeated or impossible numbers, by what is wrong."""
    runs, records = tables.runs, tables.records[tables.records["split"] != SCORE]
    ids, row = runs["id"], runs.groupby(ROW, sort=False).ngroup()
    counts = pd.crosstab(tables.scores["id"], tables.scores["rule"]).reindex(ids, fill_value=0)
    counts.index = runs.index
    has_rule = counts.groupby(row).transform("max").gt(0)
    off = {
        f"does not have one score by {rule} of each run": counts[rule].ne(1) & has_rule[rule]
        for rule in counts
    }
    key = ["id", "step", "environment", "split", "metric"]
    off["has a value twice"] = ids.isin(records.loc[records.duplicated(key), "id"])
    metric = records["id"].astype(object).map(runs.drop_duplicates("id").set_index("id")["metric"])
    main = records[records["metric"].astype(object) == metric]
    there = set(zip(main["id"], main["environment"], strict=True))
    pairs = zip(ids, runs["test_environments"], strict=True)
    missing = [any((run_id, name) not in there for name in tests) for run_id, tests in pairs]
    off["has runs without a value on each test environment"] = pd.Series(missing, runs.index)
    is_time = runs["training_seconds"].between(0, np.inf, inclusive="left")
    off["has seconds that cannot be"] = ~is_time
    return off


def _unlike_first(row: pd.DataFrame, first: pd.DataFrame) -> list[str]:
    values, known = row.iloc[0], first.iloc[0]
    wrong = [
        f"{name.replace('_', ' ')} is not that of"
        for name in ALIKE
        if repr(values[name]) != repr(known[name])
    ]
    kinds = ("test", "validation", "training")
    names = ["trial", *(f"{kind}_environments" for kind in kinds), "constant"]
    given, usual = (
        set(t[names].assign(constant=t["constant"].map(repr)).itertuples(index=False, name=None))
        for t in (row, first)
    )
    if strange := {place[:-1] for place in given} - {place[:-1] for place in usual}:
        wrong.append(f"in trial {min(strange)[0]} it has other environments than")
    elif given - usual:
        wrong.append("its constant answers are not those of")
    if values["provenance"].get("data") != known["provenance"].get("data"):
        wrong.append("its data have other digests than those of")
    return wrong


def _wrong_entries(file: Path, labels: set[str]) -> list[str]:
    if not file.is_file():
        return []
    try:
        entries = pd.read_csv(file, dtype=str, keep_default_na=False)
    except (ValueError, OSError) as error:
        return [f"{file} is not a table: {error}"]
    if list(entries) != ENTRY:
        return [f"{file} must have the columns {', '.join(ENTRY)}"]
    strange = [row for row in entries["row"] if row not in labels]
    return [f"{file} names rows that the board does not have: {', '.join(strange)}"] * bool(strange)


def _wrong_cells(
    runs: pd.DataFrame, protocol: Sweep, entry: Entry, sets: Iterable[tuple[str, ...]]
) -> list[str]:
    """What is wrong if a row does not have exactly one run for each trial, draw and test set."""
    planned = list(itertools.product(protocol.on(entry).trials, protocol.hparam_draws, sets))
    others = runs[~runs[WITHIN_ROW].apply(tuple, axis=1).isin(planned)]
    if len(others):
        return [_of_another_protocol(others, runs)]
    if len(runs) > len(planned):
        return [f"{len(runs)} runs, and {len(planned)} are planned"]
    return _missing(runs, planned)


def _unlike_protocol(runs: pd.DataFrame, protocol: Sweep, entry: Entry) -> list[str]:
    """The fields in which a row's specs differ from the protocol."""
    spec = runs.iloc[0]
    rows = {row.title: row for row in protocol.algorithms}
    if spec["label"] not in (*rows, spec["algorithm"]):
        return ["the protocol does not plan this row"]
    row, settings = rows.get(spec["label"], Row(name=str(spec["label"]))), protocol.on(entry)
    network, options = component(settings.network), entry.options
    if row.ceiling:
        options |= entry.ceiling | row.options
    about = {
        **{"algorithm": row.name, "ceiling": row.ceiling, "network": network.name},
        "steps": settings.steps,
        "evaluate_every": settings.evaluate_every,
        "adapt": _keys(row.adapt)["name"],
    }
    found = {**spec, "adapt": _keys(spec["adapt"])["name"]}
    of_row = _unlike(about, found) + _unlike(options, spec["options"])
    averages = _unlike(_keys(row.average), _keys(spec["average"]))
    of_row += ["average" if name == "name" else name for name in averages]
    first = dict.fromkeys(of_row, "")
    hparams = {**entry.training.hparams, **row.hparams}
    hparams = {name: v for name, v in hparams.items() if not isinstance(v, list | dict)}
    neutral = neutral_values(algorithms.get(row.name).Hparams) if row.name in algorithms else {}
    of_network = {**network.hparams, **row.network}
    for run_id, own, own_network in runs[["id", "hparams", "network_hparams"]].to_numpy():
        for name in _unlike(hparams, {**neutral, **own}) + _unlike(of_network, own_network):
            first.setdefault(name, f", first in run {run_id}")
    return [f"{name.replace('_', ' ')} is not the protocol's{run}" for name, run in first.items()]


def _keys(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {"name": "none"}


def _unlike(declared: Mapping[str, Any], values: Mapping[str, Any]) -> list[str]:
    """The names with another value than declared; `default` and missing values pass."""
    return [n for n, value in declared.items() if value not in ("default", values.get(n, value))]
