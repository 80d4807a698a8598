"""MixStyle: images' feature maps take statistics that lie between their own and another image's."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from oodbench.networks.base import Network


def mixed(x: Tensor, other: Tensor, share: Tensor) -> Tensor:
    """Feature maps (N, C, H, W) with the styles of their mixtures with `other` (arXiv:2104.02008).

    x -> s_mix (x - m) / s + m_mix, where m and s are the mean and the standard deviation over an image's
    pixels in each channel, and m_mix and s_mix those of x times `share` (N, 1, 1, 1) and those of `other`
    times the rest. The variance is the unbiased one plus 1e-6, and no gradient flows through the
    statistics, as in the authors' code.
    """
    means, deviations = [], []
    for maps in (x.detach(), other.detach()):
        means.append(maps.mean((2, 3), keepdim=True))
        deviations.append((maps.var((2, 3), keepdim=True) + 1e-6).sqrt())
    mean, deviation = (share * own + (1 - share) * o for own, o in (means, deviations))
    return deviation * (x - means[0]) / deviations[0] + mean


class MixStyle(nn.Module):
    """In training, with some probability, all images of a batch have mixed styles.

    Each is mixed with another of the batch, whatever its environment (the paper's random shuffle); shares
    are from Beta(0.1, 0.1), and the probability is 0.5, in most experiments of the authors' code.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Tensor) -> Tensor:
        """The feature maps (N, C, H, W), mixed or as they are."""
        if not self.training or x.shape[2] * x.shape[3] < 2 or torch.rand(()) >= self.probability:
            return x
        alpha = torch.full((len(x), 1, 1, 1), 0.1, device=x.device, dtype=x.dtype)
        share = torch.distributions.Beta(alpha, alpha, validate_args=False).sample()
        return mixed(x, x[torch.randperm(len(x), device=x.device)], share)

    def hook(self, module: nn.Module, inputs: object, output: Tensor) -> Tensor:
        """A forward hook of the module whose outputs are mixed; a method, so that copies have their own."""
        mixed_output: Tensor = self(output)
        return mixed_output


def add_mix_style(network: Network, stages: Iterable[str], probability: float) -> None:
    """Let the outputs of some modules of a network be mixed in training."""
    mix = MixStyle(probability)
    network.mix_style = mix  # a submodule, so that it knows whether the network is trained
    for name in stages:
        network.get_submodule(name).register_forward_hook(mix.hook)
