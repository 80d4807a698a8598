"""Checks of results before they are frozen, and of a board's files."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from oodbench.algorithms import algorithms
from oodbench.board.protocol import label_of, name_of, protocol_of, restricted
from oodbench.errors import UserError
from oodbench.hparams import neutral_values
from oodbench.results.boards import ENTRIES_FILE, RECORDS_FILE, RUNS_FILE
from oodbench.results.directory import Results
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
    for spec in plan.rows:
        rows.setdefault((spec.dataset_name, spec.label), {})[spec.id] = spec
    return rows


def wrong_results(results: Path, protocol: Sweep, data_dir: Path | None) -> list[str]:
    """Return the reasons, a sentence each, why a results directory cannot be frozen under a protocol."""
    runs = read_results(Results(results)).runs.assign(directory=str(results))
    runs["id"] = runs["id"].str.partition("@")[0]  # of a run in several rows
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
            wrong += _wrong_row(f"{label} on {dataset}", group, ended, specs)
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
    row: str, runs: pd.DataFrame, ended: set[str], planned: Mapping[str, RunSpec]
) -> list[str]:
    """Return the mistakes in the runs of a row, of which `ended` have results."""
    unplanned = runs[~runs["id"].isin(planned)]
    if len(unplanned):
        first = unplanned.iloc[0]
        return [
            f"{row}: {len(unplanned)} of {len(runs)} runs are under another protocol, first run "
            f"{first['id']}: "
            f"{', '.join(_differing(first, planned.values()))}"
        ]
    cells = [(s.trial, s.draw, s.test_environments) for s in planned.values()]
    return _missing(row, runs[runs["id"].isin(ended)], cells)


def _differing(run: "pd.Series[Any]", planned: Iterable[RunSpec]) -> list[str]:
    """Return the keys of a run's spec that differ from the planned one closest to it, with both values."""

    def unlike(spec: RunSpec) -> list[str]:
        values = {f.name: getattr(spec, f.name) for f in fields(spec)}
        return [name for name, value in values.items() if name in run and run[name] != value]

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

    A board is compared with its protocol's file and its own records, not with this version's ranges,
    defaults and data: the version that trained it may have had others.
    """
    try:
        tables = read_board(board)
    except DamagedFile as error:
        return [str(error)]
    runs, protocol = tables.runs, _Protocol(protocol_of(board))
    wrong: list[str] = []
    size = sum((board / name).stat().st_size for name in (RUNS_FILE, RECORDS_FILE))
    if size > LARGEST:
        most = f"a board has at most {LARGEST / 2**20:.0f}"
        wrong.append(f"the tables have {size / 2**20:.1f} MB; {most}")
    off, rules = _off(tables), _rules(tables)
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
        unlike += _wrong_beside(row, first) + _wrong_rules(row, first, rules)
        unlike += protocol.unlike(row)
        wrong += [f"{label} on {dataset}: {text}" for text in unlike]
        if planned := protocol.cells(dataset, sets[dataset]):
            wrong += _wrong_cells(f"{label} on {dataset}", row, planned)
    return wrong + _wrong_entries(board, set(runs["label"]))


def _wrong_ids(row: pd.DataFrame) -> list[str]:
    """Return a sentence on the first run whose id is not that of its spec."""
    for run_id, spec in zip(row["id"], specs_of(row), strict=True):
        try:
            found = replace(spec).id
        except (TypeError, ValueError, AttributeError, RecursionError) as error:
            return [f"run {run_id} has no spec that can be: {error}"]
        if found != run_id.partition("@")[0]:
            return [f"run {run_id} has the spec of {found}"]
    return []


def _off(tables: Tables) -> dict[str, "pd.Series[bool]"]:
    """Return which runs lack numbers, or have them twice, by what is wrong with them."""
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
    missing = [
        any((run_id, name) not in there for name in tests)
        for run_id, tests in zip(ids, runs["test_environments"], strict=True)
    ]
    on_each = "has runs without a value on each test environment"
    off[on_each] = pd.Series(missing, runs.index)
    seconds = runs["training_seconds"]
    off["has seconds that cannot be"] = ~(np.isfinite(seconds) & (seconds >= 0))
    return off


def _rules(tables: Tables) -> dict[tuple[str, str], set[str]]:
    """Return the rules by which each row has scores."""
    rows = tables.scores[["id", "rule"]].merge(tables.runs[["id", *ROW]], on="id")
    found: dict[tuple[str, str], set[str]] = {}
    for dataset, label, rule in rows[[*ROW, "rule"]].drop_duplicates().itertuples(index=False):
        found.setdefault((dataset, label), set()).add(rule)
    return found


def _wrong_rules(
    row: pd.DataFrame, first: pd.DataFrame, known: Mapping[tuple[str, str], set[str]]
) -> list[str]:
    """Return the mistakes in a row's rules, beside those of the first row of its dataset."""
    rules, of_first = (known.get((*t[ROW].iloc[0],), set()) for t in (row, first))
    if rules != of_first:
        label = first["label"].iloc[0]
        return [f"has the rules {sorted(rules)}, and {label} has {sorted(of_first)}"]
    if rules and all(map(sees_test, rules)):
        seeing = " and ".join(sorted(rules))
        return [f"has no rule but {seeing}, which sees the test environments"]
    return []


def _wrong_beside(row: pd.DataFrame, first: pd.DataFrame) -> list[str]:
    """Return the mistakes in a row's settings, environments and data, beside the first row of its
    dataset.
    """
    label = first["label"].iloc[0]
    wrong = [
        f"{name.replace('_', ' ')} is not that of {label}"
        for name in (*ALIKE, "metric", "higher_is_better", "classes", "family", "shift")
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


def _wrong_cells(row: str, runs: pd.DataFrame, planned: Sequence[Cell]) -> list[str]:
    """Return the mistakes of a row, which must have exactly one run for each trial, draw and test set."""
    known = runs[["trial", "draw", "test_environments"]].apply(tuple, axis=1).isin(planned)
    if not known.all():
        strange = f"{(~known).sum()} of {len(runs)} runs are under another protocol, first run"
        return [f"{row}: {strange} {runs.loc[~known, 'id'].iloc[0]}"]
    if len(runs) > len(planned):
        return [f"{row}: {len(runs)} runs, and {len(planned)} are planned"]
    return _missing(row, runs, planned)


class _Protocol:
    """What the file of a protocol says of rows, datasets and runs."""

    def __init__(self, protocol: Sweep) -> None:
        self.protocol = protocol
        self.entries = {name_of(entry): entry for entry in protocol.datasets}
        self.rows = {label_of(row): row for row in protocol.algorithms}

    def cells(self, dataset: str, sets: Sequence[tuple[str, ...]]) -> list[Cell]:
        """Return the runs that each row of a dataset must have; none of a dataset that is not there."""
        if dataset not in self.entries:
            return []
        trials = trials_of(self.protocol, _training(self.entries[dataset]))
        draws = indices(self.protocol.hparam_draws, "hparam_draws")
        return list(itertools.product(trials, draws, sets))

    def unlike(self, runs: pd.DataFrame) -> list[str]:
        """Return the mistakes, a sentence each, where a row's specs differ from the file."""
        spec = {str(name): value for name, value in runs.iloc[0].items()}
        dataset, label = str(spec["dataset_label"]), str(spec["label"])
        if dataset not in self.entries:
            return ["the protocol has no such dataset"]
        if label not in (*self.rows, spec["algorithm"]):
            return ["the protocol plans no such row"]
        row = self.rows.get(label, label)
        row = Row(name=row) if isinstance(row, str) else row
        training = _training(self.entries[dataset])
        network = self.protocol.network if training.network is None else training.network
        network = Component(name=network) if isinstance(network, str) else network
        pairs = self._pairs(row, self.entries[dataset], network.name, spec)
        first = {name: "" for pair in pairs for name in _unlike(*pair)}
        hparams = {**training.hparams, **row.hparams}
        hparams = {name: v for name, v in hparams.items() if not isinstance(v, list | dict)}
        neutral = neutral_values(algorithms.get(row.name).Hparams) if row.name in algorithms else {}
        of_network = {**network.hparams, **row.network}
        names = ("id", "hparams", "network_hparams")
        for run_id, own, own_network in zip(*(runs[name] for name in names), strict=True):
            unlike = _unlike(hparams, {**neutral, **own}) + _unlike(of_network, own_network)
            for name in unlike:
                first.setdefault(name, f", first in run {run_id}")
        return [
            f"{name.replace('_', ' ')} is not the protocol's{run}" for name, run in first.items()
        ]

    def _pairs(
        self, row: Row, entry: str | dict[str, Any], network: str, spec: Mapping[str, Any]
    ) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        """Return what the file declares of all runs of a row, each beside what a spec has."""
        training = _training(entry)
        numbers = {
            name: getattr(training, name, None) or getattr(self.protocol, name)
            for name in ("steps", "evaluate_every")
        }
        options: dict[str, Any] = {} if isinstance(entry, str) else dict(entry)
        ceiling = {**options.pop("ceiling", {}), **row.options} if row.ceiling else {}
        others = ("name", "label", "training")
        options = {k: v for k, v in options.items() if k not in others} | ceiling
        declared = {"algorithm": row.name, "ceiling": row.ceiling, "network": network, **numbers}
        return [
            (declared, spec),
            (options, spec["options"]),
            (_average(row.average), _average(spec["average"] or "none")),
            ({"adapt": _adaptation(row.adapt)}, {"adapt": _adaptation(spec["adapt"] or "none")}),
        ]


def _average(value: Any) -> dict[str, Any]:
    """Return an average of a row or run as `average`, its name, and its numbers."""
    return (
        {"average": value.get("name"), **value} if isinstance(value, dict) else {"average": value}
    )


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


def refuse(wrong: Sequence[str], what: str) -> None:
    """Raise UserError with the first few of these sentences, if there are any."""
    if wrong:
        more = f" (and {len(wrong) - 3} more)" if len(wrong) > 3 else ""
        raise UserError(f"{what}: {'; '.join(wrong[:3])}{more}")
