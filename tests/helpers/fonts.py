"""Small fonts, made here."""

import io

from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen


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
