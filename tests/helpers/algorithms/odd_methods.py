"""Methods that go wrong, for the tests of launchers: a plug-in, as a user's own would be."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from oodbench.algorithms import Algorithm, Batch, Outputs, register
from oodbench.hparams import hparam, uniform


def first_time() -> bool:
    """Whether the file that LEAVING_FILE names is not there yet; it is now."""
    file = Path(os.environ["LEAVING_FILE"])
    is_first = not file.exists()
    file.touch()
    return is_first


@register("Raising", paper="none")
class Raising(Algorithm):
    """Raises at its third step."""

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        if step == 2:
            raise RuntimeError("the third step is one too many")
        return super().update(batch, step)


@register("Dying", paper="none")
class Dying(Algorithm):
    """Its process is killed at its third step."""

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        if step == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().update(batch, step)


@register("Moving", paper="none")
class Moving(Algorithm):
    """Moves what MOVED names at its third step."""

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        there = Path(os.environ["MOVED"])
        if step == 2 and there.exists():
            there.rename(f"{there}.moved")
        return super().update(batch, step)


@register("RaisingOnce", paper="none")
class RaisingOnce(Algorithm):
    """Raises at its fourth step, the first time."""

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        if step == 3 and first_time():
            raise OSError("the network is away")
        return super().update(batch, step)


@register("Leaving", paper="none")
class Leaving(Algorithm):
    """Its process is asked to end at its third step, the first time."""

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        if step == 2 and first_time():
            os.kill(os.getpid(), signal.SIGTERM)
        return super().update(batch, step)


@register("Exploding", paper="none")
class Exploding(Algorithm):
    """Its loss is infinite from its 70th step on."""

    def objective(self, out: Outputs) -> Tensor:
        return out.risks.mean() / (out.step < 70 or float("nan"))


@register("Slow", paper="none")
class Slow(Algorithm):
    """Sleeps $SLOW_SECONDS at every step; its numbers do not depend on it."""

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        time.sleep(float(os.environ.get("SLOW_SECONDS", "0")))
        return super().update(batch, step)


@register("Branching", paper="none")
class Branching(Algorithm):
    """Branches in Python on a number that is drawn."""

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """One number."""

        threshold: float = hparam(0.5, uniform(0.0, 1.0))

    def objective(self, out: Outputs) -> Tensor:
        return out.risks.mean() if self.hparams.threshold > 0 else out.risks.max()


@register("DyingOnce", paper="none")
class DyingOnce(Algorithm):
    """Its process is killed at its fourth step, the first time."""

    def objective(self, out: Outputs) -> Tensor:
        if out.step == 3 and first_time():
            os.kill(os.getpid(), signal.SIGKILL)
        return out.risks.mean()
