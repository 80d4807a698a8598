"""Datasets of image files in folders, ENVIRONMENT/CLASS/IMAGE: checked, decoded, augmented."""

import hashlib
import os
import warnings
from abc import abstractmethod
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from oodbench.data.augment import domainbed
from oodbench.data.facts import label
from oodbench.data.streams import MemoryMapped, Rows, Stored, keep, pieces
from oodbench.datasets import IMAGENET, Environment, FileDataset, Metadata
from oodbench.errors import UserError
from oodbench.hparams import hparam
from oodbench.tasks import Task

UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)
"""The errors that Pillow raises for a file that is not a complete image."""

USUAL_SIZE = 224
"""The side of the inputs that networks for photographs were made for, in pixels."""
SAMPLE = 200
"""The number of images from which the typical size is estimated."""
Listing = dict[str, list[tuple[Path, int]]]
"""The file and the class of each image, by environment."""


class ImageFiles(Stored):
    """Images decoded when they are read, as bytes (3, size, size)."""

    def __init__(self, files: Iterable[Path], size: int) -> None:
        self.shape = (3, size, size)
        self._files = list(files)

    def __len__(self) -> int:
        return len(self._files)

    def read(self, index: Tensor) -> Tensor:
        """The images at `index`; raises UserError for a file that cannot be read."""
        pixels = np.empty((len(index), *self.shape), np.uint8)
        for row, place in zip(pixels, index.tolist(), strict=True):
            row[:] = decoded(self._files[place], self.shape[1]).transpose(2, 0, 1)
        return torch.from_numpy(pixels)


def decoded(file: Path, size: int) -> np.ndarray:
    """An image in RGB, resized to (size, size, 3) as torchvision's Resize does it (bilinearly)."""
    try:
        with Image.open(file) as image:
            resized = image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
            return np.asarray(resized)
    except UNREADABLE as error:
        raise UserError(f"{file} cannot be read as an image ({error})") from error


def typical_side(listing: Listing) -> int:
    """The median of the longer sides of a sample of images, in pixels; `USUAL_SIZE` if none is readable."""
    files = [file for images in listing.values() for file, _ in images]
    sides = []
    for file in files[:: max(1, len(files) // SAMPLE)]:
        with suppress(*UNREADABLE), Image.open(file) as image:  # reads the header alone
            sides.append(max(image.size))
    return int(np.median(sides)) if sides else USUAL_SIZE


def _problem(file: Path) -> str:
    """The error of decoding a file, or nothing; JPEGs are decoded at a low resolution, which is faster."""
    try:
        with Image.open(file) as image:
            image.draft("RGB", (64, 64))
            image.load()
    except UNREADABLE as error:
        return f"{file} cannot be read as an image ({error})"
    return ""


image_metadata = partial(Metadata, family="images", network="ResNet50", steps=5001)
"""The metadata of images that are trained on as in arXiv:2007.01434."""


class Images(FileDataset):
    """Environments of image files, one class each.

    Images are decoded and resized to `size` x `size` when they are read, or once and for all by
    `python -m oodbench.data cache`: the same bytes either way. In training they are augmented as in
    arXiv:2007.01434 (`oodbench.data.augment`), with two differences: crops are taken from the resized
    image, not from the original one (DomainBed does so for WILDS alone), and the held-out split of a
    training environment is evaluated without augmentation (DomainBed augments it).
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(FileDataset.Options):
        """The size of the inputs, and whether they are augmented."""

        size: int = hparam(USUAL_SIZE, low=1)
        augment: bool | None = hparam(None)
        """Whether images are augmented; by default only in runs whose network is pretrained."""

    options: Any
    normalization = IMAGENET

    @property
    def size(self) -> int:
        """The side of the inputs in pixels."""
        return int(self.options.size)

    def resolved_options(self, pretrained: bool) -> dict[str, Any]:
        """Without the option, images are augmented for pretrained networks."""
        return {"augment": pretrained} if self.options.augment is None else {}

    @property
    @abstractmethod
    def root(self) -> Path:
        """The folder that holds all files; raises UserError if it is not there."""

    @abstractmethod
    def listing(self) -> Listing:
        """All files; raises UserError if they cannot be these environments and classes."""

    def load(self, trial: int) -> dict[str, Environment]:
        """The environments, the same in every trial; decoded images from the cache if there is one."""
        listing = self.listing()
        cache = self.cache_folder(listing)
        environments = {}
        for i, (name, files) in enumerate(listing.items()):
            paths, labels = zip(*files, strict=True)
            x: Stored = ImageFiles(paths, self.size)
            if cache.is_dir():
                x = self._cached(cache / f"{i}.npy")
            attributes = self.attribute_numbers(paths)
            environments[name] = Environment(x, torch.tensor(labels), attributes=attributes)
        return environments

    @property
    def files_read(self) -> Collection[Path]:
        """The images."""
        return [file for images in self.listing().values() for file, _ in images]

    def attribute_numbers(self, files: Sequence[Path]) -> Tensor | None:
        """The attribute of each image in `files`, (N,); None if they have none."""
        return None

    def read(self, files: Sequence[str | PathLike[str]]) -> Tensor:
        """Images as bytes (N, 3, size, size); raises UserError for a file that cannot be read."""
        images = ImageFiles(map(Path, files), self.size)
        return images.read(torch.arange(len(images)))

    def _cached(self, file: Path) -> Stored:
        try:
            return MemoryMapped(file)
        except UserError as error:
            raise UserError(
                f"{self.name}: {error}; without {file.parent} files are decoded"
            ) from error

    def transform(self, x: Tensor, generator: torch.Generator | None) -> Tensor:
        """Bytes (N, 3, H, W) to normalised floats; augmented if there is a generator."""
        x = x.float().div_(255)
        if generator is not None and self.options.augment is not False:
            x = domainbed(x, generator)
        mean, std = IMAGENET.on(x.device)
        return x.sub_(mean).div_(std)

    def check(self) -> None:
        """Raise UserError unless every file can be read; files are decoded once, then remembered."""
        # imported here, as its import draws from Python's random generator
        from rich.progress import track

        from oodbench.terminal import terminal

        listing = self.listing()
        stamp = self.root / ".oodbench" / f"read-{self.fingerprint(listing)}"
        if stamp.exists() or self.cache_folder(listing).is_dir():
            return
        files = [file for images in listing.values() for file, _ in images]
        problems = []
        starts, console = range(0, len(files), 1024), terminal(stderr=True)
        hidden = not console.is_interactive
        with ThreadPoolExecutor() as pool:
            for start in track(starts, "looking at images", console=console, disable=hidden):
                problems += [p for p in pool.map(_problem, files[start : start + 1024]) if p]
        if problems:
            more = f"; {len(problems) - 1} others cannot either" if len(problems) > 1 else ""
            raise UserError(f"{self.name}: {problems[0]}{more}")
        with suppress(OSError):  # a folder that cannot be written to is checked in every run
            stamp.parent.mkdir(exist_ok=True)
            stamp.touch()

    def fingerprint(self, listing: Listing) -> str:
        """A hash of every file's name, size and time of change, and of its class; or UserError."""
        digest = hashlib.sha256()
        for name, files in listing.items():
            for file, number in files:
                try:
                    stat = file.stat()
                except OSError as error:  # such as a dead link
                    raise UserError(f"{self.name}: {file}: {error.strerror}") from error
                place = file.relative_to(self.root)
                line = f"{name}\t{place}\t{number}\t{stat.st_size}\t{stat.st_mtime_ns}\n"
                digest.update(line.encode())
        return digest.hexdigest()[:16]

    def cache_folder(self, listing: Listing) -> Path:
        """The folder in which the decoded images of this size are, or would be."""
        return self.root / ".oodbench" / f"images-{self.size}-{self.fingerprint(listing)}"

    def cache(self, workers: int) -> None:
        """Decode all images into the cache."""
        arrays, listing = {}, self.listing()
        for i, files in enumerate(listing.values()):
            stored = ImageFiles((file for file, _ in files), self.size)
            read = partial(pieces, stored, workers)
            arrays[str(i)] = Rows(len(stored), stored.shape, np.uint8, read)
        keep(self.cache_folder(listing), label(self), arrays)


class OwnImages(Images):
    """A user's own images, whose size is not known beforehand.

    A constructor calls `fit_size` last, when `listing` works.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(Images.Options):
        """The size of the inputs, and whether they are augmented."""

        size: int = hparam(0, low=0)
        """The side of the inputs in pixels; 0: the median of some files' longer sides, at most 224."""

    _size_of_files = 0

    def fit_size(self) -> None:
        """Set the size of the inputs: the option's, or else one that fits the files."""
        if not self.options.size:
            self._size_of_files = min(typical_side(self.listing()), USUAL_SIZE)
        self.input_shape = (3, self.size, self.size)

    @property
    def size(self) -> int:
        """The option, or else the size that fits the files."""
        return self.options.size or self._size_of_files

    def resolved_options(self, pretrained: bool) -> dict[str, Any]:
        """The run also records the size, as the files may change."""
        return super().resolved_options(pretrained) | {"size": self.size}

    def check(self) -> None:
        """Check all files, and warn where inputs have more than twice the side of the files."""
        super().check()
        side, size = typical_side(self.listing()), self.size
        if size > 2 * side:
            warnings.warn(
                f"{label(self)}: images of about {side} pixels a side are enlarged to {size}, "
                f"{(size / side) ** 2:.0f} times the pixels; without the option `size` they are not",
                stacklevel=2,
            )


class Place(NamedTuple):
    """The place of an environment's images."""

    environment: str
    folder: str
    """The folder under the root."""
    images: int | tuple[int, ...] | None = None
    """The published number of images, in all or of each class."""


class ImageFolders(Images):
    """Images in ROOT/FOLDER/CLASS/, at any depth; the classes are numbered in the order of their names."""

    places: tuple[Place, ...]
    classes: tuple[str, ...]

    def __init__(self, options: Any, data_dir: Path | None = None) -> None:
        super().__init__(options, data_dir)
        self.environments = tuple(place.environment for place in self.places)
        self.input_shape = (3, options.size, options.size)

    def listing(self) -> Listing:
        """All files in the order of their names; every environment must have the same class folders."""
        listing: Listing = {}
        for environment, folder, _ in self.places:
            at = self.root / folder
            if not at.is_dir():
                raise UserError(f"{self.name}: environment '{environment}' has no folder {at}")
            present = class_folders(at)
            for name in (*self.classes, *present):
                if name not in present or name not in self.classes:
                    state = "no folder" if name not in present else "a folder"
                    raise UserError(
                        f"{self.name}: environment '{environment}' has {state} of the class '{name}' "
                        f"in {at}, unlike other environments (an empty one would do)"
                    )
            files = [
                (file, label)
                for label, name in enumerate(self.classes)
                for file in image_files(at / name)
            ]
            seen = sorted({label for _, label in files})
            if len(seen) < 2:
                what = f"only images of '{self.classes[seen[0]]}'" if seen else "no images"
                raise UserError(f"{self.name}: environment '{environment}' has {what} in {at}")
            listing[environment] = files
        return listing

    @property
    def files_read(self) -> Collection[Path]:
        """The images and the folders that they are in."""
        files = super().files_read
        folders = {os.path.dirname(file) for file in files}  # noqa: PTH120 (fast)
        places = [self.root / place.folder for place in self.places]
        return [*files, *places, *map(Path, folders)]


class Published(Images):
    """A published dataset in its own folder under the data directory."""

    source: ClassVar[str]
    """The address from which the dataset can be downloaded."""

    @property
    def root(self) -> Path:
        """The folder DATA_DIR/FOLDER; raises UserError if it is not there."""
        folder = self.metadata.folder
        if self.data_dir is None:
            raise UserError(f"{self.name} needs --data-dir DIR with the folder {folder} in it")
        root = self.data_dir / folder
        if not root.is_dir():
            raise UserError(f"{self.name}: there is no folder {root}; get it from {self.source}")
        return root

    def download(self, data_dir: Path) -> None:
        """Raise UserError with the address of the dataset, whose licence the user must read."""
        raise UserError(
            f"{self.name} is at {self.source}; unpack it to {data_dir / self.metadata.folder}"
        )


class Suite(Published, ImageFolders):
    """A published dataset of class folders, in its original layout."""

    @dataclass(frozen=True, kw_only=True)
    class Options(Images.Options):
        """Whether the dataset may differ from the published one."""

        subset: bool = hparam(False)
        """Take fewer or more images than were published; tables say so."""

    num_classes: ClassVar[int]

    def __init__(self, options: Any, data_dir: Path | None = None) -> None:
        super().__init__(options, data_dir)
        self.test_environments = self.environments[:1]
        self.task = Task("multiclass", self.num_classes)

    @property
    def classes(self) -> tuple[str, ...]:  # type: ignore[override]
        """The names of the class folders."""
        first = self.root / self.places[0].folder
        folders = class_folders(first) if first.is_dir() else ()
        if folders and len(folders) != self.num_classes:
            raise UserError(
                f"{self.name} has {self.num_classes} classes, and {first} holds {len(folders)} folders"
            )
        return folders

    def check(self) -> None:
        """Check all files, and that their number is the published one, unless `subset`."""
        listing = self.listing()
        for environment, folder, published in () if self.options.subset else self.places:
            labels = [label for _, label in listing[environment]]
            each = tuple(labels.count(label) for label in range(self.num_classes))
            if published is not None and published not in (len(labels), each):
                raise UserError(
                    f"{self.name}: {self.root / folder} holds {len(labels)} images ({each} by class), "
                    f"not the published {published}; with its option `subset` it is taken as it is"
                )
        super().check()


def class_folders(folder: Path) -> tuple[str, ...]:
    """The names of the folders in a folder, sorted; those that start with a dot do not count."""
    return tuple(sorted(p.name for p in folder.iterdir() if p.is_dir() and p.name[0] != "."))


def image_files(folder: Path) -> list[Path]:
    """The files below a folder with an ending that torchvision takes for images, sorted; dead links too."""
    from torchvision.datasets.folder import IMG_EXTENSIONS

    files = [
        f"{place}/{name}"
        for place, _, names in os.walk(folder)
        for name in names
        if os.path.splitext(name)[1].lower() in IMG_EXTENSIONS  # noqa: PTH122 (fast)
    ]
    return [Path(file) for file in sorted(files, key=lambda file: file.split("/"))]
