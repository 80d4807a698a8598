"""DomainBed's own three tables, from the same records.

Its rules (arXiv:2007.01434, section 3, and its code): only runs with one test environment are reported, by
the `in` split of that environment; ties between draws go to the last, ties between steps to the first; the
oracle sees only the last step; runs that have not ended count; the error is the population's (ddof=0), 0.0
for one trial.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from oodbench.errors import UserError
from oodbench.report.cells import recorded_metrics, test_values
from oodbench.report.numbers import Cell, with_error
from oodbench.report.tables import Block, Sheet
from oodbench.results.domainbed import ENVIRONMENTS
from oodbench.results.run_spec import State
from oodbench.results.tables import CELL, Tables, only, subset
from oodbench.selection.judge import judge_by_all

ALGORITHMS = (
    *("ERM", "ERMPlusPlus", "Fish", "IRM", "GroupDRO", "Mixup", "MLDG", "CORAL", "MMD", "DANN"),
    *("CDANN", "MTL", "SagNet", "ARM", "VREx", "RSC", "SD", "ANDMask", "SANDMask", "IGA"),
    *("SelfReg", "Fishr", "TRM", "IB_ERM", "IB_IRM", "CAD", "CondCAD", "Transfer"),
    *("CausIRL_CORAL", "CausIRL_MMD", "EQRM", "RDM", "ADRMX", "URM"),
)
"""The order of rows in DomainBed's tables; other algorithms follow."""
NOTHING = "X"
METRIC = "accuracy"
RULES = {
    "training-domain validation set": "train_val",
    "leave-one-domain-out cross-validation": "leave_one_out",
    "test-domain validation set (oracle)": "oracle",
}
"""Our names of DomainBed's rules."""


def tables(frames: Tables) -> Sheet:
    """DomainBed's tables by its three rules.

    The frame has one cell per row: `rule`, `dataset`, `label`, `environment`, `mean`, `error` (ddof=0) and
    `n`. Raises UserError without runs that have one test environment and an accuracy.
    """
    if len(frames.scores):
        raise UserError("DomainBed's rules need all records; a board has those of chosen steps")
    runs = frames.runs
    labels = sorted(runs["label"].unique(), key=lambda label: _rank(label, ALGORITHMS)[0])
    measured = [name for name, metrics in recorded_metrics(frames).items() if METRIC in metrics]
    names = sorted(measured, key=lambda name: _rank(name, ENVIRONMENTS))
    frames = subset(frames, runs[runs["dataset_label"].isin(names)])
    if not (frames.runs["test_environments"].map(len) == 1).any():
        raise UserError("DomainBed's rules need accuracies of runs with one test environment each")
    shown, rows = list[Block](), list[tuple[Any, ...]]()
    for title, rule in RULES.items():
        cells = _cells(frames, rule)
        for name in names:
            environments = list(only(frames, [name]).records["environment"].dropna().unique())
            of_dataset = cells[cells["dataset_label"] == name]
            by_environment = of_dataset.groupby(["label", "environment"])["value"]
            shown.append(_table(f"{name}: {title}", by_environment, labels, environments))
        by_trial = cells.groupby(["label", "dataset_label", "trial"], sort=False)["value"].mean()
        by_dataset = by_trial.groupby(["label", "dataset_label"])
        shown.append(_table(f"Averages: {title}", by_dataset, labels, names))
        by_cell = cells.groupby(["dataset_label", "label", "environment"], sort=False)["value"]
        rows += [(title, *cell, *_mean_and_error(v), len(v)) for cell, v in by_cell]
    notes = (
        "By DomainBed's rules: ± is the population's error over trials (ddof=0; 0.0 for one trial), "
        "the oracle sees the last step, ties between draws go to the last one; X: no result.",
        *_shared_seeds(runs),
        *_unlike_tests(runs),
        *frames.notes,
    )
    columns = ["rule", "dataset", "label", "environment", "mean", "error", "n"]
    return Sheet(shown, notes, (), pd.DataFrame(rows, columns=columns))


def _rank(name: str, known: Iterable[str]) -> tuple[int, str]:
    return [*known, name].index(name), name


def _shared_seeds(runs: pd.DataFrame) -> list[str]:
    """A note on rows with several runs of the same seeds, which collect_results takes for one run."""
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
    notes = []
    for dataset, group in runs[runs["test_environments"].map(len) == 1].groupby("dataset_label"):
        by_row = group.groupby("label", sort=False)["test_environments"]
        places = {str(row): ", ".join(sorted({t for (t,) in tests})) for row, tests in by_row}
        if len(set(places.values())) > 1:
            rows = "; ".join(f"{row}: {names}" for row, names in places.items())
            notes.append(f"Averages on {dataset} are over different test environments: {rows}.")
    return notes


def _cells(frames: Tables, rule: str) -> pd.DataFrame:
    """The values of the runs and steps that DomainBed chooses by a rule: CELL, `environment` and `value`.

    Cells are in the order of their lowest draws.
    """
    ended = replace(frames, runs=frames.runs.assign(state=State.DONE))
    by_rule = judge_by_all(ended, [f"{rule}:{METRIC}"])
    runs: pd.DataFrame = frames.runs.sort_values("draw", kind="stable")
    cells = runs.loc[runs["test_environments"].map(len) == 1, CELL].drop_duplicates()
    if not by_rule:
        return cells[:0].assign(environment="", value=math.nan)
    (chosen,) = by_rule.values()
    best = chosen.candidates
    if rule == "oracle":
        best = best.sort_values("step", ascending=False, kind="stable")
    best = best.drop_duplicates("run")
    best = best.sort_values(["score", "draw"], na_position="first")
    best = cells.merge(best.drop_duplicates(CELL, keep="last"), on=CELL)
    return test_values(chosen, best, dict.fromkeys(runs["dataset_label"], METRIC))


def _mean_and_error(values: "pd.Series[float]") -> tuple[float, float]:
    v = values.to_numpy(float)
    return float(v.mean()), float(np.std(v / np.sqrt(len(v))))


def _table(title: str, values: Any, labels: Sequence[str], columns: Sequence[str]) -> Block:
    by_cell = {cell: _mean_and_error(of_cell) for cell, of_cell in values}
    rows: list[list[Cell]] = []
    for label in labels:
        known = [by_cell.get((label, name)) for name in columns]
        texts = [with_error(*v, METRIC) if v else NOTHING for v in known]
        means = [value[0] for value in known if value]
        average = with_error(sum(means) / len(columns), math.nan, METRIC)
        rows.append([label, *texts, average if len(means) == len(columns) else NOTHING])
    return Block(title, ["algorithm", *columns, "Avg"], rows, len(rows))
