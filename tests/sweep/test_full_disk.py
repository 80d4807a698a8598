"""A disk without room, for real: a small file system in memory, where we may mount one."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from oodbench.errors import UserError
from oodbench.results.directory import Results
from oodbench.results.run_spec import State
from oodbench.sweep.file import read_sweep
from oodbench.sweep.launch import LaunchOptions, is_complete, launch
from tests.helpers.sweeps import outcome, tiny_file

CHANGES = {
    "datasets": [{"name": "Spirals", "num_examples": 160}],
    "algorithms": ["ERM"],
    "network": {"name": "MLP", "hparams": {"width": 200}},
    "steps": 20,
    "evaluate_every": 5,
}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mount = shutil.which("mount")
    command = [mount or "mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(folder)]
    if mount is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["debug", "local"])
def test_a_full_disk_stops_the_sweep_and_with_room_it_goes_on(
    launcher: str, small_disk: Path, tmp_path: Path
) -> None:
    sweep = read_sweep(tiny_file(tmp_path, **CHANGES))
    options = LaunchOptions(out=small_disk / "out", launcher=launcher, workers=1)
    with pytest.raises(UserError, match=r"No space left on device; .* the same launch goes on"):
        launch(sweep, options)
    results = Results(small_disk / "out")
    assert State.FAILED not in {results.run(i).state() for i in results.plan()["runs"]}
    subprocess.run(["mount", "-o", "remount,size=60m", str(small_disk)], check=True)
    assert is_complete(launch(sweep, options))
    whole = LaunchOptions(out=tmp_path / "whole", launcher="debug")
    assert is_complete(launch(sweep, whole))
    assert outcome(results) == outcome(Results(tmp_path / "whole"))
