"""docs/findings/noise.md: `python -m tests.docs.noise MASKS PENALTIES` writes the tables of two sweeps."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from scipy import stats

from oodbench.report.statistics import Estimate, estimate, holm
from oodbench.results.directory import Directory
from oodbench.results.read import read_results
from oodbench.selection.judge import choose
from oodbench.terminal import commands
from oodbench.verify.measured import recorded_values
from tests.docs.pages import filled, markdown_row, write

DOCS = Path("docs/findings")
NAME = "noise"
RULE = "train_val"
TEST, MEMORIZED = "accuracy", "memorized"
CHOSEN, LAST = "chosen", "last"
SHARES = ("clean labels", "25 % noise", "50 % noise")
NOISES = {
    "desert rodents": ("no noise", "25 %", "50 %"),
    "digits by source": ("no noise", "25 %", "50 %"),
    "SEM": ("no noise", "0.5 deviations", "1 deviation"),
}
"""The amounts of noise in each dataset's training labels."""
PENALIZED = [f"{dataset}, {noise}" for dataset, noises in NOISES.items() for noise in noises]
Values = Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]
"""A value in each trial by dataset, row, and metric with step, such as `accuracy chosen`."""

app = commands(__doc__)


@app.command()
def write_page(
    masks: Annotated[Path, typer.Argument(help="The results of noise-masks.")],
    penalties: Annotated[Path, typer.Argument(help="The results of noise-penalties.")],
    docs: Annotated[Path, typer.Option(help="The folder of the page.")] = DOCS,
) -> None:
    """Store the values of both sweeps beside the page, and put its tables into it."""
    write(docs, NAME, {**measured(masks), **measured(penalties)}, page)


def measured(results: Path) -> Values:
    """The values on test environments and the shares memorized, to six digits, at two steps of a run:
    the one that `RULE` chooses, and, of rows without draws, the last one.
    """
    tables = read_results(Directory(results))
    runs = tables.runs
    steps = {CHOSEN: choose(tables, RULE)[["id", "step"]]}
    if runs["draw"].nunique() == 1:
        last = tables.records.groupby("id", observed=True)["step"].max().reset_index()
        steps[LAST] = last.astype({"id": object})
    rows = runs[["dataset_label", "label"]].drop_duplicates().itertuples(index=False, name=None)
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for dataset, label in rows:
        found.setdefault(str(dataset), {})[str(label)] = {}
    about = runs[["id", "dataset_label", "label", "trial", "metric"]]
    for step, chosen in steps.items():
        for metric in (*runs["metric"].unique(), MEMORIZED):
            of = [recorded_values(tables, runs, metric, named, "in") for named in ("test", None)]
            values = pd.concat(of).merge(chosen, on=["id", "step"]).merge(about, on="id")
            means = values.groupby(["dataset_label", "label", "trial"])["value"].mean()
            for (dataset, label), of_row in means.groupby(["dataset_label", "label"]):
                kind = MEMORIZED if metric == MEMORIZED else TEST
                row = [float(f"{value:.6g}") for value in of_row]
                found[str(dataset)][str(label)][f"{kind} {step}"] = row
    return found


def gained(values: Values, dataset: str, row: str) -> Any:
    """The gain of a row over ERM at the chosen steps in each trial, (trials,)."""
    ours, erm = (np.array(values[dataset][name][f"{TEST} {CHOSEN}"]) for name in (row, "ERM"))
    return erm - ours if dataset.startswith("SEM") else ours - erm


def gains(values: Values, datasets: Iterable[str]) -> dict[tuple[str, str], Estimate]:
    """The gains over ERM by dataset and row."""
    pairs = [(dataset, row) for dataset in datasets for row in values[dataset] if row != "ERM"]
    return {pair: estimate(gained(values, *pair)) for pair in pairs}


def gains_with_noise(values: Values) -> dict[tuple[str, str], Estimate]:
    """How much larger the gains are with most noise than with none, by dataset and row."""
    found = {}
    for dataset, (none, _, most) in NOISES.items():
        for row in values[f"{dataset}, {none}"].keys() - {"ERM"}:
            more = gained(values, f"{dataset}, {most}", row)
            found[dataset, row] = estimate(more - gained(values, f"{dataset}, {none}", row))
    return found


def significant(differences: Mapping[Any, Estimate]) -> dict[Any, int]:
    """1 for a gain, -1 for a loss and 0 for neither: t-tests at 5 % after Holm's correction."""
    tests = {
        key: 2 * stats.t.sf(abs(d.mean) / d.stderr, d.n - 1)
        for key, d in differences.items()
        if d.stderr
    }
    corrected = holm(pd.Series(list(tests.values()), dtype=float))
    below = {key for key, p in zip(tests, corrected, strict=True) if p < 0.05}
    return {key: (1 if d.mean > 0 else -1) * (key in below) for key, d in differences.items()}


def page(text: str, values: Values) -> str:
    """The page `text` with the tables of these values."""
    tables = {"masks": masks_table(values), "penalties": penalties_table(values)}
    return filled(text, {name: [*map(markdown_row, rows)] for name, rows in tables.items()})


def masks_table(values: Values) -> list[list[str]]:
    """A row for each method and amount of noise."""
    columns = ["noise", "row", "memorized, last", "memorized, chosen"]
    columns += ["test, last", "test, chosen", "gain over ERM, chosen"]
    rows, found = [columns, ["---", "---", *["---:"] * 5]], gains(values, SHARES)
    signs = significant(found)
    kinds = [f"{kind} {step}" for kind in (MEMORIZED, TEST) for step in (LAST, CHOSEN)]
    for share in SHARES:
        for row, of_row in values[share].items():
            cells = [_percent(estimate(of_row[k])) if k in of_row else "" for k in kinds]
            key = share, row
            cells.append("" if row == "ERM" else _gain(found[key], signs[key], 100, 1))
            rows.append([share, row, *cells])
    return rows


def penalties_table(values: Values) -> list[list[str]]:
    """A row for each dataset and method."""
    columns = ["dataset", "row", "no noise", "some", "most", "most less none"]
    rows = [columns, ["---", "---", *["---:"] * 4]]
    found, more = gains(values, PENALIZED), gains_with_noise(values)
    signs, more_signs = significant(found), significant(more)
    for dataset, noises in NOISES.items():
        scale, digits = (1, 2) if dataset == "SEM" else (100, 1)
        names = [f"{dataset}, {noise}" for noise in noises]
        erm = [estimate(values[name]["ERM"][f"{TEST} {CHOSEN}"]) for name in names]
        shown = [f"{scale * e.mean:.{digits}f} ± {scale * e.stderr:.{digits}f}" for e in erm]
        rows.append([dataset, "ERM", *shown, ""])
        for row in (row for row in values[names[0]] if row != "ERM"):
            cells = [_gain(found[n, row], signs[n, row], scale, digits) for n in names]
            last = _gain(more[dataset, row], more_signs[dataset, row], scale, digits)
            rows.append([dataset, row, *cells, last])
    return rows


def _percent(found: Estimate) -> str:
    return f"{100 * found.mean:.1f} ± {100 * found.stderr:.1f}"


def _gain(found: Estimate, sign: int, scale: float, digits: int) -> str:
    low, high = (f"{scale * v:+.{digits}f}" for v in (found.low, found.high))
    text = f"{scale * found.mean:+.{digits}f} [{low}, {high}]"
    return f"**{text}**" if sign else text


if __name__ == "__main__":
    app()
