"""The orderings of regularizers, on made-up curves."""

from pathlib import Path

import pytest

from oodbench.results.read import read_results
from oodbench.results.tables import Tables
from oodbench.verify.computations.memorization import PAIRS, regularizers
from oodbench.verify.targets import load_experiment
from tests.helpers.results.made import Curve, Made


class OnDigits(Made):
    environments = ("train", "test", "mislabeled")


@pytest.fixture
def made(tmp_path: Path) -> OnDigits:
    return OnDigits(tmp_path)


def curve(train: float, best: float) -> Curve:
    """The training accuracy at the end, and the validation accuracy, which is best at step 20."""

    def value(environment: str, split: str, step: int) -> float:
        if environment == "test":
            return best if step == 20 else best - 0.25
        return train if step == 30 else 0.0

    return value


def add(made: OnDigits, label: str, trial: int, memorized: float, best: float) -> None:
    made.add("randY", label, ("test", "mislabeled"), trial, curve(memorized, 0.1))
    made.add("real", label, ("test",), trial, curve(1.0, best))


def test_curves_are_compared_between_their_strengths_at_the_cap(made: OnDigits) -> None:
    for trial in (0, 1):
        add(made, "none", trial, 1.0, 0.8)
        add(made, "dropout 0.2", trial, 0.6, 0.9)
        add(made, "dropout 0.8", trial, 0.4, 0.7 + trial / 10)
        add(made, "weight decay 1", trial, 0.0, 0.6)
    add(made, "none", 2, 1.0, 0.8)
    add(made, "dropout 0.8", 2, 0.7, 0.9)  # its curve ends before the cap
    add(made, "weight decay 1", 2, 0.0, 0.6)
    frames: dict[str, Tables] = {"memorization-regularizers": read_results(made.results)}
    values = regularizers(2, frames)
    assert values == {"dropout - weight decay": pytest.approx([0.1, 0.15])}


def test_the_targets_are_what_is_computed() -> None:
    rows = [target.row for target in load_experiment("memorization-regularizers").targets]
    assert rows == [f"{one} - {other}" for one, other in PAIRS]
