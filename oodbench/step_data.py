"""What a method is given: the facts of its run, the batch of a step, the outputs of a forward pass."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from oodbench.tasks import Task


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """What was made on the CPU, on `device`; neither is waited for.

    A copy from pinned memory is one that the device makes when it comes to it.
    """
    if device.type == "cpu":
        return values
    return values.pin_memory().to(device, non_blocking=True)


@dataclass(frozen=True)
class Problem:
    """The facts about a run that its algorithm is built from."""

    input_shape: tuple[int, ...]
    task: Task
    environments: tuple[str, ...]
    """Names of the training environments, in the order in which batches stack them."""
    steps: int
    attributes: int = 0
    """How many values the examples' attribute has; 0: they have none."""
    discrete: bool = False
    """Whether inputs are numbers of words, which cannot be averaged."""
    sizes: tuple[int, ...] = ()
    """How many examples each training environment has to train on."""
    pretrained: bool = False
    """Whether the network has weights that were trained on other data."""
    seed: int = 0
    """Seed of everything that all runs of a trial have in common: data noise, splits, initial
    weights, order of batches."""


@dataclass(frozen=True)
class Batch:
    """B examples of each of E training environments."""

    x: Tensor
    """Inputs, (E, B, *input_shape)."""
    y: Tensor
    """Targets, (E, B, ...), see `Task`."""
    environments: Tensor | None = None
    """The places (E,) of the batch's environments among the training environments; None: all, in order."""
    index: Tensor | None = None
    """Each example's place among those that its environment trains on, (E, B)."""
    attributes: Tensor | None = None
    """Each example's attribute where the dataset has one, (E, B) integers."""
    other_y: Tensor | None = None
    """The second targets of mixed examples, (E, B, ...)."""
    share: Tensor | None = None
    """The part of a mixed example's loss that `y` has, (E, B); `other_y` has the rest."""
    views: Tensor | None = None
    """Further views of the inputs, (E, B, V, *input_shape), of a method that has `views`."""
    draws: Mapping[str, Tensor] = field(default_factory=dict)
    """The random numbers that the method's `draw` drew for this step."""

    def of(self, places: Sequence[int]) -> "Batch":
        """The batch of some of its environments."""
        every = torch.arange(len(self.x), device=self.x.device)
        chosen = torch.stack([every[place] for place in places])  # nothing comes from the host
        given = ((f.name, getattr(self, f.name)) for f in fields(self))
        picked: dict[str, Any] = {k: v[chosen] for k, v in given if isinstance(v, Tensor)}
        return replace(self, **{"environments": chosen, **picked})

    def parts(self, count: int) -> list["Batch"]:
        """The batch in `count` parts, or as many as can be, each with examples of every environment."""
        if count == 1:
            return [self]
        given = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "environments"}
        split = {n: v.chunk(count, 1) for n, v in given.items() if isinstance(v, Tensor)}
        rows = zip(*split.values(), strict=True)
        return [replace(self, **dict(zip(split, row, strict=True))) for row in rows]


@dataclass(frozen=True)
class Outputs:
    """What a forward pass gives, stacked over the E training environments of B examples each."""

    logits: Tensor
    """The logits (E, B, C), or as `Task` says; of a network that works out its own losses (E, B, 0)."""
    features: Tensor
    """The outputs of the network's featurizer, (E, B, F), with tokens one of each; empty where the
    network works out its own losses."""
    targets: Tensor
    """The targets, (E, B, ...)."""
    losses: Tensor
    """The loss of each example, (E, B)."""
    risks: Tensor
    """The mean loss of each environment, (E,)."""
    step: int
    """The number of updates already done."""
    task: Task
    metrics: dict[str, Tensor] = field(default_factory=dict)
    """Scalars that an objective wants to see in the run's records, such as its penalty."""
    batch: Batch | None = None
    """What went in: inputs, attributes, the examples' index, the step's draws."""
    buffers: dict[str, Tensor] = field(default_factory=dict)
    """What `next_buffers` made of these outputs, for `objective` to use."""
    view_logits: Tensor | None = None
    """The logits of the batch's further views, (E, B, V, C), if it has some."""
    view_features: Tensor | None = None
    """The features of these views, (E, B, V, F)."""
    made: dict[str, Tensor] = field(default_factory=dict)
    """What a method's own `outputs` made besides, for its `next_buffers` and `objective`."""

    def of_step(self, values: Tensor) -> Tensor:
        """The values of the step's environments, in its order, (E, ...), among those of all."""
        places = None if self.batch is None else self.batch.environments
        return values if places is None else values[places]

    def over_environments(self, values: Tensor, rest: Tensor) -> Tensor:
        """The step's environments' values (E, ...) in their places among `rest`, those of all."""
        places = None if self.batch is None else self.batch.environments
        return values if places is None else rest.index_copy(0, places, values)


def joined(parts: Sequence[Outputs], batch: Batch) -> Outputs:
    """The outputs of a batch, from those of its parts."""
    if len(parts) == 1:
        return parts[0]
    names = ["logits", "features", "targets", "losses"]
    names += ["view_logits", "view_features"] if parts[0].view_logits is not None else []
    whole: dict[str, Any] = {n: torch.cat([getattr(part, n) for part in parts], 1) for n in names}
    return replace(parts[-1], **whole, risks=whole["losses"].mean(1), batch=batch)
