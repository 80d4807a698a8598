"""Metrics: how each is computed, whether higher is better, and when it is undefined."""

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, NoReturn

from oodbench.errors import UserError, plugin_hint, unknown, wrong_result
from oodbench.registry import Registry
from oodbench.results.predictions import Predictions

if TYPE_CHECKING:
    from torch import Tensor

    from oodbench.tasks import Task

LOSSES = ("loss", "mse", "kl")
"""The losses of tasks; if the loss of a split is finite, so are the split's predictions."""
CLASSES = ("binary", "multiclass")
"""The kinds of task with the metric `loss` whose predictions may be scored by other metrics."""
KINDS = {"mse": "regression", "kl": "distribution"}
"""The kinds of task with another loss, by the name of that loss."""
ROUNDING = 1e-6
"""By how much rounding may take a proportion out of [0, 1]."""
NAMED = 64
"""The most groups of a split for which single accuracies are recorded."""


class Examples:
    """Examples with targets and logits, (...) each, and quantities that several metrics share."""

    def __init__(self, task: "Task", logits: "Tensor", targets: "Tensor") -> None:
        self.task, self.logits, self.targets = task, logits, targets

    @cached_property
    def finite(self) -> "Tensor":
        """Whether all logits of an example (or token) are finite, (...)."""
        return self.logits.isfinite().all(-1)

    @cached_property
    def log_shares(self) -> "Tensor":
        """The logarithms of the classes' probabilities, (N, C), of all examples in one dimension."""
        return self.logits.flatten(0, -2).log_softmax(-1)

    @cached_property
    def losses(self) -> "Tensor":
        """The loss of each example, (...); for several labels or tokens the mean over the known ones."""
        if self.task.kind != "multiclass":
            return self.task.example_losses(self.logits, self.targets)
        from torch.nn import functional as F

        # equal to the cross-entropy bit for bit
        losses = F.nll_loss(self.log_shares, self.targets.flatten(), reduction="none")
        return losses.view(self.targets.shape)


@dataclass(frozen=True)
class Groups:
    """The groups of a split's examples: pairs of a class and an attribute; classes without attributes."""

    keys: "Tensor"
    """The group of each example, (n,), as an index into `counts`."""
    counts: Sequence[int]
    """The number of examples of each group, ordered by class."""
    classes: Sequence[str]
    attributes: Sequence[str]
    """The values of the attribute; empty if examples have none."""

    def accuracies(self, right: Sequence[float]) -> Iterator[tuple[str, float, int]]:
        """Yield the accuracy on each group as `accuracy[CLASS, ATTRIBUTE]`, with the group's size."""
        if not self.attributes or len(self.counts) > NAMED:
            return
        names = (f"accuracy[{c}, {a}]" for c in self.classes for a in self.attributes)
        for name, hits, count in zip(names, right, self.counts, strict=True):
            if count:
                yield name, hits / count, count


class AnyMetric:
    """The attributes of every metric, including metrics that a dataset computes (`Dataset.split_metrics`).

    A subclass is registered by name, and the first line of its docstring defines the metric. Users' modules
    are imported by an entry point of the group `oodbench.metrics`, or by `--plugin`.
    """

    higher_is_better: ClassVar[bool] = False
    is_proportion: ClassVar[bool] = False
    """Whether the metric is in [0, 1] and printed in %."""
    sees_attributes: ClassVar[bool] = False
    """Whether the metric reads the examples' attributes, which a study may treat as unknown."""
    needs: ClassVar[str] = "a finite value"
    """What an environment or its predictions must have for the metric to be defined."""


class RecordedMetric(AnyMetric):
    """A metric that is recorded at every evaluation of a run, on each split of each environment.

    A subclass defines one of the methods.
    """

    def of_examples(self, examples: Examples) -> "Tensor | None":
        """The value of each example, (...), whose mean over a split is recorded; None if undefined.

        Tensors are on the run's device. Their leading dimensions may be those of many runs.
        """
        return None

    def of_groups(self, groups: Groups, right: Sequence[float]) -> float | None:
        """The value on a split, given the number of correct examples of each group; None if undefined.

        Called only if targets are classes.
        """
        return None


class PredictionMetric(AnyMetric, ABC):
    """A metric that is computed from kept predictions when a table asks for it."""

    kinds: ClassVar[Sequence[str]] = ("binary", "multiclass", "distribution")
    """The kinds of task whose predictions the metric takes."""

    @abstractmethod
    def of_predictions(self, p: Predictions) -> float:
        """The value on a split, which has at least one example."""


metrics: Registry[type[AnyMetric]] = Registry("metric", "oodbench.metrics.AnyMetric")
register = metrics.add


def _known(name: str) -> type[AnyMetric]:
    """The metric without a suffix: `accuracy[0, red]` is `accuracy`."""
    return metrics.find(re.split(r"\[| \(", name)[0]) or AnyMetric


def is_proportion(name: str) -> bool:
    """Whether a metric is in [0, 1] and printed in %; `accuracy[0, red]` is treated as `accuracy`."""
    return _known(name).is_proportion


def checked(name: str, value: float) -> float:
    """The value of a metric; raises UserError for a proportion outside [0, 1]."""
    if (value < -ROUNDING or value > 1 + ROUNDING) and is_proportion(name):
        raise UserError(
            f"the metric {name} is {value:g}, and its `is_proportion` says that it is in [0, 1]"
        )
    return value


def is_higher_better(name: str) -> bool:
    """Whether higher is better; False for unregistered metrics, such as those of the predictor itself.

    `known_direction` refuses unregistered ones.
    """
    return _known(name).higher_is_better


def sees_attributes(name: str) -> bool:
    """Whether a metric reads the examples' attributes, as `accuracy[0, red]` does."""
    return "[" in name or _known(name).sees_attributes


def __getattr__(name: str) -> NoReturn:
    """Raise UserError with the replacement of a name of 0.4; to be removed after this release."""
    if name == "Metric":
        raise UserError(
            "`Metric` of `oodbench.metrics` is gone: one with `of_examples` or `of_groups` derives from "
            "`RecordedMetric`, and one with `of_predictions` from `PredictionMetric`"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def needs(name: str) -> str:
    """Why a metric is undefined, as the clause `needs ...`."""
    return f"needs {_known(name).needs}"


def known_direction(name: str, plugins: Collection[str] = ()) -> bool:
    """Whether higher is better; raises UserError, with the sweep's `plugins`, for an unregistered metric.

    A guess could invert every ranking.
    """
    known = _known(name)
    if known is AnyMetric:
        raise unknown("direction of the metric", name, metrics, hint=plugin_hint(plugins))
    return known.higher_is_better


def _recorded() -> list[tuple[str, RecordedMetric]]:
    return [(name, cls()) for name, cls in metrics.items() if issubclass(cls, RecordedMetric)]


def values_of_examples(task: "Task", logits: "Tensor", targets: "Tensor") -> "dict[str, Tensor]":
    """Every recorded metric of each example, (...); its mean over a split is the recorded value.

    An example whose labels or tokens are all unknown has no value, see `Task.known`.
    """
    examples = Examples(task, logits, targets)
    values = {name: metric.of_examples(examples) for name, metric in _recorded()}
    shape = logits.shape[: -2 if task.kind in ("tokens", "boxes") else -1]
    for name, value in values.items():
        if value is not None and getattr(value, "shape", None) != shape:
            wanted = f"a value for each example, a tensor of the shape {tuple(shape)}"
            raise wrong_result("of_examples", f"the metric {name}", wanted, value)
    return {name: value for name, value in values.items() if value is not None}


def values_of_groups(groups: Groups, right: Sequence[float]) -> Iterator[tuple[str, float, int]]:
    """Yield the name, value and count of each recorded metric of groups, and of each group's accuracy."""
    for name, metric in _recorded():
        value = metric.of_groups(groups, right)
        if value is not None:
            yield name, value, sum(groups.counts)
    yield from groups.accuracies(right)


def recorded_names(task: "Task", classes: Sequence[str], attributes: Sequence[str]) -> set[str]:
    """The metrics that are recorded for a task with these classes and values of an attribute."""
    import torch

    shape = {"binary": (), "multiclass": (), "tokens": (task.length,)}.get(
        task.kind, (task.num_outputs,)
    )
    targets = torch.zeros(2, *shape, dtype=torch.int64 if task.kind == "multiclass" else None)
    middle = (task.length,) if task.kind == "tokens" else ()
    names = set(values_of_examples(task, torch.zeros(2, *middle, task.num_outputs), targets))
    if task.has_classes:
        known = classes or [*map(str, range(task.classes))]
        counts = [1] * (len(known) * max(1, len(attributes)))
        groups = Groups(torch.arange(len(counts)), counts, known, attributes)
        names |= {name for name, *_ in values_of_groups(groups, [0] * len(counts))}
    return names


def computed_names(recorded: Collection[str] | None = None) -> list[str]:
    """The metrics that are computed from kept predictions.

    Given the metrics that runs `recorded`, only those that take such runs' predictions.
    """
    known = {n: cls.kinds for n, cls in metrics.items() if issubclass(cls, PredictionMetric)}
    if recorded is None:
        return [*known]
    kinds = {of_loss for loss, of_loss in KINDS.items() if loss in recorded} or {*CLASSES}
    return [name for name, taken in known.items() if kinds & {*taken}]


def of_predictions(name: str) -> PredictionMetric | None:
    """The metric `name`, if it is computed from kept predictions."""
    known = metrics.find(name)
    return known() if known is not None and issubclass(known, PredictionMetric) else None
