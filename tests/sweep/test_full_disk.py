"""A disk without room, for real: a small file system in memory, where we may mount one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from oodbench.errors import UserError
from oodbench.results.directory import Results
from oodbench.results.run_spec import State
from oodbench.sweep.file import read_sweep
from oodbench.sweep.launch import LaunchOptions, is_complete, launch
from tests.helpers.disks import mounted, remount
from tests.helpers.sweeps import outcome, tiny_file

CHANGES = {
    "datasets": [{"name": "Spirals", "num_examples": 160}],
    "algorithms": ["ERM"],
    "network": {"name": "MLP", "hparams": {"width": 200}},
    "steps": 20,
    "evaluate_every": 5,
    "keep_checkpoints": True,  # they fill the disk
}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    try:
        with mounted(tmp_path / "small", "size=600k") as folder:
            yield folder
    except UserError as error:
        pytest.skip(str(error))


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
    remount(small_disk, "size=60m")
    assert is_complete(launch(sweep, options))
    whole = LaunchOptions(out=tmp_path / "whole", launcher="debug")
    assert is_complete(launch(sweep, whole))
    assert outcome(results) == outcome(Results(tmp_path / "whole"))
