"""Kinds of targets, with their losses, metrics and the gradient of IRM's scale."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad

from oodbench.errors import unknown, whole_number

Kind = Literal[
    "binary", "multiclass", "multilabel", "distribution", "regression", "tokens", "boxes"
]
SEVERAL = ("multilabel", "tokens")
"""The kinds with several labels for each example, some of which may be unknown."""
FLOOR = 1e-7
"""The lowest class frequency in a constant prediction: a class missing in training costs 16 nats."""


@dataclass(frozen=True)
class Task:
    """The kind of target and the number of outputs of a predictor.

    Shapes, for any leading dimensions `...`: the logits (for a regression: the predictions) are
    (..., num_outputs); the targets are (...) floats in {0, 1} for `binary` (one output), (...)
    int64 class numbers for `multiclass`, (..., num_outputs) floats in {0, 1} or NaN (not known) for
    `multilabel`, (..., num_outputs) probabilities for `distribution` and (..., num_outputs) real
    numbers for `regression`, which may be in double precision.

    Two kinds have more dimensions. For `tokens` the logits are (..., length, num_outputs), the targets
    (..., length) class numbers as floats, or NaN (not asked for). For `boxes` the predictions are
    (..., num_outputs, 5) with x1, y1, x2, y2 and score of each box, and the targets (..., M, 4), padded
    with NaN. The loss of `boxes` is computed by the network (`Network.losses`).
    """

    kind: Kind
    num_outputs: int = 1
    length: int = 1

    def __post_init__(self) -> None:
        """Raise UserError for an unknown kind, or a number of outputs below 1."""
        if self.kind not in get_args(Kind):
            raise unknown("kind of task", self.kind, get_args(Kind))
        whole_number(self.num_outputs, "num_outputs", least=1)

    @property
    def values(self) -> int:
        """The number of values predicted for each example."""
        return self.num_outputs * (5 if self.kind == "boxes" else self.length)

    def shape(self, count: int) -> tuple[int, ...]:
        """The shape of the logits of `count` examples."""
        inner = {"tokens": (self.length,)}.get(self.kind, ())
        return count, *inner, self.num_outputs, *((5,) if self.kind == "boxes" else ())

    @property
    def has_classes(self) -> bool:
        """Whether a target is a single class."""
        return self.kind in ("binary", "multiclass")

    @property
    def classes(self) -> int:
        """The number of classes; 1 for kinds without a single class per example."""
        return max(2, self.num_outputs) if self.has_classes else 1

    def groups(self, targets: Tensor, attributes: Tensor, count: int) -> Tensor:
        """Each example's group, (...) from 0: the pair of its target and attribute (of `count`).

        Groups are ordered by class, then attribute; if targets are not classes, a group is an attribute.
        """
        return targets.long() * count + attributes if self.has_classes else attributes

    @property
    def metric(self) -> str:
        """The default metric of selection and tables."""
        return {"regression": "mse", "distribution": "kl"}.get(self.kind, "accuracy")

    @property
    def loss_metric(self) -> str:
        """The metric that equals the loss of an example."""
        return {"regression": "mse", "distribution": "kl"}.get(self.kind, "loss")

    def losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss of each example, (...): cross-entropy, KL(target || softmax) or squared error.

        The loss of a regression is averaged over its outputs. Known labels or tokens
        count equally, as in the package `wilds`: an example's loss is the sum over its known labels,
        divided by their mean number along the last leading dimension, so that the mean of the
        losses along that dimension is the mean over all known labels.
        """
        if self.kind in SEVERAL:
            return _known_shares(self._each(logits, targets), targets)
        if self.kind == "binary":
            scores = logits.squeeze(-1)
            return F.binary_cross_entropy_with_logits(scores, targets, reduction="none")
        if self.kind == "multiclass":
            return _cross_entropy(logits, targets)
        if self.kind == "distribution":
            return F.kl_div(logits.log_softmax(-1), targets, reduction="none").sum(-1)
        assert self.kind == "regression", f"the network computes the losses of {self.kind}"
        return (logits - targets).square().mean(-1)

    def _each(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The losses (..., C) of all labels or tokens, known or not."""
        if self.kind == "tokens":
            return _cross_entropy(logits, _classes(targets))
        labels = targets.nan_to_num()
        return F.binary_cross_entropy_with_logits(logits, labels, reduction="none")

    def scale_gradients(self, logits: Tensor, targets: Tensor) -> Tensor:
        """d/dw loss(w * logits) at w = 1 for each example, (...), without a backward pass.

        By the chain rule this is <d loss/d logits, logits>, which can be differentiated again. Its mean
        over an environment is the gradient that IRMv1 penalises (arXiv:1907.02893, eq. IRMv1).
        """
        if self.kind == "binary":
            scores = logits.squeeze(-1)
            return (scores.sigmoid() - targets) * scores
        if self.kind == "regression":
            return (2 * (logits - targets) * logits).mean(-1)
        if self.kind == "multilabel":
            return _known_shares((logits.sigmoid() - targets.nan_to_num()) * logits, targets)
        if self.kind == "tokens":
            each = Task("multiclass", self.num_outputs).scale_gradients(logits, _classes(targets))
            return _known_shares(each, targets)
        expected = (logits.softmax(-1) * logits).sum(-1)
        if self.kind == "multiclass":
            return expected - logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        return targets.sum(-1) * expected - (targets * logits).sum(-1)

    def logit_gradients(self, logits: Tensor, targets: Tensor) -> Tensor:
        """d loss / d logits of each example, in the shape of the logits; it can be differentiated again."""
        if self.kind == "binary":
            return logits.sigmoid() - targets.unsqueeze(-1)
        if self.kind == "multiclass":
            # one_hot cannot be vectorized under a derivative
            is_class = targets.unsqueeze(-1) == torch.arange(
                self.num_outputs, device=targets.device
            )
            return logits.softmax(-1) - is_class.to(logits.dtype)
        if self.kind == "regression":
            return 2 / self.num_outputs * (logits - targets)
        found: Tensor = grad(lambda z: self.losses(z, targets).sum())(logits)
        return found

    def example_losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss of each example, (...); for labels or tokens the mean over the known ones."""
        if self.kind in SEVERAL:
            return self.known_mean(self._each(logits, targets), targets)
        return self.losses(logits, targets)

    @staticmethod
    def known_mean(values: Tensor, targets: Tensor) -> Tensor:
        """The mean of each example's `values` (..., C) where the target is known, else 0: (...)."""
        known = targets.isfinite()
        return torch.where(known, values, 0.0).sum(-1) / known.sum(-1).clamp(min=1)

    def known(self, targets: Tensor) -> Tensor:
        """Mask (N,) of examples with a known label; metrics leave out all others."""
        if self.kind in SEVERAL:
            return targets.isfinite().any(-1)
        return torch.ones(len(targets), dtype=torch.bool, device=targets.device)

    def mistake(self, targets: Tensor) -> str | None:
        """Why `targets` (N, ...) are not valid targets of N examples of this task, or None."""
        shape = tuple(targets.shape[1:])
        sizes = {"tokens": (self.length,), "boxes": (*shape[:1], 4), "binary": (), "multiclass": ()}
        wanted = sizes.get(self.kind, (self.num_outputs,))
        if shape != wanted:
            return f"a target has the shape {shape}, and that of the task {self.kind} is {wanted}"
        dtype = torch.int64 if self.kind == "multiclass" else torch.float32
        is_double = self.kind == "regression" and targets.dtype == torch.float64
        if targets.dtype != dtype and not is_double:
            return f"targets of the task {self.kind} are {dtype}, not {targets.dtype}"
        wrong, allowed = self._wrong(targets)
        if not wrong.any():
            return None
        place = int(wrong.nonzero()[0, 0])
        found = targets[place].flatten()
        odd = found[wrong[place].flatten()][0] if wrong.shape == targets.shape else found
        values = ", ".join(f"{value:g}" for value in odd.flatten()[:5].tolist())
        return f"the target of example {place} is {values}, and {allowed}"

    def _wrong(self, y: Tensor) -> tuple[Tensor, str]:
        last = self.num_outputs - 1
        if self.kind == "multiclass":
            return (y < 0) | (y > last), f"classes are numbered from 0 to {last}"
        if self.kind == "binary":
            return (y != 0) & (y != 1), "it must be 0 or 1"
        if self.kind == "multilabel":
            return (y != 0) & (y != 1) & ~y.isnan(), "a label must be 0, 1 or NaN (not known)"
        if self.kind == "tokens":
            odd = (y < 0) | (y > last) | (y != y.floor())
            return odd & ~y.isnan(), f"tokens are numbered from 0 to {last}, or NaN (not asked for)"
        if self.kind == "distribution":
            far = ~((y.sum(-1) - 1).abs() < 1e-3)
            return far | (y < 0).any(-1), "probabilities are at least 0 and add up to 1"
        if self.kind == "regression":
            return ~y.isfinite(), "it must be finite"
        odd = (y[..., 2:] < y[..., :2]).any(-1) | y.isinf().any(-1)
        return odd, "a box is x1, y1, x2, y2 with x1 <= x2 and y1 <= y2, or NaN"

    def constants(self, targets: Tensor) -> dict[tuple[str, ...], Tensor]:
        """The best constant outputs for one example, given targets (N, ...), by metrics.

        Each has the best mean of its metrics over the N examples among all outputs that ignore the input.
        In closed form: the mean target of a regression; otherwise the log frequencies of the classes (at
        least FLOOR), so that the majority class has the largest. Labels and tokens are weighted as in
        `metrics`, and the frequencies of tokens are computed for each position. Boxes have no constant
        prediction.
        """
        if self.kind == "boxes":
            return {}
        if self.kind == "regression":
            return {("mse",): targets.mean(0)}
        if self.kind == "distribution":
            majority = torch.bincount(targets.argmax(-1), minlength=self.num_outputs)
            mean = targets.double().mean(0)
            return {("kl",): _log_share(mean), ("agreement",): _log_share(majority / len(targets))}
        of_classes = ("brier",) if self.has_classes else ()
        return {("accuracy", "loss", *of_classes): self._frequencies(targets)}

    def _frequencies(self, targets: Tensor) -> Tensor:
        if self.kind == "binary":
            return _log_odds(targets.double().mean(0, keepdim=True))
        if self.kind == "multiclass":
            count = torch.bincount(targets, minlength=self.num_outputs)
            return _log_share(count.double() / len(targets))
        known = targets.isfinite()
        weight = known / known.sum(-1, keepdim=True).clamp(min=1).double()
        if self.kind == "multilabel":
            total = weight.sum(0).clamp(min=FLOOR)
            return _log_odds((weight * targets.nan_to_num()).sum(0) / total)
        count = weight.new_zeros(self.length, self.num_outputs)
        places = torch.arange(self.length, device=targets.device).expand(len(targets), -1)
        count.index_put_((places, _classes(targets)), weight, accumulate=True)
        return _log_share(count / count.sum(-1, keepdim=True).clamp(min=FLOOR))

    def kept(self, logits: Tensor) -> Tensor:
        """The predictions to store: the logits, or for `tokens` the best class (-1 if not finite)."""
        if self.kind != "tokens":
            return logits
        return torch.where(logits.isfinite().all(-1), logits.argmax(-1), -1)


def _log_share(share: Tensor) -> Tensor:
    return share.clamp(min=FLOOR).log().float()


def _log_odds(share: Tensor) -> Tensor:
    return share.clamp(FLOOR, 1 - FLOOR).logit().float()


def _cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    flat = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none")
    return flat.view(targets.shape)


def _known_shares(values: Tensor, targets: Tensor) -> Tensor:
    """The contribution (..., B) of each example to the mean of the known `values` (..., B, C)."""
    known = targets.isfinite()
    count = known.sum(-1).to(values.dtype).mean(-1, keepdim=True)
    return torch.where(known, values, 0.0).sum(-1) / torch.where(count > 0, count, 1.0)


def _classes(targets: Tensor) -> Tensor:
    return targets.nan_to_num().long()
