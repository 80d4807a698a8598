"""Pictures as people have them are what networks see: modes, backgrounds, orientation, other formats."""

import os
import struct
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from oodbench.data.pictures.pixels import decoded, look
from oodbench.datasets import in_order, make
from oodbench.errors import UserError
from tests.helpers.commands import type_in
from tests.helpers.data.pictures import draw, greys, picture

GREY = np.arange(256, dtype=np.uint8).reshape(16, 16)


def read(image: Image.Image, file: Path, **settings: Any) -> np.ndarray:
    image.save(file, **settings)
    return decoded(file, image.size[0]).astype(int)


NEGATIVE = {"tiffinfo": {262: 0}}
"""Settings of a TIFF of the photometric interpretation 0, in which the value 0 is white."""


@pytest.mark.parametrize(
    ("suffix", "values", "settings"),
    [
        (".png", GREY, {}),
        (".png", GREY.astype(np.uint16) * 257, {}),
        (".tif", GREY.astype(np.uint16) * 257, {}),
        (".tif", GREY.astype(">u2") * 256, {}),
        (".pgm", GREY.astype(np.uint16) * 257, {}),
        (".tif", GREY.astype(np.uint16) * 16, {}),
        (".tif", GREY.astype(np.uint16), {}),
        (".tif", GREY.astype(np.int32) * 2**23, {}),
        (".tif", GREY.astype(np.int32) * 257, {}),
        (".tif", (GREY / 255).astype(np.float32), {}),
        (".tif", GREY.astype(np.float32), {}),
        (".tif", (255 - GREY).astype(np.uint16), NEGATIVE),
        (".tif", (255 - GREY).astype(np.uint16) * 16, NEGATIVE),
        (".tif", (255 - GREY).astype(np.uint16) * 257, NEGATIVE),
    ],
)
def test_deep_greys_are_their_bytes(
    suffix: str, values: np.ndarray, settings: dict[str, Any], tmp_path: Path
) -> None:
    found = read(Image.fromarray(values), tmp_path / f"x{suffix}", **settings)
    assert np.abs(found - GREY[..., None]).max() <= 1


def drawing() -> Image.Image:
    image = Image.new("RGBA", (16, 16), (0, 0, 0, 0))
    image.paste((0, 0, 0, 255), (4, 4, 12, 12))
    return image


@pytest.mark.parametrize(
    ("name", "mode"),
    [("x.png", "RGBA"), ("x.png", "LA"), ("x.webp", "RGBA"), ("x.tif", "RGBA"), ("x.gif", "RGBA")],
)
def test_what_is_transparent_is_white(name: str, mode: str, tmp_path: Path) -> None:
    found = read(
        drawing().convert(mode), tmp_path / name, **({"lossless": True} if "webp" in name else {})
    )
    assert (found[4:12, 4:12] == 0).all() and (found[:4] == 255).all()


def test_a_colour_that_means_transparency_is_white(tmp_path: Path) -> None:
    grey = read(Image.fromarray(GREY), tmp_path / "x.png", transparency=3)
    assert grey[0, :5, 0].tolist() == [0, 1, 2, 255, 4]
    palette = Image.fromarray(GREY).convert("P")
    assert read(palette, tmp_path / "y.png", transparency=0)[0, :3, 0].tolist() == [255, 1, 2]
    deep = Image.fromarray(GREY.astype(np.uint16) * 257)
    assert read(deep, tmp_path / "d.png", transparency=257)[0, :3, 0].tolist() == [0, 255, 2]
    half = Image.new("RGBA", (16, 16), (0, 0, 0, 128))
    assert set(read(half, tmp_path / "z.png").flatten().tolist()) == {127}


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp", ".tif"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_are_turned_as_exif_says(suffix: str, orientation: int, tmp_path: Path) -> None:
    quarters = np.array([[0, 80], [160, 240]], np.uint8)
    upright = Image.fromarray(np.kron(quarters, np.ones((8, 8), np.uint8)))
    back = (0, 0, 0, 3, 1, 5, 2, 6, 4)  # what the camera did to it, by Pillow's numbers
    held = upright.transpose(Image.Transpose(back[orientation])) if orientation > 1 else upright
    exif = Image.Exif()
    exif[274] = orientation
    found = read(held.convert("RGB"), tmp_path / f"x{suffix}", exif=exif, quality=100)
    assert np.abs(found - np.asarray(upright)[..., None]).max() <= 4


@pytest.mark.parametrize("suffix", [".gif", ".jfif", ".jpe", ".avif", ".jp2", ".pbm", ".apng"])
def test_pictures_of_every_format_count(suffix: str, tmp_path: Path) -> None:
    draw(tmp_path / "set", ("a", "b"), ("x", "y"), suffixes=(".png",))
    extra = tmp_path / "set" / "a" / "x" / f"more{suffix}"
    format_ = {".jfif": "JPEG", ".pbm": "PPM", ".apng": "PNG"}.get(suffix)
    picture(1, 0).convert("1" if suffix == ".pbm" else "RGB").save(extra, format=format_)
    dataset: Any = make("ImageFolder", {"root": "set", "size": 24}, tmp_path)
    dataset.check()
    assert extra in dataset.files_read and len(dataset.load(0)["a"].y) == 9


@pytest.mark.parametrize(
    ("change", "white"),
    [
        (lambda grey: grey.astype(np.uint16) * 16, 4095),
        (lambda grey: grey.astype(np.float32) / grey.max() * 1.005, 1),
        (lambda grey: grey.astype(np.int32) * 1000, 2**18 - 1),
    ],
)
def test_one_value_is_white_in_all_pictures_and_said(
    change: Callable[[np.ndarray], np.ndarray], white: int, tmp_path: Path
) -> None:
    """Pictures keep their brightness relative to each other, and the run's options record the white."""
    greys(tmp_path / "deep", dict.fromkeys("abc", change))
    dataset: Any = make("ImageFolder", {"root": "deep", "size": 24}, tmp_path)
    dataset.check()
    assert any(f": white is {white}, and" in note for note in dataset.notes)
    assert dataset.resolved_options(False)["white"] == white
    with Image.open(dataset.files_read[0]) as image:
        wanted = float(np.asarray(image).max()) * 255 / white
    found = dataset.load(0)["a"].x.read(torch.tensor([0])).max()
    assert wanted / 2 < found <= wanted + 1
    dataset.cache(1)
    again: Any = make("ImageFolder", {"root": "deep", "size": 24, "white": white}, tmp_path)
    for trained, kept in zip(dataset.load(0).values(), again.load(0).values(), strict=True):
        assert torch.equal(trained.x.read(torch.arange(8)), kept.x.read(torch.arange(8)))


def png_of_16_bits(file: Path, values: np.ndarray) -> None:
    """Write colours of 16 bits, which Pillow cannot write."""
    height, width, _ = values.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    header = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    with file.open("wb") as stream:
        stream.write(b"\x89PNG\r\n\x1a\n")
        for kind, data in ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")):
            stream.write(struct.pack(">I", len(data)) + kind + data)
            stream.write(struct.pack(">I", zlib.crc32(kind + data)))


def test_colours_of_16_bits_are_said(tmp_path: Path) -> None:
    draw(tmp_path, "ab", ("x", "y"))
    for i, place in enumerate("ab"):
        values = np.full((8, 8, 3), 4095 if i else 65535)
        png_of_16_bits(tmp_path / place / "x" / "deep.png", values)
    notes = " ".join(make("ImageFolder", {"root": str(tmp_path)}).notes)
    assert "16 bits in 2 pictures" in notes and "the largest is 255 in a, 15 in b of 255" in notes


def test_check_says_how_pictures_are_read_and_shows_them(tmp_path: Path) -> None:
    draw(tmp_path / "set", ("1", "10", "2"), ("x", "y"), suffixes=(".png",))
    drawing().save(tmp_path / "set" / "1" / "x" / "drawn.png")
    pages = [picture(1, 0), picture(2, 0)]
    pages[0].save(
        tmp_path / "set" / "2" / "x" / "pages.tif", save_all=True, append_images=pages[1:]
    )
    exif = Image.Exif()
    exif[274] = 6
    picture(3, 1).save(tmp_path / "set" / "2" / "y" / "turned.jpg", exif=exif)
    sheet = tmp_path / "sheet.png"
    command = ["data", "check", "ImageFolder", "--set", "root=set", "--sheet", str(sheet)]
    result = type_in(*command, "--data-dir", tmp_path, code=0)
    for sentence in (
        "what is transparent in 1 picture is white",
        "1 picture turned upright, as EXIF says",
        "of 1 file with several pictures the first is read",
        "all 27 examples can be read",
    ):
        assert sentence in result.stdout
    with Image.open(sheet) as image:
        assert image.size[0] > 100


def test_environments_are_in_the_order_in_which_people_count(tmp_path: Path) -> None:
    assert in_order(["10", "9", "1", "02"]) == ["1", "02", "9", "10"]
    assert in_order(["L100", "L38", "l46"]) == ["L38", "l46", "L100"]
    assert in_order(["0.5", "0.25", "-1", "10"]) == ["-1", "0.25", "0.5", "10"]
    assert in_order(["+90%", "-90%", "+80%"]) == ["-90%", "+80%", "+90%"]
    assert in_order(["day 2", "day 10", "Day 1"]) == ["Day 1", "day 2", "day 10"]
    assert in_order(["9" * 5000, "8" * 5000]) == ["8" * 5000, "9" * 5000]
    draw(tmp_path / "set", map(str, range(1, 12)), ("x", "y"))
    dataset = make("ImageFolder", {"root": "set", "size": 8}, tmp_path)
    assert dataset.test_environments == ("11",)
    assert list(dataset.load(0)) == list(dataset.environments)


def test_no_program_is_run_for_a_file_that_names_itself_a_picture(tmp_path: Path) -> None:
    """Pillow hands PostScript to Ghostscript, whatever the file's ending."""
    file = tmp_path / "x.png"
    file.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\nshowpage\n")
    with pytest.raises(UserError, match=r"x\.png cannot be read as an image"):
        decoded(file, 8)


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".tif", ".bmp", ".webp"])
def test_large_pictures_are_read_without_warnings_and_too_large_ones_refused(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / f"x{suffix}"
    picture(1, 0, (300, 200)).save(file, progressive=True)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 40_000)
    assert decoded(file, 20).std() > 0 and not look(file).problem
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20_000)
    os.utime(file, ns=(1, 1))  # a file with the same time is not read again
    said = "60000 pixels) exceeds limit of 40000 pixels; save it smaller, as `size`"
    assert said in look(file).problem
    with pytest.raises(UserError, match=r"60000 pixels.* save it smaller"):
        decoded(file, 20)


def test_too_large_jpegs_are_read_smaller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "x.jpg"
    picture(1, 0, (1600, 1600)).save(file)
    whole = decoded(file, 20).astype(int)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 40_000)
    assert np.abs(decoded(file, 20) - whole).max() < 4 and not look(file).problem
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 39_999)
    with pytest.raises(UserError, match="exceeds limit of 79998 pixels; save it smaller"):
        decoded(file, 20)


def test_no_warning_of_pillow_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process's warning filters stay the same, although many threads read."""
    exif = Image.Exif()
    exif[274] = 6
    draw(tmp_path, "ab", ("x", "y"), count=60, suffixes=(".png",))
    for file in [*tmp_path.rglob("*.png")][::20]:
        picture(0, 1).save(jpeg := file.with_suffix(".jpg"), exif=exif)
        cut = jpeg.read_bytes().replace(b"\0\x01\x01\x12", b"\0\xc8\x01\x12", 1)
        jpeg.write_bytes(cut)  # it names more entries than there are
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 700)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        before = [*warnings.filters]
        dataset: Any = make("ImageFolder", {"root": str(tmp_path), "size": 8})
        dataset.check()
        dataset.cache(16)
        assert warnings.filters == before
    assert not seen


def test_copies_are_known_by_their_pixels(tmp_path: Path) -> None:
    """Lossless formats and other EXIF entries do not change the picture; its orientation does."""
    shown = picture(1, 0)
    for name in ("a.png", "b.bmp", "c.tif"):
        shown.save(tmp_path / name)
    exif = Image.Exif()
    shown.save(tmp_path / "d.jpg")
    for name, number, value in (("e.jpg", 270, "text"), ("f.jpg", 274, 6)):
        exif[number] = value
        shown.save(tmp_path / name, exif=exif)
    digests = [look(tmp_path / name).digest for name in ("a.png", "b.bmp", "c.tif")]
    assert len({*digests}) == 1
    plain, described, turned = (look(tmp_path / f"{name}.jpg").digest for name in "def")
    assert plain == described != turned and plain not in digests
    picture(2, 0).save(tmp_path / "a.png")
    assert look(tmp_path / "a.png").digest not in digests
