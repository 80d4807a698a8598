import gzip
import itertools
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import oodbench.datasets.noisy_labels as module
import pytest
import torch
import yaml
from torchvision.datasets import CIFAR10

import oodbench
from oodbench.datasets import Environment, datasets, make
from oodbench.errors import UserError
from oodbench.identity import md5
from oodbench.sweep.file import find_sweep, validate
from oodbench.sweep.plan import Plan, make_plan, single
from oodbench.train.run import Run
from oodbench.train.settings import TrainSettings


def digits(trial: int = 0, **options: object) -> dict[str, Environment]:
    return make("NoisyLabels", {"base": "digits", **options}).load(trial)


def clean(trial: int = 0) -> Environment:
    return digits(trial, fraction=0)["train"]


@pytest.mark.parametrize("fraction", [0.1, 0.25, 1.0])
def test_the_mislabeled_part_has_the_redrawn_labels_that_are_wrong(fraction: float) -> None:
    found, right = digits(fraction=fraction), clean()
    assert list(found) == ["train", "test", "mislabeled"]
    train, mislabeled = found["train"], found["mislabeled"]
    assert torch.equal(train.x, right.x)
    wrong = train.y != right.y
    assert torch.equal(mislabeled.x, right.x[wrong])
    assert torch.equal(mislabeled.y, train.y[wrong])
    redrawn = round(fraction * len(right.y))
    deviation = (redrawn * 0.9 * 0.1) ** 0.5
    assert abs(len(mislabeled.y) - 0.9 * redrawn) < 4.5 * deviation


def test_redrawn_labels_are_uniform_and_tell_nothing_of_the_right_ones() -> None:
    drawn = torch.cat([digits(trial, fraction=1)["train"].y for trial in range(8)])
    right = torch.cat([clean(trial).y for trial in range(8)])
    table = torch.zeros(10, 10).index_put_((right, drawn), torch.ones(()), accumulate=True)
    expected = len(drawn) / 100
    chi_square = ((table - expected).square() / expected).sum()
    assert chi_square < 99 + 4.5 * (2 * 99) ** 0.5


def test_larger_fractions_change_more_labels_of_the_same_images() -> None:
    labels = [digits(fraction=f)["train"].y for f in (0.0, 0.2, 0.5, 1.0)]
    for fewer, more in itertools.pairwise(labels):
        changed = fewer != labels[0]
        assert torch.equal(more[changed], fewer[changed])


def test_the_test_environment_is_clean() -> None:
    noisy, right = digits(fraction=1, randX=1)["test"], digits(fraction=0)["test"]
    assert torch.equal(noisy.x, right.x) and torch.equal(noisy.y, right.y)
    assert len(right.y) == 1797 - module.DIGITS


def test_inputs_are_replaced_by_noise_of_their_mean_and_variance() -> None:
    right, found = clean(), digits(fraction=0, randX=0.5)["train"]
    noise = (found.x != right.x).flatten(1).all(1)
    assert noise.sum() == 700
    assert torch.equal(found.x[~noise], right.x[~noise])
    assert torch.equal(found.y, right.y)
    pixels = found.x[noise].flatten(1)
    count, std = pixels.numel(), float(right.x.std())
    assert abs(float(pixels.mean() - right.x.mean())) < 4.5 * std / count**0.5
    assert abs(float(pixels.std()) - std) < 4.5 * std / (2 * count) ** 0.5
    correlation = torch.corrcoef(pixels[:, :2].T)[0, 1]
    assert abs(float(correlation)) < 4.5 / len(pixels) ** 0.5


def test_subsets_are_drawn_by_the_trial_and_shared_by_all_fractions() -> None:
    options: dict[str, Any] = {"num_examples": 50, "num_test_examples": 20}
    first, same, other = (digits(t, fraction=f, **options) for t, f in ((0, 0), (0, 1), (1, 0)))
    assert [len(first[e].y) for e in ("train", "test")] == [50, 20]
    for name in ("train", "test"):
        assert torch.equal(first[name].x, same[name].x)
        assert not torch.equal(first[name].x, other[name].x)
        assert len(torch.unique(first[name].x.flatten(1), dim=0)) == len(first[name].x)


def test_trials_with_the_same_data_have_that_of_trial_0() -> None:
    options = {"num_examples": 50, "fraction": 0.5, "randX": 0.5}
    same, first = digits(3, same_data=True, **options), digits(0, **options)
    assert all(torch.equal(same[n].x, first[n].x) for n in first)
    assert torch.equal(same["train"].y, first["train"].y)


def test_the_critical_sample_ratio_is_that_of_the_first_test_images() -> None:
    dataset = make("NoisyLabels", {"base": "digits", "critical": 100})
    torch.manual_seed(0)
    head = torch.nn.Linear(64, 10)
    head.weight.data *= 10
    network = torch.nn.Sequential(torch.nn.Flatten(), head)
    with torch.no_grad():
        found = dataset.predictor_metrics(network, 1)["critical_sample_ratio"]
    x = dataset.load(1)["test"].x[:100]
    mask = oodbench.critical_samples(network, x, scale=1 / (255 * 0.3761), steps=200)
    assert found == pytest.approx(float(mask.float().mean()), abs=0.021) and found > 0
    assert not make("NoisyLabels", {"base": "digits"}).predictor_metrics(network, 1)


def test_a_run_scores_the_mislabeled_part_and_does_not_train_on_it() -> None:
    spec = single(
        {"name": "NoisyLabels", "base": "digits", "fraction": 0.25, "num_examples": 400},
        {"name": "ERM", "hparams": {"lr": 0.01, "lr_schedule": "constant"}},
        steps=150,
        holdout=0,
        network={"name": "MLP", "hparams": {"depth": 2}},
    )
    run = Run(spec, TrainSettings())
    assert run.names == ("train",)
    assert sum(run.batches_at(0).sizes) == 400
    run.run_steps(150)
    found = {e.environment: e for e in run.evaluate() if e.metric == "accuracy"}
    wrong = found["mislabeled"]
    assert wrong.count == len(digits(fraction=0.25, num_examples=400)["mislabeled"].y)
    assert wrong.value > 0.9 > found["test"].value  # memorized, and so worse on the test


@pytest.mark.slow
def test_fashion_mnist_is_found_where_debian_puts_it(tmp_path: Path) -> None:
    if not module.DEBIAN.is_dir():
        pytest.skip("Debian's dataset-fashion-mnist is not installed")
    for data_dir in (None, tmp_path):
        dataset = make("NoisyLabels", {"base": "fashion_mnist", "fraction": 0}, data_dir)
        dataset.check()
    found = dataset.load(0)
    train, test = found["train"], found["test"]
    assert train.x.shape == (60_000, 1, 28, 28) and test.x.shape == (10_000, 1, 28, 28)
    assert train.y.bincount().tolist() == [6000] * 10
    assert test.y.bincount().tolist() == [1000] * 10
    assert abs(float(train.x.mean())) < 2e-3 and abs(float(train.x.std()) - 1) < 2e-3


@pytest.mark.slow
def test_real_mnist(mnist_dir: Path) -> None:
    dataset = make("NoisyLabels", {"fraction": 0}, mnist_dir)
    dataset.check()
    train, test = dataset.load(0).values()
    assert train.y.bincount()[:3].tolist() == [5923, 6742, 5958]
    assert len(test.y) == 10_000
    for environment in (train, test):
        assert abs(float(environment.x.mean())) < 0.02
        assert abs(float(environment.x.std()) - 1) < 0.02


def test_a_packed_file_has_the_checksum_of_its_content(tmp_path: Path) -> None:
    plain, packed = tmp_path / "a", tmp_path / "a.gz"
    plain.write_bytes(b"hello")
    packed.write_bytes(gzip.compress(b"hello"))
    assert md5(packed) == md5(plain)


@pytest.fixture
def cifar_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """CIFAR-10's folder with five images a file, whose checksums count as the right ones."""
    checksums = {}
    rng = np.random.default_rng(0)
    for number, path in enumerate(module.BASES["cifar10"].checksums):
        values: dict[str, object] = {"label_names": ["a"] * 10, "num_vis": 3072}
        if "meta" not in path:
            labels = [(number + i) % 10 for i in range(5)]
            data = rng.integers(0, 256, (5, 3072), dtype=np.uint8)
            data[:, 0], data[:, 1024], data[:, 3071] = labels, 255, number
            values = {"data": data, "labels": labels, "batch_label": path, "filenames": ["f"] * 5}
        file = tmp_path / path
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(pickle.dumps(values, protocol=2))
        checksums[path] = md5(file)
    ours = replace(module.BASES["cifar10"], checksums=checksums)
    monkeypatch.setattr(module, "BASES", {**module.BASES, "cifar10": ours})
    sums = {Path(path).name: checksum for path, checksum in checksums.items()}
    for name in ("train_list", "test_list"):
        files = [[file, sums[file]] for file, _ in getattr(CIFAR10, name)]
        monkeypatch.setattr(CIFAR10, name, files)
    monkeypatch.setitem(CIFAR10.meta, "md5", sums["batches.meta"])
    return tmp_path


def test_cifar_in_torchvisions_layout(cifar_dir: Path) -> None:
    dataset = make("CIFARNoise", {"fraction": 0}, cifar_dir)
    dataset.check()
    train, test = dataset.load(0).values()
    assert train.x.shape == (25, 3, 32, 32) and test.x.shape == (5, 3, 32, 32)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (dataset.base.mean, dataset.base.std))  # type: ignore[attr-defined]
    for environment, files in ((train, range(5)), (test, [5])):
        pixels = ((environment.x * std + mean) * 255).round()
        assert torch.equal(pixels[:, 0, 0, 0].long(), environment.y)
        assert (pixels[:, 1, 0, 0] == 255).all()
        assert pixels[:, 2, 31, 31].tolist() == [n for n in files for _ in range(5)]
    assert train.y.tolist() == [(n + i) % 10 for n in range(5) for i in range(5)]


def test_damaged_cifar(cifar_dir: Path) -> None:
    file = cifar_dir / "cifar-10-batches-py" / "data_batch_3"
    file.write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    dataset = make("CIFARNoise", {}, cifar_dir)
    with pytest.raises(UserError, match=f"{file} is damaged .its md5 is not .*CIFARNoise"):
        dataset.check()
    with pytest.raises(UserError, match=r"cifar-10-batches-py is damaged: "):
        dataset.load(0)


def planned(name: str) -> Plan:
    """A sweep of the project, on the digits, which need no download."""
    values = yaml.safe_load(find_sweep(name).read_text())
    entries = [d if isinstance(d, dict) else {"name": d} for d in values["datasets"]]
    small = {"num_examples": 100, "num_test_examples": 100}
    values["datasets"] = [{**e, **small, "name": "NoisyLabels", "base": "digits"} for e in entries]
    return make_plan(validate(values, name))


def test_the_sweeps_of_the_paper_have_its_grids() -> None:
    taus = {0.0, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8}
    runs = planned("memorization").runs.values()
    grid = {(r.options["fraction"], r.hparams.get("tau", 0.0), r.trial) for r in runs}
    assert grid == {(f, t, trial) for f in (0.0, 1.0) for t in taus for trial in (0, 1)}
    assert len(runs) == 28
    assert {(r.hparams["lr"], r.hparams["lr_schedule"]) for r in runs} == {(5e-4, "two_drops")}
    noise = planned("label-noise").runs.values()
    rates = {(r.algorithm, r.hparams["lr"], r.hparams["lr_schedule"]) for r in noise}
    methods = ("ERM", "ExampleANDMask")
    assert rates == {(m, lr, "drop") for m in methods for lr in (5e-4, 1e-3, 5e-3)}
    for run in (*runs, *noise):
        assert (run.hparams["batch_size"], run.hparams["weight_decay"]) == (80, 1e-6)
        assert run.holdout == 0
    for name in ("memorization", "label-noise"):
        values = yaml.safe_load(find_sweep(name).read_text())
        used = {d if isinstance(d, str) else d["name"] for d in values["datasets"]}
        assert used == {"CIFARNoise"}
        assert "network" not in values and "steps" not in values
    metadata = datasets.get("CIFARNoise").metadata
    assert (metadata.network, metadata.steps) == ("FastResNet", 80 * 50_000 // 80)
