"""docs/findings/noise.md: `python -m tests.docs.noise MASKS PENALTIES` writes the tables of two sweeps."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from oodbench.report.statistics import Estimate, estimate
from oodbench.results.directory import Directory
from oodbench.results.read import read_results
from oodbench.selection.judge import choose
from tests.docs.findings import by_trial, filled, significant, table_row, write

NAME = "noise"
TEST, MEMORIZED = "accuracy", "memorized"
CHOSEN, BY_VALIDATION, LAST = "chosen", "by val_env", "last"
SHARES = ("clean labels", "25 % noise", "50 % noise")
NOISES = {
    "desert rodents": ("no noise", "25 %", "50 %"),
    "digits by source": ("no noise", "25 %", "50 %"),
    "SEM": ("no noise", "0.5 deviations", "1 deviation"),
}
"""The amounts of noise in each dataset's training labels."""
PENALTIES = [f"{dataset}, {noise}" for dataset, noises in NOISES.items() for noise in noises]
Values = Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]
"""A value in each trial by dataset, row, and metric with step, such as `accuracy chosen`."""
Found = Mapping[tuple[str, str], Estimate]
"""By dataset and row."""


def measured(results: Path) -> Values:
    """The values on test environments and the shares memorized, at up to three steps of a run: those that
    `train_val` and `val_env` choose, and, of rows without draws, the last one.
    """
    tables = read_results(Directory(results))
    runs = tables.runs
    steps = {CHOSEN: choose(tables, "train_val")}
    if runs["validation_environments"].map(len).any():
        steps[BY_VALIDATION] = choose(tables, "val_env")
    if runs["draw"].nunique() == 1:
        last = tables.records.groupby("id", observed=True)["step"].max().reset_index()
        steps[LAST] = last.astype({"id": object})
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for dataset, label in zip(runs["dataset_label"], runs["label"], strict=True):
        found.setdefault(dataset, {}).setdefault(label, {})
    for step, chosen in steps.items():
        for metric in (*runs["metric"].unique(), MEMORIZED):
            kind = MEMORIZED if metric == MEMORIZED else TEST
            for dataset, label, values in by_trial(tables, chosen, metric, "test", None):
                found[dataset][label][f"{kind} {step}"] = values
    return found


def gained(values: Values, dataset: str, row: str) -> np.ndarray[Any, Any]:
    """What a row gains over early-stopped ERM at the chosen steps, in each trial."""
    found, erm = (values[dataset][each][f"{TEST} {CHOSEN}"] for each in (row, "ERM"))
    return np.subtract(found, erm) * (-1 if dataset.startswith("SEM") else 1)


def gains(values: Values, datasets: Iterable[str]) -> Found:
    """The gains over ERM of all other rows on some datasets."""
    rows = [(dataset, row) for dataset in datasets for row in values[dataset] if row != "ERM"]
    return {(dataset, row): estimate(gained(values, dataset, row)) for dataset, row in rows}


def more_with_noise(values: Values) -> Found:
    """How much larger the gains over ERM are with most noise than with none, paired by trial."""
    found = {}
    for dataset, noises in NOISES.items():
        none, _, most = (f"{dataset}, {noise}" for noise in noises)
        for row in values[none]:
            if row != "ERM":
                more = gained(values, most, row) - gained(values, none, row)
                found[dataset, row] = estimate(more)
    return found


def page(text: str, values: Values) -> str:
    tables = {"masks": masks_table(values), "penalties": penalties_table(values)}
    return filled(text, {name: [*map(table_row, rows)] for name, rows in tables.items()})


def masks_table(values: Values) -> list[list[str]]:
    columns = ["noise", "row", "memorized, last", "memorized, chosen"]
    columns += ["test, last", "test, chosen", "gain over ERM, chosen"]
    rows, found = [columns, ["---", "---", *["---:"] * 5]], gains(values, SHARES)
    for share in SHARES:
        for row, of_row in values[share].items():
            names = [f"{kind} {step}" for kind in (MEMORIZED, TEST) for step in (LAST, CHOSEN)]
            cells = [_mean(of_row[name], 100, 1) if name in of_row else "" for name in names]
            rows.append([share, row, *cells, _gain(found, share, row, 100, 1)])
    return rows


def penalties_table(values: Values) -> list[list[str]]:
    columns = ["dataset", "row", "no noise", "some", "most", "most less none"]
    rows, found = [columns, ["---", "---", *["---:"] * 4]], gains(values, PENALTIES)
    more = more_with_noise(values)
    for dataset, noises in NOISES.items():
        scale, digits = (1, 2) if dataset == "SEM" else (100, 1)
        noisy = [f"{dataset}, {noise}" for noise in noises]
        erm = [values[name]["ERM"][f"{TEST} {CHOSEN}"] for name in noisy]
        rows.append([dataset, "ERM", *(_mean(each, scale, digits) for each in erm), ""])
        for _, row in (place for place in more if place[0] == dataset):
            cells = [_gain(found, name, row, scale, digits) for name in noisy]
            rows.append([dataset, row, *cells, _gain(more, dataset, row, scale, digits)])
    return rows


def _mean(values: Sequence[float], scale: int, digits: int) -> str:
    found = estimate(values)
    return f"{scale * found.mean:.{digits}f} ± {scale * found.stderr:.{digits}f}"


def _gain(found: Found, dataset: str, row: str, scale: int, digits: int) -> str:
    if row == "ERM":
        return ""
    gain = found[dataset, row]
    mean, low, high = (f"{scale * v:+.{digits}f}" for v in (gain.mean, gain.low, gain.high))
    text = f"{mean} [{low}, {high}]"
    return f"**{text}**" if significant(found)[dataset, row] else text


if __name__ == "__main__":
    masks, penalties = map(Path, sys.argv[1:])
    write(NAME, {**measured(masks), **measured(penalties)}, page)
