"""What a step is made of, and what became of the names of 0.4."""

import pytest
import torch

from oodbench.errors import UserError
from oodbench.steps import Batch


def test_minibatches_are_pairs_of_each_environment() -> None:
    batch = Batch(torch.arange(12.0).view(2, 3, 2), torch.arange(6).view(2, 3))
    pairs = batch.minibatches()
    assert len(pairs) == 2
    for (x, y), (wanted_x, wanted_y) in zip(pairs, zip(batch.x, batch.y, strict=True), strict=True):
        assert torch.equal(x, wanted_x) and torch.equal(y, wanted_y)


@pytest.mark.parametrize(
    ("module", "name", "now"),
    [
        ("metrics", "Metric", "with `of_predictions` from `PredictionMetric`$"),
        (
            "steps",
            "CustomStep",
            r"derive the method from `oodbench.algorithms.Algorithm`.*`self.descend",
        ),
        (
            "steps",
            "outputs",
            r"^`outputs` of `oodbench.steps` is now a method: `self.outputs\(...\)`$",
        ),
    ],
)
def test_a_plug_in_for_0_4_is_told_the_new_spelling(module: str, name: str, now: str) -> None:
    with pytest.raises(UserError, match=now):
        exec(f"from oodbench.{module} import {name}")
