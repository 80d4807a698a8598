"""Averages over the draws of a sweep, whose weights were kept, as rows of the same sweep."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from oodbench.results.directory import Directory
from oodbench.results.read import read_results
from oodbench.results.run_directory import kept_weights
from oodbench.results.run_spec import State
from oodbench.selection.judge import choose
from oodbench.sweep.file import read_sweep
from oodbench.sweep.launch import LaunchOptions, launch
from oodbench.train.diwa import Member, greedy_choice, mean_weights
from oodbench.train.run import Run
from oodbench.train.settings import TrainSettings
from tests.helpers.commands import type_in
from tests.helpers.results.sweeps import DIGITS, first, tiny_file

pytestmark = pytest.mark.slow

CHANGES: dict[str, Any] = {
    "datasets": [DIGITS], "algorithms": ["ERM", "DANN"], "hparam_draws": 3, "steps": 40,
    "network": {"name": "MLP", "hparams": {"width": 8}},
}  # fmt: skip


def launched(folder: Path, keep: bool = True, **changes: Any) -> Directory:
    sweep = read_sweep(tiny_file(folder, **(CHANGES | changes)))
    rules = ("train_val",) if keep else ()
    options = LaunchOptions(out=folder / "out", launcher="debug", devices="cpu", keep_weights=rules)
    assert set(launch(sweep, options)) == {State.DONE}
    return Directory(folder / "out")


def average(results: Directory, *arguments: str, code: int = 0) -> str:
    return type_in("train", "average", results.path, *arguments, code=code).output


@pytest.mark.nightly
def test_the_uniform_average_is_scored_as_the_mean_of_the_kept_weights(tmp_path: Path) -> None:
    results = launched(tmp_path)
    before = results.specs()
    assert "4 averages" in average(results, "--members", "uniform")
    made = {i: s for i, s in results.specs().items() if i not in before}
    assert {s.label for s in made.values()} == {"ERM + DiWA", "DANN + DiWA"}
    for run_id, spec in made.items():
        of = spec.label.partition(" + ")[0]
        own = [i for i, s in before.items() if (s.label, s.trial) == (of, spec.trial)]
        assert spec.average is not None and spec.average["runs"] == own and len(own) == 3
        paths = [next(iter(kept_weights(results.run(i)).values())) for i in own]
        members = [load_file(path) for path in paths]
        run = Run(before[own[0]], TrainSettings())
        state = run.algorithm.state_dict()
        for name in state:
            if name.startswith("network."):
                state[name] = sum(m[name] for m in members) / 3
        run.algorithm.load_state_dict(state)
        (record,) = results.run(run_id).records()
        for mine, theirs in zip(record["evaluations"], run.evaluate(), strict=True):
            assert mine["value"] == pytest.approx(theirs.value, rel=1e-5)
        ((rule, step),) = kept_weights(results.run(run_id))
        assert (rule, step) == ("train_val", spec.steps)
    frames = read_results(results)
    table = choose(frames, "train_val")
    assert {"ERM", "ERM + DiWA", "DANN", "DANN + DiWA"} == set(table["label"])


def test_the_same_command_again_makes_what_is_new(tmp_path: Path) -> None:
    results = launched(tmp_path, algorithms=["ERM"], trials=1)
    average(results, "--members", "uniform")
    once = results.specs()
    (made,) = (i for i, s in once.items() if s.average)
    written = (results.run(made).path / "metrics.jsonl").stat().st_mtime_ns
    average(results, "--members", "uniform")
    assert results.specs() == once
    assert (results.run(made).path / "metrics.jsonl").stat().st_mtime_ns == written
    launched(tmp_path, algorithms=["ERM"], trials=1)
    assert results.specs() == once  # a launch leaves the row
    launched(tmp_path, algorithms=["ERM"], trials=1, hparam_draws=4)
    average(results, "--members", "uniform")
    (new,) = (i for i, s in results.specs().items() if s.average)
    assert new != made and len(results.specs()) == 5


def test_only_runs_that_began_at_the_same_weights_are_averaged(tmp_path: Path) -> None:
    network = {"name": "MLP", "hparams": {"width": [8, 16, 8]}}
    results = launched(tmp_path, algorithms=["ERM"], trials=1, network=network)
    told = average(results, "--members", "uniform")
    assert "1 of 3 runs began at other weights and are left out" in told
    (spec,) = (s for s in results.specs().values() if s.average)
    assert spec.average is not None and len(spec.average["runs"]) == 2
    assert spec.network_hparams["width"] == 8


@pytest.mark.nightly
def test_a_row_whose_runs_all_began_elsewhere_has_no_average_and_is_told(tmp_path: Path) -> None:
    widths = {"name": "MLP", "hparams": {"width": [9, 16]}}
    other = DIGITS | {"label": "other", "training": {"network": widths}}
    keys: dict[str, Any] = {"algorithms": ["ERM"], "trials": 1, "hparam_draws": 2}
    results = launched(tmp_path, datasets=[DIGITS, other], **keys)
    told = average(results, "--members", "uniform")
    words = "no two of 2 runs began at the same weights, and there is no average"
    assert f"ERM on other, trial 0: {words} (they differ in `width` of the network)" in told
    assert "1 averages" in told
    (tmp_path / "alone").mkdir()
    alone = launched(tmp_path / "alone", datasets=[DIGITS], network=widths, **keys)
    told = average(alone, "--members", "uniform", code=2)
    assert f"ERM on ColoredDigits(copies=1), trial 0: {words}" in told
    assert "nothing can be averaged: give the network" in told and "--keep-weights" not in told
    assert len(alone.specs()) == 2


def test_the_greedy_choice_takes_what_does_not_make_the_mean_worse(tmp_path: Path) -> None:
    made: dict[str, Any] = {"directory": None, "weights": tmp_path, "step": 1}
    members = [Member(spec=replace(first(), draw=draw), **made) for draw in range(4)]
    own = {0: 0.4, 1: 0.1, 2: 0.3, 3: 0.2}
    cost_of_sets = {(1,): 0.1, (1, 3): 0.2, (1, 2): 0.1, (1, 2, 0): 0.05}
    found = greedy_choice(
        members,
        lambda m: own[m.spec.draw],
        lambda some: cost_of_sets[tuple(m.spec.draw for m in some)],
    )
    assert [m.spec.draw for m in found] == [1, 2, 0]
    alone = greedy_choice(members, lambda m: own[m.spec.draw], lambda some: math.inf)
    assert [m.spec.draw for m in alone] == [1, 3, 2, 0]


def test_the_greedy_average_is_no_worse_on_validation_than_the_best_run(tmp_path: Path) -> None:
    results = launched(tmp_path, algorithms=["ERM"])
    average(results)
    table = choose(read_results(results), "train_val").set_index(["label", "trial"])["score"]
    for trial in (0, 1):
        assert table["ERM + DiWA greedy", trial] >= table["ERM", trial] - 1e-9


def test_parts_of_other_shapes_and_counts_are_the_first_ones() -> None:
    one = {"a": torch.tensor([1.0, 3.0]), "b": torch.zeros(2), "n": torch.tensor(4)}
    other = {"a": torch.tensor([3.0, 5.0]), "b": torch.ones(3), "n": torch.tensor(9)}
    mean = mean_weights([one, other])
    assert torch.equal(mean["a"], torch.tensor([2.0, 4.0]))
    assert torch.equal(mean["b"], one["b"]) and mean["n"] == 4
