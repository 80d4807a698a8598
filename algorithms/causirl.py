"""Two random mixtures of the environments, whose features are to have one distribution."""

from abc import abstractmethod

import torch
from torch import Tensor

from oodbench.algorithms import Batch, Outputs, register

from .coral import squared_norm
from .feature_matching import FeatureMatching
from .mmd import GAMMAS, gaussian_kernels, squared_distances


class CausIRL(FeatureMatching):
    """Mean risk plus a weighted squared distance between the features of two parts of a batch.

    Each environment's batch of B is cut at an index drawn uniformly from 0, ..., B - 1; the first parts
    together make one mixture of the environments, the second parts the other. With fewer than two examples
    in a part the distance is 0 (arXiv:2007.01434's code). A subclass implements `between`.
    """

    def noise(self, batch: Batch, generator: torch.Generator) -> dict[str, Tensor]:
        """The index at which each environment's batch is cut, (E,)."""
        environments, examples = batch.x.shape[:2]
        return {"cut": torch.randint(examples, (environments,), generator=generator)}

    def distance(self, out: Outputs) -> Tensor:
        """The distance between the two parts, 0 if a part has fewer than two examples."""
        environments, examples = out.risks.shape[0], out.losses.shape[1]
        places = torch.arange(examples, device=out.features.device)
        first = (places < out.batch.noise["cut"].unsqueeze(1)).flatten().to(out.features.dtype)
        count = first.sum()
        enough = (count > 1) & (environments * examples - count > 1)
        return enough * self.between(out.features.flatten(0, 1), first)

    @abstractmethod
    def between(self, x: Tensor, first: Tensor) -> Tensor:
        """The distance between the vectors x (N, F) where `first` (N,) is 1 and those where it is 0.

        It must be finite even if a part has fewer than two vectors.
        """


@register("CausIRL_CORAL", paper="arXiv:2206.11646")
class CausIRLCORAL(CausIRL):
    """Features whose means and covariances are alike in two random mixtures of the environments.

    The distance is that of `CORAL` between the two parts of a batch that `CausIRL` describes: mean_k
    (m_1 - m_2)_k^2 + mean_kl (C_1 - C_2)_kl^2, with unbiased covariances C of F features.
    """

    def between(self, x: Tensor, first: Tensor) -> Tensor:
        """Mean squared differences of the parts' means and of their covariances, summed."""
        parts = torch.stack([first, 1 - first])
        counts = parts.sum(1, keepdim=True)
        means = parts / counts.clamp(min=1) @ x
        centred = x - parts.mT @ means
        of_one, of_other = parts / (counts - 1).clamp(min=1)
        covariances = squared_norm((of_one - of_other).unsqueeze(1) * centred, centred)
        return (means[0] - means[1]).square().mean() + covariances / x.shape[1] ** 2


@register("CausIRL_MMD", paper="arXiv:2206.11646")
class CausIRLMMD(CausIRL):
    """Features with a small maximum mean discrepancy between two random mixtures of the environments.

    The distance is that of `MMD` between the two parts of a batch, see `CausIRL`.
    """

    def between(self, x: Tensor, first: Tensor) -> Tensor:
        """sum_ij a_i a_j K(x_i, x_j), a being 1 / n in the first part of n, -1 / n in the other."""
        other = 1 - first
        signed = first / first.sum().clamp(min=1) - other / other.sum().clamp(min=1)
        return signed @ gaussian_kernels(squared_distances(x), GAMMAS) @ signed
