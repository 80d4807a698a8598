"""The report as one HTML file that needs nothing else: no network, no second file, no server.

The numbers are in the page as JSON (`contents.contents`), and the scripts in assets/ draw them.
"""

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from oodbench.files import write_whole
from oodbench.report.html.contents import BASELINE, contents
from oodbench.results.frames import Frames
from oodbench.terminal import printable, printable_json

ASSETS = Path(__file__).resolve().parent / "assets"
SCRIPTS = ("dom", "charts", "runs", "leaderboard", "comparisons", "plots", "app")
"""The scripts, in the order in which they are joined."""
POLICY = (
    "default-src 'none'; script-src '{script}'; style-src '{style}'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)
"""The content policy: the browser may use this script and this style, and load nothing."""


def write(
    directories: Sequence[Path],
    out: Path,
    baseline: str = BASELINE,
    metric: str | None = None,
    beside: tuple[str, Frames] | None = None,
) -> None:
    """Write the report of results directories; raises UserError as `contents.contents` does."""
    write_whole(out, render(contents(directories, baseline, metric, beside)))


def render(tree: dict[str, Any]) -> str:
    """The HTML page that shows a tree made by `contents.contents`."""
    title = html.escape(printable(f"{tree['title']}: oodbench report"))
    parts = {"version": html.escape(tree["version"]), "title": title, "data": embedded(tree)}
    scripts = [ASSETS / f"{name}.js" for name in SCRIPTS]
    return assembled(ASSETS / "page.html", [ASSETS / "page.css"], scripts, parts)


def assembled(
    template: Path, styles: Sequence[Path], scripts: Sequence[Path], parts: Mapping[str, str]
) -> str:
    """A page from a template, in which @NAME@ is the place of a part or of `policy`, `style`, `script`."""
    style = "".join(file.read_text() for file in styles)
    script = "\n".join(file.read_text() for file in scripts)
    script = f'"use strict";\n{{\n{script}}}\n'
    policy = POLICY.format(script=_checksum(script), style=_checksum(style))
    joined = {"policy": policy, "style": style, "script": script, **parts}
    pieces = template.read_text().split("@")
    return "".join(joined[piece] if i % 2 else piece for i, piece in enumerate(pieces))


def to_json(tree: dict[str, Any]) -> str:
    """The contents as compact JSON."""
    text = json.dumps(tree, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return printable_json(text)


def embedded(tree: dict[str, Any]) -> str:
    """JSON that no HTML parser takes for markup: every `<` is written as an escape."""
    return to_json(tree).replace("<", "\\u003c")


def _checksum(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
