"""A launch in two passes, each of which does its work once."""

from collections import Counter
from pathlib import Path

import pytest

from oodbench.registry import Registry
from oodbench.results.directory import RunDirectory
from oodbench.results.run_spec import State
from oodbench.sweep.file import read_sweep, validate
from oodbench.sweep.launch import LaunchOptions, launch
from oodbench.sweep.plan import expand
from oodbench.sweep.resolve import resolve
from tests.helpers.sweeps import TINY, tiny_file


def test_every_name_is_looked_up_once_and_none_when_runs_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: Counter[tuple[str, str]] = Counter()
    find = Registry.find

    def counted(registry: Registry[type], name: str) -> type | None:
        asked[registry.noun, name] += registry.noun != "launcher"
        return find(registry, name)

    monkeypatch.setattr(Registry, "find", counted)
    rows = ["ERM", {"name": "IRM", "hparams": {"lr": 0.1}}]
    resolved = resolve(validate(TINY | {"algorithms": rows, "hparam_draws": 3}, "tiny"))
    kinds = ("algorithm", "algorithm", "dataset", "network", "metric")
    assert +asked == Counter(zip(kinds, ("ERM", "IRM", "LinearSEM", "Linear", "mse"), strict=True))
    asked.clear()
    plan = expand(resolved)
    assert not asked and len(plan.runs) == 12
    assert expand(resolved) == plan


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
    assert set(read.values()) <= {1}
