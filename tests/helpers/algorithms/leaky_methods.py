"""Methods that change the process that trains them: a plug-in, as a user's own would be."""

import os
import random
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from oodbench.algorithms import Algorithm, Batch, Outputs, register
from oodbench.networks.base import Network


@register("ChangesDirectory", paper="none")
class ChangesDirectory(Algorithm):
    """Goes to the root of the file system at its first step."""

    def objective(self, out: Outputs) -> Tensor:
        os.chdir("/")
        return out.risks.mean()


@register("ChangesDtype", paper="none")
class ChangesDtype(Algorithm):
    """Has tensors made in double precision once its optimizers are there."""

    def configure(self) -> dict[str, torch.optim.Optimizer]:
        torch.set_default_dtype(torch.float64)
        return super().configure()


@register("TurnsGradientsOff", paper="none")
class TurnsGradientsOff(Algorithm):
    """Has no gradients once it is built."""

    def __init__(self, network: Network, problem: Any, hparams: Any) -> None:
        super().__init__(network, problem, hparams)
        torch.set_grad_enabled(False)


@register("Deterministic", paper="none")
class Deterministic(Algorithm):
    """Asks for deterministic algorithms, another device and more threads, and then fails."""

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        torch.use_deterministic_algorithms(True)
        torch.set_num_threads(torch.get_num_threads() + 1)
        torch.set_default_device("meta")
        raise RuntimeError("it fails")


@register("GlobalNoise", paper="none")
class GlobalNoise(Algorithm):
    """Draws from the generators of Python and numpy, which nobody has seeded for it."""

    def objective(self, out: Outputs) -> Tensor:
        return out.risks.mean() * (1 + random.random() + np.random.random())

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        return super().update(batch, step)


@register("Hanging", paper="none")
class Hanging(Algorithm):
    """Waits for ever at its third step."""

    def objective(self, out: Outputs) -> Tensor:
        while out.step >= 2:
            time.sleep(0.01)
        return out.risks.mean()
