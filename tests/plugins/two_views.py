"""A stranger's contrastive loss: two views of every input."""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from oodbench.algorithms import Algorithm, Batch, Needs, Outputs, register
from oodbench.hparams import hparam, log_uniform


@register("StrangersTwoViews", paper="arXiv:2002.05709")
class StrangersTwoViews(Algorithm):
    """The mean risk, and features that find an example's other view among those of all examples."""

    needs = Needs(views=1)

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """The weight of the contrast, and the noise that views have beside their augmentation."""

        contrast_weight: float = hparam(0.1, log_uniform(1e-2, 1.0), low=0.0)
        noise: float = hparam(0.1, log_uniform(1e-2, 1.0), low=0.0)

    def noise(self, batch: Batch, generator: torch.Generator) -> dict[str, Tensor]:
        """The noise of the second views."""
        return {"noise": torch.randn(batch.x.shape, generator=generator)}

    def prepare(self, batch: Batch) -> Batch:
        """The batch with noise on its second views."""
        assert batch.views is not None
        noise = self.hparams.noise * batch.noise["noise"].to(batch.x.dtype)
        return replace(batch, views=batch.views[:, :, :1] + noise.unsqueeze(2))

    def objective(self, out: Outputs) -> Tensor:
        """The mean risk and the cross-entropy of finding the other view."""
        assert out.view_features is not None
        first = F.normalize(out.features.flatten(0, 1), dim=1)
        second = F.normalize(out.view_features[:, :, 0].flatten(0, 1), dim=1)
        similarity = first @ second.mT / 0.1
        contrast = (similarity.logsumexp(1) - similarity.diagonal()).mean()
        out.metrics["contrast"] = contrast.detach()
        total: Tensor = out.risks.mean() + self.hparams.contrast_weight * contrast
        return total
