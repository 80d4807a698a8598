from dataclasses import replace
from pathlib import Path

import pytest
import torch

from oodbench.errors import UserError
from oodbench.results.directory import Results
from oodbench.sweep.file import validate
from oodbench.sweep.launch import LaunchOptions, _placed
from oodbench.sweep.launchers.device_memory import check_memory, check_room, largest
from oodbench.sweep.launchers.job import Job
from oodbench.sweep.launchers.slurm_resources import Resources
from oodbench.sweep.plan import make_plan
from oodbench.train.settings import TrainSettings

GB = 2**30


def job(tmp_path: Path, **resources: int) -> Job:
    """A job of twelve runs of two methods."""
    values = {
        "name": "t", "datasets": ["LinearSEM"], "algorithms": ["ERM", "IRM"], "hparam_draws": 2,
        "trials": 3, "steps": 10,
    }  # fmt: skip
    specs = make_plan(validate(values, "t")).runs
    return Job(
        name="t",
        results=Results(tmp_path),
        specs=specs,
        ids=tuple(specs),
        settings=TrainSettings(),
        resources=Resources.model_validate(resources),
    )


def test_several_runs_share_a_gpu_and_see_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    placed = _placed(job(tmp_path, runs_per_gpu=3), LaunchOptions())
    assert (placed.workers, placed.gpus) == (6, ("4", "6"))
    assert [placed.gpus[i % 2] for i in range(3)] == ["4", "6", "4"]
    settings = placed.settings_of(5)
    assert (settings.device, settings.device_share) == ("cuda:0", 1 / 3)
    assert _placed(job(tmp_path, runs_per_gpu=3), LaunchOptions(workers=4)).workers == 4
    assert _placed(job(tmp_path), LaunchOptions()).workers == 2
    alone = _placed(job(tmp_path), LaunchOptions(launcher="debug"))
    assert alone.devices == ("cuda:0", "cuda:1") and not alone.gpus


def test_what_does_not_fit_is_one_sentence_with_what_does() -> None:
    needs = {"ERM on Photos": 2 * GB, "ANDMask on Photos": 6 * GB}
    check_room("0", 24 * GB, needs, 4)
    message = "4 runs a GPU do not fit: one of ANDMask on Photos takes 6.0 GB, and 20.0 GB are free"
    with pytest.raises(UserError, match=message + " on GPU 0; `--runs-per-gpu 3` fits"):
        check_room("0", 20 * GB, needs, 4)
    with pytest.raises(UserError, match="not even one run fits"):
        check_room("0", 5 * GB, needs, 2)


def test_the_run_of_a_row_with_the_largest_batches_is_measured(tmp_path: Path) -> None:
    specs = list(job(tmp_path).specs.values())
    sizes = iter(range(1, 100))
    specs = [replace(s, hparams={**s.hparams, "batch_size": next(sizes)}) for s in specs]
    chosen = largest(specs)
    assert {s.label for s in chosen} == {"ERM", "IRM"} and len(chosen) == 2
    most = {
        label: max(s.hparams["batch_size"] for s in specs if s.label == label)
        for label in ("ERM", "IRM")
    }
    assert all(s.hparams["batch_size"] == most[s.label] for s in chosen)
    whole = replace(specs[0], hparams={**specs[0].hparams, "batch_size": 0})
    assert whole in largest([*specs, whole])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_a_gpu_that_many_small_runs_share_is_measured(tmp_path: Path) -> None:
    placed = _placed(job(tmp_path, runs_per_gpu=2), LaunchOptions())
    check_memory(placed)
    with pytest.raises(UserError, match="runs a GPU do not fit"):
        many = 10_000
        check_memory(replace(placed, workers=many, ids=placed.ids * many))
