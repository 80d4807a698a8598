"""Adaptations that use the features before a linear head: T3A, LAME and SHOT."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from oodbench.adaptations import HeadAdaptation, Stream, entropy, of_two_classes, register
from oodbench.hparams import choice, hparam, log_uniform
from oodbench.optimizers import eager

STEPS = 100
"""The most iterations; they stop earlier if the objective's relative change is below `TOLERANCE`."""
TOLERANCE = 1e-8


@register("LAME", paper="arXiv:2201.05718")
class LAME(HeadAdaptation):
    """Predictions that agree within a batch where features are close; no parameter changes.

    The predictions y_i of a batch start at the network's p_i (plus 1e-10, as in the authors' code) and
    iterate

        y_i = softmax(log p_i + sum_j w_ij y_j),

    (eq. 9), which decreases sum_i KL(y_i || p_i) - sum_ij w_ij y_i' y_j (eq. 5). The logits are log y_i.
    The affinity w_ij of unit-length features z is 1 if j is one of the `neighbours` nearest inputs to i,
    other than i, and else 0 (`knn`); exp(-|z_i - z_j|^2 / (2 sigma^2)), with sigma the mean distance to the
    `neighbours`-th nearest input, counting i as the first (`rbf`); or z_i' z_j (`linear`).
    """

    @dataclass(frozen=True, kw_only=True)
    class Hparams(HeadAdaptation.Hparams):
        """The values that the authors search over; they find knn with 5 neighbours best."""

        affinity: str = hparam(
            "knn", choice("knn", "rbf", "linear"), options=("knn", "rbf", "linear")
        )
        neighbours: int = hparam(5, choice(1, 3, 5), low=1)

    def logits(self, x: Tensor) -> Tensor:
        """The logarithms of the adjusted predictions."""
        features, logits = self.features_and_logits(x)
        start = (logits.softmax(1) + 1e-10).log()
        affinity = self.affinities(F.normalize(features, dim=1))
        result, before = start.log_softmax(1), float("inf")
        for step in range(STEPS):
            pairs = affinity @ result.exp()
            result = (start + pairs).log_softmax(1)
            # as in the authors' code, `pairs` still belongs to the predictions before the step
            now = float((result.exp() * (result - start - pairs)).sum())
            if step > 1 and abs(now - before) <= TOLERANCE * abs(before):
                break
            before = now
        return result

    def affinities(self, features: Tensor) -> Tensor:
        """The affinities (n, n) of unit-length features (n, F)."""
        count = self.hparams.neighbours
        if self.hparams.affinity == "linear":
            return features @ features.T
        # by differences: rounding in |a|^2 + |b|^2 - 2 a'b could change which neighbours are nearest
        distances = torch.cdist(features, features, compute_mode="donot_use_mm_for_euclid_dist")
        if self.hparams.affinity == "rbf":
            nearest = distances.topk(min(count, len(features)), largest=False).values
            sigma = nearest[:, -1].mean().clamp(min=1e-12)  # a single input has distance 0
            return (-(distances**2) / (2 * sigma**2)).exp()
        nearest = distances.topk(min(count + 1, len(features)), largest=False).indices[:, 1:]
        return torch.zeros_like(distances).scatter_(1, nearest, 1.0)


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
        """Whether the first round of centroids also leaves out classes that are never predicted."""

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
        features = F.normalize(torch.cat([features, torch.ones_like(features[:, :1])], 1), dim=1)
        shares, count = logits.softmax(1), logits.shape[1]
        present = shares.sum(0) > 0
        if self.hparams.predicted_only:
            present = F.one_hot(shares.argmax(1), count).any(0)
        for _ in range(2):
            centroids = shares.T @ features / (1e-8 + shares.sum(0).unsqueeze(1))
            cosines = features @ F.normalize(centroids, dim=1).T
            labels = cosines.masked_fill(~present, -torch.inf).argmax(1)
            shares = F.one_hot(labels, count).to(features.dtype)
            present = shares.any(0)
        return torch.empty_like(labels).index_copy(0, indices.to(labels.device), labels)


@register("T3A", paper="NeurIPS 2021, Iwasawa and Matsuo")
class T3A(HeadAdaptation):
    """A linear head whose weights become means of confident test features.

    The support set S_k of class k starts with the head's weights w_k / |w_k|. Each test feature z is added,
    as z / |z|, to the set of the class that the trained head predicts (eq. 4). Each set keeps the
    `supports` elements with the least entropy of the head's prediction (eq. 6). The logit of class k is
    z'c_k, where c_k is the normalised sum over S_k (eqs. 5 and 7). As in the authors' code a batch is added
    before it is predicted, and w_k is in the set of the class that the head predicts for w_k.
    """

    @dataclass(frozen=True, kw_only=True)
    class Hparams(HeadAdaptation.Hparams):
        """The values of the authors' search; their code writes -1 for all, and then drops one element."""

        supports: int = hparam(20, choice(1, 5, 20, 50, 100, 0), low=0)
        """The largest number of elements in a class's support set; 0: no limit."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        weight = of_two_classes(self.head.weight.detach().T).T
        self.supports = F.normalize(weight, dim=1)
        scores = weight @ weight.T
        if self.head.bias is not None:
            scores = scores + of_two_classes(self.head.bias.detach()[None])
        self.classes, self.entropies = scores.argmax(1), entropy(scores)

    def logits(self, x: Tensor) -> Tensor:
        """The products of the batch's features and the templates that include the batch."""
        features, logits = self.features_and_logits(x)
        supports = torch.cat([self.supports, F.normalize(features, dim=1)])
        classes = torch.cat([self.classes, logits.argmax(1)])
        entropies = torch.cat([self.entropies, entropy(logits)])
        order, most = entropies.argsort(stable=True), self.hparams.supports or None
        kept = torch.cat([order[classes[order] == k][:most] for k in range(logits.shape[1])])
        self.supports, self.classes, self.entropies = supports[kept], classes[kept], entropies[kept]
        members = F.one_hot(self.classes, logits.shape[1]).to(features.dtype)
        templates = F.normalize(self.supports.T @ members, dim=0)
        return features @ templates
