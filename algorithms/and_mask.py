"""The AND-mask over environments or examples, and its complement."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from oodbench.algorithms import Algorithm, Needs, Problem, register
from oodbench.gradients.backward import Reduction
from oodbench.hparams import choice, hparam, uniform

MEANINGS = ("environment", "rows", "pooled", "coupled")
"""Meanings of a unit's gradient below batch normalisation; see `oodbench.gradients`."""


class KeptByLayer:
    """The metrics of an update by layer, for the L modules that own a network's P trained parameters."""

    def __init__(self, network: nn.Module) -> None:
        trained: list[tuple[str, Tensor]] = [
            (name.rpartition(".")[0] or "network", p)
            for name, p in network.named_parameters()
            if p.requires_grad
        ]
        self.names = list(dict.fromkeys(name for name, _ in trained))
        owned = torch.tensor([[own == name for own, _ in trained] for name in self.names])
        self._owned = owned.to(trained[0][1])
        """Whether a parameter is part of a layer, (L, P) zeros and ones."""
        self._sizes = self._owned @ self._owned.new_tensor([p.numel() for _, p in trained])
        """How many components each layer has, (L,)."""

    def kept_and_norms(self, weights: Tensor, kept: Tensor) -> dict[str, Tensor]:
        """`kept LAYER`, the fraction of components that an update kept, and `weight norm LAYER`.

        `weights` (P,) are the parameters' squared norms before the update, `kept` (P,) the numbers of kept
        components.
        """
        metrics: dict[str, Tensor] = {}
        for what, values in (
            ("kept", self._owned @ kept / self._sizes),
            ("weight norm", (self._owned @ weights).sqrt()),
        ):
            metrics |= zip((f"{what} {name}" for name in self.names), values.unbind(), strict=True)
        return metrics


@register("ANDMask", paper="arXiv:2009.00329")
class ANDMask(Algorithm):
    """The mean gradient, kept only in the components whose signs agree across environments.

    Section 3: a component is kept if |mean_e sign(g_e)| >= tau, with sign(0) = 0. Agreement is counted in
    whole environments: a net count of at least tau * E. With `rescale` each tensor is divided by the
    fraction it kept (the released code; arXiv:2007.01434's code always does). With `geometric_mean` the
    kept components take the geometric mean of the magnitudes. Weight decay is added after the mask and
    before the optimizer's moments. With `normalize` each unit's gradient of a weight matrix (not of a bias)
    is first divided by its norm, as in the code of arXiv:2102.10867, which does not rescale and uses `sgd`
    without momentum.

    Signs and mask are of gradients in float32. With the sweep's `precision: bfloat16` the network below
    runs in bfloat16, and 0.2 to 1.3% of the environments' signs differ from those of a run in float32 (at
    the same weights and batch): 0 to 0.4% of the mask's components with MLPs on 16 environments of Spirals,
    1 to 2.7% with convolutional networks on two of ColoredDigits, which lose 1 to 3% of the kept
    components.

    Every run records, for each layer, the fraction of its components that an update kept and the norm of
    its weights before the update: `kept LAYER` and `weight norm LAYER`.
    """

    needs = Needs(environments=2)
    changes = "gradient"
    unit: ClassVar[str] = "environment"
    """The units whose signs have to agree: each `environment`, or each `example`."""

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """Range of tau: arXiv:2007.01434's code."""

        tau: float = hparam(1.0, uniform(0.5, 1.0), low=0.0, high=1.0)
        rescale: bool = hparam(True)
        geometric_mean: bool = hparam(False)
        normalize: bool = hparam(False, neutral=False)
        batch_norm: str = hparam("default", options=("default", *MEANINGS))
        """The meaning of a gradient below batch normalisation, one of `MEANINGS`; by default the unit's."""

    @classmethod
    def neutral(cls, problem: Problem) -> dict[str, Any] | None:
        """tau = 0, which keeps every component."""
        return {"tau": 0.0}

    @property
    def reduction(self) -> Reduction:
        """Combine by the sum of the signs and the mean, unless each unit's magnitudes are needed."""
        chosen = self.hparams.batch_norm
        magnitudes = self.hparams.geometric_mean or self.hparams.normalize
        return Reduction(
            combine=self.combine,
            combine_signs=None if magnitudes else self.combine_signs,
            unit=self.unit,
            batch_norm=None if chosen == "default" else chosen,
            observe=self._kept_by_layer.kept_and_norms,
        )

    @cached_property
    def _kept_by_layer(self) -> KeptByLayer:
        return KeptByLayer(self.network)

    def combine(self, gradients: Tensor) -> Tensor:
        """The masked mean of the units' gradients (U, *shape) of one parameter."""
        if self.hparams.normalize and gradients.dim() > 2:
            norms = gradients.flatten(1).norm(dim=1).clamp(min=torch.finfo(gradients.dtype).tiny)
            gradients = gradients / norms.view(-1, *[1] * (gradients.dim() - 1))
        mean = gradients.mean(0)
        if self.hparams.geometric_mean:
            magnitude = (gradients.abs() + 1e-10).log().mean(0).exp()
            mean = mean.sign() * magnitude
        return self.combine_signs(gradients.sign().sum(0), mean, len(gradients))

    def combine_signs(self, net: Tensor, mean: Tensor, units: int) -> Tensor:
        """The masked mean from the sum of the signs and the mean of U gradients, in place."""
        mask = self.mask(net, units)
        fraction = mask.mean() + 1e-10 if self.hparams.rescale else 1.0
        return mask.mul_(mean).div_(fraction)

    def mask(self, net: Tensor, units: int) -> Tensor:
        """1 where a component is kept, |net| >= tau * U, else 0; `net` holds whole numbers."""
        least = self.hparams.tau * units - 1e-4  # more than the product's round-off
        return (net.abs() >= least).to(net.dtype)


@register("ExampleANDMask", paper="arXiv:2009.00329")
class ExampleANDMask(ANDMask):
    """AND-mask that treats every example of a batch as an environment.

    Section 4.2's memorization and label-noise studies, which use tau = 0.2, batches of 80 and one
    environment; here the unit is an example of any training environment. Below batch normalisation an
    example's gradient flows through its own row only, while the released code takes the gradient of the
    example's loss through all rows (`batch_norm` = "coupled", many times slower). Both average to the
    batch's gradient. Results with label noise are similar; more random labels are memorized at the same tau
    (docs/findings/label_noise.md).
    """

    needs = Needs()  # signs are compared between the examples of one environment
    unit = "example"

    @dataclass(frozen=True, kw_only=True)
    class Hparams(ANDMask.Hparams):
        """Range of tau: the paper's grid."""

        tau: float = hparam(0.2, choice(0.0, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8), low=0.0, high=1.0)


@register("XORMask", paper="thesis version of arXiv:2009.00329, figure 3.7")
class XORMask(ANDMask):
    """The complement of AND-mask: the mean gradient where the environments' signs do not agree.

    A component is kept if |mean_e sign(g_e)| < tau, so that AND-mask and XOR-mask without rescaling
    add up to ERM's gradient. It shows what AND-mask leaves out and is expected to fail.
    """

    @classmethod
    def neutral(cls, problem: Problem) -> dict[str, Any] | None:
        """None: no tau keeps the components on which all environments agree."""
        return None

    def mask(self, net: Tensor, units: int) -> Tensor:
        """1 where AND-mask's mask is 0, else 0."""
        return 1 - super().mask(net, units)
