"""What the commands that write pages share: tables between marks, and the values beside a page."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import pandas as pd
from scipy import stats

from oodbench.errors import UserError
from oodbench.report.statistics import LEVEL, Estimate, holm
from oodbench.results.tables import Tables
from oodbench.verify.measured import recorded_values
from tests.helpers.paths import ROOT

DOCS = ROOT / "docs" / "findings"

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
    return f"| {' | '.join(cells)} |"


def by_trial(
    tables: Tables, chosen: pd.DataFrame, metric: str, *environments: str | None
) -> Iterator[tuple[str, str, list[float]]]:
    """Each dataset and row, with a metric's mean in each trial at the chosen steps, to six digits."""
    recorded = [recorded_values(tables, tables.runs, metric, e, "in") for e in environments]
    about = tables.runs[["id", "dataset_label", "label", "trial"]]
    values = pd.concat(recorded).merge(chosen[["id", "step"]]).merge(about)
    means = values.groupby(["dataset_label", "label", "trial"])["value"].mean()
    for (dataset, label), of_row in means.groupby(["dataset_label", "label"]):
        yield str(dataset), str(label), [float(f"{value:.6g}") for value in of_row]


def stored(name: str) -> Any:
    return json.loads((DOCS / f"{name}.json").read_text())


def write(name: str, values: Mapping[str, Any], page: Callable[[str, Any], str]) -> None:
    """Store values beside a page, and let `page` put their tables into its text."""
    lines = (f"{json.dumps(k)}: {json.dumps(v)}" for k, v in values.items())
    (DOCS / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    path = DOCS / f"{name}.md"
    path.write_text(page(path.read_text(), stored(name)))


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
