import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from oodbench.datasets import Environment, make, permutation
from oodbench.errors import UserError

IMAGES, LABELS = "MNIST/raw/train-images-idx3-ubyte", "MNIST/raw/train-labels-idx1-ubyte"


def color(environment: Environment) -> Tensor:
    """The channel that holds each image; the other must be empty."""
    filled: Tensor = environment.x.flatten(2).amax(2) > 0
    assert (filled.sum(1) == 1).all()
    return filled.long().argmax(1)


def near(observed: Tensor, probability: float) -> bool:
    """Whether a frequency is within 4.5 standard deviations of its probability."""
    deviation = (probability * (1 - probability) / len(observed)) ** 0.5
    return bool(abs(observed.float().mean().item() - probability) < 4.5 * deviation)


def assert_flips(environment: Environment, clean: Tensor, noise: float, flip: float) -> None:
    """Label and colour noise have their frequencies, whatever the class and each other."""
    label, c = environment.y.long(), color(environment)
    for group in (clean == 0, clean == 1):
        assert near((label != clean)[group], noise)
    for group in (label == 0, label == 1, label != clean, label == clean):
        assert near((c != label)[group], flip)


def digits(trial: int = 0, **options: object) -> Any:
    return make("ColoredDigits", options).load(trial)


def test_digits_share_no_scan() -> None:
    environments = digits()
    assert list(environments) == ["0.2", "0.1", "0.9"]
    scans: list[set[int]] = []
    for environment in environments.values():
        numbers, counts = torch.unique(environment.clusters, return_counts=True)
        assert len(numbers) == 599
        assert (counts == 10).all()
        assert environment.x.shape == (5990, 2, 8, 8)
        scans.append(set(numbers.tolist()))
    assert set.union(*scans) == set(range(1797))
    assert sum(map(len, scans)) == 1797


def test_digits_are_the_real_scans_and_their_flips_have_their_frequencies() -> None:
    bunch = load_digits()
    images, classes = torch.tensor(bunch.images).float(), torch.tensor(bunch.target)
    for flip, environment in zip([0.2, 0.1, 0.9], digits(1).values(), strict=True):
        torch.testing.assert_close(environment.x.sum(1) * 16, images[environment.clusters])
        assert_flips(environment, (classes[environment.clusters] < 5).long(), 0.25, flip)


def test_copies_have_noise_of_their_own() -> None:
    environment = digits()["0.2"]
    labels, colors = environment.y.view(599, 10), color(environment).view(599, 10)
    assert 0.9 < (labels.std(1) > 0).float().mean() < 0.98  # 1 - .75^10 - .25^10 = .944
    assert len(torch.unique(torch.cat([labels, colors.float()], 1), dim=0)) > 550


def test_grayscale_sums_the_channels() -> None:
    colored, gray = digits(), digits(grayscale=True)
    for name, environment in gray.items():
        assert environment.x.shape[1:] == (1, 8, 8)
        assert torch.equal(environment.x, colored[name].x.sum(1, keepdim=True))
        assert torch.equal(environment.y, colored[name].y)
        for each in (environment, colored[name]):
            assert torch.equal(each.attributes, color(colored[name]))


def test_mnist_counts_and_frequencies(mnist_dir: Path) -> None:
    environments = make("ColoredMNIST", {}, mnist_dir).load(0)
    sizes = {name: tuple(e.x.shape) for name, e in environments.items()}
    training = (25_000, 2, 14, 14)
    assert sizes == {"0.2": training, "0.1": training, "0.9": (10_000, 2, 14, 14)}
    images, digits = read(mnist_dir)
    test = environments["0.9"]
    torch.testing.assert_close(test.x.sum(1) * 255, images[50_000:, ::2, ::2].float())
    assert_flips(test, (digits[50_000:] < 5).long(), 0.25, 0.9)
    for name in ("0.2", "0.1"):
        label = environments[name].y
        share = (digits[:50_000] < 5).float().mean().item()
        assert near(label, share * 0.75 + (1 - share) * 0.25)
        assert near(color(environments[name]) != label, float(name))


def test_mnist_training_environments_deal_out_the_first_images(mnist_dir: Path) -> None:
    images, _ = read(mnist_dir)
    sums = images[:50_000, ::2, ::2].flatten(1).sum(1)
    sums_in_turn = torch.cat([sums[::2], sums[1::2]])
    dealt = []
    for trial in (0, 1):
        environments = make("ColoredMNIST", {}, mnist_dir).load(trial)
        x = torch.cat([environments[name].x for name in ("0.2", "0.1")])
        dealt.append((x.flatten(1).sum(1) * 255).round().long())
        assert torch.equal(dealt[trial].sort().values, sums.sort().values)
        assert not torch.equal(dealt[trial], sums_in_turn)
    assert not torch.equal(*dealt)


@pytest.mark.parametrize("path", [IMAGES, LABELS])
@pytest.mark.parametrize("kept", [0, 3, 30_000])
def test_truncated_file(path: str, kept: int, mnist_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(mnist_dir / "MNIST", tmp_path / "MNIST", copy_function=os.symlink)
    file = tmp_path / path
    file.unlink()
    file.write_bytes((mnist_dir / path).read_bytes()[:kept])
    dataset = make("ColoredMNIST", {}, tmp_path)
    with pytest.raises(UserError, match=f"{file} is damaged: it has {kept} bytes, not "):
        dataset.load(0)
    with pytest.raises(UserError, match=f"{file} is damaged .its md5 is not .*` replaces it"):
        dataset.check()


def read(mnist_dir: Path) -> tuple[Tensor, Tensor]:
    """The raw files by torchvision's reader."""
    from torchvision.datasets.mnist import read_image_file, read_label_file

    return read_image_file(str(mnist_dir / IMAGES)), read_label_file(str(mnist_dir / LABELS))


def test_probes_share_out_the_last_images_and_lie_on_a_line(mnist_dir: Path) -> None:
    dataset = make("ProbedColoredMNIST", {}, mnist_dir)
    environments = dataset.load(0)
    assert dataset.test_environments == ("0", "0.3", "0.4", "0.5", "0.6", "0.7", "0.8", "0.9", "1")
    assert [len(e.x) for e in environments.values()][:2] == [25_000, 25_000]
    images, _ = read(mnist_dir)
    shapes = torch.stack([environments[n].x[0].sum(0) for n in dataset.test_environments])
    torch.testing.assert_close(shapes * 255, images[50_000:50_009, ::2, ::2].float())
    assert sum(len(environments[n].x) for n in dataset.test_environments) == 10_000
    for name, environment in environments.items():
        assert near(color(environment) != environment.y, float(name)) or name in ("0", "1")
    assert (color(environments["0"]) == environments["0"].y).all()
    assert (color(environments["1"]) != environments["1"].y).all()


PARTS = {"0.2": 0.3, "0.1": 0.7, "0.9": 0.5}
"""The share of each environment with `share` 0.3."""


def shifted(mnist_dir: Path, imbalance: str, share: float = 0.1) -> dict[str, Environment]:
    """The first trial of MNIST with an imbalance."""
    options = {"imbalance": imbalance, "share": share}
    return make("ShiftedColoredMNIST", options, mnist_dir).load(0)


def counts(mnist_dir: Path, imbalance: str) -> dict[str, tuple[int, list[int]]]:
    """Examples of each environment, and of each digit in the images that it is dealt."""
    _, digits = read(mnist_dir)
    order = permutation(make("ShiftedColoredMNIST", {}, mnist_dir), 50_000, 0)
    dealt = {"0.2": digits[order[::2]], "0.1": digits[order[1::2]], "0.9": digits[50_000:]}
    return {
        name: (len(e.x), torch.bincount(dealt[name], minlength=10).tolist())
        for name, e in shifted(mnist_dir, imbalance, 0.3).items()
    }


def test_classes_and_digits_are_kept_by_their_shares(mnist_dir: Path) -> None:
    for name, (size, dealt) in counts(mnist_dir, "class").items():
        part = PARTS[name]
        assert size == int(part * sum(dealt[5:])) + int((1 - part) * sum(dealt[:5]))
    for name, (size, dealt) in counts(mnist_dir, "digit").items():
        part = PARTS[name]
        shares = {(1, 2): part, (6, 7): part, (3, 4): 1 - part, (8, 9): 1 - part}
        expected = sum(int(p * (dealt[a] + dealt[b])) for (a, b), p in shares.items())
        assert size == expected


def test_the_classes_shift_and_labels_and_colours_come_after(mnist_dir: Path) -> None:
    environments = shifted(mnist_dir, "class")
    for name, below_five in (("0.2", 0.9), ("0.1", 0.1), ("0.9", 0.5)):
        e = environments[name]
        share = below_five * 0.75 + (1 - below_five) * 0.25
        assert abs(e.y.mean().item() - share) < 0.02
        assert near(color(e) != e.y, float(name))


def test_shades_split_the_colours(mnist_dir: Path) -> None:
    environments = shifted(mnist_dir, "colour")
    plain = make("ColoredMNIST", {}, mnist_dir).load(0)
    for name, part in (("0.2", 0.1), ("0.1", 0.9), ("0.9", 0.5)):
        e = environments[name]
        assert e.x.shape == (len(plain[name].x), 4, 14, 14)
        filled = e.x.flatten(2).amax(2) > 0
        assert (filled.sum(1) == 1).all()
        channel = filled.long().argmax(1)
        assert near(channel[channel < 2] == 0, part)
        assert near(channel[channel >= 2] == 2, 1 - part)
        assert near((channel >= 2).float() != e.y, float(name))
