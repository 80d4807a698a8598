"""The report as one HTML file that needs nothing else: no network, no second file, no server.

The numbers are in the page as JSON (`contents.contents`), and the script in assets/ draws them.
"""

import base64
import hashlib
import html
import json
from pathlib import Path
from typing import Any

from oodbench.files import write_whole
from oodbench.report.html.contents import contents
from oodbench.results.tables import Tables
from oodbench.terminal import printable, printable_json

ASSETS = Path(__file__).resolve().parent / "assets"
POLICY = (
    "default-src 'none'; script-src '{script}'; style-src '{style}'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)
"""The content policy: the browser may use this script and this style, and load nothing."""


def write(frames: Tables, out: Path, baseline: str = "ERM", metric: str | None = None) -> None:
    """Write the page of these runs; raises UserError as `contents.contents` does."""
    write_whole(out, render(contents(frames, baseline, metric)))


def render(tree: dict[str, Any]) -> str:
    """The HTML page that shows a tree made by `contents.contents`."""
    style, script = ((ASSETS / name).read_text() for name in ("page.css", "page.js"))
    parts = {
        "policy": POLICY.format(script=_checksum(script), style=_checksum(style)),
        "version": html.escape(tree["version"]),
        "title": html.escape(printable(f"{tree['title']}: oodbench report")),
        "style": style,
        "script": script,
        "data": embedded(tree),
    }
    pieces = (ASSETS / "page.html").read_text().split("@")
    return "".join(parts[piece] if i % 2 else piece for i, piece in enumerate(pieces))


def embedded(tree: dict[str, Any]) -> str:
    """Compact JSON that no HTML parser takes for markup: every `<` is written as an escape."""
    text = json.dumps(tree, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return printable_json(text).replace("<", "\\u003c")


def _checksum(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
