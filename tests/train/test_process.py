"""What a method does to its process, and what the runs after it find."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.backends import cudnn

from oodbench.registry import load_plugins
from oodbench.results.directory import Directory
from oodbench.train.execute import execute
from oodbench.train.process import clean_process
from oodbench.train.settings import TrainSettings
from tests.helpers.kills import checkpoint_every, kill_at
from tests.helpers.results.sweeps import first, outcome, planned, tiny, trained

SETTINGS = TrainSettings()
load_plugins(["tests.helpers.algorithms.leaky_methods"])


@pytest.mark.parametrize("method", ["ChangesDirectory", "ChangesDtype", "TurnsGradientsOff"])
def test_what_a_method_leaves_behind_touches_no_later_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = tiny(algorithms=[method, "ERM"], trials=1)
    results = trained(Path("out"), plan)
    ((erm, alone),) = outcome(
        trained(tmp_path / "alone", tiny(algorithms=["ERM"], trials=1))
    ).items()
    assert outcome(Directory(tmp_path / results.path))[erm] == alone


def test_what_a_failing_method_leaves_behind_is_put_back(tmp_path: Path) -> None:
    spec = first(algorithms=["Deterministic"])
    threads = torch.get_num_threads()
    assert execute(spec, Directory(tmp_path).run(spec.id), SETTINGS)[0] == "failed"
    assert torch.get_num_threads() == threads
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.empty(1).device.type == "cpu"


def test_runs_do_not_depend_on_how_the_process_is_set(tmp_path: Path) -> None:
    plan = tiny(trials=1)
    found = []
    for name, dtype in (("a", torch.float32), ("b", torch.float64)):
        torch.set_default_dtype(dtype)
        try:
            with torch.set_grad_enabled(dtype is torch.float32):
                found.append(outcome(trained(tmp_path / name, plan)))
                assert torch.is_grad_enabled() == (dtype is torch.float32)
            assert torch.get_default_dtype() is dtype
        finally:
            torch.set_default_dtype(torch.float32)
    assert found[0] == found[1]


def test_a_method_that_draws_from_the_process_generators_is_repeatable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = first(algorithms=["GlobalNoise"])
    records = []
    for name in ("a", "b", "killed"):
        random.seed(name)
        np.random.seed(len(name))
        directory = planned(tmp_path / name, tiny(algorithms=["GlobalNoise"])).run(spec.id)
        if name == "killed":
            checkpoint_every(15, monkeypatch)
            kill_at(15, spec, directory)
            assert directory.checkpoint.exists()
        assert execute(spec, directory, SETTINGS) == ("done", "")
        records.append([r["train"] for r in directory.records()])
    assert records[0] == records[1] == records[2]


def test_convolutions_of_runs_have_torchs_default_precision() -> None:
    before = cudnn.allow_tf32
    cudnn.allow_tf32 = False
    try:
        with clean_process(1):
            assert cudnn.allow_tf32
        assert not cudnn.allow_tf32
    finally:
        cudnn.allow_tf32 = before
