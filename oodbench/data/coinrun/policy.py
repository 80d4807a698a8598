"""An expert that is the user's own policy: a TorchScript file that maps images to actions."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from oodbench.data.coinrun.planner import Episode
from oodbench.data.coinrun.simulator import ACTIONS, IMAGE, LONGEST, Simulator
from oodbench.errors import UserError

CONTRACT = f"uint8 images (1, {', '.join(map(str, IMAGE))}) to logits (1, {ACTIONS})"


class Policy:
    """The user's policy on one level: it acts in every frame by drawing from its distribution."""

    def __init__(self, level: int, program: Any) -> None:
        """`program` is what `load` returns."""
        self.simulator = Simulator(level, 1)
        self._start = self.simulator.states()
        self._program = program

    def close(self) -> None:
        """Free the game's memory."""
        self.simulator.close()

    def episode(self, random: np.random.Generator) -> Episode:
        """The images (64, 64, 3) and distributions (15,) of one game, which the policy plays."""
        self.simulator.put(self._start)
        for _ in range(LONGEST):
            images = self.simulator.images()
            distribution = distributions(self._program, torch.from_numpy(images))[0]
            yield images[0], distribution.float().numpy()
            action = random.choice(ACTIONS, p=distribution.numpy())
            if self.simulator.step(np.array([action]))[1].any():
                return


def load(file: Path) -> Any:
    """The program in a TorchScript file; no Python in it is run.

    Raises UserError for a file that is none, or whose program does not map as `CONTRACT` says.
    """
    if not file.is_file():
        raise UserError(f"there is no policy file {file} (and `planner` is the expert of our own)")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", FutureWarning
            )  # exported programs are pickles: not safe
            program = torch.jit.load(file, map_location="cpu").eval()  # type: ignore[no-untyped-call]
    except (RuntimeError, ValueError) as error:
        raise UserError(f"{file} is not a policy: TorchScript cannot read it") from error
    distributions(program, torch.zeros(1, *IMAGE, dtype=torch.uint8), str(file))
    return program


@torch.no_grad()
def distributions(program: Any, images: torch.Tensor, name: str = "the policy") -> torch.Tensor:
    """What a policy does at each image: (n, 15) probabilities in float64; raises UserError."""
    try:
        logits = program(images)
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1]
        raise UserError(f"{name} does not map {CONTRACT}: {reason}") from error
    if not isinstance(logits, torch.Tensor) or logits.shape != (len(images), ACTIONS):
        found = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
        raise UserError(f"{name} does not map {CONTRACT}: it gives {found}")
    if not logits.isfinite().all():
        raise UserError(f"{name} gives logits that are not finite")
    return logits.double().softmax(-1)
