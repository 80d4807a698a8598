"""docs/findings/noise.md: `python -m tests.docs.noise MASKS PENALTIES` writes the tables of two sweeps."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from oodbench.report.statistics import Estimate, estimate
from oodbench.results.directory import Directory
from oodbench.results.read import read_results
from oodbench.selection.judge import choose
from oodbench.terminal import commands
from oodbench.verify.measured import recorded_values
from tests.docs.findings import DOCS, filled, significant, table_row, write

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
            recorded = [
                recorded_values(tables, runs, metric, named, "in") for named in ("test", None)
            ]
            values = pd.concat(recorded).merge(chosen, on=["id", "step"]).merge(about, on="id")
            means = values.groupby(["dataset_label", "label", "trial"])["value"].mean()
            for (dataset, label), of_row in means.groupby(["dataset_label", "label"]):
                kind = MEMORIZED if metric == MEMORIZED else TEST
                row = [float(f"{value:.6g}") for value in of_row]
                found[str(dataset)][str(label)][f"{kind} {step}"] = row
    return found


def mean(values: Values, dataset: str, row: str, what: str) -> Estimate:
    """The mean over trials of a row's values, in percent for shares."""
    return estimate(values[dataset][row][what])


def gain(values: Values, dataset: str, row: str, what: str, baseline: str = "") -> Estimate:
    """The gain of a row over ERM, paired by trial; `baseline` is ERM's value, by default the same one."""
    erm = values[dataset]["ERM"][baseline or what]
    sign = -1 if dataset.startswith("SEM") else 1
    return estimate([sign * (a - b) for a, b in zip(values[dataset][row][what], erm, strict=True)])


def more_with_noise(values: Values, dataset: str, row: str) -> Estimate:
    """How much larger the gain of a row over ERM is with most noise than with none, paired by trial."""
    none, _, most = (values[f"{dataset}, {noise}"] for noise in NOISES[dataset])
    what, sign = f"{TEST} {CHOSEN}", -1 if dataset == "SEM" else 1
    pairs = zip(most[row][what], most["ERM"][what], none[row][what], none["ERM"][what], strict=True)
    return estimate([sign * ((a - b) - (c - d)) for a, b, c, d in pairs])


def penalties_found(values: Values) -> dict[tuple[str, str, str], Estimate]:
    """The gains over ERM by dataset, amount of noise and row, in the sweep of penalties."""
    what = f"{TEST} {CHOSEN}"
    return {
        (dataset, noise, row): gain(values, f"{dataset}, {noise}", row, what)
        for dataset, noises in NOISES.items()
        for noise in noises
        for row in values[f"{dataset}, {noise}"]
        if row != "ERM"
    }


def masks_found(values: Values) -> dict[tuple[str, str], Estimate]:
    """The gains over early-stopped ERM at the chosen steps by share of noise and row."""
    what = f"{TEST} {CHOSEN}"
    return {
        (share, row): gain(values, share, row, what)
        for share in SHARES
        for row in values[share]
        if row != "ERM"
    }


def page(text: str, values: Values) -> str:
    """The page `text` with the tables of these values."""
    tables = {"masks": masks_table(values), "penalties": penalties_table(values)}
    return filled(text, {name: [*map(table_row, rows)] for name, rows in tables.items()})


def masks_table(values: Values) -> list[list[str]]:
    """A row for each method and amount of noise."""
    columns = ["noise", "row", "memorized, last", "memorized, chosen"]
    columns += ["test, last", "test, chosen", "gain over ERM, chosen"]
    rows, signs = [columns, ["---", "---", *["---:"] * 5]], significant(masks_found(values))
    for share in SHARES:
        for row, of_row in values[share].items():
            cells = [
                _percent(mean(values, share, row, f"{kind} {step}"))
                if f"{kind} {step}" in of_row
                else ""
                for kind in (MEMORIZED, TEST)
                for step in (LAST, CHOSEN)
            ]
            is_erm = row == "ERM"
            found = gain(values, share, row, f"{TEST} {CHOSEN}")
            rows.append(
                [share, row, *cells, "" if is_erm else _gain(found, signs[share, row], 100, 1)]
            )
    return rows


def penalties_table(values: Values) -> list[list[str]]:
    """A row for each dataset and method."""
    columns = ["dataset", "row", "no noise", "some", "most", "most less none"]
    rows, signs = [columns, ["---", "---", *["---:"] * 4]], significant(penalties_found(values))
    more = {(d, r): more_with_noise(values, d, r) for d, _, r in penalties_found(values)}
    more_signs = significant(more)
    for dataset, noises in NOISES.items():
        scale, digits = (1, 2) if dataset == "SEM" else (100, 1)
        erm = [mean(values, f"{dataset}, {noise}", "ERM", f"{TEST} {CHOSEN}") for noise in noises]
        shown = [f"{scale * e.mean:.{digits}f} ± {scale * e.stderr:.{digits}f}" for e in erm]
        rows.append([dataset, "ERM", *shown, ""])
        for row in values[f"{dataset}, {noises[0]}"]:
            if row != "ERM":
                found = penalties_found(values)
                cells = [
                    _gain(found[dataset, n, row], signs[dataset, n, row], scale, digits)
                    for n in noises
                ]
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
