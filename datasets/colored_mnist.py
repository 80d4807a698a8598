"""Handwritten digits whose colour predicts the label better than their shape, except in the test."""

import gzip
import math
import zlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from oodbench.datasets import (
    Environment,
    FileDataset,
    Metadata,
    md5,
    numbered_environments,
    permutation,
    register,
)
from oodbench.errors import UserError
from oodbench.hparams import hparam
from oodbench.tasks import Task

FOLDER = "MNIST/raw"
"""Where torchvision keeps the files of MNIST under its root."""
IMAGES, LABELS = f"{FOLDER}/train-images-idx3-ubyte", f"{FOLDER}/train-labels-idx1-ubyte"
CHECKSUMS = {IMAGES: "6bbc9ace898e44ae57da46a324031adb", LABELS: "a25bea736e30d166cdddb491f175f624"}
NUM_TRAIN = 50_000
"""The last 10,000 of the 60,000 training images of MNIST are the test environment."""


class ColoredImages(FileDataset):
    """Images of digits in one of two channels, the other empty (arXiv:1907.02893, section 5.2).

    The clean label says whether the digit is below 5; the label is flipped with probability
    `label_noise`, and the colour is the label, flipped with the probability that names the
    environment. The image is in channel 0 or 1 according to its colour, its attribute.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(FileDataset.Options):
        """The noise of labels and colours."""

        label_noise: float = hparam(0.25, low=0.0, high=1.0)
        flips: tuple[float, ...] = hparam((0.2, 0.1, 0.9))
        """How often the colour contradicts the label, by environment; the last is the test one."""
        grayscale: bool = hparam(False)
        """Sum the channels, so that there is no colour: the oracle."""

    options: Options
    classes = ("5 to 9", "0 to 4")
    attributes = ("colour 0", "colour 1")

    def __init__(self, options: Options, data_dir: Path | None, side: int) -> None:
        super().__init__(options, data_dir)
        valid = all(0 <= p <= 1 for p in options.flips)
        self.environments = numbered_environments(self, "flips", valid, " between 0 and 1")
        self.test_environments = self.environments[-1:]
        self.input_shape = (1 if options.grayscale else 2, side, side)
        self.task = Task("binary")

    def colored(self, environment: int, images: Tensor, digits: Tensor, trial: int) -> Environment:
        """The environment of images (N, side, side) in [0, 1]; inputs are (N, channels, side, side).

        Even without colour, examples have the attribute: the colour that they would have.
        """
        generator = self.generator(trial, self.environments[environment])
        noise = torch.rand(2, len(images), generator=generator)
        label = (digits < 5) ^ (noise[0] < self.options.label_noise)
        color = (label ^ (noise[1] < self.options.flips[environment])).long()
        if self.options.grayscale:
            return Environment(images.unsqueeze(1), label.float(), attributes=color)
        x = images.new_zeros(len(images), 2, *images.shape[1:])
        x[torch.arange(len(images)), color] = images
        return Environment(x, label.float(), attributes=color)


@register(
    "ColoredMNIST",
    Metadata(
        paper="arXiv:1907.02893",
        licence="CC BY-SA 3.0 (MNIST)",
        family="small_images",
        shift="how often the colour contradicts the label",
        network="MLP",
        steps=500,
        checksums=CHECKSUMS,
    ),
)
class ColoredMNIST(ColoredImages):
    """MNIST where colour predicts the label better than shape does, and the reverse in the test.

    The construction of Arjovsky et al., section 5.2, after their code: the first 50,000 training images of
    MNIST, in an order drawn by the trial, are distributed over the training environments in turn; the last
    10,000 are the test environment. Every second row and column is kept, inputs are (2, 14, 14).
    Permutation, label noise and colours are redrawn by trial. MNIST's own test images are not used. See
    `ColoredImages` for labels and colours.
    """

    def __init__(self, options: ColoredImages.Options, data_dir: Path | None = None) -> None:
        super().__init__(options, data_dir, side=14)

    def load(self, trial: int) -> dict[str, Environment]:
        """The environments of a trial; raises UserError if a file is missing or damaged."""
        images, digits = read_mnist(self.file(IMAGES), self.file(LABELS))
        order = permutation(self, NUM_TRAIN, trial)
        tests = len(self.test_environments)
        training = len(self.environments) - tests
        parts = [order[i::training] for i in range(training)]
        parts += [torch.arange(NUM_TRAIN + i, len(images), tests) for i in range(tests)]
        return {
            name: self.colored(i, images[part], digits[part], trial)
            for i, (name, part) in enumerate(zip(self.environments, parts, strict=True))
        }

    def download(self, data_dir: Path) -> None:
        """Fetch what is missing or damaged with torchvision; raises UserError if that fails."""
        download(self, "MNIST", data_dir)


def download(dataset: FileDataset, source: str, data_dir: Path) -> None:
    """Fetch a dataset's missing or damaged files with the class `source` of torchvision.datasets.

    Raises UserError if that fails.
    """
    import torchvision.datasets

    for path, checksum in dataset.checksums.items():
        file = data_dir / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.is_file() and md5(file) != checksum:
            file.unlink()  # torchvision would accept it
    try:
        getattr(torchvision.datasets, source)(data_dir, download=True)
    except (RuntimeError, OSError) as error:
        reason = str(error).strip().splitlines()[-1]
        raise UserError(
            f"{dataset.name}: {source} cannot be downloaded ({reason}); "
            f"its uncompressed files can also be put into {file.parent} by hand"
        ) from error


@lru_cache(maxsize=1)
def read_mnist(images: Path, labels: Path) -> tuple[Tensor, Tensor]:
    """MNIST's training images, (60000, 14, 14) in [0, 1], and digits, (60000,); kept in memory.

    Raises UserError for a file that does not have the size of MNIST's.
    """
    pixels = read_idx(images, (60_000, 28, 28))[:, ::2, ::2]
    return pixels.float() / 255, read_idx(labels, (60_000,))


def read_idx(file: Path, shape: tuple[int, ...]) -> Tensor:
    """The bytes of an IDX file or .gz: a header of 4 + 4 * dimensions bytes, then the values.

    Raises UserError for a file that does not hold as many bytes as that.
    """
    header = 4 + 4 * len(shape)
    size = header + math.prod(shape)
    try:
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    except (EOFError, OSError, zlib.error) as error:
        raise UserError(f"{file} cannot be read: {error}") from error
    if len(content) != size:
        raise UserError(f"{file} is damaged: it has {len(content)} bytes, not {size}")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=header).view(shape)
