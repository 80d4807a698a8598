import json
from pathlib import Path

import numpy as np
import pytest
import torch
from oodbench.datasets.coinrun import TRAINING, CoinRun
from oodbench.datasets.made import write_manifest

from oodbench.datasets import make
from oodbench.results.directory import Directory
from oodbench.sweep.file import find_sweep, read_sweep
from oodbench.sweep.plan import make_plan, single
from oodbench.train.execute import execute
from oodbench.train.run import Run
from oodbench.train.settings import TrainSettings

pytestmark = pytest.mark.slow

OPTIONS = {"levels": 3, "states": 10, "test_levels": 4}
DATASET = {"name": "CoinRun", **OPTIONS}
NETWORK = {"name": "ConvNet", "hparams": {"width": 4, "depth": 4}}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with a set in the form of the game's, of noise that nobody played."""
    data_dir = tmp_path_factory.mktemp("coinrun")
    folder, dataset = data_dir / "CoinRun", CoinRun(CoinRun.Options(**OPTIONS))
    for seed, shard in enumerate(dataset.shards):
        draw, count = np.random.default_rng(seed), 10 if shard.part == TRAINING else 1
        actions = draw.dirichlet(np.ones(15), count).astype(np.float32)
        shard.write(folder, draw.integers(0, 256, (count, 64, 64, 3), np.uint8), actions)
    files = [file for shard in dataset.shards for file in shard.files]
    write_manifest(folder, dataset.settings, files)
    return data_dir


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


@pytest.mark.parametrize("algorithm", ["ERM", "TemporalANDMask"])
def test_training_on_it(algorithm: str, written: Path, tmp_path: Path) -> None:
    row = {"name": algorithm, "hparams": {"batch_size": 8, "lr": 0.003, "weight_decay": 0.0}}
    spec = single(DATASET, row, written, network=NETWORK, steps=40, evaluate_every=20)
    settings = TrainSettings(data_dir=written, device="cpu", threads=1)
    run = Run(spec, settings)
    assert run.batches[0].x.shape == (1 if algorithm == "TemporalANDMask" else 3, 8, 3, 64, 64)
    state, message = execute(spec, Directory(tmp_path).run(spec.id), settings)
    assert (state, message) == ("done", "")
    first, last = Directory(tmp_path).run(spec.id).records()
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
    assert run.batches[0].x.shape == (1, 8, 3, 64, 64)  # all that level has in its split
    assert run.run_steps(2) is None
