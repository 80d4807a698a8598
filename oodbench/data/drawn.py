"""Datasets of small pictures that are drawn once, on the user's machine, from packages."""

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
"""The most bytes of pictures that are held in memory."""
CHUNK = 64
"""Pictures that are drawn and written at a time."""
FIFTH = 5
"""One in five identities is in the `out` split, among those for training and those for testing."""
FINE = 64
"""Drawings are rendered with at least about this side, then averaged."""
VERSION = "0.5.0"
"""The version of resvg-py, as other versions may draw other bytes."""
MARGIN = 1.1
"""The side of a character's drawing, relative to the longer side of the character."""


class Picture(NamedTuple):
    """One picture, before it is drawn."""

    environment: str
    target: int
    identity: str
    """The emoji or face that is shown; a trial trains on some identities and tests on others."""
    draw: Callable[[], NDArray[np.uint8]]
    """A function that draws the picture (C, side, side) as bytes; raises UserError if that fails."""


class DrawnPictures(FileDataset):
    """Pictures of identities, such as emojis or faces of fonts, drawn from packages.

    `make` draws all pictures into one file, lists them in another, and writes the packages' licences next
    to them. In a trial, some identities of an environment, by default half, are for testing and the others
    for training; a fifth of both are in the `out` splits.
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(FileDataset.Options):
        """The pictures."""

        size: int = hparam(16, options=(16, 32, 64, 224))
        """The side of the pictures in pixels."""
        as_test: str = hparam("")
        """The environment whose pictures replace all others', for an upper bound on test results."""

    options: Any
    options_of_files = ("size",)
    channels = 3
    network_hparams: ClassVar[Mapping[str, Any]] = MappingProxyType({"width": 32, "strided": True})
    """A small network: 400 steps on pictures of 16 x 16 pixels take seconds."""
    normalization: Normalization
    one_unseen_in = 2
    """One in this many of an environment's identities is left out of training."""
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
        """All pictures, from the files of each package, by its name; raises UserError for damaged files."""

    def drawing(self, svg: str, what: str) -> Callable[[], NDArray[np.uint8]]:
        """A function that draws SVG as a picture; its errors name `what` is drawn."""
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
        """Draw the pictures if they are missing or damaged; `source` is a folder of packages."""
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
        x, environment, y, identity = _read(listed, pictures)
        rank = permutation(self, int(identity.max()) + 1, trial)
        environments = {}
        for name in self.environments:
            rows = torch.from_numpy(np.flatnonzero(environment == (self.options.as_test or name)))
            there, of_row = torch.unique(identity[rows], return_inverse=True)
            # identities are numbered within the environment, then among those for testing or training
            number = rank[there].argsort().argsort()[of_row]
            unseen = number % self.one_unseen_in == 0
            tested = number // self.one_unseen_in
            of_role = torch.where(unseen, tested, number - tested - 1)
            out = of_role % FIFTH == 0
            environments[name] = Environment(x[rows], y[rows], out=out, unseen=unseen)
        return environments

    def transform(self, x: Tensor, generator: torch.Generator | None) -> Tensor:
        """Map bytes (N, C, H, W) to standardised floats with as many channels as there are moments."""
        mean, std = self.normalization.on(x.device)
        return x.float().div_(255).sub(mean).div_(std)


@lru_cache(maxsize=2)
def _read(listed: Path, pictures: Path) -> tuple[Tensor | Stored, NDArray[np.str_], Tensor, Tensor]:
    """The pictures (N, C, side, side), and their environments, targets and numbers of identities (N,)."""
    environment, target, identity = np.array([*csv.reader(listed.read_text().splitlines())]).T
    stored = MemoryMapped(pictures)
    if len(stored) != len(target):
        raise UserError(f"{pictures} has {len(stored)} pictures, and {listed} lists {len(target)}")
    is_small = math.prod(stored.shape) * len(stored) <= IN_MEMORY
    x = stored.read(torch.arange(len(stored))) if is_small else stored
    numbers = np.unique(identity, return_inverse=True)[1]
    return x, environment, torch.from_numpy(target.astype(np.int64)), torch.from_numpy(numbers)


def rendered(svg: str, side: int, who: str) -> NDArray[np.uint8]:
    """SVG as an RGB picture (3, side, side) on white.

    The drawing is rendered at a multiple of `side`, at least about `FINE`; then the blocks of pixels are
    averaged and rounded. Raises UserError, beginning with `who`, if it cannot be rendered.
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
    """The rendering function of resvg-py; raises UserError without `VERSION` of the package."""
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
    """The characters of a font as SVG, black and centred in a square; None if the font lacks any of them.

    Raises UserError, beginning with `who`, for a file that is not a font.
    """
    import fontTools  # a dependency of matplotlib; only drawing needs it
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
