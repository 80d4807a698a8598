"""A launch in two passes, each of which does its work once."""

from collections import Counter
from pathlib import Path

import pytest

from oodbench.results.directory import RunDirectory
from oodbench.results.run_spec import State
from oodbench.sweep.file import read_sweep
from oodbench.sweep.launch import LaunchOptions, launch
from tests.helpers.sweeps import tiny_file


@pytest.mark.slow
def test_a_relaunch_of_an_ended_sweep_reads_the_state_of_each_run_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = read_sweep(tiny_file(tmp_path, steps=4, evaluate_every=2))
    options = LaunchOptions(out=tmp_path / "out", launcher="debug")
    launch(sweep, options)
    read: Counter[str] = Counter()
    from_disk = RunDirectory.state_and_reason

    def counted(run: RunDirectory) -> tuple[State, str]:
        read[run.id] += 1
        return from_disk(run)

    monkeypatch.setattr(RunDirectory, "state_and_reason", counted)
    assert launch(sweep, options) == {State.DONE: 4}
    assert len(read) == 4 and set(read.values()) == {1}
