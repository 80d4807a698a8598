"""The orderings of arXiv:1706.05394 as signed differences by trial, above 0 where they come out."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from oodbench.diagnose.memorization import (
    CSR,
    TEST,
    TRAIN,
    errors_of_examples,
    gini_over_training,
    over_training,
    spread,
)
from oodbench.results.tables import Tables
from oodbench.verify.targets import Values

FITTED = 0.99
"""The training accuracy at which a training set counts as fitted."""


def orderings(trials: int, frames: Mapping[str, Tables]) -> Values:
    """The differences by row; raises UserError if the runs of one epoch keep no predictions."""
    values: Values = {}
    if (long := frames.get("memorization-real-random")) is not None:
        values |= _over_training(over_training(long).set_index(["dataset_label", "trial", "step"]))
        last = {name: of[:, -1] for name, of in gini_over_training(long, trials).items()}
        values["Gini, real - randX"] = [*map(float, last["real"] - last["randX"])]
    if (short := frames.get("memorization-one-epoch")) is not None:
        spreads = {name: spread(errors) for name, errors in errors_of_examples(short).items()}
        for name, of_runs in spreads.items():
            values[f"spread, {name} - binomial"] = [value - 1 for value in of_runs]
        values["spread, real - randX"] = [*np.subtract(spreads["real"], spreads["randX"])]
    return values


def _over_training(curves: pd.DataFrame) -> Values:
    csr = curves[CSR].unstack("step")
    differences = {f"CSR, {n} - real": csr.loc[n] - csr.loc["real"] for n in ("randX", "randY")}
    frames = {name: values.iloc[:, -1] for name, values in differences.items()}
    for name in ("real", "randX", "randY"):
        frames[f"CSR, {name}: last - first"] = csr.loc[name].iloc[:, -1] - csr.loc[name].iloc[:, 0]
    train, test = (curves.loc["randY 0.4", name].unstack("step") for name in (TRAIN, TEST))
    fitted = (
        (train >= FITTED).idxmax(axis=1).where((train >= FITTED).any(axis=1), train.columns[-1])
    )
    frames["randY 0.4: fitted - best"] = fitted - test.idxmax(axis=1)
    return {name: [*map(float, of_trials)] for name, of_trials in frames.items()}
