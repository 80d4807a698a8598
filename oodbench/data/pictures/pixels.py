"""Which files of a folder are pictures, and their bytes, the same on every machine."""

import contextlib
import hashlib
import io
import math
import os
import re
import threading
import warnings
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile

from oodbench.errors import UserError, counted
from oodbench.files import other_than_data
from oodbench.identity import by_stamp

FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
"""The formats that are read, by Pillow's names; others need external programs, which files can invoke."""
ENDINGS = frozenset(
    ".jpg .jpeg .jpe .jfif .png .apng .gif .bmp .tif .tiff .webp .avif .jp2 .ppm .pgm .pbm .pnm".split()
)
"""The endings of files of these formats."""
UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)
"""The errors that Pillow raises for a file that is not a complete image."""
READERS = {
    **dict.fromkeys((".dcm", ".dicom", ".ima"), "pydicom.dcmread"),
    **dict.fromkeys((".nii", ".nii.gz"), "nibabel.load"),
    **dict.fromkeys((".npy", ".npz"), "numpy.load"),
    ".mat": "scipy.io.loadmat",
    **dict.fromkeys((".heic", ".heif"), "pillow_heif.open_heif"),
}
"""What reads files of scans and arrays, by their endings, for a user who saves them as pictures."""
MASK = re.compile(r"(.+)[-_. ](?:mask|seg|segmentation|annotation)s?(?:[-_ ]?\d+)?", re.I | re.S)
"""A name such as `7_mask` of what lies beside a picture `7`."""
DEEP = ("I", "I;16", "I;16L", "I;16B", "I;16N", "F")
"""Pillow's grey modes of more than 8 bits, or floats."""
ORIENTATION = 274
"""EXIF's number of the entry that says how the camera was turned."""
PHOTOMETRIC = 262
"""TIFF's number of the entry that says whether 0 is white (0) or black (1)."""
PAGED = ("GIF", "TIFF", "WEBP", "AVIF", "PNG")
"""The formats with several different images in a file; in others, such as MPO, all show the same."""
WHITES = (1, *(2**bits - 1 for bits in (8, 10, 12, 14, *range(16, 33))))
"""The values that can be white in deep greys: 1 in floats, or the largest of so many bits."""


@contextlib.contextmanager
def opened(file: Path, content: IO[bytes] | None = None) -> Iterator[Image.Image]:
    """A picture, for `with`, from its file or its content; raises UserError for a damaged one."""
    try:
        with _opened(content or file) as image:
            yield image
    except UNREADABLE as error:
        why = str(error)
        if isinstance(error, UnidentifiedImageError):  # whose text is an address in memory
            why = f"its format is unknown; {nature(file)}".removesuffix("; ")
        if isinstance(error, Image.DecompressionBombError):
            why = f"{why.partition(',')[0]}; save it smaller, as `size` makes it anyway"
        raise UserError(f"{file} cannot be read as an image ({why})") from error


@contextlib.contextmanager
def _opened(file: Path | IO[bytes]) -> Iterator[Image.Image]:
    Image.init()
    formats = [name for name in FORMATS if name in Image.OPEN]  # that this Pillow can read
    with _quiet():
        try:
            image: Image.Image = Image.open(file, formats=formats)
        except Image.DecompressionBombError as error:
            image = _reduced(file, error)
        with image:
            yield image


def _reduced(file: Path | IO[bytes], too_large: Exception) -> Image.Image:
    """A JPEG beyond Pillow's limit at an eighth of each side; raises `too_large` for others."""
    if not isinstance(file, Path):
        file.seek(0)
    try:
        image = JpegImageFile(file)
    except SyntaxError:
        raise too_large from None
    image.draft(None, (1, 1))
    # a progressive JPEG is decoded whole before it is reduced
    if math.prod(image.size) > (Image.MAX_IMAGE_PIXELS or 0) or "progressive" in image.info:
        image.close()
        raise too_large
    return image


_LOCK, _READERS, _FILTERS = threading.Lock(), list[object](), contextlib.ExitStack()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """A context without Pillow's warnings; all threads share the filters, which the last one restores."""
    with _LOCK:
        if not _READERS:
            _FILTERS.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", module=r"PIL\.")
        _READERS.append(None)
    try:
        yield
    finally:
        with _LOCK:
            _READERS.pop()
            if not _READERS:
                _FILTERS.close()


def nature(file: Path) -> str:
    """What a file with another ending is, and how to use it; empty if that is unknown."""
    reader = next((READERS[end] for end in READERS if file.name.lower().endswith(end)), "")
    with contextlib.suppress(*UNREADABLE), file.open("rb") as stream:
        if other := other_than_data(file):
            return other
        if reader or stream.read(132)[128:] == b"DICM":
            return f"{reader or READERS['.dcm']} reads them; save them as PNG"
        with _opened(stream) as image:
            return f"{image.format}; add the ending"
    return "" if file.exists() else "a dead link"


White = Callable[[], float]
"""Gives the value of deep greys that becomes 255; called when the first such picture is read."""


def decoded(
    file: Path, size: int, white: White | None = None, *, upright: bool = True
) -> NDArray[np.uint8]:
    """An image in RGB, resized to (size, size, 3) as torchvision's Resize does it (bilinearly).

    `white` is as in `rgb`. With `upright` it is turned as its EXIF entry says. The first image of a
    file is taken. Raises UserError for one that cannot be read.
    """
    with opened(file) as image:
        picture = rgb(ImageOps.exif_transpose(image) if upright else image, white)
        is_negative = getattr(image, "tag_v2", {}).get(PHOTOMETRIC) == 0
        if image.mode in DEEP and is_negative:  # TIFF's entry, which Pillow heeds in 8 bits alone
            picture = ImageOps.invert(picture)
        return np.asarray(picture.resize((size, size), Image.Resampling.BILINEAR))


def rgb(image: Image.Image, white: White | None = None) -> Image.Image:
    """An image in RGB: transparent pixels are blended with white, deep greys become bytes.

    The white of deep greys is by default the first of `WHITES` that no value exceeds.
    Raises ValueError for a mode that cannot be shown, and for values below 0 or not finite.
    """
    if image.mode in DEEP:
        most = largest(image)
        top = white() if white else white_of(most)
        values = np.asarray(image, np.float64)
        grey = np.rint(values.clip(0, top) * (255 / top)).astype(np.uint8)
        grey[values == image.info.get("transparency")] = 255
        image = Image.fromarray(grey)
    elif image.has_transparency_data:
        paper = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(paper, image.convert("RGBA"))
    return image.convert("RGB")


def largest(image: Image.Image) -> float:
    """The largest value of a deep grey; raises ValueError for one below 0 or not finite."""
    values = np.asarray(image, np.float64)
    low, high = float(values.min()), float(values.max())
    if not (low >= 0 and math.isfinite(high)):
        raise ValueError(
            f"mode {image.mode} with values from {low:g} to {high:g}; grey is from 0 (black) up"
        )
    return high


def white_of(value: float) -> float:
    """The value that counts as white if `value` is the largest."""
    return next((white for white in WHITES if value <= white), value)


TINY = 4
"""The side of a picture's smallest version."""


class Look(NamedTuple):
    """What a file holds, or why it cannot be read."""

    problem: str
    """The error, or nothing."""
    digest: str = ""
    """A hash of the pixels, hexadecimal, the same in each format that keeps them."""
    deep: float | None = None
    """The largest value of a deep grey."""
    transparent: bool = False
    turned: bool = False
    """Whether its EXIF entry says that the camera was turned."""
    several: bool = False
    """Whether it holds several images, such as pages."""
    upper: int | None = None
    """The largest upper byte of 16-bit colours; Pillow drops the lower bytes."""
    tiny: str = ""
    """The picture in `TINY` pixels a side, hexadecimal; empty for deep greys and single colours."""
    form: str = ""
    """Its format, width and height, such as `PNG, 64 x 48`."""


def look(file: Path) -> Look:
    """The look at a file, which is read once until it changes."""
    try:
        return _look(file)
    except OSError as error:
        return Look(f"{file}: {error.strerror}")


@by_stamp(2**17)
def _look(file: Path) -> Look:
    data = file.read_bytes()
    try:
        with opened(file, io.BytesIO(data)) as image:
            form = f"{image.format}, {image.width} x {image.height}"
            image.draft("RGB", (64, 64))  # JPEGs are decoded at a low resolution, which is faster
            is_colour = image.mode not in DEEP
            is_16_bit = any(";16" in str(part[3]) for part in getattr(image, "tile", ()))
            image.load()
            rgb(image.crop((0, 0, 1, 1)))  # finds a mode that cannot be shown
            turned = image.getexif().get(ORIENTATION, 1)
            meaning = (turned, image.getpalette(), image.info.get("transparency"))
            digest = hashlib.sha256(repr((image.mode, image.size, *meaning)).encode())
            digest.update(image.tobytes())
            return Look(
                "",
                digest.hexdigest()[:32],
                largest(image) if image.mode in DEEP else None,
                image.has_transparency_data,
                turned in range(2, 9),
                image.format in PAGED and getattr(image, "n_frames", 1) > 1,
                int(np.asarray(image.convert("RGB")).max()) if is_16_bit and is_colour else None,
                "" if image.mode in DEEP else _tiny(image),
                form,
            )
    except UserError as error:
        return Look(str(error))


def _tiny(image: Image.Image) -> str:
    tiny = np.asarray(image.convert("RGB").resize((TINY, TINY), Image.Resampling.BOX, None, 1.0))
    return tiny.tobytes().hex() if tiny.std() > 1 else ""


def class_folders(folder: Path) -> tuple[str, ...]:
    """The names of the folders in a folder, sorted, without hidden ones."""
    return tuple(sorted(p.name for p in folder.iterdir() if p.is_dir() and not _is_hidden(p.name)))


def _is_hidden(name: str) -> bool:
    """True for names with a dot, and for copies that macOS and Synology's servers make."""
    return name[0] == "." or name in ("__MACOSX", "@eaDir")


def image_files(folder: Path) -> list[Path]:
    """The pictures below a folder by their endings, sorted, with dead links and without `MASK`s."""
    files = [file for file in _files_below(str(folder)) if _ending(file) in ENDINGS]
    masks = _masks(files)
    files.sort(key=lambda file: file.split(os.sep))  # noqa: PTH206 (fast)
    return [Path(file) for file in files if file not in masks]


def _masks(files: Collection[str]) -> set[str]:
    stems = {file: os.path.splitext(file)[0] for file in files}  # noqa: PTH122 (fast)
    pictures = {*stems.values()}
    found = ((file, MASK.fullmatch(stem)) for file, stem in stems.items())
    return {file for file, match in found if match and match[1] in pictures}


def left_out(folder: Path, read: Collection[Path]) -> str:
    """A sentence on the files below a folder that are not `read`; empty if there are none."""
    known = set(map(str, read))
    kinds: dict[str, list[str]] = {}
    files = [*_files_below(str(folder))]
    masks = _masks(files)
    for file in files:
        if file not in known:
            ending = ".nii.gz" if file.lower().endswith(".nii.gz") else _ending(file)
            ending += " named after a picture beside it, such as a mask" * (file in masks)
            is_number = re.fullmatch(r"|\.[0-9]+", ending)  # such as 1.2.840.5
            kinds.setdefault("without an ending" if is_number else ending, []).append(file)
    said = []
    for kind, files in sorted(kinds.items(), key=lambda kind: (-len(kind[1]), kind[0])):
        some = files[:10] if kind[0] != "." or kind in READERS else []
        hint = next((f" ({what})" for file in some if (what := nature(Path(file)))), "")
        said.append(f"{len(files)} {kind}{hint}")
    total = sum(map(len, kinds.values()))
    return f"{counted(total, 'file')} of {folder} left out: {', '.join(said)}" if said else ""


def _files_below(folder: str, above: tuple[tuple[int, int], ...] = ()) -> Iterator[str]:
    try:
        at = os.stat(folder)  # noqa: PTH116 (fast)
        entries = list(os.scandir(folder))
    except OSError as error:
        raise UserError(f"{folder}: {error.strerror}") from error
    if (here := (at.st_dev, at.st_ino)) in above:
        raise UserError(f"{folder} is a link to a folder that holds it: remove the link")
    for entry in entries:
        if _is_hidden(entry.name):
            continue
        if entry.is_dir():
            yield from _files_below(entry.path, (*above, here))
        else:
            yield entry.path


def _ending(file: str) -> str:
    return os.path.splitext(file)[1].lower()  # noqa: PTH122 (fast)
