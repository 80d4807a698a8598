"""Runs that are killed, with checkpoints as often as a test asks for."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from oodbench.results.run_directory import RunDirectory
from oodbench.results.run_spec import RunSpec
from oodbench.train import loop
from oodbench.train.execute import execute
from oodbench.train.settings import TrainSettings
from tests.helpers.results.sweeps import records_of


class Killed(BaseException):
    """Ends a run as a kill would: nothing is cleaned up."""


def checkpoint_every(steps: int, patch: pytest.MonkeyPatch) -> None:
    """Let runs write a checkpoint at every multiple of so many steps, and at every evaluation."""
    for name in ("CHECKPOINT_SECONDS", "EVALUATION_CHECKPOINT_SECONDS"):
        patch.setattr(loop, name, -1.0)
    patch.setattr(loop, "CHECKPOINT_SHARE", math.inf)
    patch.setattr(loop, "CHECK_EVERY", steps)


def killed_at(stop: int) -> Callable[[int], None]:
    """The `progress` of runs that are killed at a step."""

    def progress(step: int) -> None:
        if step >= stop:
            raise Killed

    return progress


def kill_at(stop: int, spec: RunSpec, directory: RunDirectory) -> None:
    """Train a run until it is killed at a step."""
    directory.path.mkdir(parents=True, exist_ok=True)
    with pytest.raises(Killed):
        execute(spec, directory, TrainSettings(), killed_at(stop))
    assert directory.end() is None


def killed_and_resumed(spec: RunSpec, folder: Path, stops: Sequence[int]) -> list[dict[str, Any]]:
    """The records of a run that is killed at each of these steps: those of an undisturbed run."""
    undisturbed, killed = RunDirectory(folder / "undisturbed"), RunDirectory(folder / "killed")
    for stop in stops:
        kill_at(stop, spec, killed)
    for directory in (killed, undisturbed):
        assert execute(spec, directory, TrainSettings()) == ("done", "")
    assert records_of(killed) == records_of(undisturbed)
    return records_of(killed)
