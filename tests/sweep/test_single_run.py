"""One run from Python."""

import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

import oodbench
from oodbench.errors import UserError
from oodbench.results.directory import Directory
from oodbench.train.execute import execute
from oodbench.train.settings import TrainSettings
from tests.helpers.results.sweeps import ODD_METHODS, tiny

DATA = {"name": "LinearSEM", "num_examples": 40}
KEYS: dict[str, Any] = {"steps": 20, "evaluate_every": 10}


def test_it_is_the_run_of_a_sweep_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = tiny(algorithms=["IRM"], trials=[1], **KEYS)
    results = Directory(tmp_path / "sweep")
    results.write_plan("tiny", {}, plan.rows)
    for spec in plan.runs.values():
        execute(spec, results.run(spec.id), TrainSettings())
    theirs = oodbench.load(results.path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    torch.manual_seed(1)
    before = torch.get_rng_state(), random.getstate(), torch.get_num_threads()
    ours = oodbench.run(DATA, "IRM", trial=1, **KEYS)
    assert torch.get_rng_state().equal(before[0])
    assert (random.getstate(), torch.get_num_threads()) == before[1:]
    seconds = ["training_seconds", "waiting_seconds"]
    assert ours.drop(columns=seconds).equals(theirs.drop(columns=seconds))
    assert not list((tmp_path / "scratch").iterdir())


def test_a_directory_keeps_the_run_and_its_weights(tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = oodbench.run(DATA, out=out, keep_weights=["last"], **KEYS)
    (run_id,) = first["id"].unique()
    end = (out / "runs" / run_id / "done.json").stat().st_mtime_ns
    assert oodbench.run(DATA, out=out, keep_weights=["last"], **KEYS).equals(first)
    assert (out / "runs" / run_id / "done.json").stat().st_mtime_ns == end
    assert oodbench.load_model(out, rule="last").step == 20
    oodbench.run(DATA, out=out, trial=5, **KEYS)
    assert sorted(oodbench.load(out)["trial"].unique()) == [0, 5]
    with pytest.raises(UserError, match="with steps 20, not 30; use another directory"):
        oodbench.run(DATA, out=out, **KEYS | {"steps": 30})


@pytest.mark.parametrize(
    ("arguments", "keys", "words"),
    [
        (("LinearSEM",), {"hparam_draws": 2}, "trains one run, and these keys make 2"),
        (("LinearSEM",), {"keep_weights": ["val_env"], "out": "x"}, "cannot be kept by val_env"),
        (("LinearSEM", "CutMix"), {}, "oodbench.run: "),
        (("LinearSEM",), {"keep_weights": ["last"]}, "a results directory, which `out` names"),
        (("LinearSEM",), {"precision": "tf32"}, "precision tf32 needs a CUDA device"),
    ],
)
def test_mistakes_are_told(arguments: tuple[Any, ...], keys: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        oodbench.run(*arguments, **keys)


def test_a_run_that_fails_raises_with_its_traceback() -> None:
    with pytest.raises(RuntimeError, match=r"the run is failed: (?s:.*)Traceback"):
        oodbench.run(DATA, "Raising", plugins=[ODD_METHODS], **KEYS)
