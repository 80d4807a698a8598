"""Files of pictures: which files of a folder are pictures, and their pixels, equal on all machines."""

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
"""The formats that are read, by Pillow's names; for others, Pillow may start external programs."""
ENDINGS = frozenset(
    ".jpg .jpeg .jpe .jfif .png .apng .gif .bmp .tif .tiff .webp .avif .jp2 .ppm .pgm .pbm .pnm".split()
)
"""The endings of files in these formats."""
UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)
"""Pillow's errors for a file that is not a complete image."""
READERS = {
    **dict.fromkeys((".dcm", ".dicom", ".ima"), "pydicom.dcmread"),
    **dict.fromkeys((".nii", ".nii.gz"), "nibabel.load"),
    **dict.fromkeys((".npy", ".npz"), "numpy.load"),
    ".mat": "scipy.io.loadmat",
    **dict.fromkeys((".heic", ".heif"), "pillow_heif.open_heif"),
}
"""Functions that read scans and arrays, by file ending, for hints on saving them as pictures."""
MASK = re.compile(r"(.+)[-_. ](?:mask|seg|segmentation|annotation)s?(?:[-_ ]?\d+)?", re.I | re.S)
"""A name such as `7_mask`, which is not a picture of its own if there is a picture `7`."""
DEEP = ("I", "I;16", "I;16L", "I;16B", "I;16N", "F")
"""Pillow's grey modes of more than 8 bits, or floats."""
ORIENTATION = 274
"""The number of EXIF's entry for the orientation of the camera."""
PHOTOMETRIC = 262
"""The number of TIFF's entry for the meaning of the value 0: white (0) or black (1)."""
PAGED = ("GIF", "TIFF", "WEBP", "AVIF", "PNG")
"""The formats whose files may contain different images; in others, such as MPO, all show the same."""
WHITES = (1, *(2**bits - 1 for bits in (8, 10, 12, 14, *range(16, 33))))
"""The values that can be white in deep greys: 1 for floats, and the largest integers of 8 to 32 bits."""


@contextlib.contextmanager
def opened(file: Path, content: IO[bytes] | None = None) -> Iterator[Image.Image]:
    """Open a picture from its file or `content`; raises UserError for a damaged file."""
    try:
        with _quiet(), _image(content or file) as image:
            yield image
    except UNREADABLE as error:
        why = str(error)
        if isinstance(error, UnidentifiedImageError):  # its text is an address in memory
            why = f"its format is unknown; {nature(file)}".removesuffix("; ")
        if isinstance(error, Image.DecompressionBombError):
            why = f"{why.partition(',')[0]}; save it smaller, as `size` makes it anyway"
        raise UserError(f"{file} cannot be read as an image ({why})") from error


def _image(file: Path | IO[bytes]) -> Image.Image:
    Image.init()
    formats = [name for name in FORMATS if name in Image.OPEN]  # as this Pillow may lack some
    try:
        return Image.open(file, formats=formats)
    except Image.DecompressionBombError as error:
        return _reduced(file, error)


def _reduced(file: Path | IO[bytes], too_large: Exception) -> Image.Image:
    """A JPEG beyond Pillow's limit of size, at an eighth of its sides; raises `too_large` for others."""
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


_LOCK, _ACTIVE, _FILTERS = threading.Lock(), list[object](), contextlib.ExitStack()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence Pillow's warnings; filters are common to all threads, and the last thread restores them."""
    with _LOCK:
        if not _ACTIVE:
            _FILTERS.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", module=r"PIL\.")
        _ACTIVE.append(None)
    try:
        yield
    finally:
        with _LOCK:
            _ACTIVE.pop()
            if not _ACTIVE:
                _FILTERS.close()


def nature(file: Path) -> str:
    """What kind of file this is, and how to use it as a picture; empty if unknown."""
    reader = next((READERS[end] for end in READERS if file.name.lower().endswith(end)), "")
    with contextlib.suppress(*UNREADABLE), file.open("rb") as stream:
        if other := other_than_data(file):
            return other
        if reader or stream.read(132)[128:] == b"DICM":
            return f"{reader or READERS['.dcm']} reads them; save them as PNG"
        with _quiet(), _image(stream) as image:
            return f"{image.format}; add the ending"
    return "" if file.exists() else "a dead link"


White = Callable[[], float]
"""A function that returns the value of deep greys that becomes 255; only called for such pictures."""


def decoded(
    file: Path, size: int, white: White | None = None, *, upright: bool = True
) -> NDArray[np.uint8]:
    """The first image of a file in RGB, resized bilinearly to (size, size, 3) as by torchvision's Resize.

    `white` is as in `rgb`. With `upright` the image is turned as its EXIF entry says. Raises UserError if
    it cannot be read.
    """
    with opened(file) as image:
        picture = rgb(ImageOps.exif_transpose(image) if upright else image, white)
        is_negative = getattr(image, "tag_v2", {}).get(PHOTOMETRIC) == 0
        if image.mode in DEEP and is_negative:  # Pillow inverts only 8 bits
            picture = ImageOps.invert(picture)
        return np.asarray(picture.resize((size, size), Image.Resampling.BILINEAR))


def rgb(image: Image.Image, white: White | None = None) -> Image.Image:
    """An image converted to RGB: transparent pixels are blended with white, deep greys scaled to bytes.

    `white` is by default `white_of` the largest value. Raises ValueError for a
    mode that cannot be converted, and for deep greys below 0 or not finite.
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
    """The largest value of a deep grey; raises ValueError for values below 0 or not finite."""
    values = np.asarray(image, np.float64)
    low, high = float(values.min()), float(values.max())
    if not (low >= 0 and math.isfinite(high)):
        raise ValueError(
            f"mode {image.mode} with values from {low:g} to {high:g}; grey is from 0 (black) up"
        )
    return high


def white_of(value: float) -> float:
    """The value that counts as white in a deep grey with the largest value `value`.

    Resampling may overshoot white by 1 %.
    """
    return next((white for white in WHITES if value <= 1.01 * white), value)


TINY = 4
"""The side of the small version by which pictures are compared."""


class Look(NamedTuple):
    """The facts about a picture, or the error of reading its file."""

    problem: str
    """The error; empty if the file can be read."""
    digest: str = ""
    """A hash of the pixels, in hexadecimal, equal in all lossless formats."""
    deep: float | None = None
    """The largest value of a deep grey; None for other pictures."""
    transparent: bool = False
    turned: bool = False
    """Whether the camera was turned, by its EXIF entry."""
    several: bool = False
    """Whether the file contains several images, such as pages."""
    upper: int | None = None
    """The largest upper byte of 16-bit colours; Pillow drops the lower bytes."""
    tiny: str = ""
    """The picture at `TINY` pixels a side, in hexadecimal; empty for deep greys and single colours."""
    form: str = ""
    """The format, width and height, such as `PNG, 64 x 48`."""


def look(file: Path) -> Look:
    """The facts about a picture; a file is read only once until it changes."""
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
            image.draft("RGB", (64, 64))  # decodes JPEGs at a low resolution, which is faster
            is_colour = image.mode not in DEEP
            is_16_bit = any(";16" in str(part[3]) for part in getattr(image, "tile", ()))
            image.load()
            rgb(image.crop((0, 0, 1, 1)))  # raises for a mode that cannot be converted
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
    """The sorted names of the folders in a folder, without hidden ones."""
    return tuple(sorted(p.name for p in folder.iterdir() if p.is_dir() and not _is_hidden(p.name)))


def _is_hidden(name: str) -> bool:
    """Whether a name begins with a dot, or is of a folder that macOS or Synology adds."""
    return name[0] == "." or name in ("__MACOSX", "@eaDir")


def image_files(folder: Path) -> list[Path]:
    """The sorted pictures below a folder, by their endings; dead links count, and masks (`MASK`) do not."""
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
    """A sentence on the files below a folder that are not among `read`; empty if there are none."""
    known = set(map(str, read))
    kinds: dict[str, list[str]] = {}
    files = [*_files_below(str(folder))]
    masks = _masks(files)
    for file in files:
        if file not in known:
            ending = ".nii.gz" if file.lower().endswith(".nii.gz") else _ending(file)
            ending += " named after a picture in the same folder, such as a mask" * (file in masks)
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
