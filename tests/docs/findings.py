"""What the commands that write pages share: tables between marks, and the values beside a page."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
from scipy import stats

from oodbench.errors import UserError
from oodbench.report.statistics import LEVEL, Estimate, holm

DOCS = Path("docs/findings")

K = TypeVar("K")


def filled(text: str, parts: Mapping[str, Sequence[str]]) -> str:
    """The Markdown page `text` with the lines of each part in place of those between its marks."""
    for name, lines in parts.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
        before, begins, rest = text.partition(begin)
        _, ends, after = rest.partition(end)
        if not (begins and ends):
            raise UserError(f"the page has no place for its part '{name}', {begin.strip()}")
        text = before + begin + "\n".join(lines) + "\n" + end + after
    return text


def table_row(cells: Sequence[str]) -> str:
    """A row of a table in Markdown."""
    return f"| {' | '.join(cells)} |"


def stored(docs: Path, name: str) -> Any:
    """The values beside a page."""
    return json.loads((docs / f"{name}.json").read_text())


def write(
    docs: Path, name: str, values: Mapping[str, Any], page: Callable[[str, Any], str]
) -> None:
    """Store values beside a page, and let `page` put their tables into its text."""
    lines = (f"{json.dumps(k)}: {json.dumps(v)}" for k, v in values.items())
    (docs / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    path = docs / f"{name}.md"
    path.write_text(page(path.read_text(), stored(docs, name)))


def significant(differences: Mapping[K, Estimate]) -> dict[K, int]:
    """1 for a gain, -1 for a loss and 0 for neither: t-tests at 5 % after Holm's correction."""
    tests = {
        key: 2 * stats.t.sf(abs(d.mean) / d.stderr, d.n - 1)
        for key, d in differences.items()
        if d.stderr
    }
    corrected = holm(pd.Series(list(tests.values()), dtype=float))
    below = {key for key, p in zip(tests, corrected, strict=True) if p < 1 - LEVEL}
    return {key: (1 if d.mean > 0 else -1) * (key in below) for key, d in differences.items()}
