"""CoinRun's game, the planner that plays it, the sets that it makes, and runs on them."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from oodbench.datasets.coinrun import CoinRun, Planner, Shard, Simulator, make_shard, scene
from oodbench.datasets.made import read_manifest, write_manifest

from oodbench.datasets import coinrun, make
from oodbench.sweep.file import find_sweep, read_sweep
from oodbench.sweep.plan import make_plan, single
from oodbench.train.run import Run
from oodbench.train.settings import TrainSettings
from tests.helpers.results.sweeps import ended

LEVEL = 3
OPTIONS = {"levels": 3, "states": 10, "test_levels": 4}
SETTINGS = CoinRun.Options(**OPTIONS)
DATASET = {"name": "CoinRun", **OPTIONS}
NETWORK = {"name": "ConvNet", "hparams": {"width": 4, "depth": 4}}


def test_scene_follows_the_physics() -> None:
    game = Simulator(1, 1)
    before = scene(game.states()[0])
    assert (before.x, before.vx, before.vy) == (1.5, 0, 0)
    assert len(before.enemies) == 5
    speed = 0.0
    for _ in range(4):  # on the ground: vx = 0.8 vx + 0.2 * 0.5
        game.step(np.array([7]))
        speed = 0.8 * speed + 0.1
        after = scene(game.states()[0])
        assert after.vx == pytest.approx(speed, abs=1e-6)
        assert after.x == pytest.approx(before.x + speed, abs=1e-5)
        for (x, y, _), (new, same, _) in zip(before.enemies, after.enemies, strict=True):
            assert same == y and 0 < abs(new - x) <= 0.15 + 1e-5  # they walk
        before = after
    game.step(np.array([8]))
    assert scene(game.states()[0]).vy == pytest.approx(1.5)  # a jump begins with this
    game.close()


@pytest.mark.parametrize(("level", "coin", "wins"), [(3, 8, True), (1, 34, False)])
def test_winning_and_losing(level: int, coin: int, wins: bool) -> None:
    game = Simulator(level, 2)
    assert scene(game.states()[0]).coin == coin
    won, lost = game.advance(np.array([8, 4]), 120)  # one runs and jumps, one stands
    assert won.tolist() == [wins, False]
    assert lost.tolist() == [not wins, False]
    game.close()


@pytest.fixture(scope="module")
def planner() -> Iterator[Planner]:
    found = Planner(LEVEL)
    yield found
    found.close()


def least(game: Simulator, state: bytes) -> int:
    """The decisions to the coin by breadth-first search over every exact place and velocity."""
    level, seen, depth = [state], set(), 0
    while True:
        depth += 1
        following = []
        for at in level:
            game.put([at] * len(coinrun.MOVES))
            won, lost = game.advance(coinrun.MOVES, coinrun.FRAMES)
            if won.any():
                return depth
            for there, loss in zip(game.states(), lost, strict=True):
                if not loss and scene(there) not in seen:
                    seen.add(scene(there))
                    following.append(there)
        level = following


@pytest.mark.nightly
def test_costs_are_near_the_least_ones(planner: Planner) -> None:
    costs, successors = planner.costs(planner.start)
    best = least(planner.simulator, planner.start)
    assert best <= planner.cost(planner.start) <= best + 1
    for cost, successor in zip(costs[[0, 5]], np.array(successors)[[0, 5]], strict=True):
        exact = 1 + least(planner.simulator, bytes(successor))
        assert exact - 1 <= cost <= exact + 2


def test_the_best_moves_win_in_a_new_game(planner: Planner) -> None:
    game = Simulator(LEVEL, 1)
    expected = planner.cost(planner.start)
    decisions, won = 0, np.zeros(1, bool)
    while not won.any() and decisions < 20:
        decisions += 1
        costs, _ = planner.costs(game.states()[0])
        won, lost = game.advance(coinrun.MOVES[[costs.argmin()]], coinrun.FRAMES)
        assert not lost.any()
    assert won.all() and decisions <= expected + 2
    game.close()


def test_an_episode_is_a_game_played_by_its_own_distributions(planner: Planner) -> None:
    episode = list(planner.episode(np.random.default_rng(0)))
    again = list(Planner(LEVEL).episode(np.random.default_rng(0)))
    costs, _ = planner.costs(planner.start)
    weights = np.exp(-costs / coinrun.TEMPERATURE)
    expected = np.zeros(15)
    expected[coinrun.MOVES] = weights / weights.sum()
    np.testing.assert_allclose(episode[0][1], expected, rtol=1e-5)
    game = Simulator(LEVEL, 1)
    assert np.array_equal(episode[0][0], game.images()[0])
    game.close()
    for image, distribution in episode:
        assert image.shape == (64, 64, 3) and image.dtype == np.uint8
        assert distribution.sum() == pytest.approx(1) and (distribution >= 0).all()
        assert not distribution[[0, 3, 6, *range(9, 15)]].any()
    assert len(again) > 1 and np.array_equal(again[0][1], episode[0][1])


@pytest.mark.nightly
def test_a_fall_onto_enemies_is_lost() -> None:
    planner = Planner(1)
    lost = np.zeros(6, bool)
    state = planner.start
    while not lost.all():  # run on until nothing helps
        before, (_, lost, states) = state, planner._try(state)
        state = states[0]
    costs, _ = planner.costs(before)
    assert (costs == math.inf).all()
    planner.start = before
    assert not list(planner.episode(np.random.default_rng(0)))
    planner.close()


@pytest.mark.nightly
def test_what_was_killed_goes_on_to_the_same_set(coinrun_dir: Path, tmp_path: Path) -> None:
    target, dataset = tmp_path / "CoinRun", CoinRun(SETTINGS, tmp_path)
    command = [sys.executable, *dataset.command(tmp_path).split()[1:]]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(command, env=environment)
    until = time.monotonic() + 120
    while len(list(target.glob("*/*.actions.npy"))) < 2:
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not read_manifest(target)["checksums"]
    whole = [s for s in dataset.shards if all((target / file).is_file() for file in s.files)]
    times = {file: (target / file).stat().st_mtime_ns for s in whole for file in s.files}
    assert 2 <= len(whole) < 7
    for shard in dataset.shards:  # all but one level of what is missing, by another process
        if shard not in whole and shard.number:
            for file in shard.files:
                (target / file).parent.mkdir(exist_ok=True)
                shutil.copy(coinrun_dir / "CoinRun" / file, target / file)
    dataset.make(tmp_path, None, 1)
    assert read_manifest(target) == read_manifest(coinrun_dir / "CoinRun")
    assert times == {file: (target / file).stat().st_mtime_ns for file in times}


class Pacifist:
    """Wins no level below 10, and shows of the others which they are."""

    def __init__(self, level: int) -> None:
        self.level = level

    def episode(self, random: np.random.Generator) -> coinrun.Episode:
        for i in range(3 * (self.level >= 10)):
            image = np.full((64, 64, 3), self.level % 256, np.uint8)
            yield image, np.eye(15, dtype=np.float32)[i]

    def close(self) -> None:
        """Nothing."""


@pytest.mark.nightly
def test_a_level_without_a_way_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coinrun, "Planner", Pacifist)
    settings = CoinRun.Options(levels=4, states=3, test_levels=2)
    for shard, level in [
        (Shard(coinrun.TRAINING, 3), 11),
        (Shard(coinrun.UNSEEN, 1), coinrun.FIRST_UNSEEN + 1),
    ]:
        make_shard(shard, tmp_path, settings)
        images, actions = (np.load(tmp_path / file) for file in shard.files)
        assert (images == level % 256).all()
        assert len(images) == (3 if shard.part == coinrun.TRAINING else 1)
        assert len(np.unique(actions, axis=0)) == len(actions)  # without replacement


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with a set in the form of the game's, of noise that nobody played."""
    data_dir = tmp_path_factory.mktemp("coinrun")
    folder, dataset = data_dir / "CoinRun", CoinRun(SETTINGS)
    for seed, shard in enumerate(dataset.shards):
        draw, count = np.random.default_rng(seed), 10 if shard.part == coinrun.TRAINING else 1
        actions = draw.dirichlet(np.ones(15), count).astype(np.float32)
        shard.write(folder, draw.integers(0, 256, (count, 64, 64, 3), np.uint8), actions)
    files = [file for shard in dataset.shards for file in shard.files]
    write_manifest(folder, dataset.settings, files)
    return data_dir


@pytest.mark.slow
def test_environments(written: Path) -> None:
    dataset = make("CoinRun", OPTIONS, written)
    dataset.check()
    found = dataset.load(0)
    assert tuple(found) == dataset.environments == ("level0", "level1", "level2", "unseen")
    assert dataset.test_environments == ("unseen",)
    for name, environment in found.items():
        files = sorted((written / "CoinRun" / "training").glob(f"*{name[-1]}.images.npy"))
        if name == "unseen":
            files = sorted((written / "CoinRun" / "unseen").glob("*.images.npy"))
        expected = torch.from_numpy(np.concatenate([np.load(file) for file in files]))
        index = torch.randperm(len(expected))
        assert torch.equal(environment.x.read(index), expected[index])
        assert environment.y.shape == (len(expected), 15)
    x = dataset.transform(found["level0"].x.read(torch.tensor([3])), None)
    assert x.shape == (1, *dataset.input_shape)
    assert 0 <= x.min() and 0.3 < x.max() <= 1
    pixel = found["level0"].x.read(torch.tensor([3]))[0, 10, 20]
    torch.testing.assert_close(x[0, :, 10, 20] * 255, pixel.float())


@pytest.mark.slow
def test_fewer_than_were_made(written: Path) -> None:
    whole = make("CoinRun", OPTIONS, written).load(0)
    options = {"levels": 2, "states": 5, "test_levels": 3}
    part = make("CoinRun", options, written)
    part.check()
    found = part.load(0)
    assert list(found) == ["level0", "level1", "unseen"]
    assert [len(e.y) for e in found.values()] == [5, 5, 3]
    assert [len(e.x) for e in found.values()] == [5, 5, 3]
    assert torch.equal(found["level1"].y, whole["level1"].y[:5])
    index = torch.arange(5)
    assert torch.equal(found["level1"].x.read(index), whole["level1"].x.read(index))


@pytest.mark.slow
def test_training_on_it(written: Path, tmp_path: Path) -> None:
    row = {"name": "ERM", "hparams": {"batch_size": 8, "lr": 0.003, "weight_decay": 0.0}}
    spec = single(DATASET, row, written, network=NETWORK, steps=40, evaluate_every=20)
    first, last = ended(spec, tmp_path / "run", data_dir=written).records()
    values = {(e["environment"], e["split"], e["metric"]): e for e in last["evaluations"]}
    assert values["unseen", "in", "kl"]["count"] + values["unseen", "out", "kl"]["count"] == 4
    assert 0 <= values["unseen", "in", "agreement"]["value"] <= 1
    assert first["train"]["loss"] > last["train"]["loss"]


@pytest.mark.nightly
def test_the_papers_sweep(coinrun_dir: Path) -> None:
    sweep = read_sweep(find_sweep("coinrun"), [f"datasets={json.dumps([DATASET])}", "steps=2"])
    plan = make_plan(sweep, coinrun_dir)
    assert {r.label for r in plan.runs.values()} == {"TemporalANDMask", "Adam", "ERM", "SGD"}
    spec = next(r for r in plan.runs.values() if r.label == "Adam")
    run = Run(spec, TrainSettings(data_dir=coinrun_dir, device="cpu", threads=1))
    assert type(run.algorithm.network).__name__ == "ResNet18"
    assert run.batches_at(0)[0].x.shape == (1, 8, 3, 64, 64)  # all that level has in its split
    assert run.run_steps(2) is None
