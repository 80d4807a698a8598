from pathlib import Path

import pytest
import torch

from oodbench.sweep.launchers import Job
from oodbench.sweep.launchers.local import placed
from tests.helpers.results.sweeps import job, tiny


def twelve(out: Path, **options: object) -> Job:
    given = {"workers": None, "devices": "auto", **options}
    return job(tiny(hparam_draws=2, trials=3, steps=10), out, **given)  # type: ignore[arg-type]


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
