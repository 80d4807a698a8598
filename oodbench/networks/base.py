"""Networks: a featurizer and a classifier, chosen by name and built for an input shape."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from oodbench.datasets import Dataset
from oodbench.hparams import checked, neutral_values
from oodbench.registry import Registry

networks: Registry[type["Network"]] = Registry("network", "oodbench.networks")


def register(name: str) -> Callable[[type["Network"]], type["Network"]]:
    """Register a network under `name`."""

    def decorate(cls: type["Network"]) -> type["Network"]:
        return networks.add(name)(cls)

    return decorate


class Network(nn.Module):
    """A predictor in two parts: `featurizer` maps (N, *input_shape) to (N, F), `classifier` to (N, C).

    A subclass declares its `Hparams` and sets the two parts in its constructor.
    """

    @dataclass(frozen=True, kw_only=True)
    class Hparams:
        """The network's hyperparameters."""

    check_by_building: ClassVar[bool] = False
    """Whether a plan builds the network once for a dataset, to refuse weights and inputs that do not fit
    before anything is trained."""

    @classmethod
    def check(cls, values: Mapping[str, object]) -> None:
        """Raise UserError if a file that these hyperparameters need is missing; a plan calls it."""

    @classmethod
    def resolved(cls, values: Mapping[str, Any], dataset: Dataset) -> dict[str, Any]:
        """The hyperparameters as the spec of a run on `dataset` holds them; a plan calls it.

        A network adds whatever else its numbers depend on, such as checksums of files. Raises UserError
        where it cannot be built.
        """
        cls.check(values)
        if cls.check_by_building:
            network: Any = cls
            known = tuple(sorted(values.items()))
            _build_once(network, known, dataset.input_shape, dataset.task.num_outputs)
        return dict(values)

    @classmethod
    def is_pretrained(cls, values: Mapping[str, object]) -> bool:
        """Return whether these hyperparameters give it weights that were trained on other data.

        Learning rate, weight decay, batch size and augmentation have other defaults then.
        """
        return values.get("weights", "none") != "none"

    @classmethod
    def is_zero_shot(cls, values: Mapping[str, object]) -> bool:
        """Return whether these hyperparameters give it a head that predicts classes before any training."""
        return False

    featurizer: nn.Module
    classifier: nn.Module
    hparams: Any
    num_features: int

    @property
    def stages(self) -> tuple[str, ...]:
        """The names of modules whose outputs are features, from the input on; by default the featurizer."""
        return ("featurizer",)

    @property
    def rate_scales(self) -> Mapping[str, float]:
        """The factors of the learning rate by parameter name; for all other parameters it is 1."""
        return {}

    def losses(self, x: Tensor, targets: Tensor) -> Tensor | None:
        """The training losses (N,) of a network that computes its own; None: the task's."""
        return None

    def forward(self, x: Tensor) -> Tensor:
        """Logits (N, C) of inputs (N, *input_shape)."""
        logits: Tensor = self.classifier(self.featurizer(x))
        return logits


def build(
    name: str,
    values: Mapping[str, object],
    input_shape: tuple[int, ...],
    num_outputs: int,
    seed: int,
) -> Network:
    """The network `name` with its hyperparameters' `values`, its weights drawn from `seed` alone.

    Raises UserError for an unknown name or value.
    """
    cls: Any = networks.get(name)
    torch.manual_seed(seed)
    values = {**neutral_values(cls.Hparams), **values}
    hparams = checked(cls.Hparams, values, f"the hyperparameters of the network {name}")
    network: Network = cls(input_shape, num_outputs, hparams)
    return network


@lru_cache
def _build_once(
    cls: Any,
    values: tuple[tuple[str, object], ...],
    input_shape: tuple[int, ...],
    num_outputs: int,
) -> None:
    with torch.random.fork_rng(devices=()):
        known = {**neutral_values(cls.Hparams), **dict(values)}
        hparams = checked(cls.Hparams, known, f"the hyperparameters of {cls.__name__}")
        cls(input_shape, num_outputs, hparams)
