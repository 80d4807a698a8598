"""Adversarial training on critical samples."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from oodbench.algorithms import Algorithm, Batch, Needs, Problem, register
from oodbench.gradients.critical import ALPHA, BETA, RADIUS, langevin_search
from oodbench.hparams import hparam, uniform

from .perturbed import excursion, gradients, trained


@register("AdversarialTraining", paper="arXiv:1706.05394, section 5")
class AdversarialTraining(Algorithm):
    """The mean risk of examples, and of neighbours for which another class is predicted.

    mean_e (1 - w) R_e(x) + w R_e(x'), with w the `adversarial_weight`. x' is the neighbour that LASS
    (algorithm 1) finds in the box of half-width `radius` around x, with the target of x; if it finds none,
    x' = x. The search runs in evaluation mode. Batch normalisation keeps the statistics of the pass at x,
    and dropout draws again in the pass at x'.

    The paper gives a range of w from 0.2 to 0.7 and LASS with its default parameters, not the loss. Its
    `radius`, `alpha` and `beta` are for pixels from 0 to 255, ours for the network's inputs times `scale`.
    """

    changes = "batch"
    needs = Needs(classes=True, real_inputs=True)
    noise_on_host = True

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """The paper's range and sizes."""

        adversarial_weight: float = hparam(0.5, uniform(0.2, 0.7), low=0.0, high=1.0)
        radius: float = hparam(RADIUS, low=0.0)
        alpha: float = hparam(ALPHA, low=0.0)
        """The length of a step along the sign of the gradient."""
        beta: float = hparam(BETA, low=0.0)
        """The standard deviation of the noise in a step."""
        scale: float = hparam(1.0, low=0.0)
        """The unit of these three sizes in the network's inputs. The paper's is 1/255 for images in [0, 1],
        and 1/(255 s) for images that are divided by the standard deviation s."""
        search_steps: int = hparam(10, low=1)
        """The most steps of a search."""

    @classmethod
    def neutral(cls, problem: Problem) -> dict[str, object]:
        """A weight of 0 for neighbours."""
        return {"adversarial_weight": 0.0}

    def noise(self, batch: Batch, generator: torch.Generator) -> dict[str, Tensor]:
        """The seed of the search, whose number of random draws depends on its progress."""
        return {"seed": torch.randint(2**62, (), generator=generator)}

    def neighbours(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Which examples are critical, (E, B), and the neighbours x', (E, B, *input_shape)."""
        h, x = self.hparams, batch.x.flatten(0, 1)
        generator = torch.Generator().manual_seed(int(batch.noise["seed"]))
        sizes = (h.scale * h.radius, h.scale * h.alpha, h.scale * h.beta)
        in_training = [m for m in self.network.modules() if m.training]
        self.network.eval()
        with self.precision(x):
            found, near = langevin_search(
                self.network, x, *sizes, steps=h.search_steps, generator=generator
            )
        for module in in_training:
            module.training = True
        return found.view(batch.x.shape[:2]), near.view_as(batch.x)

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """Two passes and one step; `critical` is the critical sample ratio of the batch."""
        found, near = self.neighbours(batch)
        out = self.outputs(batch, step)
        with excursion([*self.network.buffers()]):
            moved = self.outputs(replace(batch, x=near), step)
            loss = out.risks.mean().lerp(moved.risks.mean(), self.hparams.adversarial_weight)
            combined = gradients(loss, trained(self.network))
        self.descend(combined, step)
        return {"loss": loss.detach(), "critical": found.to(loss.dtype).mean()}
