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
    """The facts about a run, from which its algorithm is built."""

    input_shape: tuple[int, ...]
    task: Task
    environments: tuple[str, ...]
    """Names of the training environments, in the order in which batches stack them."""
    steps: int
    attributes: int = 0
    """The number of values of the examples' attribute; 0: no attribute."""
    discrete: bool = False
    """Whether inputs are token ids, which cannot be averaged."""
    sizes: tuple[int, ...] = ()
    """The number of training examples of each environment."""
    counts: tuple[tuple[int, ...], ...] = ()
    """The number of training examples of each group, by environment; groups are numbered as in
    `Task.groups`, and are classes if there is no attribute. Empty if targets are not classes."""
    pretrained: bool = False
    """Whether the network has weights that were trained on other data."""
    zero_shot: bool = False
    """Whether the network's head predicts classes before any training, such as a head made from texts."""
    seed: int = 0
    """The seed of all that the runs of a trial share: data noise, splits, initial weights, order of
    batches."""
    autocast: torch.dtype | None = None
    """The dtype of the network's passes in training, by autocast; None: the parameters' dtype. Outputs,
    losses, gradients and masks have the parameters' precision."""
    hparams: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """The method's hyperparameters, for `skip` to look at."""


@dataclass(frozen=True, kw_only=True)
class Needs:
    """Requirements of a method beyond the inputs and targets of one training environment."""

    environments: int = 1
    """The least number of training environments."""
    attributes: bool | Mapping[str, object] = False
    """Whether batches must hold attributes, or the hyperparameter values for which they must."""
    index: bool = False
    """Whether a batch must hold each example's index in its environment."""
    views: int = 0
    """The number of extra views of every input in a batch, each a new draw of the dataset's training
    augmentation; without an augmentation they are copies, and `prepare` may replace them. The network sees
    them in the same pass; losses and risks are those of the first view."""
    pretrained: bool = False
    """Whether the network has to start from pretrained weights."""
    zero_shot: bool = False
    """Whether the network's head has to predict classes before any training."""
    classes: bool = False
    """Whether a target must be one class."""
    real_inputs: bool = False
    """Whether inputs must be numbers that can be averaged or moved, unlike the ids of words."""
    feature_vector: bool = False
    """Whether an example must have one feature vector and one target. Examples of `tokens` have a vector
    for each token, and a detector has no feature vectors."""
    outputs: bool = False
    """Whether losses must be a function of the network's outputs, unlike a detector's losses."""
    packages: Mapping[str, str] = field(default_factory=dict)
    """Optional packages that the method imports, each with the command that installs it."""

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
    """B examples of each of E training environments."""

    x: Tensor
    """Inputs, (E, B, *input_shape)."""
    y: Tensor
    """Targets, (E, B, ...), see `Task`."""
    environments: Tensor | None = None
    """The indices (E,) of the batch's environments among the training environments; None: all, in order."""
    index: Tensor | None = None
    """Each example's index among its environment's training examples, (E, B)."""
    attributes: Tensor | None = None
    """Each example's attribute, (E, B) integers, if the dataset has attributes."""
    other_y: Tensor | None = None
    """The second targets of mixed examples, (E, B, ...)."""
    share: Tensor | None = None
    """The weight of the loss on `y` for a mixed example, (E, B); `other_y` has the rest."""
    views: Tensor | None = None
    """Further views of the inputs, (E, B, V, *input_shape), if the method `needs` them."""
    noise: Mapping[str, Tensor] = field(default_factory=dict)
    """The random numbers of this step, from the method's `noise`."""

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
    """The results of a forward pass, stacked over the E training environments of B examples each."""

    logits: Tensor
    """Logits (E, B, C), or as in `Task`; (E, B, 0) if the network computes its own losses."""
    features: Tensor
    """The outputs of the network's featurizer, (E, B, F), with one vector for each token; empty if the
    network computes its own losses."""
    targets: Tensor
    """The targets, (E, B, ...)."""
    losses: Tensor
    """The loss of each example, (E, B)."""
    risks: Tensor
    """The mean loss of each environment, (E,)."""
    step: int
    """The number of updates already done."""
    task: Task
    batch: Batch
    """The batch of the forward pass: inputs, attributes, the examples' index, the step's noise."""
    metrics: dict[str, Tensor] = field(default_factory=dict)
    """Scalars that an objective adds to the run's records, such as its penalty."""
    buffers: dict[str, Tensor] = field(default_factory=dict)
    """The buffers that `next_buffers` returned for these outputs, for `objective` to use."""
    view_logits: Tensor | None = None
    """Logits of the batch's further views, (E, B, V, C), if there are any."""
    view_features: Tensor | None = None
    """The features of these views, (E, B, V, F)."""

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
    if name == "CustomStep":
        raise UserError(
            "`CustomStep` is gone: derive the method from `oodbench.algorithms.Algorithm`, which has its "
            "hooks; `update` gets the prepared batch and calls `self.outputs(batch, step)` and "
            "`self.descend(loss, step)`"
        )
    if name in ("descend", "featurized", "optimizer_of", "outputs", "precision", "risk_gradients"):
        raise UserError(f"`{name}` of `oodbench.steps` is now a method: `self.{name}(...)`")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
