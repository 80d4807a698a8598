"""SHOT: source hypothesis transfer."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from oodbench.adaptations.base import HeadAdaptation, Stream, register
from oodbench.hparams import choice, hparam, log_uniform
from oodbench.optimizers import eager

EPSILON = 1e-5
"""Added to probabilities inside logarithms, as the authors do."""


@register("SHOT", paper="arXiv:2002.08546")
class SHOT(HeadAdaptation):
    """Features trained on all test inputs towards confident, balanced predictions of a frozen head.

    With p_i = softmax f(x_i) and their batch mean p, the features minimise (eq. 6)

        mean_i H(p_i) - H(p) + beta mean_i CE(p_i, y_i)

    for `epochs` epochs before the first prediction. Pseudo-labels y_i are recomputed before each epoch:
    every feature (with a 1 appended, normalised) takes the class of the centroid with the greatest cosine.
    Centroids are first means weighted by p_i, then means of the classes so found (eqs. 4 and 5). As in the
    authors' code, only classes that are predicted for some feature have a centroid. The optimizer is SGD
    with Nesterov momentum 0.9, weight decay 1e-3 and learning rate lr (1 + 10 t / T)^-0.75. The network is
    in training mode during the epochs and in evaluation mode for predictions.

    Deviation: any model is adapted, at one learning rate. The authors train the source model with smoothed
    labels and a normalised bottleneck and head, and adapt pretrained layers at a tenth of the rate.
    """

    @dataclass(frozen=True, kw_only=True)
    class Hparams(HeadAdaptation.Hparams):
        """The authors' values for objects; for digits they use 30 epochs and beta 0.1."""

        lr: float = hparam(1e-2, log_uniform(1e-4, 1e-1), low=0.0)
        epochs: int = hparam(15, low=0)
        beta: float = hparam(0.3, choice(0.0, 0.1, 0.3, 1.0), low=0.0)
        predicted_only: bool = hparam(True, neutral=False)
        """Whether classes that are never predicted are left out of the first round of centroids, too."""

    def observe(self, stream: Stream) -> None:
        """Train the features for all epochs; the head stays frozen."""
        for p in self.head.parameters():
            p.requires_grad_(False)
        parameters = [p for p in self.network.parameters() if p.requires_grad]
        total = self.hparams.epochs * len(stream.batches)
        if not parameters or not total:  # without layers below the head there is nothing to train
            return
        usual = {"momentum": 0.9, "weight_decay": 1e-3, "nesterov": True}
        optimizer = eager(torch.optim.SGD)(parameters, lr=self.hparams.lr, **usual)
        step = 0
        for _ in range(self.hparams.epochs):
            labels = self._labels(stream)
            self.network.train()
            for indices, x in stream.shuffled(self.generator):
                step += 1
                optimizer.param_groups[0]["lr"] = self.hparams.lr * (1 + 10 * step / total) ** -0.75
                with torch.enable_grad():
                    optimizer.zero_grad()
                    loss = self.loss(self.unadapted(x), labels[indices.to(labels.device)])
                    loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            self.network.eval()

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The objective (eq. 6) of logits (n, C) and pseudo-labels (n,)."""
        shares = logits.softmax(1)
        mean = shares.mean(0)
        entropy = -(shares * (shares + EPSILON).log()).sum(1).mean()
        diversity = -(mean * (mean + EPSILON).log()).sum()
        supervised: Tensor = self.hparams.beta * F.cross_entropy(logits, labels)
        return entropy - diversity + supervised

    def _labels(self, stream: Stream) -> Tensor:
        parts = [(indices, *self.features_and_logits(x)) for indices, x in stream]
        indices, features, logits = (torch.cat(column) for column in zip(*parts, strict=True))
        labels = centroid_labels(features, logits.softmax(1), self.hparams.predicted_only)
        return torch.empty_like(labels).index_copy(0, indices.to(labels.device), labels)

    def logits(self, x: Tensor) -> Tensor:
        """The logits of the trained features."""
        return self.unadapted(x)


def centroid_labels(features: Tensor, shares: Tensor, predicted_only: bool) -> Tensor:
    """Pseudo-labels (N,), the nearest centroid's class, of features (N, F) with probabilities (N, C)."""
    count = shares.shape[1]
    present = F.one_hot(shares.argmax(1), count).any(0) if predicted_only else shares.sum(0) > 0
    features = F.normalize(torch.cat([features, torch.ones_like(features[:, :1])], 1), dim=1)
    for _ in range(2):
        centroids = shares.T @ features / (1e-8 + shares.sum(0).unsqueeze(1))
        cosines = features @ F.normalize(centroids, dim=1).T
        labels = cosines.masked_fill(~present, -torch.inf).argmax(1)
        shares = F.one_hot(labels, count).to(features.dtype)
        present = shares.any(0)
    return labels
