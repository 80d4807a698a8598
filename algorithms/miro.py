"""Mutual information regularisation with a pretrained network."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from oodbench.algorithms import Algorithm, Needs, Outputs, Problem, register
from oodbench.hparams import choice, hparam
from oodbench.networks.base import Network


def distance(features: Tensor, original: Tensor, variance: Tensor) -> Tensor:
    """The mean of ((f - f0)^2 / v + log v) / 2 over all entries, with a `variance` per channel."""
    terms = (features - original).square() / variance + variance.log()
    return terms.mean() / 2


@register("MIRO", paper="arXiv:2203.10789")
class MIRO(Algorithm):
    """The risk, and a penalty on the distance of features from the pretrained network's features.

    R + lam sum over layers of the mean of ((f - f0)^2 / v + log v) / 2, the paper's bound in the form of
    its authors' code: f0 are the features of the pretrained network, which is not trained, and
    v = softplus(b) + 1e-5 is learned per channel, from 0.1, at `rate_factor` times the learning rate. The
    layers are the network's `stages`. For ResNet18 and ResNet50 they are the code's: the stem after its
    pooling, and the four stages. For timm's models they are those that timm offers: the stem of a ResNet
    before its pooling, and every block of a ViT, where the code takes the patch embedding and the third,
    sixth, ninth and twelfth block.
    """

    changes = "penalty"
    needs = Needs(pretrained=True)

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """Defaults: the configuration of the paper's code (kakaobrain/miro); values of `ld`: its choices
        for five datasets.
        """

        ld: float = hparam(0.1, choice(0.01, 0.1), low=0.0)
        """The paper's lambda."""
        rate_factor: float = hparam(10.0, low=0.0)

    def __init__(self, network: Network, problem: Problem, hparams: Any) -> None:
        super().__init__(network, problem, hparams)
        self.original = copy.deepcopy(network).requires_grad_(False)
        self._features, self._original_features = _Features(), _Features()
        self._features.keep(network)
        self._original_features.keep(self.original)
        widths = self._widths()
        start = torch.tensor(0.1 - 1e-5).expm1().log()
        self.spreads = nn.ParameterList(start.repeat(width) for width in widths)

    def _widths(self) -> list[int]:
        """The number of channels of each layer."""
        was = self.network.training
        like = next(self.network.parameters())
        self.network.eval()
        with torch.no_grad():
            self.network(like.new_zeros(1, *self.problem.input_shape))
        self.network.train(was)
        features = [self._features[name] for name in self.network.stages]
        return [each.shape[_channel(each)] for each in features]

    @classmethod
    def skip(cls, problem: Problem) -> str | None:
        """Refuse micro-batches, as inner features are those of a whole batch."""
        if problem.hparams["accumulation"] > 1:
            return "its inner features are not kept with `accumulation`"
        return super().skip(problem)

    @classmethod
    def neutral(cls, problem: Problem) -> dict[str, Any]:
        """Leave out the distances."""
        return {"ld": 0.0}

    def train(self, mode: bool = True) -> "MIRO":
        """Keep the pretrained network in evaluation mode."""
        super().train(mode)
        self.original.eval()
        return self

    def configure(self) -> dict[str, torch.optim.Optimizer]:
        """One optimizer, with a larger learning rate for the variances."""
        scales = dict.fromkeys(self.spreads, self.hparams.rate_factor)
        return {"main": self.optimizer_of(self.parameters(), scales)}

    def objective(self, out: Outputs) -> Tensor:
        """The risk plus lambda times the distances; takes an extra pass of the pretrained network."""
        with torch.no_grad(), self.precision(out.batch.x):
            self.original.featurizer(out.batch.x.flatten(0, 1))
        total = out.losses.new_zeros(())
        for name, spread in zip(self.network.stages, self.spreads, strict=True):
            features, original = self._features[name], self._original_features[name]
            shape = [1] * features.dim()
            shape[_channel(features)] = -1
            variance = nn.functional.softplus(spread) + 1e-5
            total = total + distance(features.to(spread), original.to(spread), variance.view(shape))
        out.metrics["distance"] = total.detach()
        return out.risks.mean() + self.hparams.ld * total


class _Features(dict[str, Tensor]):
    """The last outputs of a network's stages, by name."""

    def keep(self, network: Network) -> None:
        """Record the outputs of each stage from now on."""
        for name in network.stages:
            network.get_submodule(name).register_forward_hook(_Keeper(name, self).hook)

    def __deepcopy__(self, memo: object) -> "_Features":
        return _Features()  # tensors with a graph cannot be copied


class _Keeper:
    """A hook that keeps the last output of a layer; unlike a closure it is copied with its module."""

    def __init__(self, name: str, features: _Features) -> None:
        self.name, self.features = name, features

    def hook(self, module: nn.Module, inputs: object, output: Tensor) -> None:
        self.features[self.name] = output


def _channel(features: Tensor) -> int:
    """The dimension of the channels: the second of maps, the last of tokens and vectors."""
    return 1 if features.dim() == 4 else features.dim() - 1
