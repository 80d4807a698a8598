"""Mutual information regularisation with a pretrained network."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from oodbench.algorithms import Algorithm, Batch, Outputs, Problem, register
from oodbench.hparams import choice, hparam
from oodbench.networks.base import Network
from oodbench.optimizers import make_optimizer


def distance(features: Tensor, original: Tensor, variance: Tensor) -> Tensor:
    """The mean of ((f - f0)^2 / v + log v) / 2 over all entries; `variance` is that of each channel."""
    terms = (features - original).square() / variance + variance.log()
    return terms.mean() / 2


@register("MIRO", paper="arXiv:2203.10789")
class MIRO(Algorithm):
    """The risk, and how far the features are from those of the network that training starts from.

    R + lam sum over layers of the mean of ((f - f0)^2 / v + log v) / 2, as its authors' code has the
    paper's bound: f0 are the features of the pretrained network, which stays as it is,
    v = softplus(b) + 1e-5 is learned for each channel, starts at 0.1, and has its learning rate times
    `rate_factor`. The layers are the network's `stages`. Those of the networks ResNet18 and ResNet50 are
    the code's: the stem after its pooling, and the four stages. Those of timm's models are what timm
    offers: the stem of a ResNet before its pooling, and every block of a ViT, where the code takes the
    patch embedding and the third, sixth, ninth and twelfth block.
    """

    kind = "penalty"
    needs_pretrained = True

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """Defaults and the values of `ld`: the paper's code (kakaobrain/miro), its configuration and the
        ones that it chose for five datasets.
        """

        ld: float = hparam(0.1, choice(0.01, 0.1), low=0.0)
        """The paper's lambda."""
        rate_factor: float = hparam(10.0, low=0.0)

    def __init__(self, network: Network, problem: Problem, hparams: Any) -> None:
        super().__init__(network, problem, hparams)
        self.original = copy.deepcopy(network).requires_grad_(False)
        self._seen: dict[str, Tensor] = {}
        self._hook(network)
        widths = self._widths()
        self._hook(self.original)
        start = torch.tensor(0.1 - 1e-5).expm1().log()
        self.spreads = nn.ParameterList(start.repeat(width) for width in widths)

    def _hook(self, network: Network) -> None:
        for name in network.stages:
            network.get_submodule(name).register_forward_hook(_Keeper(name, self._seen).hook)

    def _widths(self) -> list[int]:
        """The number of channels of each layer."""
        was = self.network.training
        like = next(self.network.parameters())
        self.network.eval()
        with torch.no_grad():
            self.network(like.new_zeros(1, *self.problem.input_shape))
        self.network.train(was)
        return [self._seen[name].shape[_channel(self._seen[name])] for name in self.network.stages]

    @classmethod
    def lacks(cls, problem: Problem, hparams: Mapping[str, Any]) -> str | None:
        """Inner features are there when a batch goes through the network in one."""
        if hparams["accumulation"] > 1:
            return "its inner features are not kept with `accumulation`"
        return super().lacks(problem, hparams)

    @classmethod
    def neutral(cls, problem: Problem) -> dict[str, Any]:
        """Without the distances."""
        return {"ld": 0.0}

    def train(self, mode: bool = True) -> "MIRO":
        """The pretrained network stays as in evaluation."""
        super().train(mode)
        self.original.eval()
        return self

    def configure(self) -> dict[str, torch.optim.Optimizer]:
        """One optimizer, in which the variances have a larger rate."""
        h, found = self.hparams, dict(self.network.named_parameters())
        scales = {found[name]: factor for name, factor in self.network.rate_scales.items()}
        scales |= dict.fromkeys(self.spreads, h.rate_factor)
        return {"main": make_optimizer(h.optimizer, self.parameters(), h.lr, h.momentum, scales)}

    def outputs(self, batch: Batch, step: int) -> Outputs:
        """A pass of each network; `made` has the sum of the distances."""
        out = super().outputs(batch, step)
        features = dict(self._seen)
        with torch.no_grad(), self._precision(batch.x):
            self.original.featurizer(batch.x.flatten(0, 1))
        total = out.losses.new_zeros(())
        for name, spread in zip(self.network.stages, self.spreads, strict=True):
            found, original = features[name], self._seen[name]
            shape = [1] * found.dim()
            shape[_channel(found)] = -1
            variance = nn.functional.softplus(spread) + 1e-5
            total = total + distance(found.to(spread), original.to(spread), variance.view(shape))
        self._seen.clear()
        out.made["distance"] = total
        return out

    def objective(self, out: Outputs) -> Tensor:
        """The risk and lambda times the distances."""
        out.metrics["distance"] = out.made["distance"].detach()
        result: Tensor = out.risks.mean() + self.hparams.ld * out.made["distance"]
        return result


class _Keeper:
    """What keeps the outputs of a layer."""

    def __init__(self, name: str, seen: dict[str, Tensor]) -> None:
        self.name, self.seen = name, seen

    def hook(self, module: nn.Module, inputs: object, output: Tensor) -> None:
        self.seen[self.name] = output


def _channel(features: Tensor) -> int:
    """The dimension of the channels: the second of maps, the last of tokens and vectors."""
    return 1 if features.dim() == 4 else features.dim() - 1
