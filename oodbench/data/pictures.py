"""Drawings in SVG to bytes, the same on every machine."""

import importlib
import io
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from oodbench.errors import UserError, missing_package

FINE = 64
"""Smaller pictures are means over areas of ones with about this side."""
VERSION = "0.5.0"
"""The version of the package resvg-py, whose renderer decides about every byte."""


def rendered(svg: str, side: int, who: str) -> NDArray[np.uint8]:
    """A drawing in RGB on white, (3, side, side).

    It is drawn `FINE` pixels wide or wider, by a multiple of `side`; a pixel is the rounded mean of what
    falls into it. Raises UserError, with `who` is drawn, for what is no drawing.
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
    """The function of resvg-py that draws; raises UserError without this version of the package."""
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


def is_blank(picture: NDArray[np.uint8]) -> bool:
    """Whether all pixels of a picture are equal."""
    return bool((picture == picture.flat[0]).all())
