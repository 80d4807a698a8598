import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from oodbench.data import coinrun
from oodbench.data.coinrun import (
    FIRST_UNSEEN,
    TRAINING,
    UNSEEN,
    Episode,
    Settings,
    Shard,
    make,
    make_shard,
    shards,
)
from oodbench.data.made import read_manifest
from oodbench.datasets import make as dataset
from oodbench.identity import md5

pytestmark = pytest.mark.nightly

SETTINGS = Settings(levels=3, states=10, test_levels=4, expert="planner")
FLAGS = ["--set", "levels=3", "--set", "states=10", "--set", "test_levels=4"]


def test_a_set(coinrun_dir: Path) -> None:
    folder = coinrun_dir / "CoinRun"
    manifest = read_manifest(folder, Settings)
    assert manifest.settings == SETTINGS
    assert len(manifest.checksums) == 2 * (3 + 4)
    for file, checksum in manifest.checksums.items():
        assert md5(folder / file) == checksum
    seen = set()
    for shard in shards(SETTINGS):
        images, actions = (np.load(folder / file) for file in shard.files)
        count = 10 if shard.part == TRAINING else 1
        assert images.shape == (count, 64, 64, 3) and images.dtype == np.uint8
        assert actions.shape == (count, 15) and actions.dtype == np.float32
        np.testing.assert_allclose(actions.sum(1), 1, rtol=1e-6)
        assert images.std() > 10
        seen.add(images[0].tobytes())
    assert len(seen) == 7
    options = {"levels": 3, "states": 10, "test_levels": 4}
    dataset("CoinRun", options, coinrun_dir).check()


def test_what_was_killed_goes_on_to_the_same_set(coinrun_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "CoinRun"
    command = [sys.executable, "-m", "oodbench.data", "make", "CoinRun", *FLAGS]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([*command, "--data-dir", str(tmp_path)], env=environment)
    until = time.monotonic() + 120
    while len(list(target.glob("*/*.actions.npy"))) < 2:
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not read_manifest(target, Settings).checksums
    whole = [
        shard
        for shard in shards(SETTINGS)
        if all((target / file).is_file() for file in shard.files)
    ]
    times = {file: (target / file).stat().st_mtime_ns for s in whole for file in s.files}
    assert 2 <= len(whole) < 7
    for shard in shards(SETTINGS):  # all but one level of what is missing, by another process
        if not all((target / file).is_file() for file in shard.files) and shard.number:
            for file in shard.files:
                (target / file).parent.mkdir(exist_ok=True)
                shutil.copy(coinrun_dir / "CoinRun" / file, target / file)
    make(tmp_path, SETTINGS, 1)
    assert read_manifest(target, Settings) == read_manifest(coinrun_dir / "CoinRun", Settings)
    assert times == {file: (target / file).stat().st_mtime_ns for file in times}


class Pacifist:
    """Wins no level below 10, and shows of the others which they are."""

    def __init__(self, level: int) -> None:
        self.level = level

    def episode(self, random: np.random.Generator) -> Episode:
        """Three states."""
        for i in range(3 * (self.level >= 10)):
            image = np.full((64, 64, 3), self.level % 256, np.uint8)
            yield image, np.eye(15, dtype=np.float32)[i]

    def close(self) -> None:
        """Nothing."""


def test_a_level_without_a_way_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coinrun, "Planner", Pacifist)
    settings = Settings(levels=4, states=3, test_levels=2, expert="planner")
    for shard, level in [(Shard(TRAINING, 3), 11), (Shard(UNSEEN, 1), FIRST_UNSEEN + 1)]:
        make_shard(shard, tmp_path, settings)
        images, actions = (np.load(tmp_path / file) for file in shard.files)
        assert (images == level % 256).all()
        assert len(images) == (3 if shard.part == TRAINING else 1)
        assert len(np.unique(actions, axis=0)) == len(actions)  # without replacement
