"""DomainBed's own three tables from the same records, cell for cell.

Its rules (arXiv:2007.01434, section 3, and its code): only runs with one test environment are
reported, by the test environment's `in` split; a tie between draws goes to the last one, a tie
between steps to the first; the oracle sees the last step alone; runs that have not ended count; the
error is the population's (ddof=0), 0.0 for one trial.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pandas as pd

from oodbench.errors import UserError
from oodbench.report.numbers import Printed
from oodbench.report.tables import Block, Cell, Sheet
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
        both = pairs["test_environments"].map(lambda t, o=other: set(t) == {run.test, o})
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
    values = sweep.values[run.id]
    last = values.sort_index(kind="stable").iloc[-1]
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
CELL_COLUMNS = ("label", "environment", "trial", "value")


def tables(frames: Tables) -> Sheet:
    """DomainBed's tables by its three rules.

    The frame has a row for each of their cells: `rule`, `dataset`, `label`, `environment`, `mean`, `error`
    (ddof=0) and `n`. Raises UserError if no run has one test environment and an accuracy.
    """
    runs = frames.runs
    sweeps = {name: _sweep(frames, runs, name) for name in _sorted(runs["dataset_label"].unique())}
    sweeps = {name: sweep for name, sweep in sweeps.items() if sweep.values}
    labels = sorted(runs["label"].unique(), key=lambda x: [*ALGORITHMS, x].index(x))
    if not any((s.runs["test"] != "").any() for s in sweeps.values()):
        raise UserError("DomainBed's rules need accuracies of runs with one test environment each")
    shown: list[Block] = []
    rows: list[tuple[Any, ...]] = []
    for name, choose in METHODS:
        cells = pd.DataFrame(
            [(d, *cell) for d, sweep in sweeps.items() for cell in _cells(sweep, choose)],
            columns=["dataset", *CELL_COLUMNS],
        )
        for dataset, sweep in sweeps.items():
            scored = cells[cells["dataset"] == dataset].rename(columns={"environment": "column"})
            shown.append(_table(f"{dataset}: {name}", scored, labels, sweep.environments))
        by_trial = cells.groupby(["label", "dataset", "trial"], sort=False)["value"].mean()
        means = by_trial.reset_index().rename(columns={"dataset": "column"})
        shown.append(_table(f"Averages: {name}", means, labels, list(sweeps)))
        places = cells.groupby(["dataset", "label", "environment"], sort=False)["value"]
        rows += [(name, *place, *_mean_and_error(v), len(v)) for place, v in places]
    notes = (
        "By DomainBed's rules: ± is the population's error over trials (ddof=0; 0.0 for one trial), "
        "the oracle sees the last step, ties between draws go to the last one; X: no result.",
        *_shared_seeds(runs),
        *_unlike_tests(runs),
        *frames.notes,
    )
    names = ["rule", "dataset", "label", "environment", "mean", "error", "n"]
    return Sheet(shown, notes, (), pd.DataFrame(rows, columns=names))


def _shared_seeds(runs: pd.DataFrame) -> list[str]:
    """Say which rows have several runs of the same seeds, which collect_results takes for one run."""
    key = ["dataset_label", "label", "test_environments", "trial", "draw"]
    several = runs[runs.duplicated(key, keep=False)]
    names = several[["label", "dataset_label"]].drop_duplicates().itertuples(index=False, name=None)
    rows = ", ".join(f"{label} on {dataset}" for label, dataset in names)
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


def _sorted(datasets: Iterable[str]) -> list[str]:
    return sorted(datasets, key=lambda d: ([*ENVIRONMENTS, d].index(d), d))


def _sweep(frames: Tables, runs: pd.DataFrame, dataset: str) -> Accuracies:
    trained = runs[runs["dataset_label"] == dataset]
    tests = trained["test_environments"]
    trained = trained.assign(test=tests.map(lambda t: t[0] if len(t) == 1 else ""))
    trained = trained[tests.map(len) <= 2]
    metrics = frames.records
    mine = metrics["id"].isin(trained["id"]) & (metrics["metric"] == "accuracy")
    rows = metrics[mine & metrics["split"].isin(("in", "out"))]
    rows = rows.astype(dict.fromkeys(("id", "environment", "split"), object))
    environments = [str(e) for e in rows["environment"].unique()]
    values = {}
    for run_id, of_run in rows.groupby("id", sort=False):
        wide = of_run.pivot_table("value", "step", ["split", "environment"], "first", dropna=False)
        complete = pd.MultiIndex.from_product([("in", "out"), environments])
        wide = wide.reindex(columns=complete)
        values[str(run_id)] = wide.loc[of_run["step"].drop_duplicates()]
    return Accuracies(trained, values, environments)


def _cells(
    sweep: Accuracies, choose: Callable[[Accuracies, Any], Choice | None]
) -> list[tuple[str, str, int, float]]:
    """Label, environment, trial and accuracy of the best draw of each cell that has a draw."""
    best = []
    measured = (sweep.runs["test"] != "") & sweep.runs["id"].isin(sweep.values)
    singles = sweep.runs[measured].sort_values("draw", kind="stable")
    for key, cell in singles.groupby(["label", "test", "trial"], sort=False):
        label, test, trial = cast(tuple[str, str, int], key)
        choices = [c for run in cell.itertuples() if (c := choose(sweep, run)) is not None]
        if choices:
            scores = [-np.inf if np.isnan(score) else score for score, _ in choices]
            last_best = max(range(len(choices)), key=lambda i: (scores[i], i))
            best.append((label, test, int(trial), choices[last_best][1]))
    return best


def _mean_and_error(values: "pd.Series[float]") -> tuple[float, float]:
    v = values.to_numpy(float)
    return float(v.mean()), float(np.std(v / np.sqrt(len(v))))


def _table(title: str, cells: pd.DataFrame, labels: list[str], names: list[str]) -> Block:
    """A row of cells a label, and their mean, which is missing if any cell is."""
    by_place = {
        place: _mean_and_error(values)
        for place, values in cells.groupby(["label", "column"])["value"]
    }
    rows: list[list[Cell]] = []
    for label in labels:
        known = [by_place.get((label, name)) for name in names]
        texts = [Printed(f"{100 * v[0]:.1f}", f"{100 * v[1]:.1f}") if v else NOTHING for v in known]
        means = [value[0] for value in known if value]
        whole = len(means) == len(names)
        average = f"{100 * sum(means) / len(means):.1f}" if whole else NOTHING
        rows.append([label, *texts, average])
    return Block(title, ["algorithm", *names, "Avg"], rows, len(rows))
