import math
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, average_precision_score, f1_score, roc_auc_score

from oodbench.metrics import PredictionMetric, metrics
from oodbench.metrics.builtin import probabilities
from oodbench.results.predictions import Predictions


def metric(name: str, p: Predictions) -> float:
    found = metrics.get(name)()
    assert isinstance(found, PredictionMetric)
    return found.of_predictions(p)


def predictions(logits: Any, targets: Any, kind: str = "multiclass") -> Predictions:
    array = np.array(logits, dtype=np.float16)
    return Predictions(kind, array, np.array(targets), np.zeros(len(array), dtype=bool))


def test_calibration_error_by_hand() -> None:
    def logit(p: float) -> list[float]:
        return [math.log(p / (1 - p)), 0.0]

    # confidence .9 four times, right three times; .6 twice, right twice
    p = predictions([*[logit(0.9)] * 4, *[logit(0.6)] * 2], [0, 0, 0, 1, 0, 0])
    assert metric("calibration_error", p) == pytest.approx((4 * 0.15 + 2 * 0.4) / 6, abs=1e-3)
    nan = predictions([[math.nan, 1.0]] * 2, [1, 1])
    assert metric("calibration_error", nan) == 1.0 and metric("worst_group_accuracy", nan) == 0.0


def test_the_worst_group_is_the_worst_class() -> None:
    rng = np.random.default_rng(1)
    logits, targets = rng.normal(size=(60, 3)), rng.integers(3, size=60)
    p = predictions(logits, targets)
    soft = 0.4 * np.eye(3)[targets] + 0.2  # probabilities, of which the largest says the class
    worst = metric("worst_group_accuracy", p)
    assert metric("worst_group_accuracy", predictions(logits, soft)) == worst
    guess = p.logits.argmax(axis=1)
    wanted = min(accuracy_score(targets[targets == c], guess[targets == c]) for c in range(3))
    assert worst == pytest.approx(wanted)
    binary = predictions([[1.0], [-1.0], [-1.0]], [1.0, 1.0, 0.0], "binary")
    assert metric("worst_group_accuracy", binary) == 0.5


def test_macro_f1_and_auroc_are_scikit_learns() -> None:
    rng = np.random.default_rng(2)
    logits, targets = rng.normal(size=(80, 4)), rng.integers(4, size=80)
    p = predictions(logits, targets)
    share = probabilities(p.logits)
    assert metric("macro_f1", p) == f1_score(targets, p.logits.argmax(axis=1), average="macro")
    assert metric("auroc", p) == pytest.approx(roc_auc_score(targets, share, multi_class="ovr"))
    areas = [average_precision_score(targets == c, share[:, c]) for c in range(4)]
    assert metric("auprc", p) == pytest.approx(sum(areas) / 4)
    binary = predictions(rng.normal(size=(50, 1)), targets[:50] % 2, "binary")
    wanted = average_precision_score(binary.targets, binary.logits[:, 0])
    assert metric("auprc", binary) == pytest.approx(wanted)
    wanted = roc_auc_score(binary.targets, binary.logits[:, 0])
    assert metric("auroc", binary) == pytest.approx(wanted)


def test_classes_that_are_not_there_count_in_neither() -> None:
    p = predictions([[2.0, 1.0, 0.0], [0.0, 1.0, -1.0], [1.0, 0.0, -1.0]], [0, 1, 1])
    assert metric("macro_f1", p) == pytest.approx(2 / 3) and metric("auroc", p) == 0.75
    assert math.isnan(metric("auroc", predictions([[1.0, 0.0]], [1])))


def test_predictions_that_are_nan_are_wrong_and_certain() -> None:
    p = predictions([[math.nan, 1.0], [0.0, 1.0]], [0, 1])
    assert metric("auroc", p) == 0.0 and metric("macro_f1", p) == pytest.approx(0.5)
