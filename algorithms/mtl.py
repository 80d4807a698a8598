"""Marginal transfer learning."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from oodbench.algorithms import Algorithm, Needs, Outputs, Problem, register
from oodbench.hparams import choice, hparam
from oodbench.networks.base import Network


@register("MTL", paper="arXiv:1711.07910")
class MTL(Algorithm):
    """A classifier that sees an example's features together with its environment's mean features.

    The mean over environments of the risks of w . (phi, m_e) with the embedding m_e <- ema * mean_i phi_ei
    + (1 - ema) m_e, starting at zero (`ema` is the weight of the new mean, through which gradients flow).
    The product is computed as the network's classifier of phi plus a linear layer of m_e. A prediction has
    no environment: its embedding is the mean over the examples predicted together (in evaluations about as
    many of one environment as in a step of training, drawn by the trial), so predictions depend on each
    other, as in the paper.

    The embedding stands for the paper's kernel mean of an environment's inputs (section 3), as in
    arXiv:2007.01434, D.2, whose code, since before its published numbers, replaces it by normal noise in
    training and prediction, and sums the risks.
    """

    needs = Needs(feature_vector=True)

    transductive = True
    embeddings: Tensor

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """Default and range: arXiv:2007.01434, D.2."""

        ema: float = hparam(0.99, choice(0.5, 0.9, 0.99, 1.0), low=0.0, high=1.0)

    def __init__(self, network: Network, problem: Problem, hparams: Hparams) -> None:
        super().__init__(network, problem, hparams)
        outputs = problem.task.num_outputs
        self.of_embedding = nn.Linear(network.num_features, outputs, bias=False)
        count = len(problem.environments)
        self.register_buffer("embeddings", torch.zeros(count, network.num_features))

    def next_buffers(self, out: Outputs) -> dict[str, Tensor]:
        """The environments' embeddings, unchanged for environments left out of the step."""
        ema = self.hparams.ema
        embeddings = ema * out.features.mean(1) + (1 - ema) * out.of_step(self.embeddings)
        return {"embeddings": out.over_environments(embeddings, self.embeddings)}

    def objective(self, out: Outputs) -> Tensor:
        """The mean risk of the logits with the embeddings."""
        embeddings = out.of_step(out.buffers["embeddings"])
        logits = out.logits + self.of_embedding(embeddings).unsqueeze(1)
        return out.task.losses(logits, out.targets).mean(1).mean()

    def predict(self, x: Tensor) -> Tensor:
        """Logits (N, C) of inputs (N, *input_shape), with the mean of their features as embedding."""
        features = self.network.featurizer(x)
        embedding = features.mean(0, keepdim=True)
        logits: Tensor = self.network.classifier(features) + self.of_embedding(embedding)
        return logits
