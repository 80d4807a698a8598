"""Adaptations of normalisation layers: by the statistics of test batches, and by gradient steps."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from oodbench.adaptations import Adaptation, entropy, register
from oodbench.hparams import choice, hparam, log_uniform
from oodbench.optimizers import eager


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
            layer.register_forward_pre_hook(partial(self._mix, mean.clone(), var.clone()))

    @classmethod
    def suits(cls, network: nn.Module) -> bool:
        """Whether the network has batch normalisation with running statistics."""
        return bool(layers_of(network))

    def _mix(self, mean: Tensor, var: Tensor, layer: _BatchNorm, inputs: tuple[Tensor]) -> None:
        (x,) = inputs
        var_of_batch, mean_of_batch = torch.var_mean(x, [0, *range(2, x.dim())], correction=0)
        share = len(x) / (self.hparams.prior + len(x))
        layer.running_var = torch.lerp(var, var_of_batch, share)
        layer.running_mean = torch.lerp(mean, mean_of_batch, share)


def layers_of(network: nn.Module) -> list[_BatchNorm]:
    """The batch normalisation layers that keep running statistics."""
    layers = [m for m in network.modules() if isinstance(m, _BatchNorm)]
    return [layer for layer in layers if layer.running_mean is not None]


LAYERS = (_BatchNorm, nn.GroupNorm, nn.LayerNorm, nn.modules.instancenorm._InstanceNorm)


@register("TENT", paper="arXiv:2006.10726")
class TENT(Adaptation):
    """Gradient steps that lower the predictions' entropy, in the scales and shifts of normalisation layers.

    For each batch x_1..n, with gamma and beta the affine parameters of the layers (section 3),

        (gamma, beta) <- Adam step on 1/n sum_i H(softmax f(x_i)),

    and the batch's logits are those before its last step, as in the authors' code. Parameters carry over
    from batch to batch. Batch normalisation uses the batch's statistics, with gradients through them.
    Group, layer and instance normalisation are adapted too, as in arXiv:2302.12400.

    Deviation: dropout is off; the authors' code leaves it on.
    """

    needs = "normalisation layers with scales and shifts"

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Adaptation.Hparams):
        """The authors' defaults for CIFAR-10-C; the distribution of `steps` is from T3A's authors."""

        lr: float = hparam(1e-3, log_uniform(1e-5, 1e-2), low=0.0)
        steps: int = hparam(1, choice(1, 3), low=1)
        """The number of steps on each batch."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.network.requires_grad_(False)
        parameters = affine(self.network)
        for p in parameters:
            p.requires_grad_(True)
        for layer in self.network.modules():
            if isinstance(layer, _BatchNorm):  # without running statistics it uses the batch's
                layer.running_mean = layer.running_var = None
                layer.track_running_stats = False
        self.optimizer = eager(torch.optim.Adam)(parameters, lr=self.hparams.lr)

    @classmethod
    def suits(cls, network: nn.Module) -> bool:
        """Whether some normalisation layer has a scale or a shift."""
        return bool(affine(network))

    def logits(self, x: Tensor) -> Tensor:
        """The logits before the last of the steps on the batch."""
        for _ in range(self.hparams.steps):
            with torch.enable_grad():
                logits = self.unadapted(x)
                self.optimizer.zero_grad()
                entropy(logits).mean().backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
        return logits.detach()


def affine(network: nn.Module) -> list[nn.Parameter]:
    """The scales and shifts of the normalisation layers."""
    layers = [m for m in network.modules() if isinstance(m, LAYERS)]
    return [p for layer in layers for p in layer.parameters(recurse=False)]
