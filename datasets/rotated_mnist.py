"""MNIST divided among environments as in arXiv:2007.01434, and its rotations."""

from abc import abstractmethod
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from oodbench.datasets import Environment, FileDataset, Metadata, dealt, register
from oodbench.tasks import Task

from . import colored_mnist

FOLDER = colored_mnist.FOLDER
TEST_IMAGES, TEST_LABELS = f"{FOLDER}/t10k-images-idx3-ubyte", f"{FOLDER}/t10k-labels-idx1-ubyte"
CHECKSUMS = {
    **colored_mnist.CHECKSUMS,
    TEST_IMAGES: "2646ac647ad5339dbf082846283269ea",
    TEST_LABELS: "27ae3e4e09519cfbb04c329615203637",
}


class DealtMNIST(FileDataset):
    """All 70,000 images of MNIST, divided among the environments at random in each trial.

    DomainBed's code draws another order for every run; here all runs of a trial share it.
    """

    degrees_of_change: ClassVar[tuple[float, ...]]
    """The degree of the change that `changed` makes to each environment."""

    @abstractmethod
    def changed(
        self, images: np.ndarray, digits: Tensor, degree: float, generator: torch.Generator
    ) -> Environment:
        """An environment from its images (N, 28, 28), bytes, and their digits (N,)."""

    def load(self, trial: int) -> dict[str, Environment]:
        """The environments of a trial; raises UserError if a file is missing or damaged."""
        images, digits = _mnist(*(self.file(path) for path in sorted(CHECKSUMS)))
        environments, parts = {}, dealt(self, len(images), trial)
        for (name, part), degree in zip(parts.items(), self.degrees_of_change, strict=True):
            generator = self.generator(trial, name)
            environments[name] = self.changed(images[part.numpy()], digits[part], degree, generator)
        return environments

    def download(self, data_dir: Path) -> None:
        """Fetch what is missing or damaged with torchvision; raises UserError if that fails."""
        colored_mnist.download(self, "MNIST", data_dir)


@lru_cache(maxsize=1)
def _mnist(
    test_images: Path, test_labels: Path, images: Path, labels: Path
) -> tuple[np.ndarray, Tensor]:
    """MNIST's 60,000 training and 10,000 test images (70000, 28, 28), bytes, and digits (70000,)."""
    read = colored_mnist.read_idx
    pixels = torch.cat([read(images, (60_000, 28, 28)), read(test_images, (10_000, 28, 28))])
    return pixels.numpy(), torch.cat([read(labels, (60_000,)), read(test_labels, (10_000,))])


@register(
    "RotatedMNIST",
    Metadata(
        paper="arXiv:2007.01434",
        licence="CC BY-SA 3.0 (MNIST)",
        family="digits",
        shift="the angle of the digits",
        network="MNISTCNN",
        steps=5001,
        checksums=CHECKSUMS,
    ),
)
class RotatedMNIST(DealtMNIST):
    """MNIST rotated by 0 to 75 degrees, as in arXiv:2007.01434 (after arXiv:1508.07680).

    Inputs are (1, 28, 28) in [0, 1], rotated anticlockwise by Pillow on bytes: bilinear, black outside.
    """

    environments = ("0", "15", "30", "45", "60", "75")
    degrees_of_change = (0, 15, 30, 45, 60, 75)
    test_environments = ("75",)
    input_shape = (1, 28, 28)
    task = Task("multiclass", 10)
    classes = tuple("0123456789")

    def changed(
        self, images: np.ndarray, digits: Tensor, degree: float, generator: torch.Generator
    ) -> Environment:
        """The images rotated by `degree`."""
        bilinear = Image.Resampling.BILINEAR
        rotated = [np.asarray(Image.fromarray(i).rotate(degree, bilinear)) for i in images]
        x = torch.from_numpy(np.stack(rotated)).unsqueeze(1)
        return Environment(x.float() / 255, digits.long())
