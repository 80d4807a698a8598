"""Batch normalisation by the statistics of test batches."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from oodbench.adaptations.base import Adaptation, register
from oodbench.hparams import choice, hparam


@register("BatchNorm", paper="arXiv:2006.16971")
class BatchNorm(Adaptation):
    """Batch normalisation by a mixture of the statistics of training and of the test batch.

    Every layer normalises a batch of n inputs by (section 3)

        mean = N / (N + n) mean_s + n / (N + n) mean_t,  var likewise,

    where mean_s and var_s are the running statistics of training, and mean_t and var_t those of the batch
    (with the biased variance, as in training). N, the `prior`, is the weight of training in inputs; N = 0
    uses the batch alone (arXiv:2006.10963). Batches do not influence each other.
    """

    needs = "batch normalisation with running statistics"

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Adaptation.Hparams):
        """The paper tries N = 0 and powers of two up to 1024; 8 to 512 do best."""

        prior: int = hparam(0, choice(0, 8, 16, 32, 64, 128, 256, 512), low=0)

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        for layer in layers_of(self.network):
            mean, var = layer.running_mean, layer.running_var
            assert mean is not None and var is not None
            layer.register_forward_pre_hook(self._mix(mean.clone(), var.clone()))

    @classmethod
    def suits(cls, network: nn.Module) -> bool:
        """Whether the network has batch normalisation with running statistics."""
        return bool(layers_of(network))

    def _mix(self, mean: Tensor, var: Tensor) -> Any:
        def hook(layer: _BatchNorm, inputs: tuple[Tensor]) -> None:
            (x,) = inputs
            of_batch = torch.var_mean(x, [0, *range(2, x.dim())], correction=0)
            share = len(x) / (self.hparams.prior + len(x))
            layer.running_var = torch.lerp(var, of_batch[0], share)
            layer.running_mean = torch.lerp(mean, of_batch[1], share)

        return hook

    def logits(self, x: Tensor) -> Tensor:
        """The logits under the mixed statistics."""
        return self.unadapted(x)


def layers_of(network: nn.Module) -> list[_BatchNorm]:
    """The batch normalisation layers that keep running statistics."""
    layers = [m for m in network.modules() if isinstance(m, _BatchNorm)]
    return [layer for layer in layers if layer.running_mean is not None]
