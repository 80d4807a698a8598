"""Metrics that are computed from kept predictions without training again. Imports no torch."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from oodbench.errors import UserError
from oodbench.results.directory import Results
from oodbench.results.frames import Frames, load_frames
from oodbench.results.join import stacked
from oodbench.results.metrics import HIGHER
from oodbench.results.predictions import Array, Predictions, read_predictions
from oodbench.results.run_spec import COMPLETE
from oodbench.selection import choose, served

BINS = 15
"""The number of bins of equal width between confidence 0 and 1."""


def probabilities(logits: Array) -> npt.NDArray[np.float64]:
    """(N, C) probabilities of the classes from (N, C) logits, or from (N, 1) of the second of two."""
    z = np.asarray(logits, dtype=np.float64)
    if z.shape[1] == 1:
        z = np.concatenate([np.zeros_like(z), z], axis=1)
    z = np.exp(z - z.max(axis=1, keepdims=True))
    return np.asarray(z / z.sum(axis=1, keepdims=True))


def _classes(targets: Array) -> npt.NDArray[np.int64]:
    return (targets.argmax(-1) if targets.ndim > 1 else targets).astype(np.int64)


def _finite(p: Predictions) -> Array:
    return np.asarray(np.isfinite(p.logits).all(axis=1))


def _guesses(p: Predictions) -> npt.NDArray[np.int64]:
    """(N,) the most probable class, -1 where the prediction is NaN."""
    finite = _finite(p)
    guess = probabilities(np.where(finite[:, None], p.logits, 0)).argmax(axis=1)
    return np.where(finite, guess, -1)


def _right(p: Predictions) -> Array:
    """(N,) whether the most probable class is the target; a prediction that is NaN is wrong."""
    return np.asarray(_guesses(p) == _classes(p.targets))


def calibration_error(p: Predictions) -> float:
    """Expected calibration error: the mean distance of accuracy and confidence over 15 equal bins.

    Each bin counts by its examples (Guo et al., arXiv:1706.04599, eq. 3). NaN predictions count as
    certain and wrong.
    """
    finite = _finite(p)
    sure = probabilities(np.where(finite[:, None], p.logits, 0)).max(axis=1)
    confidence = np.where(finite, sure, 1.0)
    bins = np.minimum(np.ceil(confidence * BINS).astype(int) - 1, BINS - 1)
    gaps = np.bincount(bins, _right(p) - confidence, minlength=BINS)
    return float(np.abs(gaps).sum() / len(bins))


def worst_group_accuracy(p: Predictions) -> float:
    """The lowest accuracy on a class of the environment; its groups are classes (arXiv:1911.08731).

    Where examples have an attribute, records hold that of the groups of class and attribute instead.
    """
    right, classes = _right(p), _classes(p.targets)
    return float(min(right[classes == c].mean() for c in np.unique(classes)))


def macro_f1(p: Predictions) -> float:
    """The mean over classes of 2 TP / (2 TP + FP + FN), by scikit-learn.

    The classes are those that are a target or a guess; a NaN prediction is a guess of none.
    """
    from sklearn.metrics import f1_score

    classes, guesses = _classes(p.targets), _guesses(p)
    labels = np.setdiff1d(np.union1d(classes, guesses), [-1])
    return float(f1_score(classes, guesses, labels=labels, average="macro", zero_division=0))


def auroc(p: Predictions) -> float:
    """The area under the ROC curve, by scikit-learn; of several classes the mean of each against the rest.

    Classes that no example or every example has are left out: NaN where that leaves none. A NaN
    prediction is certain of any class but the target.
    """
    from sklearn.metrics import roc_auc_score

    finite, classes = _finite(p), _classes(p.targets)
    share = probabilities(np.where(finite[:, None], p.logits, 0))
    own = classes[:, None] == np.arange(share.shape[1])
    share = np.where(finite[:, None], share, ~own)
    seen = [c for c in range(share.shape[1]) if 0 < own[:, c].sum() < len(own)]
    areas = [roc_auc_score(own[:, c], share[:, c]) for c in seen]
    return float(np.mean(areas)) if areas else float("nan")


Metric = Callable[[Predictions], float]
"""A number of the predictions on one split of one environment, which has at least one example."""

METRICS: dict[str, Metric] = {
    "auroc": auroc,
    "calibration_error": calibration_error,
    "macro_f1": macro_f1,
    "worst_group_accuracy": worst_group_accuracy,
}
"""The metrics of kept predictions by name."""


def register_metric(name: str, *, higher_is_better: bool) -> Callable[[Metric], Metric]:
    """Register a metric of kept predictions, which `report table --metric NAME` then shows.

    Raises UserError for a name that another function has.
    """

    def decorate(metric: Metric) -> Metric:
        if METRICS.get(name, metric) is not metric:
            raise UserError(f"metric '{name}' is registered twice")
        METRICS[name] = metric
        if higher_is_better:
            HIGHER.add(name)
        return metric

    return decorate


def with_metric(
    frames: Frames,
    chosen: pd.DataFrame,
    name: str,
    metric: Callable[[Predictions], float],
) -> Frames:
    """The frames of `joined` with a metric of the kept predictions at every chosen `id` and `step`.

    An environment of a regression or of labels gets none. Raises UserError where no predictions are kept.
    """
    rows = []
    directories = dict(zip(frames.runs["id"], frames.runs["directory"], strict=True))
    for run_id, step in zip(chosen["id"], chosen["step"], strict=True):
        run = Results(Path(directories[run_id])).run(str(run_id))
        for environment, p in read_predictions(run, int(step)).items():
            for split, mask in (("in", ~p.out), ("out", p.out)):
                if mask.any() and p.kind in ("binary", "multiclass", "distribution"):
                    part = replace(
                        p, logits=p.logits[mask], targets=p.targets[mask], out=p.out[mask]
                    )
                    value = metric(part)
                    row = (str(run_id), int(step), environment, split, name, value, int(mask.sum()))
                    rows.append(row)
    found = pd.DataFrame(rows, columns=list(Frames.METRIC_COLUMNS))
    names = dict.fromkeys(("id", "environment", "split", "metric"), "category")
    return replace(frames, metrics=stacked([frames.metrics, found.astype(names)]))


def spare(results: Results) -> list[Path]:
    """The files of predictions that no selection rule chose; none before all runs have ended."""
    files = list(results.path.glob("runs/*/predictions/*.npz"))
    frames = load_frames(results) if files else None
    if frames is None or not frames.runs["state"].isin(COMPLETE).all():
        return []
    chosen: set[tuple[str, str]] = set()
    for rule in served(frames):
        found = choose(frames, rule)
        chosen |= set(zip(found["id"], found["step"].map(str), strict=True))
    keys = [(file.parent.parent.name, file.stem) for file in files]
    whole = {run_id for run_id, _ in chosen}
    return [
        file
        for file, (run_id, step) in zip(files, keys, strict=True)
        if (run_id, step) not in chosen and not (step == "examples" and run_id in whole)
    ]
