"""Small real image files in folders, and small fonts."""

import io
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from PIL import Image

SUFFIXES = (".jpg", ".png", ".bmp", ".webp", ".ppm", ".tif", ".jpeg")


def picture(seed: int, label: int, size: tuple[int, int] = (40, 30)) -> Image.Image:
    """A picture whose left third is bright in class 0, the middle in class 1, the right in others."""
    generator = np.random.default_rng(seed)
    pixels = generator.integers(0, 120, (size[1], size[0], 3))
    third = size[0] // 3
    start = min(label, 2) * third
    pixels[:, start : start + third] += 120
    return Image.fromarray(pixels.astype(np.uint8))


def draw(
    root: Path,
    environments: Iterable[str],
    classes: Iterable[str],
    count: int = 4,
    suffixes: tuple[str, ...] = SUFFIXES,
    size: tuple[int, int] = (40, 30),
) -> None:
    """Write `count` pictures to every ROOT/ENVIRONMENT/CLASS/."""
    names = tuple(classes)
    for e, environment in enumerate(environments):
        for label, name in enumerate(names):
            folder = root / environment / name
            folder.mkdir(parents=True)
            for i in range(count):
                seed = 10_000 * e + 100 * label + i
                file = folder / f"{i}{suffixes[seed % len(suffixes)]}"
                picture(seed, label, size).save(file)


def greys(
    root: Path, changes: Mapping[str, Callable[[np.ndarray], np.ndarray]], suffix: str = ".tif"
) -> None:
    """Write grey pictures of two classes, with values that are changed by environment."""
    draw(root, changes, ("x", "y"), suffixes=(".png",))
    for file in sorted(root.rglob("*.png")):
        with Image.open(file) as image:
            grey = np.asarray(image.convert("L"))
        file.unlink()
        Image.fromarray(changes[file.parts[-3]](grey)).save(file.with_suffix(suffix))


def font(characters: str, blank: str = "", slant: int = 0) -> bytes:
    """A font whose characters are bars, each wider than the one before; `blank` ones show nothing."""
    names = [".notdef", *(f"glyph{ord(c)}" for c in characters)]
    builder = FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder(names)
    builder.setupCharacterMap({ord(c): f"glyph{ord(c)}" for c in characters})
    glyphs = {}
    for place, name in enumerate(names):
        pen = TTGlyphPen(None)
        if not (blank and name == f"glyph{ord(blank)}"):
            width = 100 + 20 * place
            pen.moveTo((0, 0))
            for point in ((slant, 900), (slant + width, 900), (width, 0)):
                pen.lineTo(point)
            pen.closePath()
        glyphs[name] = pen.glyph()
    builder.setupGlyf(glyphs)
    builder.setupHorizontalMetrics({name: (1000, 0) for name in names})
    builder.setupHorizontalHeader(ascent=900, descent=0)
    builder.setupNameTable({})
    builder.setupOS2()
    builder.setupPost()
    stream = io.BytesIO()
    builder.save(stream)
    return stream.getvalue()
