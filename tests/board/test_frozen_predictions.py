"""The predictions in the repository are of the runs that the board small.v3 shows."""

import numpy as np
import pandas as pd
import pytest

from oodbench.results.boards import find_board
from oodbench.results.predictions import predictions_file

BOARD = find_board("small.v3")
TWO = ("SEM, FOU", "desert rodents")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dataset", "metric", "off"), [(TWO[0], "mse", 2e-3), (TWO[1], "accuracy", 6e-3)]
)
def test_they_give_the_frozen_values(dataset: str, metric: str, off: float) -> None:
    """Half precision makes ties of classes: accuracies differ by up to 0.005."""
    p = pd.read_parquet(predictions_file(BOARD, dataset))
    outputs = p.filter(like="output_").to_numpy()
    if metric == "mse":
        value = (outputs[:, 0] - p["target_0"]) ** 2
    else:
        value = (outputs.argmax(1) == p["target"]).astype(float)
    ours = value.groupby([p["id"], p["step"], p["environment"]]).mean()
    records = pd.read_parquet(BOARD / "records.parquet").query(
        "metric == @metric and split == 'in'"
    )
    theirs = records.set_index(["id", "step", "environment"])["value"]
    assert len(ours) > 500 and ours.index.isin(theirs.index).all()
    np.testing.assert_allclose(ours, theirs[ours.index], rtol=off, atol=off)
