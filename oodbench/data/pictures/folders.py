"""Datasets of image files, which are listed, checked, decoded and augmented."""

import os
from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, islice
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import TypeAdapter
from torch import Tensor

from oodbench.data.pictures.augment import domainbed
from oodbench.data.pictures.pixels import Look, White, decoded, look, opened, white_of
from oodbench.data.streams import MemoryMapped, Prepared, Rows, Stored, keep, pieces, progress
from oodbench.datasets import IMAGENET, Environment, FileDataset, Metadata
from oodbench.errors import UserError, counted
from oodbench.files import write_whole
from oodbench.hparams import hparam
from oodbench.identity import digest_of, stamp
from oodbench.results.schemas import DamagedFile, read_file

USUAL_SIZE = 224
"""The usual side of the inputs of networks for photographs, in pixels."""
SAMPLE = 200
"""The number of images from which the typical size is estimated."""
PORTION = 64
"""The files that a thread looks at in one task, as a small file takes less time than a task."""
Listing = dict[str, list[tuple[Path, int]]]
"""The file and the class of each image, by environment."""


def files_of(listing: Listing) -> list[Path]:
    """The files of all environments in the order of the listing."""
    return [file for images in listing.values() for file, _ in images]


class ImageFiles(Prepared):
    """Image files that are decoded to bytes (3, size, size) when they are read, see `pixels.decoded`."""

    def __init__(self, files: Iterable[Path], size: int, white: White, *, upright: bool) -> None:
        def prepare(file: Path) -> Tensor:
            pixels = decoded(file, size, white, upright=upright)
            return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))

        super().__init__([*files], prepare, (3, size, size))

    def digests(self, index: Tensor) -> list[bytes]:
        """Hashes of the pictures at `index`; raises UserError if one cannot be read."""
        looks = [look(self._items[i]) for i in index.tolist()]
        for each in looks:
            if each.problem:
                raise UserError(each.problem)
        return [bytes.fromhex(each.digest) for each in looks]


def typical_side(listing: Listing) -> int:
    """The median of the longer sides of a sample of images, in pixels; `USUAL_SIZE` without images."""
    files, sides = files_of(listing), []
    for file in files[:: max(1, len(files) // SAMPLE)]:
        with suppress(UserError), opened(file) as image:
            sides.append(max(image.size))
    return int(np.median(sides)) if sides else USUAL_SIZE


Survey = dict[str, list[Look]]
"""The facts about every picture, by environment."""
SURVEY = TypeAdapter(Survey)


def _largest(survey: Survey) -> dict[str, float]:
    deep = {name: [x.deep for x in looks if x.deep is not None] for name, looks in survey.items()}
    return {name: max(values) for name, values in deep.items() if values}


def _each(values: Mapping[str, float]) -> str:
    """The value that all environments share, or else every environment's value."""
    texts = {name: f"{value:.10g}" for name, value in values.items()}
    several = ", ".join(f"{texts[name]} in {name}" for name in sorted(texts))
    return several if len({*texts.values()}) > 1 else next(iter(texts.values()), "1")


image_metadata = partial(Metadata, family="images", network="ResNet50", steps=5001)
"""The metadata of images with the usual network and steps of arXiv:2007.01434."""


class Images(FileDataset):
    """Environments of image files with one class each.

    Images are decoded and resized to `size` x `size` when they are read, or once by
    `python -m oodbench.data cache`, with the same result. In training they are augmented as in
    arXiv:2007.01434 (`augment`), with two differences: crops are taken from the resized image (in DomainBed
    only for WILDS), and the held-out split of a training environment is evaluated without augmentation
    (DomainBed augments it).
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(FileDataset.Options):
        """The size of the inputs, and whether they are augmented."""

        size: int = hparam(USUAL_SIZE, low=1)
        augment: bool | None = hparam(None)
        """Whether images are augmented; by default only in runs whose network is pretrained."""

    options: Any
    normalization = IMAGENET
    upright: ClassVar[bool] = True
    """Whether pictures are turned as their EXIF entries say."""

    @cached_property
    def size(self) -> int:
        """The side of the inputs in pixels."""
        return int(self.options.size)

    @cached_property
    def input_shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """The channels, height and width of an input."""
        return (3, self.size, self.size)

    def resolved_options(self, pretrained: bool) -> dict[str, Any]:
        """Resolve `augment`: by default, images are augmented for pretrained networks."""
        return {"augment": pretrained} if self.options.augment is None else {}

    @property
    @abstractmethod
    def root(self) -> Path:
        """The folder that contains all files; raises UserError for a missing folder."""

    @property
    @abstractmethod
    def listing(self) -> Listing:
        """All files; raises UserError if they do not match the environments and classes."""

    def load(self, trial: int) -> dict[str, Environment]:
        """The environments, the same in every trial; cached images are read instead of the files."""
        cache, environments = self.cache_folder, {}
        for i, (name, files) in enumerate(self.listing.items()):
            paths, labels = zip(*files, strict=True)
            is_cached = cache.is_dir()
            x = MemoryMapped(cache / f"{i}.npy") if is_cached else self._stored(paths, name)
            attributes = self.attribute_numbers(paths)
            environments[name] = Environment(x, torch.tensor(labels), attributes=attributes)
        return environments

    @property
    def files_read(self) -> Collection[Path]:
        """The images."""
        return files_of(self.listing)

    def attribute_numbers(self, files: Sequence[Path]) -> Tensor | None:
        """The attributes (N,) of the images in `files`; None without attributes."""
        return None

    def read(self, files: Sequence[str | PathLike[str]]) -> Tensor:
        """New images as bytes (N, 3, size, size); raises UserError for a file that cannot be read."""
        images = self._stored(map(Path, files))
        return images.read(torch.arange(len(images)))

    def _stored(self, files: Iterable[Path], environment: str = "") -> Stored:
        white = partial(self._white_in, environment)
        return ImageFiles(files, self.size, white, upright=self.upright)

    def _white_in(self, environment: str) -> float:
        if environment not in self.whites and len({*self.whites.values()}) > 1:
            raise UserError(
                f"{self.name}: environments differ in the white of deep greys ({_each(self.whites)}): the "
                "white of new pictures is unknown; the option `white` says it"
            )
        return self.whites.get(environment, max(self.whites.values(), default=1))

    @cached_property
    def whites(self) -> dict[str, float]:
        """The value of deep greys that counts as white, by environment."""
        return {name: white_of(value) for name, value in _largest(self.survey).items()}

    def transform(self, x: Tensor, generator: torch.Generator | None) -> Tensor:
        """Map bytes (N, 3, H, W) to normalised floats, augmented if `generator` is given."""
        x = x.float() / 255  # a new tensor: floats may be the user's own
        if generator is not None and self.options.augment is not False:
            x = domainbed(x, generator)
        mean, std = IMAGENET.on(x.device)
        return x.sub_(mean).div_(std)

    def check(self) -> None:
        """Raise UserError unless every file can be read."""
        if self.cache_folder.is_dir():
            return
        looks = chain(*self.survey.values())
        if problems := [each.problem for each in looks if each.problem]:
            more = f"; {len(problems) - 1} others cannot either" if len(problems) > 1 else ""
            raise UserError(f"{self.name}: {problems[0]}{more}")

    @cached_property
    def survey(self) -> Survey:
        """The facts about every picture, which are kept in the root's `.oodbench` until a file changes."""
        if known := self._known_survey():
            return known
        files = files_of(self.listing)
        portions = [files[i : i + PORTION] for i in range(0, len(files), PORTION)]
        with ThreadPoolExecutor() as pool, progress() as bar:
            found = pool.map(lambda portion: [*map(look, portion)], portions)
            tracked = bar.track(found, total=len(portions), description="looking at images")
            looks = iter([*chain.from_iterable(tracked)])
        survey = {name: [*islice(looks, len(images))] for name, images in self.listing.items()}
        if not any(each.problem for each in chain(*survey.values())):
            with suppress(OSError):  # the folder may be read-only
                self._survey_file.parent.mkdir(exist_ok=True)
                write_whole(self._survey_file, SURVEY.dump_json(survey).decode())
        return survey

    def _known_survey(self) -> Survey | None:
        with suppress(DamagedFile):
            return read_file(self._survey_file, SURVEY)
        return None

    @property
    def _survey_file(self) -> Path:
        return self.root / ".oodbench" / f"survey-{self.fingerprint}.json"

    @property
    def notes(self) -> Sequence[str]:
        """Sentences on how unusual pictures are read."""
        survey, notes = self.survey, []
        looks = [*chain(*survey.values())]
        if deep := sum(each.deep is not None for each in looks):
            said = f"white is {_each(self.whites)}, and the maximum is {_each(_largest(survey))}"
            notes.append(f"more than a byte per pixel in {counted(deep, 'picture')}: {said}")
            plain = {name: sum(x.deep is None for x in each) for name, each in survey.items()}
            if those := [f"{n} in {name}" for name, n in plain.items() if n]:
                notes.append(f"other pictures have 8 bits, whose white is 255: {', '.join(those)}")
        upper = {
            name: [x.upper for x in each if x.upper is not None] for name, each in survey.items()
        }
        if colours := sum(map(len, upper.values())):
            most = _each({name: max(values) for name, values in upper.items() if values})
            notes.append(
                f"only the upper 8 bits of colours of 16 bits in {counted(colours, 'picture')} are read "
                f"(the largest is {most} of 255): save them with 8 bits if that is too dark"
            )
        if transparent := sum(each.transparent for each in looks):
            notes.append(f"what is transparent in {counted(transparent, 'picture')} is white")
        if turned := sum(each.turned for each in looks) * self.upright:
            notes.append(f"{counted(turned, 'picture')} turned upright, as EXIF says")
        if several := sum(each.several for each in looks):
            what = counted(several, "file")
            notes.append(f"of {what} with several pictures the first is read")
        return notes

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all files' names, sizes, times and classes; raises UserError for a dead link."""
        lines, root = [], f"{self.root}{os.sep}"
        try:
            for name, files in self.listing.items():
                for file, number in files:
                    size, changed = stamp(file)
                    at = str(file).removeprefix(root)
                    lines.append(f"{name}\t{at}\t{number}\t{size}\t{changed}\n")
        except OSError as error:
            why = "a dead link" if Path(error.filename).is_symlink() else error.strerror
            raise UserError(f"{self.name}: {error.filename}: {why}") from error
        return digest_of("".join(lines).encode(errors="surrogateescape"))

    @property
    def cache_folder(self) -> Path:
        """The folder of decoded images of this size; it may not exist yet."""
        return self.root / ".oodbench" / f"images-{self.size}-{self.fingerprint}"

    def cache(self, workers: int) -> None:
        """Decode all images into the cache."""
        arrays = {}
        for i, (name, files) in enumerate(self.listing.items()):
            stored = self._stored((file for file, _ in files), name)
            read = partial(pieces, stored, workers)
            arrays[str(i)] = Rows(len(stored), stored.shape, np.uint8, read)
        keep(self.cache_folder, self.label, arrays)


class OwnImages(Images):
    """A user's images, whose size and white are estimated from the files."""

    @dataclass(frozen=True, kw_only=True)
    class Options(Images.Options):
        """The size of the inputs, whether they are augmented, and what is white."""

        size: int = hparam(0, low=0)
        """The side of the inputs in pixels; 0: the median of some files' longer sides, at most 224."""
        white: float = hparam(0.0, low=0.0, neutral=0.0)
        """The value that is white in pictures of deep grey (16 bits and more, floats); 0: the first of
        1, 255, 1023, 4095, 16383, 65535, ... that no picture of the environment exceeds by over 1 %."""

    @cached_property
    def size(self) -> int:
        """The side of the inputs: the option `size`, or else an estimate from the files."""
        return self.options.size or min(typical_side(self.listing), USUAL_SIZE)

    def resolved_options(self, pretrained: bool) -> dict[str, Any]:
        """Add the size, and the white of deep greys if it is the same everywhere."""
        values = {*self.whites.values()} if _largest(self.survey) else set()
        white = {"white": max(values)} if len(values) == 1 else {}
        return super().resolved_options(pretrained) | {"size": self.size} | white

    @cached_property
    def whites(self) -> dict[str, float]:
        """The white of deep greys by environment: the option `white`, or else estimates from the files."""
        given = dict.fromkeys(self.environments, self.options.white)
        return given if self.options.white else super().whites

    @property
    def cache_folder(self) -> Path:
        """The folder of decoded images of this size and white; white is 1 without deep greys."""
        deep = _largest(self._known_survey() or {})
        white = _each(self.whites if self.options.white or deep else {})
        white = digest_of(white.encode()) if " in " in white else white
        return self.root / ".oodbench" / f"upright-{self.size}-{white}-{self.fingerprint}"

    def cache(self, workers: int) -> None:
        """Decode all images into the cache."""
        self.check()  # surveys the files; the folder's name depends on their white
        super().cache(workers)

    @property
    def notes(self) -> Sequence[str]:
        """Sentences on how unusual pictures are read, and on pictures that are enlarged a lot."""
        notes = [*super().notes]
        side, size = typical_side(self.listing), self.size
        if size > 2 * side:
            notes.append(
                f"images of about {side} pixels a side are enlarged to {size}, "
                f"{(size / side) ** 2:.0f} times the pixels; without the option `size` they are not"
            )
        return notes
