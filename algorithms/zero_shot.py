"""A pretrained network without any training."""

import torch
from torch import Tensor

from oodbench.algorithms import Algorithm, Batch, Needs, register


@register("ZeroShot", paper="arXiv:2103.00020")
class ZeroShot(Algorithm):
    """The predictions of a network whose head comes from text prompts, without any training.

    A baseline for fine-tuning: with CLIP and `head_init: text` the logits are scaled cosines between an
    image and a prompt for each class (section 3.1). A run needs one step.
    """

    changes = "estimator"
    trains_network = False
    needs = Needs(zero_shot=True)

    @torch.no_grad()
    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """The loss of the batch, without training."""
        logits = self.predict(batch.x.flatten(0, 1))
        losses = self.problem.task.losses(logits, batch.y.flatten(0, 1))
        return {"loss": losses.mean()}
