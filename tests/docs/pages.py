"""What pages of measured numbers share: values stored beside a page, and tables between its marks."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from oodbench.errors import UserError


def write(
    docs: Path, name: str, values: Mapping[str, Any], page: Callable[[str, Any], str]
) -> None:
    """Store values as JSON in `docs`, a line for each key, and rewrite the page of that name."""
    lines = (f"{json.dumps(k)}: {json.dumps(v)}" for k, v in values.items())
    (docs / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    path = docs / f"{name}.md"
    path.write_text(page(path.read_text(), stored(docs, name)))


def stored(docs: Path, name: str) -> Any:
    """The values beside a page."""
    return json.loads((docs / f"{name}.json").read_text())


def markdown_row(cells: Sequence[str]) -> str:
    """A row of a table in Markdown."""
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def filled(text: str, parts: Mapping[str, Sequence[str]]) -> str:
    """The page `text` with these lines in place of those between the marks of each part."""
    for name, lines in parts.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
        before, begins, rest = text.partition(begin)
        _, ends, after = rest.partition(end)
        if not (begins and ends):
            raise UserError(f"the page has no place for its part '{name}', {begin.strip()}")
        text = before + begin + "\n".join(lines) + "\n" + end + after
    return text
