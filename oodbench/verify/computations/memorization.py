"""The orderings of arXiv:1706.05394 as signed differences by trial, above 0 where they come out."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from oodbench.diagnose.memorization import (
    CSR,
    errors_of_examples,
    gini_over_training,
    over_training,
    spread,
)
from oodbench.results.tables import Tables
from oodbench.verify.targets import Values


def orderings(trials: int, frames: Mapping[str, Tables]) -> Values:
    """The differences by row; raises UserError if the runs of one epoch keep no predictions."""
    values: Values = {}
    if (long := frames.get("memorization-real-random")) is not None:
        values |= _of_critical_samples(over_training(long))
        last = {name: of[:, -1] for name, of in gini_over_training(long, trials).items()}
        values["Gini, real - randX"] = [*map(float, last["real"] - last["randX"])]
    if (short := frames.get("memorization-one-epoch")) is not None:
        spreads = {name: spread(errors) for name, errors in errors_of_examples(short).items()}
        for name, of_runs in spreads.items():
            values[f"spread, {name} - binomial"] = [value - 1 for value in of_runs]
        values["spread, real - randX"] = [*np.subtract(spreads["real"], spreads["randX"])]
    return values


def _of_critical_samples(curves: pd.DataFrame) -> Values:
    csr = curves.pivot(index=["dataset_label", "trial"], columns="step", values=CSR)
    first, last = csr.iloc[:, 0], csr.iloc[:, -1]
    frames = {f"CSR, {n} - real": last.loc[n] - last.loc["real"] for n in ("randX", "randY")}
    for n in ("real", "randX", "randY"):
        frames[f"CSR, {n}: last - first"] = last.loc[n] - first.loc[n]
    return {name: [*map(float, of_trials)] for name, of_trials in frames.items()}
