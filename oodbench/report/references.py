"""The grey rows between which methods stand: the constant answer, and ceilings.

A table has a *kind* for each row: a `method` is ranked; one whose predictions depend on test inputs is
`transductive` and ranked apart; `constant`, the best answer that ignores the inputs, and a `ceiling`,
which a sweep marks so, are not ranked.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from oodbench.report.statistics import estimate
from oodbench.results.run_spec import CONSTANT

METHOD, TRANSDUCTIVE, CEILING = "method", "transductive", "ceiling"


def kinds(runs: pd.DataFrame, dataset: pd.Series, label: pd.Series) -> list[str]:
    """The kind of each row of a table, given by its dataset and label."""
    found: dict[tuple[str, str], str] = {}
    for kind in (TRANSDUCTIVE, CEILING):
        marked = runs.loc[runs[kind], ["dataset_label", "label"]]
        found |= dict.fromkeys(marked.itertuples(index=False, name=None), kind)
    return [
        CONSTANT if row[1] == CONSTANT else found.get(row, METHOD)
        for row in zip(dataset, label, strict=True)
    ]


def constant_values(runs: pd.DataFrame, reported: Mapping[str, str]) -> pd.DataFrame:
    """The constant answer's values on the `in` splits of the test environments.

    The columns are `dataset_label`, `label`, `test_environments`, `trial`, `environment`, `metric`
    (the dataset's in `reported`), `value` and `complete`: whether a run of the trial has recorded
    it. A dataset of which no run has is left out.
    """
    place = ["dataset_label", "test_environments", "trial"]
    own = runs[~runs["helper"] & ~runs["ceiling"]]
    known = own[own["constant"].map(lambda found: isinstance(found, dict))]
    found = own[place].drop_duplicates()
    found = found.merge(known.drop_duplicates(place)[[*place, "constant"]], on=place, how="left")
    rows = []
    for dataset, tests, trial, constant in found.itertuples(index=False, name=None):
        metric = reported[dataset]
        values = constant.get(metric, {}) if isinstance(constant, dict) else {}
        for test in tests:
            value = values.get(test, {}).get("in")
            rows.append((dataset, CONSTANT, tests, trial, test, metric, value, value is not None))
    names = ["dataset_label", "label", *place[1:], "environment", "metric", "value", "complete"]
    table = pd.DataFrame(rows, columns=names).astype({"value": float, "complete": bool})
    return table[table.groupby("dataset_label")["complete"].transform("any")]


def beside_constant(values: pd.DataFrame, higher: Mapping[str, bool]) -> tuple[str, ...]:
    """A sentence for each dataset on which no complete method does better than the constant answer.

    `values` has a row for each `dataset`, `label`, `kind`, `environment`, `trial`, `metric`, `value`
    and `complete`. A method differs where the 95 % interval of its paired difference (Student's t
    over trials of the mean over environments) does not hold 0; with one trial, which has no
    interval, where the difference is not 0; and where it diverged.
    """
    found = []
    for dataset, own in values.groupby("dataset", sort=False):
        whole = own.groupby("label")["complete"].transform("all")
        table = own[whole & own["kind"].isin((METHOD, CONSTANT))]
        wide = table.pivot_table(
            "value", ["trial", "environment"], "label", lambda v: v.mean(skipna=False), dropna=False
        )
        if CONSTANT not in wide or wide.shape[1] < 2:
            continue
        sign = 1.0 if higher.get(str(own["metric"].iloc[0]), True) else -1.0
        gains = sign * wide.drop(columns=CONSTANT).sub(wide[CONSTANT], axis=0)
        verdicts = {_verdict(gains[label].unstack("trial").mean(skipna=False)) for label in gains}
        how = "95 % intervals of the paired differences over trials"
        if verdicts == {"equal"}:
            found.append(f"No row of {dataset} differs from the constant answer ({how}).")
        elif "better" not in verdicts:
            found.append(f"No row of {dataset} is better than the constant answer ({how}).")
    return tuple(found)


def _verdict(gains: "pd.Series[float]") -> str:
    """Whether gains over the constant answer, one a trial, show a row `better`, `worse` or `equal`."""
    mean = estimate(gains)
    low, high = (mean.mean, mean.mean) if len(gains) == 1 else (mean.low, mean.high)
    if low > 0:
        return "better"
    return "worse" if high < 0 or np.isnan(mean.mean) else "equal"
