"""Freeze results: a board has the runs of its protocol, and of their records those that rules choose.

What is frozen is checked before, and again by `board validate`.
"""

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from filelock import FileLock

from oodbench.algorithms import algorithms
from oodbench.board.protocol import (
    Entry,
    entry_of,
    label_of,
    name_of,
    options_of,
    protocol_of,
    restricted,
    training,
)
from oodbench.errors import UserError
from oodbench.hparams import neutral_values
from oodbench.results.boards import ENTRIES_FILE, PROTOCOL_FILE, RECORDS_FILE, RUNS_FILE
from oodbench.results.directory import Directory
from oodbench.results.parquet import (
    CATEGORIES,
    RECORDS,
    RUNS,
    read_table,
    records_frame,
    runs_frame,
    specs_of,
    table_of,
    write_table,
)
from oodbench.results.predictions import freeze_predictions, predictions_file
from oodbench.results.provenance import code, method_digest
from oodbench.results.read import FURTHER, read_board, read_results
from oodbench.results.run_spec import BEFORE, COMPLETE, SCORE, RunSpec
from oodbench.results.schemas import DamagedFile
from oodbench.results.stale import stale_runs
from oodbench.results.tables import ROW, Tables, only, stacked_runs, subset
from oodbench.selection import find_rule, rule_names, sees_test
from oodbench.selection.judge import Chosen, judge_by_all
from oodbench.sweep.file import Component, Row, Sweep
from oodbench.sweep.plan import make_plan
from oodbench.sweep.sources import indices, trials_of

WORST_GROUP = "worst_group_accuracy"
MADE_BY = (
    *("oodbench", "commit", "torch", "python"),
    *("machine", "device", "threads", "arithmetic"),
)
"""The fields of the runs' provenance that a board keeps."""
RowName = tuple[str, str]
"""A row of a table: its dataset and its label."""
TEXTS = dict.fromkeys(CATEGORIES, object)
WITHIN_ROW = ["trial", "draw", "test_environments"]
"""The columns of a run that differ within a row."""
ENTRY = ["row", "author", "date", "paper", "pretraining"]
"""The columns of a board's entries.csv."""
ALIKE = (
    *("dataset", "options", "network", "steps", "evaluate_every", "holdout"),
    *("noise", "precision", "channels_last", "arithmetic"),
    *("metric", "higher_is_better", "classes", "family", "shift"),
)
"""The columns in which the rows of a dataset are alike, ceilings apart."""


def frozen_rules() -> list[str]:
    """The rules whose choices are frozen where a dataset serves them, also by worst groups."""
    rules = [rule for rule in map(find_rule, rule_names()) if rule.frozen]
    by_group = [f"{rule.name}:{WORST_GROUP}" for rule in rules if not rule.sees_test]
    return [*(rule.name for rule in rules), *by_group]


def freeze(
    results: Path, board: Path, data_dir: Path | None = None, predictions: bool = False
) -> tuple[list[RowName], list[RowName]]:
    """Add all rows of a results directory to a board, whose protocol must be there.

    Returns the rows that are new, and those that were there with the same numbers. With `predictions`,
    those of the steps that rules choose are frozen, too. Raises UserError, and writes nothing, if a run is
    missing, stale or under another protocol, a row was trained by several codes, or a row is frozen already
    with other numbers.
    """
    if not (board / PROTOCOL_FILE).is_file():
        raise UserError(f"{board} is not a board yet: copy its sweep to {board / PROTOCOL_FILE}")
    protocol = protocol_of(board)
    if wrong := wrong_results(results, protocol, data_dir):
        more = f" (and {len(wrong) - 3} more)" if len(wrong) > 3 else ""
        raise UserError(f"{results} cannot be frozen: {'; '.join(wrong[:3])}{more}")
    runs, records = frozen_tables(read_results(Directory(results)))
    rows = _rows(runs)
    with FileLock(board / ".lock"):
        known, known_records = tables_of(board)
        known_rows = _rows(known)
        there = [row for row in rows if row in known_rows]
        for row in rows:
            ids = runs.loc[(runs[ROW] == list(row)).all(axis=1), "id"]
            ids = ids if row in there else ids[ids.isin(known["id"])]
            if _numbers(known_records, ids) != _numbers(records, ids):
                raise UserError(
                    f"{row[1]} on {row[0]} is frozen with other numbers: what changes a row is a new "
                    "version of the board, under a new name"
                )
        added = [row for row in rows if row not in there]
        new = runs[[row in added for row in runs[ROW].itertuples(index=False, name=None)]]
        if len(new):
            new = new.assign(provenance=pd.Series(_provenances(new, data_dir), new.index))
            of_new = records["id"].isin(new["id"]) & ~records["id"].isin(known["id"])
            values = pd.concat([known_records.astype(TEXTS), records[of_new]])
            _write(board, _in_order(stacked_runs([known, new]), protocol), values)
        if predictions:
            _freeze_predictions(Directory(results), board, set(runs["id"]))
    return added, there


def _write(board: Path, runs: pd.DataFrame, records: pd.DataFrame) -> None:
    place = pd.Index(runs["id"].unique()).get_indexer(records["id"])
    in_order = records.assign(place=place).sort_values(["place", "step"], kind="stable")
    write_table(table_of(in_order.drop(columns="place"), RECORDS), board / RECORDS_FILE)
    write_table(table_of(runs, RUNS), board / RUNS_FILE)


def _freeze_predictions(results: Directory, board: Path, ids: set[str]) -> None:
    tables = read_board(board)
    tables = subset(tables, tables.runs[_bare(tables.runs["id"]).isin(ids)])
    tests = dict(zip(_bare(tables.runs["id"]), tables.runs["test_environments"], strict=True))
    by_dataset: dict[str, set[tuple[str, int]]] = defaultdict(set)
    for dataset, _, by_rule in _judged(tables):
        tied = by_rule.tied
        by_dataset[dataset] |= set(zip(_bare(tied["id"]), map(int, tied["step"]), strict=True))
    for dataset, steps in by_dataset.items():
        chosen = [(results.run(run_id), step, tests[run_id]) for run_id, step in sorted(steps)]
        freeze_predictions(predictions_file(board, dataset), chosen)


def _bare(ids: "pd.Series[str]") -> "pd.Series[str]":
    """The ids without what tells the rows of one run apart in memory."""
    return ids.astype(str).str.partition("@")[0]


def tables_of(board: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The two tables of a board as they are on the disk, empty if nothing is frozen yet."""
    if not (board / RUNS_FILE).is_file():
        return runs_frame(RUNS.empty_table()), records_frame([])
    runs = runs_frame(read_table(board / RUNS_FILE, RUNS))
    return runs, records_frame([read_table(board / RECORDS_FILE, RECORDS)])


def _rows(runs: pd.DataFrame) -> list[RowName]:
    return list(runs[ROW].drop_duplicates().itertuples(index=False, name=None))


def _numbers(records: pd.DataFrame, ids: "pd.Series[str]") -> object:
    """What a training of runs gives again, in an order that it cannot change."""
    own = records[records["id"].isin(ids)].astype(TEXTS).fillna("")
    return own.sort_values(RECORDS.names).to_numpy().tolist()


def _in_order(runs: pd.DataFrame, protocol: Sweep) -> pd.DataFrame:
    """The runs by dataset and row in the order of the protocol; what it does not list comes last."""
    datasets, rows = map(name_of, protocol.datasets), map(label_of, protocol.algorithms)
    listed = {"dataset_label": [*datasets], "label": [*rows]}

    def place(names: "pd.Series[str]") -> "pd.Series[int]":
        known = dict.fromkeys([*listed[str(names.name)], *sorted(set(names))])
        return names.map({name: i for i, name in enumerate(known)})

    return runs.sort_values(ROW, key=place, kind="stable", ignore_index=True)


def frozen_tables(tables: Tables) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Runs that have all ended, and their records at the steps that rules choose, as a board has them.

    The columns are `oodbench.results.parquet.RUNS` and RECORDS. Of a step's records those of the `in`
    splits of test environments are kept, by the metric that ranks the dataset and by worst groups, and
    those of the predictor itself. A validation score is a record of the split `score`.
    """
    chosen, runs = _chosen(tables), tables.runs
    scores = chosen.rename(columns={"rule": "metric", "score": "value"})
    scores = scores.assign(environment=None, split=SCORE, count=1)
    records = pd.concat([_kept(tables, chosen), scores[RECORDS.names]], ignore_index=True)
    contexts = runs[list(FURTHER[:3])].to_dict(orient="records")
    answers = zip(runs["constant"], runs["test_environments"], strict=True)
    frozen = runs.assign(
        id=_bare(runs["id"]),
        state=runs["state"].astype(str),
        training_seconds=runs[["training_seconds", "evaluation_seconds"]].astype(float).sum(axis=1),
        **dict.fromkeys(("waiting_seconds", "evaluation_seconds", "memory_mb")),
        records=runs["id"].map(records.groupby("id").size()),
        constant=[_constant(answer, tests) for answer, tests in answers],
        context=[{k: v for k, v in each.items() if v is not None} for each in contexts],
    )
    records = records.assign(id=_bare(records["id"])).drop_duplicates(RECORDS.names[:5])
    return frozen.reindex(columns=RUNS.names), records


def _constant(answer: Any, tests: tuple[str, ...]) -> dict[str, Any] | None:
    if not isinstance(answer, Mapping):
        return None
    return {
        metric: {e: {"in": values["in"]} for e, values in of_metric.items() if e in tests}
        for metric, of_metric in answer.items()
    }


def _kept(tables: Tables, chosen: pd.DataFrame) -> pd.DataFrame:
    about = tables.runs.set_index("id")[["metric", "test_environments"]].add_suffix("_main")
    steps = chosen[["id", "step"]].drop_duplicates()
    at = tables.records.astype(TEXTS).merge(steps, on=["id", "step"]).join(about, on="id")
    places = zip(at["environment"], at["split"], at["test_environments_main"], strict=True)
    is_test = pd.Series([e in tests and s == "in" for e, s, tests in places], at.index)
    is_main = at["metric"].str.removesuffix(BEFORE).eq(at["metric_main"])
    kept = is_test & (is_main | at["metric"].eq(WORST_GROUP)) | at["environment"].isna()
    records: pd.DataFrame = at.loc[kept, RECORDS.names]
    return records


def _chosen(tables: Tables) -> pd.DataFrame:
    """The `id`, `rule`, `step` and `score` of each run's candidate by each rule that its dataset serves."""
    found = [
        by_rule.candidates.drop_duplicates("id")[["id", "step", "score"]].assign(rule=rule)
        for _, rule, by_rule in _judged(tables)
    ]
    if not found:
        raise UserError("the runs serve no selection rule: nothing can be chosen")
    return pd.concat(found, ignore_index=True)


def _judged(tables: Tables) -> Iterator[tuple[str, str, Chosen]]:
    for dataset in map(str, tables.runs["dataset_label"].unique()):
        for rule, by_rule in judge_by_all(only(tables, [dataset]), frozen_rules()).items():
            if len(by_rule.candidates):
                yield dataset, rule, by_rule


def _provenances(runs: pd.DataFrame, data_dir: Path | None) -> list[dict[str, Any]]:
    """The provenance of each run: that of its row, which one code has trained, with its data's digests."""
    made: dict[Any, dict[str, Any]] = {}
    digests: dict[str, dict[str, str]] = {}
    for row, of_row in runs.groupby(ROW, sort=False):
        name, options = of_row["dataset"].iloc[0], of_row["options"].iloc[0]
        trials = sorted(set(map(int, of_row["trial"])))
        key = repr((name, sorted(options.items()), trials))
        if key not in digests:
            digests[key] = data_digests(name, options, trials, data_dir)
        made[row] = _provenance(of_row["provenance"]) | {"vectorized": False, "data": digests[key]}
    keys = runs[ROW].itertuples(index=False, name=None)
    return [
        made[row] | {"vectorized": bool(own.get("vectorized", False))}
        for row, own in zip(keys, runs["provenance"], strict=True)
    ]


def _provenance(provenances: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    made = [p for p in provenances if p]
    sources = {digest for p in made if (digest := method_digest(p))}
    days = sorted(str(p["started"])[:10] for p in made if "started" in p)
    known: dict[str, Any] = {
        name: ", ".join(values) if len(values) > 1 else values[0]
        for name in MADE_BY
        if (values := list(dict.fromkeys(p[name] for p in made if p.get(name) is not None)))
    }
    known["dates"] = [days[0], days[-1]] if days else []
    return known | ({"source": sources.pop()} if sources else {})


def data_digests(
    name: str, options: Mapping[str, Any], trials: Iterable[int], data_dir: Path | None
) -> dict[str, str]:
    """A digest of the inputs and targets of each environment, over these trials in order.

    Inputs that are not held in memory are represented by the checksums of the dataset's files.
    """
    import torch

    from oodbench.data.preparation import load_checked
    from oodbench.datasets import make

    dataset = make(name, options, data_dir)
    hashes: dict[str, Any] = {}
    for trial in trials:
        for environment, data in load_checked(dataset, trial).items():
            digest = hashes.setdefault(environment, hashlib.sha256())
            for tensor in (data.x, data.y):
                if isinstance(tensor, torch.Tensor):
                    digest.update(tensor.detach().contiguous().cpu().numpy().tobytes())
    files = "".join(f"{k}{v}" for k, v in sorted(dataset.checksums.items()))
    for digest in hashes.values():
        digest.update(files.encode())
    return {environment: digest.hexdigest()[:16] for environment, digest in hashes.items()}


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
        unlike = ["the protocol plans no such row"]
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
    """How the first run that the protocol does not plan differs from the planned one closest to it."""
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
    """The mistakes in a board, a sentence each; raises UserError if its protocol cannot be read.

    A board is compared with its protocol's file and its own records, not with this version's ranges,
    defaults and data: the version that trained it may have had others.
    """
    try:
        tables = read_board(board)
    except DamagedFile as error:
        return [str(error)]
    runs, protocol, wrong = tables.runs, protocol_of(board), list[str]()
    off, entries = _off(tables), {name_of(entry): entry for entry in protocol.datasets}
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
            unlike.append("the protocol has no such dataset")
        wrong += [f"{label} on {dataset}: {text}" for text in unlike]
    return wrong + _strays(tables) + _wrong_entries(board / ENTRIES_FILE, set(runs["label"]))


def _strays(tables: Tables) -> list[str]:
    found = {*tables.records["id"].unique(), *tables.scores["id"]} - set(tables.runs["id"])
    return [
        f"there are records of {run}, which is not a run of the board" for run in sorted(found)[:1]
    ]


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
        f"does not have one score by {rule} of each run": counts[rule].ne(1) & has_rule[rule]
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
        wrong.append("its data do not have the digests of those of")
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
    """The mistakes of a row, which must have exactly one run for each trial, draw and test set."""
    draws = indices(protocol.hparam_draws, "hparam_draws")
    trials = trials_of(protocol, training(entry))
    planned = list(itertools.product(trials, draws, sets))
    others = runs[~runs[WITHIN_ROW].apply(tuple, axis=1).isin(planned)]
    if len(others):
        return [_of_another_protocol(others, runs)]
    if len(runs) > len(planned):
        return [f"{len(runs)} runs, and {len(planned)} are planned"]
    return _missing(runs, planned)


def _unlike_protocol(runs: pd.DataFrame, protocol: Sweep, entry: Entry) -> list[str]:
    """Where a row's specs differ from what the protocol's file declares."""
    spec = runs.iloc[0]
    rows = {label_of(row): row for row in protocol.algorithms}
    if spec["label"] not in (*rows, spec["algorithm"]):
        return ["the protocol plans no such row"]
    declared = rows.get(spec["label"], str(spec["label"]))
    row = Row(name=declared) if isinstance(declared, str) else declared
    settings = training(entry)
    named = protocol.network if settings.network is None else settings.network
    network = Component(name=named) if isinstance(named, str) else named
    options = options_of(entry)
    if row.ceiling:
        options |= entry_of(entry).get("ceiling", {}) | row.options
    about = {
        **{"algorithm": row.name, "ceiling": row.ceiling, "network": network.name},
        "steps": settings.steps or protocol.steps,
        "evaluate_every": settings.evaluate_every or protocol.evaluate_every,
        "adapt": _keys(row.adapt)["name"],
    }
    found = {**spec, "adapt": _keys(spec["adapt"])["name"]}
    of_row = _unlike(about, found) + _unlike(options, spec["options"])
    averages = _unlike(_keys(row.average), _keys(spec["average"]))
    of_row += ["average" if name == "name" else name for name in averages]
    first = dict.fromkeys(of_row, "")
    hparams = {**settings.hparams, **row.hparams}
    hparams = {name: v for name, v in hparams.items() if not isinstance(v, list | dict)}
    neutral = neutral_values(algorithms.get(row.name).Hparams) if row.name in algorithms else {}
    of_network = {**network.hparams, **row.network}
    for run_id, own, own_network in runs[["id", "hparams", "network_hparams"]].to_numpy():
        for name in _unlike(hparams, {**neutral, **own}) + _unlike(of_network, own_network):
            first.setdefault(name, f", first in run {run_id}")
    return [f"{name.replace('_', ' ')} is not the protocol's{run}" for name, run in first.items()]


def _keys(value: Any) -> dict[str, Any]:
    """The keys of an average or adaptation, which may be given by its name alone."""
    return value if isinstance(value, dict) else {"name": value or "none"}


def _unlike(declared: Mapping[str, Any], values: Mapping[str, Any]) -> list[str]:
    """The declared names with another value; `default` and names without a value pass."""
    return [n for n, value in declared.items() if value not in ("default", values.get(n, value))]
