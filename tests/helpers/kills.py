"""Runs that are killed, with checkpoints as often as a test asks for."""

import math

import pytest

from oodbench.train import loop


class Killed(BaseException):
    """Ends a run as a kill would: nothing is cleaned up."""


def checkpoint_every(steps: int, patch: pytest.MonkeyPatch) -> None:
    """Let runs write a checkpoint at every multiple of so many steps, and at every evaluation."""
    for name in ("CHECKPOINT_SECONDS", "EVALUATION_CHECKPOINT_SECONDS"):
        patch.setattr(loop, name, -1.0)
    patch.setattr(loop, "CHECKPOINT_SHARE", math.inf)
    patch.setattr(loop, "CHECK_EVERY", steps)
