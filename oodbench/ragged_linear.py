"""A linear layer whose width does not fill whole vector registers."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

REGISTER = 8
"""Numbers in a register of 256 bits."""
ROWS, WIDTH = 256, 64
"""Below these the calls cost more than the products."""


class RaggedLinear(nn.Linear):
    """`nn.Linear` with outputs that lie column by column in memory where that is faster.

    On a CPU a product whose rows end within a register is written at half the speed of others, and
    so is the gradient with respect to its inputs; columns are as long as the batch. Values are
    equal up to round-off.
    """

    def forward(self, x: Tensor) -> Tensor:
        """x W' + b: (N, O) of (N, I), or as `nn.Linear` has it."""
        ragged = self.out_features % REGISTER and self.out_features >= WIDTH
        if ragged and x.ndim == 2 and len(x) >= ROWS and x.device.type == "cpu":
            return torch.addmm(self.bias.unsqueeze(1), self.weight, x.t()).t()
        return F.linear(x, self.weight, self.bias)
