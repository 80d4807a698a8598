"""Reference estimators of scikit-learn, such as random forests, fitted to the same examples.

A benchmark on which an untuned forest beats every method measures little.
"""

import warnings
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oodbench.algorithms import Algorithm, Batch, Problem, register
from oodbench.hparams import choice, hparam, log_uniform, log_uniform_int

SMALLEST = 1e-9
"""The smallest probability; logits clamp smaller ones."""


class Reference(Algorithm):
    """An estimator fitted once to all examples that a run trains on, pooled.

    A subclass implements `estimator`. Inputs are those of networks, flattened; the seed is the trial's.
    Hyperparameters of networks and optimizers and the number of steps have no effect.
    """

    changes = "reference"
    trains_network = False
    regresses: ClassVar[bool] = True
    """Whether the estimator can also fit real numbers."""

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """Batches have no effect, so they are small."""

        batch_size: int = hparam(1, low=0)

    @classmethod
    def skip(cls, problem: Problem) -> str | None:
        """Require real-valued inputs, and targets that are one class or real numbers."""
        if problem.discrete:
            return "it takes inputs for numbers, and these are numbers of words"
        if not problem.task.has_classes and (
            problem.task.kind != "regression" or not cls.regresses
        ):
            return f"it predicts classes, and the task is {problem.task.kind}"
        return super().skip(problem)

    @abstractmethod
    def estimator(self, classes: bool, x: NDArray[Any], seed: int) -> Any:
        """Make a classifier or a regressor with these hyperparameters, for inputs (N, D)."""

    def fit_examples(self, x: Tensor, y: Tensor) -> None:
        """Fit the estimator to inputs (N, *input_shape) and targets (N,) or, of a regression, (N, C)."""
        from sklearn.dummy import DummyClassifier
        from sklearn.multioutput import MultiOutputRegressor

        inputs, targets = _numbers(x), y.cpu().numpy()
        classes = self.problem.task.has_classes
        made = self.estimator(classes, inputs, self.problem.seed % 2**32)
        if not classes:
            made = MultiOutputRegressor(made)
        elif len(np.unique(targets)) == 1:
            made = DummyClassifier()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a logistic regression may stop short of its optimum
            self.fitted = made.fit(inputs, targets.astype(int) if classes else targets)

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """Change nothing: the estimator is fitted before the first step."""
        return {"loss": batch.x.new_zeros(())}

    def predict(self, x: Tensor) -> Tensor:
        """Logits (N, C) in double precision, largest at the predicted class; or predicted real numbers."""
        task, inputs = self.problem.task, _numbers(x)
        if not task.has_classes:
            return torch.from_numpy(self.fitted.predict(inputs)).to(x.device)
        scores = np.full((len(inputs), task.classes), np.log(SMALLEST))
        scores[:, self.fitted.classes_] = self.scores(inputs)
        logits = scores[:, 1:] - scores[:, :1] if task.kind == "binary" else scores
        return torch.from_numpy(logits).to(x.device)

    def scores(self, inputs: NDArray[Any]) -> NDArray[Any]:
        """Log-probabilities (N, K) of the K classes seen in training."""
        probabilities = self.fitted.predict_proba(inputs)
        logarithms: NDArray[Any] = np.log(np.maximum(probabilities, SMALLEST))
        return logarithms


def _numbers(x: Tensor) -> NDArray[Any]:
    """Inputs (N, ...) as an array (N, D) in double precision."""
    array: NDArray[Any] = x.flatten(1).double().cpu().numpy()
    return array


@register("Forest", paper="Breiman, Random Forests (2001)")
class Forest(Reference):
    """A random forest."""

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Reference.Hparams):
        """scikit-learn's defaults for a classifier."""

        trees: int = hparam(100, low=1)
        smallest_leaf: int = hparam(1, choice(1, 2, 5, 10), low=1)
        """The least number of examples in a leaf."""
        features: float = hparam(0.0, choice(0.0, 0.1, 0.3, 1.0), low=0.0, high=1.0)
        """The share of the inputs among which a split is chosen; 0: their square root."""

    def estimator(self, classes: bool, x: NDArray[Any], seed: int) -> Any:
        """Make a forest."""
        from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

        return (RandomForestClassifier if classes else RandomForestRegressor)(
            n_estimators=self.hparams.trees,
            min_samples_leaf=self.hparams.smallest_leaf,
            max_features=self.hparams.features or "sqrt",
            random_state=seed,
        )


@register("BoostedTrees", paper="Friedman, Greedy Function Approximation (2001)")
class BoostedTrees(Reference):
    """Gradient boosting of trees on binned inputs."""

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Reference.Hparams):
        """The defaults are scikit-learn's."""

        rate: float = hparam(0.1, log_uniform(0.01, 0.3), low=0.0)
        """The share of each tree's prediction that is added."""
        rounds: int = hparam(100, low=1)
        leaves: int = hparam(31, choice(7, 15, 31, 63), low=2)
        """The most leaves of a tree."""

    def estimator(self, classes: bool, x: NDArray[Any], seed: int) -> Any:
        """Make boosted trees."""
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

        return (HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor)(
            learning_rate=self.hparams.rate,
            max_iter=self.hparams.rounds,
            max_leaf_nodes=self.hparams.leaves,
            random_state=seed,
        )


@register("SupportVectors", paper="Cortes and Vapnik, Support-Vector Networks (1995)")
class SupportVectors(Reference):
    """A support-vector machine with radial kernel."""

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Reference.Hparams):
        """The defaults are scikit-learn's."""

        C: float = hparam(1.0, log_uniform(1e-1, 1e3), low=0.0)
        """The weight of the examples' losses relative to the norm."""
        width: float = hparam(1.0, log_uniform(0.1, 10.0), low=0.0)
        """Multiplies gamma = 1 / (D times the variance of the inputs)."""

    def estimator(self, classes: bool, x: NDArray[Any], seed: int) -> Any:
        """Make a support-vector machine, for several classes one per pair."""
        from sklearn.svm import SVC, SVR

        gamma = self.hparams.width / (x.shape[1] * (x.var() or 1.0))
        if not classes:
            return SVR(C=self.hparams.C, gamma=gamma)
        # break ties between pairs by decision values, which are the logits
        return SVC(C=self.hparams.C, gamma=gamma, break_ties=True)

    def scores(self, inputs: NDArray[Any]) -> NDArray[Any]:
        """The decision value (N, K) of each class."""
        if not hasattr(self.fitted, "decision_function"):
            return super().scores(inputs)
        values: NDArray[Any] = self.fitted.decision_function(inputs)
        return values if values.ndim == 2 else np.stack([-values / 2, values / 2], 1)


@register("Neighbours", paper="Cover and Hart, Nearest Neighbor Pattern Classification (1967)")
class Neighbours(Reference):
    """The k nearest neighbours."""

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Reference.Hparams):
        """The defaults are scikit-learn's."""

        k: int = hparam(5, log_uniform_int(1, 51), low=1)
        """The number of neighbours, at most all examples."""
        weights: str = hparam(
            "uniform", choice("uniform", "distance"), options=("uniform", "distance")
        )
        """Whether neighbours count equally or by the inverse of their distance."""

    def estimator(self, classes: bool, x: NDArray[Any], seed: int) -> Any:
        """Make a vote of neighbours, or their mean."""
        from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor

        kind = KNeighborsClassifier if classes else KNeighborsRegressor
        return kind(min(self.hparams.k, len(x)), weights=self.hparams.weights)


@register("Logistic", paper="Cox, The Regression Analysis of Binary Sequences (1958)")
class Logistic(Reference):
    """Multinomial logistic regression with an L2 penalty."""

    regresses = False

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Reference.Hparams):
        """The default is scikit-learn's."""

        C: float = hparam(1.0, log_uniform(1e-4, 1e3), low=0.0)
        """The weight of the examples' losses relative to the norm."""

    def estimator(self, classes: bool, x: NDArray[Any], seed: int) -> Any:
        """Make a logistic regression."""
        from sklearn.linear_model import LogisticRegression

        return LogisticRegression(C=self.hparams.C, max_iter=300)
