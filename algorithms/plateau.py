"""The steps at which a learning rate falls because a validation loss has stopped falling (ERM++)."""

import torch
from torch import nn

TOLERANCE, PATIENCE, FALLS = 1e-4, 1, 3
"""The smallest relative drop that counts, the failures in a row that are tolerated, and the number of
falls."""


class Plateau(nn.Module):
    """Falls of the learning rate as in torch's `ReduceLROnPlateau`, with the state in buffers."""

    least: torch.Tensor
    worse: torch.Tensor
    at: torch.Tensor

    def __init__(self, never: int) -> None:
        """`never` is a step past the run's last, which marks falls still to come."""
        super().__init__()
        self.never = never
        self.register_buffer("least", torch.tensor(torch.inf, dtype=torch.float64))
        self.register_buffer("worse", torch.tensor(0))
        self.register_buffer("at", torch.full((FALLS,), never))
        self._recall()
        self.register_load_state_dict_post_hook(type(self)._recall)  # type: ignore[no-untyped-call]

    def _recall(self, *_: object) -> None:
        """Read the falls from the device once, not at every step."""
        self._at: list[int] = self.at.tolist()

    def falls(self, step: int) -> int:
        """The number of falls up to a step."""
        return sum(step >= fall for fall in self._at)

    def validated(self, loss: float, step: int) -> None:
        """Record the loss after `step` updates, which may add a fall."""
        fallen = self.falls(self.never - 1)
        if fallen == FALLS:
            return
        if loss < float(self.least) * (1 - TOLERANCE):
            self.least.fill_(loss)
            self.worse.zero_()
            return
        self.worse += 1
        if self.worse > PATIENCE:
            self.worse.zero_()
            self.at[fallen] = step
            self._recall()
