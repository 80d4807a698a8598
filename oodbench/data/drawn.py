"""Datasets of small pictures that the user's machine draws once from packages."""

import csv
import importlib
import io
import logging
import math
import shutil
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from oodbench.data.packages import Files, Package, read, write_licences
from oodbench.data.streams import MemoryMapped, Rows, Stored, keep
from oodbench.datasets import Environment, FileDataset, Normalization, permutation
from oodbench.errors import UserError, missing_package, unknown
from oodbench.files import write_whole
from oodbench.hparams import hparam

LIST, PICTURES, LICENCES = "pictures.csv", "pictures.npy", "LICENCES.txt"
IN_MEMORY = 2**29
"""Pictures of at most so many bytes are held in memory."""
CHUNK = 64
"""Pictures that are drawn between two steps of the bar."""
FIFTH = 5
"""One in so many identities is in the `out` split, both in training and in testing."""
FINE = 64
"""Smaller drawings are rendered at about this side and averaged."""
VERSION = "0.5.0"
"""The version of the package resvg-py, whose renderer determines every byte."""
MARGIN = 1.1
"""The side of a font's drawing, in larger sides of the character."""


class Picture(NamedTuple):
    """One picture, before it is drawn."""

    environment: str
    target: int
    identity: str
    """The emoji or face that is shown; a trial trains on some identities and tests on others."""
    draw: Callable[[], NDArray[np.uint8]]
    """Draws the picture (C, side, side) as bytes; raises UserError if that fails."""


class DrawnPictures(FileDataset):
    """Pictures with identities, from packages.

    `make` reads the packages, draws all pictures into one file, lists them in another, and keeps the
    licences with them. A trial deals out the identities of an environment: some, by default half, for
    testing, the others for training, and a fifth of both to the `out` splits.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(FileDataset.Options):
        """The pictures."""

        size: int = hparam(16, options=(16, 32, 64, 224))
        """The side of the pictures in pixels."""
        as_test: str = hparam("")
        """The environment whose pictures every other one gets, which shows what it allows as a test."""

    options: Any
    options_of_files = ("size",)
    channels = 3
    network_hparams: ClassVar[Mapping[str, Any]] = MappingProxyType({"width": 32, "strided": True})
    """A run of 400 steps at 16 x 16 pixels takes seconds."""
    normalization: Normalization
    one_unseen_in = 2
    """One in so many identities of an environment is seen only when it is held out."""
    packages: ClassVar[Sequence[Package]]
    """The packages that the pictures are drawn from."""

    def __init__(self, options: Any, data_dir: Path | None = None) -> None:
        super().__init__(options, data_dir)
        self.input_shape = (self.channels, options.size, options.size)
        self.repeats = bool(options.as_test)
        if options.as_test and options.as_test not in self.environments:
            raise unknown("environment", options.as_test, self.environments, "`as_test`")

    @abstractmethod
    def pictures(self, files: Mapping[str, Files]) -> list[Picture]:
        """All pictures, from the files of every package by its name; raises UserError for damaged ones."""

    def drawing(self, svg: str, what: str) -> Callable[[], NDArray[np.uint8]]:
        """A function that draws SVG as a picture; an error says `what` was drawn."""
        return lambda: rendered(svg, self.options.size, f"{self.name}: {what}")[: self.channels]

    @property
    def folder(self) -> str:
        """The folder of the pictures of this size below the data directory."""
        return f"{self.metadata.folder}/{self.options.size}"

    @property
    def checksums(self) -> Mapping[str, str]:
        """The md5 of the pictures of this size, and of their list."""
        read = f"{self.folder}/{PICTURES}", f"{self.metadata.folder}/{LIST}"
        return {path: self.metadata.checksums[path] for path in read}

    def make(self, data_dir: Path, source: Path | None, workers: int) -> None:
        """Draw the pictures unless undamaged ones are there; `source` is a folder of packages."""
        from oodbench.terminal import terminal  # rich draws random numbers as it is imported

        folder = data_dir / self.folder
        if folder.is_dir():
            try:
                return self.check()
            except UserError:
                shutil.rmtree(folder)
        renderer()  # raises an error before packages are fetched
        files = read(self.packages, self.name, source)
        pictures = self.pictures(files)
        about = data_dir / self.metadata.folder
        about.mkdir(parents=True, exist_ok=True)
        listed = "".join(f"{p.environment},{p.target},{p.identity}\n" for p in pictures)
        write_whole(about / LIST, listed)
        terminal().say(write_licences(about / LICENCES, self.packages, files))
        shape = (self.channels, self.options.size, self.options.size)
        rows = Rows(len(pictures), shape, np.uint8, lambda: self._drawn(pictures))
        keep(folder, self.label, {PICTURES.removesuffix(".npy"): rows})

    def _drawn(self, pictures: Sequence[Picture]) -> Iterator[Tensor]:
        for start in range(0, len(pictures), CHUNK):
            drawn = []
            for picture in pictures[start : start + CHUNK]:
                drawn.append(picture.draw())
                if (drawn[-1] == drawn[-1].flat[0]).all():
                    raise UserError(
                        f"{self.name}: {picture.identity} of {picture.environment} shows nothing"
                    )
            yield torch.from_numpy(np.stack(drawn))

    def load(self, trial: int) -> dict[str, Environment]:
        """The environments of a trial; raises UserError if a file is missing or damaged."""
        pictures, listed = map(self.file, self.checksums)
        made = _read(listed, pictures, self.environments)
        rank = permutation(self, made.num_identities, trial)
        return {
            name: self._environment(made, self.options.as_test or name, rank)
            for name in self.environments
        }

    def _environment(self, made: "_Made", name: str, rank: Tensor) -> Environment:
        rows = (made.environment == self.environments.index(name)).nonzero().squeeze(1)
        there, identity = torch.unique(made.identity[rows], return_inverse=True)
        # identities are numbered within the environment, then among those for testing or training
        number = rank[there].argsort().argsort()[identity]
        unseen = number % self.one_unseen_in == 0
        tested = number // self.one_unseen_in
        of_role = torch.where(unseen, tested, number - tested - 1)
        return Environment(
            made.x[rows],
            made.y[rows],
            out=of_role % FIFTH == 0,
            unseen=unseen,
        )

    def transform(self, x: Tensor, generator: torch.Generator | None) -> Tensor:
        """Map bytes (N, C, H, W) to standardised floats; one channel is repeated for three moments."""
        mean, std = self.normalization.on(x.device)
        return x.float().div_(255).sub(mean).div_(std)


class _Made(NamedTuple):
    x: Tensor | Stored
    """(N, C, side, side) bytes."""
    y: Tensor
    environment: Tensor
    """(N,) indices into the dataset's environments."""
    identity: Tensor
    """(N,) indices among the identities, sorted by name."""
    num_identities: int


@lru_cache(maxsize=2)
def _read(listed: Path, pictures: Path, environments: tuple[str, ...]) -> _Made:
    environment, target, identity = zip(*csv.reader(listed.read_text().splitlines()), strict=True)
    stored = MemoryMapped(pictures)
    if len(stored) != len(target):
        raise UserError(f"{pictures} has {len(stored)} pictures, and {listed} lists {len(target)}")
    is_small = math.prod(stored.shape) * len(stored) <= IN_MEMORY
    names, numbers = np.unique(np.array(identity, dtype=object), return_inverse=True)
    return _Made(
        stored.read(torch.arange(len(stored))) if is_small else stored,
        torch.tensor([int(t) for t in target]),
        torch.tensor([environments.index(e) for e in environment]),
        torch.from_numpy(numbers),
        len(names),
    )


def rendered(svg: str, side: int, who: str) -> NDArray[np.uint8]:
    """A drawing in RGB on white, (3, side, side).

    It is rendered at a multiple of `side`, about `FINE` or more, whose blocks are averaged and rounded.
    Raises UserError, beginning with `who`, for a drawing that cannot be rendered.
    """
    draw = renderer()
    times = max(1, FINE // side)
    large = times * side
    sized = svg.replace("<svg ", f'<svg width="{large}" height="{large}" ', 1)
    try:
        png = draw(svg_string=sized, background="#ffffff", skip_system_fonts=True)
        with Image.open(io.BytesIO(png)) as image:
            pixels = np.asarray(image.convert("RGB"))
    except ValueError as error:
        raise UserError(f"{who} cannot be drawn: {error}") from error
    if pixels.shape != (large, large, 3):
        raise UserError(f"{who} cannot be drawn: it became {pixels.shape[1]} x {pixels.shape[0]}")
    total = pixels.reshape(side, times, side, times, 3).sum((1, 3), dtype=np.uint32)
    mean: NDArray[np.uint8] = ((total + times**2 // 2) // times**2).astype(np.uint8)
    return mean.transpose(2, 0, 1)


def renderer() -> Callable[..., bytes]:
    """The function of resvg-py that renders; raises UserError without this version of the package."""
    try:
        package = importlib.import_module("resvg_py")
    except ModuleNotFoundError as error:
        raise missing_package("a drawing", "resvg-py", "drawings") from error
    if package.__version__ != VERSION:
        raise UserError(
            f"drawings need resvg-py {VERSION}, not {package.__version__}, which may draw other "
            "bytes: `pip install 'oodbench[drawings]'`"
        )
    draw: Callable[..., bytes] = package.svg_to_bytes
    return draw


def outlines(content: bytes, characters: str, who: str) -> dict[str, str] | None:
    """Each character of a font as SVG, black and centred in a square; None if the font lacks one.

    Raises UserError, beginning with `who`, for a file that is not a font.
    """
    import fontTools  # a dependency of matplotlib, which only drawing needs
    from fontTools import ttLib

    logging.getLogger(fontTools.__name__).setLevel(logging.ERROR)  # it warns of dates in old fonts
    try:
        font = ttLib.TTFont(io.BytesIO(content), lazy=True)
        numbers, glyphs = font.getBestCmap() or {}, font.getGlyphSet()
        drawn = {c: _svg(glyphs, numbers.get(ord(c), "")) for c in characters}
    except (ttLib.TTLibError, KeyError, ValueError, EOFError, AssertionError) as error:
        raise UserError(f"{who} cannot be read as a font ({error})") from error
    return drawn if all(drawn.values()) else None


def _svg(glyphs: Any, name: str) -> str:
    from fontTools.pens.boundsPen import BoundsPen
    from fontTools.pens.svgPathPen import SVGPathPen

    bounds, path = BoundsPen(glyphs), SVGPathPen(glyphs)
    for pen in (bounds, path) if name in glyphs else ():
        glyphs[name].draw(pen)
    if bounds.bounds is None:
        return ""
    left, bottom, right, top = bounds.bounds
    side = MARGIN * max(right - left, top - bottom)
    box = f"{(left + right - side) / 2} {-(bottom + top + side) / 2} {side} {side}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}">'
        f'<path transform="scale(1 -1)" d="{path.getCommands()}"/></svg>'
    )
