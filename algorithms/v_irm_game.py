"""Invariant risk minimization as a game between environments, with a learned representation."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from oodbench.algorithms import Algorithm, Batch, register
from oodbench.hparams import hparam

from .f_irm_game import F_IRM_Game


@register("V_IRM_Game", paper="arXiv:2002.04692")
class V_IRM_Game(F_IRM_Game):
    """Every environment trains its own classifier of common features; the mean of their logits predicts.

    V-IRM: a round begins with the turn of the featurizer, which minimises the mean risk of the mean
    predictor, with a learning rate `featurizer_rate` times that of the classifiers. Then the environments
    have their turns as in `F_IRM_Game`, with the features held fixed. A classifier is the network's, and
    the deviations are those of `F_IRM_Game`; the featurizer's turn uses all examples of the round, in the
    authors' code as many of the pooled examples as any other turn.
    """

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """The authors' code."""

        featurizer_rate: float = hparam(0.1, low=0.0)
        """The featurizer's learning rate, as a multiple of the run's."""

    def first_player(self) -> nn.Module:
        """The network's classifier."""
        return self.network.classifier

    def configure(self) -> dict[str, torch.optim.Optimizer]:
        """An optimizer for each classifier, and one for the featurizer."""
        heads = {*self.network.classifier.parameters()}
        parameters = self.network.featurizer.parameters()
        shared = [p for p in parameters if p.requires_grad and p not in heads]
        optimizers = super().configure()
        if shared:
            scales = dict.fromkeys(shared, self.hparams.featurizer_rate)
            optimizers["featurizer"] = self.optimizer_of(shared, scales)
        return optimizers

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """A turn of the featurizer, and of each environment; `loss` is the mean risk of the latter."""
        if "featurizer" in self.optimizers:
            self.descend(self.risk(batch, None), step, "featurizer")
        return super().update(batch, step)

    def represented(self, x: Tensor, player: int | None) -> Tensor:
        """Features (N, F)."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and player is None):
            features: Tensor = self.network.featurizer(x)
        return features
