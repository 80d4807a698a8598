"""The built-in metrics, recorded in training or computed from predictions."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from oodbench.metrics import AnyMetric, Examples, Groups, PredictionMetric, RecordedMetric, register
from oodbench.results.predictions import Array, Predictions
from oodbench.results.run_spec import MEMORIZED

if TYPE_CHECKING:
    from torch import Tensor

BINS = 15
"""The number of bins of equal width between confidence 0 and 1."""
IOU, SCORE = 0.5, 0.5
"""The least overlap of a predicted box with the true box that it matches, and the score above which it
counts."""


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

    Classes that no example or every example has are left out; NaN if no class is left. A NaN prediction
    counts as certain of every class but the target.
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

    This is the average precision; for several classes, the mean over those that occur, each against the
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
    """The target classes (N,), or the most probable ones of target distributions."""
    return (targets.argmax(-1) if targets.ndim > 1 else targets).astype(np.int64)


def _finite(p: Predictions) -> Array:
    return np.asarray(np.isfinite(p.logits).all(axis=1))


def _shares(p: Predictions) -> npt.NDArray[np.float64]:
    return probabilities(np.where(_finite(p)[:, None], p.logits, 0))


def _each_class(p: Predictions) -> tuple[Array, Array]:
    """For each class and example, (C, N): whether the class is the target, and its probability."""
    shares = _shares(p).T
    is_class = classes_of(p.targets) == np.arange(len(shares))[:, None]
    return is_class, np.where(_finite(p), shares, ~is_class)


def _guesses(p: Predictions) -> npt.NDArray[np.int64]:
    return np.where(_finite(p), _shares(p).argmax(axis=1), -1)


def right_of(p: Predictions) -> Array:
    """Whether the most probable class is the target (N,); a prediction that is NaN is wrong."""
    return np.asarray(_guesses(p) == classes_of(p.targets))


@register("accuracy")
class Accuracy(RecordedMetric):
    """The share of examples whose class is predicted; a prediction that is not finite is wrong.

    The known labels or tokens of an example count equally; for boxes it is TP / (TP + FP + FN).
    """

    higher_is_better = is_proportion = True

    def of_examples(self, examples: Examples) -> "Tensor | None":
        """Whether an example is right, or which share of its labels or tokens is."""
        task, logits, targets = examples.task, examples.logits, examples.targets
        if task.kind == "boxes":
            return _box_accuracy(logits, targets)
        if task.kind == "binary":
            right = (logits.squeeze(-1) > 0) == (targets > 0.5)
        elif task.kind in ("multiclass", "tokens"):
            right = logits.argmax(-1) == targets
        elif task.kind == "multilabel":
            right = ((logits > 0) == (targets > 0.5)) & logits.isfinite()
            return task.known_mean(right.to(examples.losses.dtype), targets)
        else:
            return None
        right = (right & examples.finite).to(examples.losses.dtype)
        return task.known_mean(right, targets) if task.kind == "tokens" else right


@register("loss")
class Loss(RecordedMetric):
    """The negative log-likelihood of the class, the labels or the tokens."""

    def of_examples(self, examples: Examples) -> "Tensor | None":
        """The loss of an example."""
        of_classes = ("binary", "multiclass", "multilabel", "tokens")
        return examples.losses if examples.task.kind in of_classes else None


@register("brier")
class Brier(RecordedMetric):
    """The squared distance of the probabilities from the target.

    For two classes it is (p - y)^2, in [0, 1]; for more classes the sum over all of them, in [0, 2].
    """

    def of_examples(self, examples: Examples) -> "Tensor | None":
        """The squared distance of an example."""
        if examples.task.kind == "binary":
            # not `sigmoid`, whose last bits depend on an example's position in memory
            share = 1 / (1 + (-examples.logits.squeeze(-1)).exp())
            return (share - examples.targets).square()
        if examples.task.kind == "multiclass":
            squares = examples.log_shares.exp().square_().sum(-1).view(examples.targets.shape)
            # the sum of p^2 - 2 p_y + 1
            return (squares - 2 * (-examples.losses).exp() + 1).clamp(min=0)
        return None


@register("mse")
class MeanSquaredError(RecordedMetric):
    """The squared error of a regression, averaged over its outputs."""

    def of_examples(self, examples: Examples) -> "Tensor | None":
        """The squared error of an example."""
        return examples.losses if examples.task.kind == "regression" else None


@register("kl")
class KullbackLeibler(RecordedMetric):
    """The divergence KL(target || softmax) of the predicted distribution from the target."""

    def of_examples(self, examples: Examples) -> "Tensor | None":
        """The divergence of an example."""
        return examples.losses if examples.task.kind == "distribution" else None


@register("agreement")
class Agreement(RecordedMetric):
    """The share of examples whose most probable class is that of the target distribution."""

    higher_is_better = is_proportion = True

    def of_examples(self, examples: Examples) -> "Tensor | None":
        """Whether the most probable classes agree; predictions that are not finite do not."""
        if examples.task.kind != "distribution":
            return None
        agreement = examples.logits.argmax(-1) == examples.targets.argmax(-1)
        return (agreement & examples.finite).to(examples.losses.dtype)


@register("balanced_accuracy")
class BalancedAccuracy(RecordedMetric):
    """The mean accuracy over the classes that occur in a split."""

    higher_is_better = is_proportion = True

    def of_groups(self, groups: Groups, right: Sequence[float]) -> float:
        """The mean of the classes' recalls."""
        recalls = _recalls(groups, right)
        return sum(recalls) / len(recalls)


@register("worst_class_accuracy")
class WorstClassAccuracy(RecordedMetric):
    """The lowest accuracy on a class, which replaces the worst group while attributes are unknown.

    It is recorded where examples have an attribute (arXiv:2302.12254); elsewhere `worst_group_accuracy`
    is computed over the classes.
    """

    higher_is_better = is_proportion = True
    needs = "examples with an attribute"

    def of_groups(self, groups: Groups, right: Sequence[float]) -> float | None:
        """The lowest of the classes' recalls, or None where examples have no attribute."""
        return min(_recalls(groups, right)) if groups.attributes else None


@register("adjusted_accuracy")
class AdjustedAccuracy(RecordedMetric):
    """The mean accuracy over the groups of class and attribute that occur in a split.

    It is recorded where examples have an attribute (SubpopBench, arXiv:2302.12254).
    """

    higher_is_better = is_proportion = sees_attributes = True
    needs = "examples with an attribute"

    def of_groups(self, groups: Groups, right: Sequence[float]) -> float | None:
        """The mean accuracy on a group, or None where examples have no attribute."""
        shares = [hits / n for hits, n in zip(right, groups.counts, strict=True) if n]
        return sum(shares) / len(shares) if groups.attributes else None


@register("worst_group_accuracy")
class WorstGroupAccuracy(RecordedMetric, PredictionMetric):
    """The lowest accuracy on a group of class and attribute (arXiv:1911.08731).

    It is recorded where examples have an attribute. Otherwise groups are classes, and the metric is
    computed from predictions.
    """

    higher_is_better = is_proportion = sees_attributes = True
    needs = "examples with an attribute"

    def of_groups(self, groups: Groups, right: Sequence[float]) -> float | None:
        """The lowest accuracy, or None where examples have no attribute."""
        return _lowest(right, groups.counts) if groups.attributes else None

    def of_predictions(self, p: Predictions) -> float:
        """The lowest accuracy on a class."""
        classes = classes_of(p.targets)
        return _lowest(np.bincount(classes, right_of(p)).tolist(), np.bincount(classes).tolist())


@register(MEMORIZED)
class Memorized(AnyMetric):
    """The share of mislabeled training examples that are predicted as labeled (key `label_noise`)."""

    is_proportion = True


class Official(AnyMetric):
    """A metric of whole splits that the package wilds computes; see `Dataset.split_metrics`."""

    higher_is_better = True
    needs = "examples of its groups, and for correlations predictions and targets that differ"


class Percentage(Official):
    """An official metric that is printed in %."""

    is_proportion = True


for _name in ("r_all", "r_wg", "acc", "Acc", "detection_acc_avg_dom"):
    register(_name)(Official)
for _name in (
    *("acc_avg", "acc_all", "acc_wg", "adj_acc_avg", "acc_worst_region", "acc_worst_year"),
    *("10th_percentile_acc", "F1-macro_all", "recall-macro_all", "ap"),
    *("precision_at_global_recall_all", "precision_at_global_recall_wg"),
):
    register(_name)(Percentage)


def _recalls(groups: Groups, right: Sequence[float]) -> list[float]:
    by_class = (-1, max(1, len(groups.attributes)))
    hits, counts = (np.reshape(n, by_class).sum(axis=1) for n in (right, groups.counts))
    recalls: list[float] = (hits[counts > 0] / counts[counts > 0]).tolist()
    return recalls


def _lowest(right: Sequence[float], counts: Sequence[int]) -> float:
    return min(hits / count for hits, count in zip(right, counts, strict=True) if count)


def _box_accuracy(boxes: "Tensor", targets: "Tensor") -> "Tensor":
    from torchvision.ops import box_iou

    values = []
    for guess, true in zip(boxes.flatten(0, -3), targets.flatten(0, -3), strict=True):
        true = true[true.isfinite().all(-1)]
        guess = guess[guess.isfinite().all(-1) & (guess[:, 4] > SCORE), :4]
        hits = 0
        if len(true) and len(guess):
            overlap, which = box_iou(guess, true).max(1)
            hits = len(which[overlap >= IOU].unique())  # a second box on the same true box is false
        total = len(true) + len(guess) - hits
        values.append(hits / total if total else 1.0)
    return boxes.new_tensor(values).view(boxes.shape[:-2])
