"""Heartbeats by the clock."""

import time
from pathlib import Path

import pytest
from torch import Tensor

from oodbench.algorithms import Algorithm, Outputs, register
from oodbench.results.run_directory import RunDirectory
from oodbench.train import execute as heartbeat
from oodbench.train.execute import Heartbeats, execute
from oodbench.train.settings import TrainSettings
from tests.helpers.results.sweeps import tiny


def beats_of(directory: RunDirectory, count: int) -> list[float]:
    """The times of so many different heartbeats, as soon as they are there."""
    found: list[float] = []
    deadline = time.monotonic() + 60
    while len(found) < count and time.monotonic() < deadline:
        beat = directory.heartbeat()
        if beat is not None and beat.time not in found:
            found.append(beat.time)
        time.sleep(0.005)
    return found


def test_a_run_beats_within_a_single_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.05)
    directory = RunDirectory(tmp_path / "a")
    seen: list[float] = []

    @register("LongStep", paper="none")
    class LongStep(Algorithm):
        """Its second step ends when its run has beaten three times."""

        def objective(self, out: Outputs) -> Tensor:
            if out.step == 1 and not seen:
                seen.extend(beats_of(directory, 3))
            return out.risks.mean()

    (spec,) = tiny(algorithms=["LongStep"], trials=1).runs.values()
    assert execute(spec, directory, TrainSettings()) == ("done", "")
    assert len(seen) == 3 and directory.heartbeat() is None


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[RunDirectory]:
    """The directories of two runs, which beat often."""
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.01)
    directories = [RunDirectory(tmp_path / name) for name in ("a", "b")]
    for directory in directories:
        directory.path.mkdir()
    return directories


def test_a_run_that_has_ended_beats_no_more(two: list[RunDirectory]) -> None:
    first, second = two
    with Heartbeats() as heartbeats:
        heartbeats.start(first, lambda: 7)
        heartbeats.start(second, lambda: 8)
        assert len(beats_of(first, 2)) == 2
        heartbeats.stop(first)
        assert len(beats_of(second, 3)) == 3
        assert first.heartbeat() is None
        beat = second.heartbeat()
        assert beat is not None and beat.step == 8
