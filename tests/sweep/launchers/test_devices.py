from dataclasses import replace
from pathlib import Path

import pytest
import torch

from oodbench.errors import UserError
from oodbench.sweep.launchers import Job
from oodbench.sweep.launchers.devices import (
    available_devices,
    check_memory,
    check_room,
    gpus_of,
    largest,
    placed,
)
from tests.helpers.sweeps import job, tiny

GB = 2**30


def twelve(out: Path, **options: object) -> Job:
    """A job of twelve runs of two methods."""
    plan = tiny(hparam_draws=2, trials=3, steps=10)
    return job(plan, out, **{"workers": None, "devices": "auto", **options})  # type: ignore[arg-type]


def test_devices_are_checked() -> None:
    assert available_devices("cpu") == ("cpu",)
    with pytest.raises(UserError, match="no device 'cuda:99'"):
        available_devices("cuda:99")


def test_gpus_have_the_names_that_the_process_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpus_of(("cuda:0", "cuda:2")) == ("0", "2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, GPU-8c1d,7")
    assert gpus_of(("cuda:0", "cuda:1")) == ("5", "GPU-8c1d")
    assert gpus_of(("cpu",)) == () and gpus_of(("cuda:0", "cpu")) == ()


def test_several_runs_share_a_gpu_and_see_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    shared = placed(twelve(tmp_path), 3)
    assert (shared.workers, shared.gpus) == (6, ("4", "6"))
    settings = shared.settings_of(5)
    assert (settings.device, settings.device_share) == ("cuda:0", 1 / 3)
    assert placed(twelve(tmp_path, workers=4), 3).workers == 4
    assert placed(twelve(tmp_path), 1).workers == 2


def test_what_does_not_fit_is_one_sentence_with_what_does() -> None:
    needs = {"ERM on Photos": 2 * GB, "ANDMask on Photos": 6 * GB}
    check_room(24 * GB, needs, 4)
    message = "4 runs a GPU do not fit: one of ANDMask on Photos takes 6.0 GB, and 20.0 GB are free"
    with pytest.raises(UserError, match=message + "; runs_per_gpu=3 fits"):
        check_room(20 * GB, needs, 4)
    with pytest.raises(UserError, match="not even one run fits"):
        check_room(5 * GB, needs, 2)


def test_the_run_of_a_row_with_the_largest_batches_is_measured(tmp_path: Path) -> None:
    specs = [
        replace(spec, hparams={**spec.hparams, "batch_size": size})
        for size, spec in enumerate(twelve(tmp_path).specs.values(), 1)
    ]
    sizes = {spec.label: spec.hparams["batch_size"] for spec in largest(specs)}
    assert sizes == {
        label: max(s.hparams["batch_size"] for s in specs if s.label == label)
        for label in ("ERM", "IRM")
    }
    whole = replace(specs[0], hparams={**specs[0].hparams, "batch_size": 0})
    assert whole in largest([*specs, whole])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_a_gpu_that_many_small_runs_share_is_measured(tmp_path: Path) -> None:
    shared = placed(twelve(tmp_path), 2)
    check_memory(shared)
    with pytest.raises(UserError, match="runs a GPU do not fit"):
        check_memory(replace(shared, workers=10_000, ids=shared.ids * 10_000))
