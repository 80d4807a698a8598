"""The base class of networks, their registry, and `build`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

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
    """A predictor in two parts: `featurizer` maps (N, *input_shape) to (N, F), `classifier` (N, F) to (N,
    C).

    A subclass may declare `Hparams`; its constructor sets both parts, `hparams` and `num_features` (F).
    """

    @dataclass(frozen=True, kw_only=True)
    class Hparams:
        """The network's hyperparameters."""

    @classmethod
    def resolved(cls, values: Mapping[str, Any], dataset: Dataset) -> dict[str, Any]:
        """The hyperparameters as a run on `dataset` records them; called when a sweep is planned.

        Override it to add everything else that results depend on, such as checksums of files. Raises
        UserError if a file is missing or the network cannot be built.
        """
        return dict(values)

    @classmethod
    def is_pretrained(cls, values: Mapping[str, object]) -> bool:
        """Whether the network starts from weights that were trained on other data.

        Learning rate, weight decay, batch size and augmentation then have other defaults.
        """
        return values.get("weights", "none") != "none"

    @classmethod
    def is_zero_shot(cls, values: Mapping[str, object]) -> bool:
        """Whether the head predicts classes before any training."""
        return False

    featurizer: nn.Module
    classifier: nn.Module
    hparams: Any
    num_features: int

    @property
    def stages(self) -> tuple[str, ...]:
        """Names of modules whose outputs are feature maps, from the input on; by default the featurizer."""
        return ("featurizer",)

    @property
    def rate_scales(self) -> Mapping[str, float]:
        """Factors of the learning rate by parameter name; 1 for parameters that are not listed."""
        return {}

    def losses(self, x: Tensor, targets: Tensor) -> Tensor | None:
        """Training losses (N,) of a network that computes them itself; None: the task's losses are used."""
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
    """The network `name`, with weights that depend on `seed` only; reseeds torch's global generator.

    Raises UserError for an unknown name or hyperparameter.
    """
    cls: Any = networks.get(name)
    torch.manual_seed(seed)
    values = {**neutral_values(cls.Hparams), **values}
    hparams = checked(cls.Hparams, values, f"the hyperparameters of the network {name}")
    network: Network = cls(input_shape, num_outputs, hparams)
    return network


def check_by_building(cls: type[Network], values: Mapping[str, Any], dataset: Dataset) -> None:
    """Build a network once, for `Network.resolved`; raises UserError if weights and inputs do not fit."""
    network: Any = cls
    known = tuple(sorted(values.items()))
    _build_once(network, known, dataset.input_shape, dataset.task.num_outputs)


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
