"""DomainBed's own three tables from the same records, cell for cell.

Its rules (arXiv:2007.01434, section 3, and its code): only runs with one test environment are
reported, by the test environment's `in` split; a tie between draws goes to the last one, a tie
between steps to the first; the oracle sees the last step alone; runs that have not ended count; the
error is the population's (ddof=0), 0.0 for one trial.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from oodbench.errors import UserError
from oodbench.report.numbers import number
from oodbench.report.tables import Block, Sheet
from oodbench.results.domainbed import ENVIRONMENTS
from oodbench.results.tables import Tables

ALGORITHMS = (
    *("ERM", "ERMPlusPlus", "Fish", "IRM", "GroupDRO", "Mixup", "MLDG", "CORAL", "MMD", "DANN"),
    *("CDANN", "MTL", "SagNet", "ARM", "VREx", "RSC", "SD", "ANDMask", "SANDMask", "IGA"),
    *("SelfReg", "Fishr", "TRM", "IB_ERM", "IB_IRM", "CAD", "CondCAD", "Transfer"),
    *("CausIRL_CORAL", "CausIRL_MMD", "EQRM", "RDM", "ADRMX", "URM"),
)
"""The algorithms in the order of the rows of DomainBed's tables; others follow."""
NOTHING = "X"


@dataclass(frozen=True)
class Accuracies:
    """Accuracies of the runs of one dataset."""

    runs: pd.DataFrame
    """The runs with one test environment (`test`) or two, with `label`, `trial`, `draw`."""
    values: dict[str, pd.DataFrame]
    """By run id, a table of accuracies: steps, in the order of the file, by (split, environment)."""
    environments: list[str]


Choice = tuple[float, float]
"""A run's value for selection and the accuracy that is reported."""


def _training_domain(sweep: Accuracies, run: Any) -> Choice:
    values = sweep.values[run.id]
    others = [("out", e) for e in sweep.environments if e != run.test]
    return _first_best(values[others].to_numpy().mean(axis=1), values["in", run.test])


def _leave_one_out(sweep: Accuracies, run: Any) -> Choice | None:
    values = sweep.values[run.id]
    key = ["label", "trial", "draw"]
    pairs = sweep.runs[(sweep.runs[key] == [run.label, run.trial, run.draw]).all(axis=1)]
    columns = []
    for other in (e for e in sweep.environments if e != run.test):
        both = [set(t) == {run.test, other} for t in pairs["test_environments"]]
        ids = [i for i in pairs.loc[both, "id"] if i in sweep.values]
        if not ids:
            return None
        columns.append(sweep.values[ids[0]]["in", other])
    table = pd.concat(columns, axis=1, join="inner").dropna().sort_index()
    table = table[table.index.isin(values.index)]
    if table.empty:
        return None
    return _first_best(table.to_numpy().mean(axis=1), values["in", run.test][table.index])


def _oracle(sweep: Accuracies, run: Any) -> Choice:
    last = sweep.values[run.id].sort_index(kind="stable").iloc[-1]
    return float(last["out", run.test]), float(last["in", run.test])


def _first_best(scores: Sequence[float], tests: "pd.Series[float]") -> Choice:
    best = max(range(len(scores)), key=lambda i: scores[i])
    return float(scores[best]), float(tests.iloc[best])


METHODS: Sequence[tuple[str, Callable[[Accuracies, Any], Choice | None]]] = (
    ("training-domain validation set", _training_domain),
    ("leave-one-domain-out cross-validation", _leave_one_out),
    ("test-domain validation set (oracle)", _oracle),
)
"""DomainBed's name of each rule, and the function that applies it to a run."""


def tables(frames: Tables) -> Sheet:
    """DomainBed's tables by its three rules.

    The frame has a row for each of their cells: `rule`, `dataset`, `label`, `environment`, `mean`, `error`
    (ddof=0) and `n`. Raises UserError if no run has one test environment and an accuracy.
    """
    runs = frames.runs
    if frames.scores is not None:
        raise UserError("DomainBed's rules need all records; a board has those of chosen steps")
    names = sorted(runs["dataset_label"].unique(), key=lambda d: _place(d, ENVIRONMENTS))
    sweeps = {name: _sweep(frames, name) for name in names}
    sweeps = {name: sweep for name, sweep in sweeps.items() if sweep.values}
    labels = sorted(runs["label"].unique(), key=lambda label: _place(label, ALGORITHMS)[0])
    if not any((s.runs["test"] != "").any() for s in sweeps.values()):
        raise UserError("DomainBed's rules need accuracies of runs with one test environment each")
    shown, rows = list[Block](), list[tuple[Any, ...]]()
    for rule, choose in METHODS:
        cells = pd.concat([_cells(sweep, choose).assign(dataset=d) for d, sweep in sweeps.items()])
        for dataset, sweep in sweeps.items():
            scored = cells[cells["dataset"] == dataset].rename(columns={"environment": "column"})
            shown.append(_table(f"{dataset}: {rule}", scored, labels, sweep.environments))
        by_trial = cells.groupby(["label", "dataset", "trial"], sort=False)["value"].mean()
        means = by_trial.reset_index().rename(columns={"dataset": "column"})
        shown.append(_table(f"Averages: {rule}", means, labels, list(sweeps)))
        places = cells.groupby(["dataset", "label", "environment"], sort=False)["value"]
        rows += [(rule, *place, *_mean_and_error(v), len(v)) for place, v in places]
    notes = (
        "By DomainBed's rules: ± is the population's error over trials (ddof=0; 0.0 for one trial), "
        "the oracle sees the last step, ties between draws go to the last one; X: no result.",
        *_shared_seeds(runs),
        *_unlike_tests(runs),
        *frames.notes,
    )
    columns = ["rule", "dataset", "label", "environment", "mean", "error", "n"]
    return Sheet(shown, notes, (), pd.DataFrame(rows, columns=columns))


def _place(name: str, known: Iterable[str]) -> tuple[int, str]:
    return [*known, name].index(name), name


def _shared_seeds(runs: pd.DataFrame) -> list[str]:
    """Say which rows have several runs of the same seeds, which collect_results takes for one run."""
    key = ["dataset_label", "label", "test_environments", "trial", "draw"]
    several = runs.loc[runs.duplicated(key, keep=False), ["label", "dataset_label"]]
    rows = ", ".join(f"{label} on {d}" for label, d in several.drop_duplicates().to_numpy())
    if not rows:
        return []
    return [
        f"Several settings under one name share their seeds: {rows}. These numbers are not those of "
        "collect_results, which mixes the records of such runs in the order of the disk; here each run "
        "counts as a draw."
    ]


def _unlike_tests(runs: pd.DataFrame) -> list[str]:
    """Say on which datasets rows are averaged over different test environments."""
    notes = []
    for dataset, group in runs[runs["test_environments"].map(len) == 1].groupby("dataset_label"):
        by_row = group.groupby("label", sort=False)["test_environments"]
        places = {str(row): ", ".join(sorted({t for (t,) in tests})) for row, tests in by_row}
        if len(set(places.values())) > 1:
            rows = "; ".join(f"{row}: {names}" for row, names in places.items())
            notes.append(f"Averages on {dataset} are over different test environments: {rows}.")
    return notes


def _sweep(frames: Tables, dataset: str) -> Accuracies:
    runs = frames.runs[frames.runs["dataset_label"] == dataset]
    tests = runs["test_environments"]
    trained = runs.assign(test=[t[0] if len(t) == 1 else "" for t in tests])[tests.map(len) <= 2]
    records = frames.records
    mine = records["id"].isin(trained["id"]) & (records["metric"] == "accuracy")
    rows = records[mine & records["split"].isin(("in", "out"))]
    rows = rows.astype(dict.fromkeys(("id", "environment", "split"), object))
    environments = [str(e) for e in rows["environment"].unique()]
    columns = pd.MultiIndex.from_product([("in", "out"), environments])
    values = {}
    for run_id, of_run in rows.groupby("id", sort=False):
        wide = of_run.pivot_table("value", "step", ["split", "environment"], "first", dropna=False)
        values[str(run_id)] = wide.reindex(columns=columns).loc[of_run["step"].drop_duplicates()]
    return Accuracies(trained, values, environments)


def _cells(sweep: Accuracies, choose: Callable[[Accuracies, Any], Choice | None]) -> pd.DataFrame:
    measured = (sweep.runs["test"] != "") & sweep.runs["id"].isin(sweep.values)
    found = []
    for run in sweep.runs[measured].sort_values("draw", kind="stable").itertuples():
        choice = choose(sweep, run)
        if choice is not None:
            score = -np.inf if np.isnan(choice[0]) else choice[0]
            found.append((run.label, run.test, run.trial, score, choice[1]))
    key = ["label", "environment", "trial"]
    table = pd.DataFrame(found, columns=[*key, "score", "value"])
    last_best = table.sort_values("score", kind="stable").drop_duplicates(key, keep="last")
    return table[key].drop_duplicates().merge(last_best, on=key)


def _mean_and_error(values: "pd.Series[float]") -> tuple[float, float]:
    v = values.to_numpy(float)
    return float(v.mean()), float(np.std(v / np.sqrt(len(v))))


def _table(title: str, cells: pd.DataFrame, labels: list[str], names: list[str]) -> Block:
    by_place = {
        place: _mean_and_error(values)
        for place, values in cells.groupby(["label", "column"])["value"]
    }
    rows: list[list[str]] = []
    for label in labels:
        known = [by_place.get((label, name)) for name in names]
        texts = [number(*v, "accuracy") if v else NOTHING for v in known]
        means = [value[0] for value in known if value]
        average = number(sum(means) / len(names), math.nan, "accuracy")
        rows.append([label, *texts, average if len(means) == len(names) else NOTHING])
    return Block(title, ["algorithm", *names, "Avg"], rows, len(rows))
