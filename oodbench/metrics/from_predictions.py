"""Metrics that are computed from kept predictions, without training again."""

import numpy as np
import numpy.typing as npt

from oodbench.metrics import PredictionMetric, register
from oodbench.results.predictions import Array, Predictions

BINS = 15
"""The number of bins of equal width between confidence 0 and 1."""


@register("macro_f1")
class MacroF1(PredictionMetric):
    """The mean over classes of 2 TP / (2 TP + FP + FN), by scikit-learn.

    It counts the classes that occur as a target or a prediction; a NaN prediction is of no class.
    """

    higher_is_better = is_proportion = True

    def of_predictions(self, p: Predictions) -> float:
        """The mean over classes."""
        from sklearn.metrics import f1_score

        classes, guesses = classes_of(p.targets), _guesses(p)
        labels = np.setdiff1d(np.union1d(classes, guesses), [-1])
        return float(f1_score(classes, guesses, labels=labels, average="macro", zero_division=0))


@register("auroc")
class AUROC(PredictionMetric):
    """The area under the ROC curve, by scikit-learn; for several classes the one-versus-rest mean.

    Classes that no example or every example has are left out: NaN where that leaves none. A NaN
    prediction counts as certain of every class but the target.
    """

    higher_is_better = is_proportion = True
    needs = "examples of two classes"

    def of_predictions(self, p: Predictions) -> float:
        """The mean area."""
        from sklearn.metrics import roc_auc_score

        is_class, shares = _each_class(p)
        seen = [c for c in range(len(shares)) if 0 < is_class[c].sum() < is_class.shape[1]]
        areas = [roc_auc_score(is_class[c], shares[c]) for c in seen]
        return float(np.mean(areas)) if areas else float("nan")


@register("auprc")
class AUPRC(PredictionMetric):
    """The area under the precision-recall curve of the second of two classes, by scikit-learn.

    It is the average precision; for several classes the mean over those that occur, each against the
    rest. A NaN prediction counts as certain of every class but the target.
    """

    higher_is_better = is_proportion = True
    needs = "an example of the second class"

    def of_predictions(self, p: Predictions) -> float:
        """The mean area."""
        from sklearn.metrics import average_precision_score

        is_class, shares = _each_class(p)
        asked = [1] if len(shares) == 2 else range(len(shares))
        areas = [
            average_precision_score(is_class[c], shares[c]) for c in asked if is_class[c].any()
        ]
        return float(np.mean(areas)) if areas else float("nan")


@register("calibration_error")
class CalibrationError(PredictionMetric):
    """The expected calibration error, ECE: the mean distance of accuracy and confidence over 15 equal bins.

    See arXiv:1706.04599, eq. 3. Bins are weighted by their number of examples. NaN predictions count as
    certain and wrong.
    """

    def of_predictions(self, p: Predictions) -> float:
        """The expected calibration error."""
        confidence = np.where(_finite(p), _shares(p).max(axis=1), 1.0)
        bins = np.minimum(np.ceil(confidence * BINS).astype(int) - 1, BINS - 1)
        gaps = np.bincount(bins, right_of(p) - confidence, minlength=BINS)
        return float(np.abs(gaps).sum() / len(bins))


def probabilities(logits: Array) -> npt.NDArray[np.float64]:
    """Probabilities (N, C) of the classes from logits (N, C), or (N, 1) of the second of two."""
    z = np.asarray(logits, dtype=np.float64)
    if z.shape[1] == 1:
        z = np.concatenate([np.zeros_like(z), z], axis=1)
    z = np.exp(z - z.max(axis=1, keepdims=True))
    return np.asarray(z / z.sum(axis=1, keepdims=True))


def classes_of(targets: Array) -> npt.NDArray[np.int64]:
    """The classes (N,); the most probable ones where targets are probabilities."""
    return (targets.argmax(-1) if targets.ndim > 1 else targets).astype(np.int64)


def _finite(p: Predictions) -> Array:
    return np.asarray(np.isfinite(p.logits).all(axis=1))


def _shares(p: Predictions) -> npt.NDArray[np.float64]:
    return probabilities(np.where(_finite(p)[:, None], p.logits, 0))


def _each_class(p: Predictions) -> tuple[Array, Array]:
    """Whether it is the target, and its probability, of each class and example (C, N)."""
    shares = _shares(p).T
    is_class = classes_of(p.targets) == np.arange(len(shares))[:, None]
    return is_class, np.where(_finite(p), shares, ~is_class)


def _guesses(p: Predictions) -> npt.NDArray[np.int64]:
    return np.where(_finite(p), _shares(p).argmax(axis=1), -1)


def right_of(p: Predictions) -> Array:
    """Whether the most probable class is the target (N,); a prediction that is NaN is wrong."""
    return np.asarray(_guesses(p) == classes_of(p.targets))
