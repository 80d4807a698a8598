"""Docstrings are plain sentences with `code` in them: Sphinx gets them as reStructuredText."""

import re

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

SPECIAL = re.compile(r"([\\*|_<>\[\]])")


def setup(app: Sphinx) -> dict[str, bool]:
    """Sphinx calls this."""
    app.connect("autodoc-process-docstring", process)
    app.connect("doctree-read", shorten)
    return {"parallel_read_safe": True}


def process(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Change a docstring's lines in place, as autodoc asks."""
    lines[:] = restructured("\n".join(lines)).splitlines()


def shorten(app: Sphinx, doctree: nodes.document) -> None:
    """Leave out long values of constants, and paths of the machine that builds the site."""
    for value in list(doctree.findall(addnodes.desc_annotation)):
        text = value.astext().strip()
        if text.startswith("=") and (len(text) > 40 or "Path(" in text):
            value.parent.remove(value)


def restructured(text: str) -> str:
    """A docstring as reStructuredText; blocks that are indented or in columns are shown as they are."""
    blocks = re.split(r"\n\s*\n", text.strip("\n"))
    return "\n\n".join(map(_block, blocks)) + "\n"


def _block(block: str) -> str:
    lines_in_columns = re.findall(r"^.*\S {2,}\S.*$", block, re.M)
    if block.startswith(("    ", "|")) or len(lines_in_columns) > 1:
        return "::\n\n" + "\n".join(f"    {line}" for line in block.splitlines())
    lines: list[str] = []
    for line in block.splitlines():
        item = re.match(r"- |\d+\. ", line)
        inside = lines and re.match(r"- |\d+\. |  ", lines[-1])
        if lines and ((item and not inside) or (inside and not item and not line.startswith("  "))):
            lines.append("")
        lines.append(line)
    return escaped("\n".join(lines))


def escaped(text: str) -> str:
    """Plain text in which only `code` means something."""
    parts = re.split(r"`+([^`]+)`+", text)
    plain = [SPECIAL.sub(r"\\\1", part).replace("`", r"\`") for part in parts[::2]]
    plain = [re.sub(r"(?i)\b(file):", r"\1\\:", part) for part in plain]  # no address
    text = plain[0]
    for code, after in zip(parts[1::2], plain[1:], strict=True):
        before = "" if not text or text[-1] in " \n(" else r"\ "
        text += (
            f"{before}``{' '.join(code.split())}``" + (r"\ " if after[:1].isalnum() else "") + after
        )
    return text
