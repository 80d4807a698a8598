"""The base class of networks, their registry, and `build`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oodbench.datasets import Dataset
from oodbench.errors import UserError
from oodbench.hparams import checked, hparam
from oodbench.registry import Registry
from oodbench.seeds import seed_torch

networks: Registry[type["Network"]] = Registry("network", "oodbench.networks.Network")
ACTIVATIONS: tuple[type[nn.Module], ...] = (
    nn.ReLU,
    nn.LeakyReLU,
    nn.ELU,
    nn.GELU,
    nn.SiLU,
    nn.Tanh,
)
"""The layers whose outputs are hidden units."""


def register(name: str) -> Callable[[type["Network"]], type["Network"]]:
    """Register a network under `name`."""
    return networks.add(name)


class Network(nn.Module):
    """A `featurizer` from (N, *input_shape) to (N, F), then a `classifier` from (N, F) to (N, C).

    A subclass may declare `Hparams`; its constructor sets both parts and `num_features` (F).
    """

    @dataclass(frozen=True, kw_only=True)
    class Hparams:
        """Regularizers, all off by default and in evaluation (arXiv:1706.05394).

        Hidden units are the outputs of activation layers, or the features if there are no such layers.
        """

        dropout: float = hparam(0.0, low=0.0, high=0.99, neutral=0.0)
        """The share of the hidden units that are set to 0; networks that redeclare the field apply it."""
        input_dropout: float = hparam(0.0, low=0.0, high=0.99, neutral=0.0)
        """The share of the inputs that are set to 0."""
        input_noise: float = hparam(0.0, low=0.0, neutral=0.0)
        """The standard deviation of normal noise on the inputs, in the units that the network receives."""
        hidden_noise: float = hparam(0.0, low=0.0, neutral=0.0)
        """The standard deviation of normal noise on the hidden units."""

    @classmethod
    def resolved(cls, values: Mapping[str, Any], dataset: Dataset) -> dict[str, Any]:
        """The hyperparameters that a run on `dataset` records; called when a sweep is planned.

        Override it to add other values on which results depend, such as checksums of files. Raises
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

    def __init__(self, hparams: Any = None) -> None:
        super().__init__()
        self.hparams = hparams

    @property
    def stages(self) -> tuple[str, ...]:
        """Names of modules that output feature maps, from input to output; by default the featurizer."""
        return ("featurizer",)

    @property
    def rate_scales(self) -> Mapping[str, float]:
        """Factors of the learning rate by parameter name; 1 for parameters that are not listed."""
        return {}

    def losses(self, x: Tensor, targets: Tensor) -> Tensor | None:
        """Training losses (N,), if the network computes its own; None: the task's losses are used."""
        return None

    def forward(self, x: Tensor) -> Tensor:
        """Logits (N, C) of inputs (N, *input_shape)."""
        logits: Tensor = self.classifier(self.featurizer(x))
        return logits


class Perturbation(nn.Module):
    """Normal noise, then dropout, at hooked modules in training mode."""

    def __init__(self, noise: float, dropout: float) -> None:
        super().__init__()
        self.noise, self.dropout = noise, dropout

    def forward(self, x: Tensor) -> Tensor:
        """The values with noise, in the same shape; raises UserError if they are ids."""
        if not x.is_floating_point():
            raise UserError("inputs that are ids take neither `input_dropout` nor `input_noise`")
        noisy = x + self.noise * torch.randn_like(x) if self.noise else x
        return F.dropout(noisy, self.dropout)

    # bound methods: a deep copy of the network hooks its copy of this module

    def before(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor | None:
        """A hook that perturbs a module's inputs."""
        return self(inputs[0]) if module.training else None

    def after(self, module: nn.Module, inputs: object, output: Tensor) -> Tensor | None:
        """A hook that perturbs a module's outputs."""
        return self(output) if module.training else None


def _perturb(network: Network, h: Network.Hparams) -> None:
    (inherited,) = (f for f in fields(Network.Hparams) if f.name == "dropout")
    # a network that redeclares it applies it itself
    dropout = h.dropout if inherited in fields(h) else 0.0
    if h.hidden_noise or dropout:
        network.on_hidden = Perturbation(h.hidden_noise, dropout)
        hidden = [m for m in network.featurizer.modules() if isinstance(m, ACTIVATIONS)]
        for module in hidden or [network.featurizer]:
            module.register_forward_hook(network.on_hidden.after)
    if h.input_noise or h.input_dropout:
        network.on_inputs = Perturbation(h.input_noise, h.input_dropout)
        network.featurizer.register_forward_pre_hook(network.on_inputs.before)


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
    seed_torch(seed)
    hparams = checked(cls.Hparams, values, f"the hyperparameters of the network {name}")
    network: Network = cls(input_shape, num_outputs, hparams)
    if isinstance(hparams, Network.Hparams):
        _perturb(network, hparams)
    return network


def check_by_building(cls: type[Network], values: Mapping[str, Any], dataset: Dataset) -> None:
    """Build a network once, for `Network.resolved`; raises UserError if weights and inputs do not fit."""
    network: Any = cls
    known = tuple(sorted(values.items()))
    _build_once(network, known, dataset.input_shape, dataset.task.num_outputs)


@lru_cache
def _build_once(
    cls: Any, values: tuple[tuple[str, object], ...], input_shape: tuple[int, ...], num_outputs: int
) -> None:
    with torch.random.fork_rng(devices=()):
        hparams = checked(cls.Hparams, dict(values), f"the hyperparameters of {cls.__name__}")
        cls(input_shape, num_outputs, hparams)
