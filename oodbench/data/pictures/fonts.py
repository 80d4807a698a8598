"""Characters of fonts as drawings."""

import io
import logging
from typing import Any

from oodbench.errors import UserError

MARGIN = 1.1
"""The side of a drawing, in larger sides of what is drawn."""


def outlines(content: bytes, characters: str, who: str) -> dict[str, str] | None:
    """Each character of a font as SVG, black in the middle of a square; None if the font lacks one.

    Raises UserError, with `who` the font is, for what is no font.
    """
    import fontTools  # which matplotlib brings along; not where nothing is drawn
    from fontTools import ttLib

    logging.getLogger(fontTools.__name__).setLevel(logging.ERROR)  # it minds old fonts' dates
    try:
        font = ttLib.TTFont(io.BytesIO(content), lazy=True)
        numbers, glyphs = font.getBestCmap() or {}, font.getGlyphSet()
        drawn = {c: _svg(glyphs, numbers.get(ord(c), "")) for c in characters}
    except (ttLib.TTLibError, KeyError, ValueError, EOFError, AssertionError) as error:
        raise UserError(f"{who} cannot be read as a font ({error})") from error
    return {c: svg for c, svg in drawn.items() if svg} if all(drawn.values()) else None


def _svg(glyphs: Any, name: str) -> str:
    from fontTools.pens.boundsPen import BoundsPen
    from fontTools.pens.svgPathPen import SVGPathPen

    if name not in glyphs:
        return ""
    bounds, path = BoundsPen(glyphs), SVGPathPen(glyphs)
    glyphs[name].draw(bounds)
    glyphs[name].draw(path)
    if bounds.bounds is None:
        return ""
    left, bottom, right, top = bounds.bounds
    side = MARGIN * max(right - left, top - bottom)
    box = f"{(left + right - side) / 2} {-(bottom + top + side) / 2} {side} {side}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}">'
        f'<path transform="scale(1 -1)" d="{path.getCommands()}"/></svg>'
    )
