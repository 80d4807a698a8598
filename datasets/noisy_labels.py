"""Images, some with a redrawn label or noise as input, to measure how much a method memorizes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from oodbench.datasets import Environment, FileDataset, Metadata, register
from oodbench.errors import MissingError, UserError
from oodbench.gradients.critical import ALPHA, BETA, RADIUS, langevin_search
from oodbench.hparams import hparam
from oodbench.tasks import Task

from .colored_digits import read_digits
from .colored_mnist import download, read_idx
from .rotated_mnist import CHECKSUMS

DEBIAN = Path("/usr/share/datasets/fashion-mnist")
"""Where Debian's package `dataset-fashion-mnist` keeps the files, as .gz."""
CLASSES = 10
DIGITS = 1400
"""The training images among scikit-learn's 1,797 scans of digits; the others are test images."""


@dataclass(frozen=True)
class Images:
    """A set of training and test images of ten classes, in torchvision's layout."""

    source: str
    """The class of torchvision.datasets that downloads it; empty if no download is needed."""
    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    """The mean by which a channel's values in [0, 1] are normalised, with the standard deviation `std`."""
    std: tuple[float, ...]
    checksums: Mapping[str, str]
    """The md5 of the files, by path: training images and labels, then the test's."""
    classes: tuple[str, ...] = tuple("0123456789")
    """The names of the classes, as torchvision has them."""


BASES: Mapping[str, Images] = {
    "cifar10": Images(
        "CIFAR10",
        (3, 32, 32),
        (0.485, 0.456, 0.406),  # arXiv:2009.00329's code: those of ImageNet
        (0.229, 0.224, 0.225),
        {
            "cifar-10-batches-py/data_batch_1": "c99cafc152244af753f735de768cd75f",
            "cifar-10-batches-py/data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "cifar-10-batches-py/data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "cifar-10-batches-py/data_batch_4": "634d18415352ddfa80567beed471001a",
            "cifar-10-batches-py/data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            "cifar-10-batches-py/test_batch": "40351d587109b95175f43aff81a1287e",
            "cifar-10-batches-py/batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
        },
        tuple("airplane automobile bird cat deer dog frog horse ship truck".split()),
    ),
    "mnist": Images("MNIST", (1, 28, 28), (0.1307,), (0.3081,), CHECKSUMS),
    "fashion_mnist": Images(
        "FashionMNIST",
        (1, 28, 28),
        (0.2860,),
        (0.3530,),
        {
            "FashionMNIST/raw/train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
            "FashionMNIST/raw/train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
            "FashionMNIST/raw/t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
            "FashionMNIST/raw/t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
        },
        (
            *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
            *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
        ),
    ),
    "digits": Images("", (1, 8, 8), (0.3053,), (0.3761,), {}),
}
"""The base image sets by name."""


@register(
    "NoisyLabels",
    Metadata(
        paper="arXiv:2009.00329",
        licence="CC BY-SA 3.0 (MNIST), MIT (Fashion-MNIST), CC BY 4.0 (digits), none stated (CIFAR-10)",
        family="noisy_labels",
        shift="training labels that are wrong",
        network="ConvNet",
        steps=5000,
        checksums={p: c for base in BASES.values() for p, c in base.checksums.items()},
    ),
)
class NoisyLabels(FileDataset):
    """Images with some labels redrawn: memorization at `fraction` 1, label noise at 0.25.

    Section 4.2 and its code. The one training environment is `train`; `test` has clean test images. The
    training images whose redrawn label is wrong are also there as `mislabeled`, with that wrong label. It
    counts as a test environment because no run trains on this copy: there accuracy is the share memorized,
    chance is a tenth, and a method that ignores the noise has less. Its average with `test` says nothing.
    Train on all of `train`, as the paper did, with `holdout: 0` in the sweep: otherwise the copies of
    images in the `out` split were never seen.

    Which images, labels and noise are drawn depends on the trial alone, so that a larger `fraction`
    changes more labels of the same images. Inputs are normalised by channel.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(FileDataset.Options):
        """The images and their label noise."""

        base: str = hparam("mnist", options=tuple(BASES))
        fraction: float = hparam(0.25, low=0.0, high=1.0)
        """The share of training labels that are redrawn, uniformly: a tenth of them stays right."""
        randX: float = hparam(0.0, low=0.0, high=1.0)
        """The share of training inputs that are replaced by Gaussian noise with the mean and
        variance of the images (arXiv:1706.05394)."""
        num_examples: int = hparam(0, low=0)
        """The number of training images, which the trial draws; 0 takes all."""
        num_test_examples: int = hparam(0, low=0)
        """The number of test images, which the trial draws; 0 takes all."""
        same_data: bool = hparam(False, neutral=False)
        """Whether trials share images, labels and noise, and differ only in initial weights and batches, so
        that each example has an error rate over trials (arXiv:1706.05394, section 3.3.1)."""
        critical: int = hparam(0, low=0, neutral=0)
        """The number of test images whose `critical_sample_ratio` is recorded at each evaluation:
        the share that `oodbench.critical_samples` finds in the paper's box. 0 records none."""

    options: Options
    options_of_files = ("base",)

    def __init__(self, options: Options, data_dir: Path | None = None) -> None:
        super().__init__(options, data_dir)
        self.test_environments = ("test", "mislabeled") if options.fraction else ("test",)
        self.environments = ("train", *self.test_environments)
        self.base = BASES[options.base]
        self.input_shape, self.classes = self.base.shape, self.base.classes
        self.task = Task("multiclass", CLASSES)
        self.repeats = "mislabeled" in self.test_environments

    @property
    def checksums(self) -> Mapping[str, str]:
        """The checksums of the base images."""
        return self.base.checksums

    def file(self, path: str) -> Path:
        """The data file `path`; Fashion-MNIST's may also be where Debian's package puts it."""
        packed = DEBIAN / f"{Path(path).name}.gz"
        here = self.data_dir is not None and (self.data_dir / path).is_file()
        if self.base.source != "FashionMNIST" or here:
            return super().file(path)
        if packed.is_file():
            return packed
        try:
            return super().file(path)
        except MissingError as error:
            debian = "apt install dataset-fashion-mnist"
            raise MissingError(f"{error} or with `{debian}`", error.command) from None

    def download(self, data_dir: Path) -> None:
        """Fetch what is missing or damaged with torchvision; raises UserError if that fails."""
        if not self.base.source:
            raise UserError(f"the base '{self.options.base}' of {self.name} is in scikit-learn")
        download(self, self.base.source, data_dir)

    def load(self, trial: int) -> dict[str, Environment]:
        """The environments of a trial; raises UserError if a file is missing or damaged."""
        trial = 0 if self.options.same_data else trial
        files = tuple(self.file(path) for path in self.checksums)
        images, labels, test_images, test_labels = _read(self.options.base, files)
        chosen = self._drawn(trial, "examples", self.options.num_examples, len(images))
        x, right = self._normalised(images[chosen]), labels[chosen]
        noise = self.generator(trial, "inputs")
        replaced = torch.randperm(len(x), generator=noise)[: round(self.options.randX * len(x))]
        x[replaced] = torch.randn(len(replaced), *x.shape[1:], generator=noise) * x.std() + x.mean()
        redraw = self.generator(trial, "labels")
        redrawn = torch.randperm(len(x), generator=redraw)[: round(self.options.fraction * len(x))]
        y = right.clone()
        y[redrawn] = torch.randint(CLASSES, (len(x),), generator=redraw)[: len(redrawn)]
        tests = self._drawn(trial, "test", self.options.num_test_examples, len(test_images))
        test = Environment(self._normalised(test_images[tests]), test_labels[tests])
        environments = {"train": Environment(x, y), "test": test}
        if self.options.fraction:
            environments["mislabeled"] = Environment(x[y != right], y[y != right])
        return environments

    def predictor_metrics(
        self, predict: Callable[[Tensor], Tensor], trial: int
    ) -> dict[str, float]:
        """`critical_sample_ratio` of the first `critical` test images, if there are any."""
        if not self.options.critical:
            return {}
        unit = 1 / (255 * torch.tensor(self.base.std).view(-1, 1, 1))
        x = self.load(trial)["test"].x[: self.options.critical]
        found, _ = langevin_search(
            *(predict, x, unit * RADIUS, unit * ALPHA, unit * BETA),
            steps=10,
            generator=self.generator(trial, "critical"),
        )
        return {"critical_sample_ratio": float(found.float().mean())}

    def _drawn(self, trial: int, what: str, count: int, total: int) -> Tensor:
        """Sorted indices of `count` random images, 0 for all; raises UserError if there are fewer."""
        if count > total:
            raise UserError(f"{self.label}: {self.options.base} has {total} images, not {count}")
        order = torch.randperm(total, generator=self.generator(trial, what))
        return order[: count or total].sort().values

    def _normalised(self, images: Tensor) -> Tensor:
        mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (self.base.mean, self.base.std))
        return (images.float() / 255 - mean) / std


@register(
    "CIFARNoise",
    Metadata(
        paper="arXiv:2009.00329",
        licence="none stated (CIFAR-10)",
        family="noisy_labels",
        shift="training labels that are wrong",
        network="FastResNet",
        steps=50_000,
        checksums=BASES["cifar10"].checksums,
    ),
)
class CIFARNoise(NoisyLabels):
    """CIFAR-10 with a quarter of the labels redrawn, at the settings of the AND-mask paper.

    80 passes over all images in batches of 80 with FastResNet and Adam (its section 4.2 and
    released code); `fraction` 1 is its memorization study.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(NoisyLabels.Options):
        """The options of `NoisyLabels`, with CIFAR-10 as the base."""

        base: str = hparam("cifar10", options=("cifar10",))


@lru_cache(maxsize=2)
def _read(base: str, files: tuple[Path, ...]) -> tuple[Tensor, ...]:
    """Training images as bytes (N, C, H, W) and labels (N,), then the test's."""
    if base == "digits":
        scans, digits = read_digits()
        images = (scans * 255).round().to(torch.uint8).unsqueeze(1)
        return images[:DIGITS], digits[:DIGITS], images[DIGITS:], digits[DIGITS:]
    if base == "cifar10":
        from torchvision.datasets import CIFAR10

        parts: list[Tensor] = []
        for train in (True, False):
            try:
                part = CIFAR10(files[0].parent.parent, train=train)
            except RuntimeError as error:
                raise UserError(f"{files[0].parent} is damaged: {error}") from error
            parts += [torch.from_numpy(part.data).permute(0, 3, 1, 2), torch.tensor(part.targets)]
        return tuple(parts)
    shapes = [(count, *size) for count in (60_000, 10_000) for size in (BASES[base].shape[1:], ())]
    x, y, test_x, test_y = (read_idx(f, shape) for f, shape in zip(files, shapes, strict=True))
    return x.unsqueeze(1), y.long(), test_x.unsqueeze(1), test_y.long()
