"""The data that a method receives: facts about its run, a step's batch, and a forward pass's outputs."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from oodbench.errors import UserError, wrong_result
from oodbench.tasks import Task


@dataclass(frozen=True)
class Problem:
    """The facts about a run, from which its algorithm is built.

    - `task`: the kind of target; `task.losses(logits, targets)` are the losses of any kind.
    - `environments`: names of the training environments, in the order in which batches stack them.
    - `steps`: the number of updates.
    - `attributes`: the number of values of the examples' attribute; 0: no attribute.
    - `discrete`: whether inputs are token ids, which cannot be averaged.
    - `sizes`: the number of training examples of each environment.
    - `counts`: the number of training examples of each group, by environment; groups are numbered as in
      `Task.groups`, and are classes if there is no attribute. Empty if targets are not classes.
    - `pretrained`: whether the network has weights that were trained on other data.
    - `zero_shot`: whether the network's head, such as one made from texts, predicts classes untrained.
    - `seed`: the seed of what a trial's runs share: data noise, splits, initial weights, order of batches.
    - `autocast`: the dtype of the network's passes in training, by autocast; None: the parameters' dtype.
      Outputs, losses, gradients and masks have the parameters' precision.
    - `hparams`: the method's hyperparameters, for `skip` to look at.
    """

    input_shape: tuple[int, ...]
    task: Task
    environments: tuple[str, ...]
    steps: int
    attributes: int = 0
    discrete: bool = False
    sizes: tuple[int, ...] = ()
    counts: tuple[tuple[int, ...], ...] = ()
    pretrained: bool = False
    zero_shot: bool = False
    seed: int = 0
    autocast: torch.dtype | None = None
    hparams: Mapping[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, kw_only=True)
class Needs:
    """Requirements of a method beyond the inputs and targets of one training environment.

    - `environments`: the least number of training environments.
    - `attributes`: whether batches must hold attributes, or the hyperparameter values for which they must.
    - `index`: whether a batch must hold each example's index in its environment.
    - `views`: the number of extra views of every input in a batch, each a new draw of the dataset's
      training augmentation; without an augmentation they are copies, and `prepare` may replace them. The
      network sees them in the same pass; losses and risks are those of the first view.
    - `pretrained`: whether the network has to start from pretrained weights.
    - `zero_shot`: whether the network's head has to predict classes before any training.
    - `classes`: whether a target must be one class.
    - `real_inputs`: whether inputs must be numbers that can be averaged or moved, unlike the ids of words.
    - `feature_vector`: whether an example must have one feature vector and one target. Examples of `tokens`
      have a vector for each token, and a detector has no feature vectors.
    - `outputs`: whether losses must be a function of the network's outputs, unlike a detector's losses.
    - `packages`: optional packages that the method imports, each with the command that installs it.
    """

    environments: int = 1
    attributes: bool | Mapping[str, object] = False
    index: bool = False
    views: int = 0
    pretrained: bool = False
    zero_shot: bool = False
    classes: bool = False
    real_inputs: bool = False
    feature_vector: bool = False
    outputs: bool = False
    packages: Mapping[str, str] = field(default_factory=dict)

    def has_attributes(self, hparams: Mapping[str, Any]) -> bool:
        """Whether batches must hold attributes, with these hyperparameters."""
        if isinstance(self.attributes, bool):
            return self.attributes
        return all(hparams[name] == value for name, value in self.attributes.items())


class Drawing(NamedTuple):
    """How the examples of a step's batch are drawn."""

    sampling: str
    """A value of the hyperparameter `sampling`."""
    held_out: float = 0.0
    """The share of every environment's training examples, in whole clusters, that the trial sets aside."""
    of_held_out: bool = False
    """Whether the batch comes from the held-out share rather than from the rest."""


@dataclass(frozen=True)
class Batch:
    """B examples of each of E training environments.

    - `x`: inputs, (E, B, *input_shape).
    - `y`: targets: (E, B) floats 0 and 1 of a binary task, (E, B) int64 classes of a multiclass one; for
      others see `oodbench.tasks.Task`. `self.problem.task.losses(logits, y)` are the losses of any task.
    - `environments`: the indices (E,) of its environments among those of the run; None: all, in order.
    - `index`: each example's index among its environment's training examples, (E, B).
    - `attributes`: each example's attribute, (E, B) integers, if the dataset has attributes.
    - `other_y`: the second targets of mixed examples, (E, B, ...).
    - `share`: the weight of the loss on `y` for a mixed example, (E, B); `other_y` has the rest.
    - `views`: further views of the inputs, (E, B, V, *input_shape), if the method `needs` them.
    - `noise`: the random numbers of this step, from the method's `noise`.
    """

    x: Tensor
    y: Tensor
    environments: Tensor | None = None
    index: Tensor | None = None
    attributes: Tensor | None = None
    other_y: Tensor | None = None
    share: Tensor | None = None
    views: Tensor | None = None
    noise: Mapping[str, Tensor] = field(default_factory=dict)

    def minibatches(self) -> list[tuple[Tensor, Tensor]]:
        """DomainBed's list of (inputs, targets), one pair for each environment."""
        return list(zip(self.x.unbind(), self.y.unbind(), strict=True))

    def of(self, places: Sequence[int]) -> "Batch":
        """The batch with only some of its environments, by index."""
        every = torch.arange(len(self.x), device=self.x.device)
        chosen = torch.stack([every[place] for place in places])  # avoids a copy from the host
        given = ((f.name, getattr(self, f.name)) for f in fields(self))
        picked: dict[str, Any] = {k: v[chosen] for k, v in given if isinstance(v, Tensor)}
        return replace(self, **{"environments": chosen, **picked})

    def micro_batches(self, count: int) -> list["Batch"]:
        """The batch in at most `count` pieces, each with examples of every environment."""
        if count == 1:
            return [self]
        given = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "environments"}
        split = {n: v.chunk(count, 1) for n, v in given.items() if isinstance(v, Tensor)}
        rows = zip(*split.values(), strict=True)
        return [replace(self, **dict(zip(split, row, strict=True))) for row in rows]


@dataclass(frozen=True)
class Outputs:
    """The results of a forward pass, stacked over the E training environments of B examples each.

    - `logits`: logits (E, B, C), or as in `Task`; (E, B, 0) if the network computes its own losses.
    - `features`: the featurizer's outputs, (E, B, F), with a vector for each token; empty as the
      logits are if the network computes its own losses.
    - `targets`: the targets, (E, B, ...), as in `Batch`.
    - `losses`: the loss of each example, (E, B), which `task.losses` gives for any task.
    - `risks`: the mean loss of each environment, (E,).
    - `step`: the number of updates already done.
    - `batch`: the batch of the forward pass: inputs, attributes, the examples' index, the step's noise.
    - `metrics`: scalars that an objective adds to the run's records, such as its penalty.
    - `buffers`: the buffers that `next_buffers` returned for these outputs, for `objective` to use.
    - `view_logits`: logits of the batch's further views, (E, B, V, C), if there are any.
    - `view_features`: the features of these views, (E, B, V, F).
    """

    logits: Tensor
    features: Tensor
    targets: Tensor
    losses: Tensor
    risks: Tensor
    step: int
    task: Task
    batch: Batch
    metrics: dict[str, Tensor] = field(default_factory=dict)
    buffers: dict[str, Tensor] = field(default_factory=dict)
    view_logits: Tensor | None = None
    view_features: Tensor | None = None

    def of_step(self, values: Tensor) -> Tensor:
        """The values (E, ...) of the step's environments, picked from `values` of all environments."""
        places = self.batch.environments
        return values if places is None else values[places]

    def over_environments(self, values: Tensor, rest: Tensor) -> Tensor:
        """`rest` of all environments, with the step's environments replaced by `values` (E, ...)."""
        places = self.batch.environments
        return values if places is None else rest.index_copy(0, places, values)


def concatenated(pieces: Sequence[Outputs], batch: Batch) -> Outputs:
    """The outputs of a batch from those of its micro-batches."""
    if len(pieces) == 1:
        return pieces[0]
    names = ["logits", "features", "targets", "losses"]
    names += ["view_logits", "view_features"] if pieces[0].view_logits is not None else []
    whole: dict[str, Any] = {n: torch.cat([getattr(p, n) for p in pieces], 1) for n in names}
    return replace(pieces[-1], **whole, risks=whole["losses"].mean(1), batch=batch)


def scalars(returned: object, method: type, device: torch.device) -> dict[str, Tensor]:
    """The values that a method's `update` returned, with every number as a tensor.

    Raises UserError for a value that is not a number, and if there is no `loss`.
    """
    who = f"the method {method.__name__}"
    if not isinstance(returned, Mapping) or "loss" not in returned:
        raise wrong_result("update", who, "scalars by name, 'loss' among them", returned)
    return {name: _scalar(value, name, who, device) for name, value in returned.items()}


def _scalar(value: Any, name: str, who: str, device: torch.device) -> Tensor:
    number = value if isinstance(value, Tensor) else None
    with suppress(TypeError, ValueError, OverflowError):
        if number is None and not isinstance(value, str | bytes):
            number = torch.tensor(float(value), dtype=torch.double, device=device)
    if number is None or number.numel() != 1 or number.is_complex():
        raise wrong_result("update", who, f"one number as '{name}'", value)
    return number.reshape(())


def __getattr__(name: str) -> NoReturn:
    """Raise UserError with the replacement of a name of 0.4; to be removed after this release."""
    if name == "CustomStep" or name.startswith("usual_"):
        raise UserError(
            f"`{name}` is gone: derive the method from `oodbench.algorithms.Algorithm`, which has these "
            "hooks; `update` gets the prepared batch and calls `self.outputs(batch, step)` and "
            "`self.descend(loss, step)`"
        )
    methods = "descend environments_at featurized optimizer_of outputs precision rates risk_gradients units"
    if name in methods.split():
        raise UserError(f"`{name}` of `oodbench.steps` is now a method: `self.{name}(...)`")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
