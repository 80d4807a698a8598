"""What a mask keeps of each layer of a network."""

import torch
from torch import Tensor, nn


class Layers:
    """The L modules of a network that have trained parameters of their own, P in all."""

    def __init__(self, network: nn.Module) -> None:
        trained: list[tuple[str, Tensor]] = [
            (name.rpartition(".")[0] or "network", p)
            for name, p in network.named_parameters()
            if p.requires_grad
        ]
        self.names = list(dict.fromkeys(name for name, _ in trained))
        owned = torch.tensor([[own == name for own, _ in trained] for name in self.names])
        self._owned = owned.to(trained[0][1])
        """Which parameters are whose, (L, P) zeros and ones."""
        self._sizes = self._owned @ self._owned.new_tensor([p.numel() for _, p in trained])
        """How many components each layer has, (L,)."""

    def kept_and_norms(self, weights: Tensor, kept: Tensor) -> dict[str, Tensor]:
        """`kept LAYER`, the fraction of a layer's components that an update kept, and `weight norm LAYER`.

        From each parameter's squared norm before the update and how many of its components were
        kept, (P,) each.
        """
        found: dict[str, Tensor] = {}
        for what, values in (
            ("kept", self._owned @ kept / self._sizes),
            ("weight norm", (self._owned @ weights).sqrt()),
        ):
            found |= zip((f"{what} {name}" for name in self.names), values.unbind(), strict=True)
        return found
