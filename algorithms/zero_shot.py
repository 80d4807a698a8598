"""A pretrained network without any training."""

import torch
from torch import Tensor

from oodbench.algorithms import Algorithm, Batch, Needs, register


@register("ZeroShot", paper="arXiv:2103.00020")
class ZeroShot(Algorithm):
    """The predictions of a network whose head comes from text prompts, without any training.

    The row shows what pretraining alone has: of CLIP with `head_init: text`, scaled cosines between an
    image and a prompt for each class (section 3.1). Fine-tuned rows stand beside it. A run needs one step.
    """

    changes = "estimator"
    trains_network = False
    needs = Needs(zero_shot=True)

    @torch.no_grad()
    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """The loss of the batch; nothing changes."""
        logits = self.predict(batch.x.flatten(0, 1))
        losses = self.problem.task.losses(logits, batch.y.flatten(0, 1))
        return {"loss": losses.mean()}
