"""docs/findings/shift_dial.md: `python -m tests.docs.shift_dial DIR` writes the tables from a sweep."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from oodbench.report.statistics import Estimate, estimate
from oodbench.results.directory import Directory
from oodbench.results.read import read_results
from oodbench.selection.judge import choose
from oodbench.sweep.file import find_sweep, read_sweep
from tests.docs.findings import by_trial, filled, table_row, write

NAME = "shift_dial"
RATIOS = ("1.5", "4", "16", "64")
ARMS = ("geometric mean 1", "mean square 1")
VARIANTS = ("FOU", "FEU", "POU", "PEU")
Errors = Mapping[str, Mapping[str, Sequence[float]]]
"""The error of the weights of each method in each trial, by dataset and method."""


def measured(results: Path) -> Errors:
    """The errors of the weights of the runs that `val_env` chooses."""
    tables = read_results(Directory(results))
    errors: dict[str, dict[str, list[float]]] = {}
    found = by_trial(tables, choose(tables, "val_env"), "weight_error", None)
    for dataset, label, values in found:
        errors.setdefault(dataset, {})[label] = values
    return errors


def of(errors: Errors, variant: str, arm: str, ratio: str, label: str) -> np.ndarray[Any, Any]:
    """The errors of a method's weights, (trials,)."""
    return np.array(errors[f"{variant}, {arm}, ratio {ratio}"][label])


def gap(errors: Errors, variant: str, arm: str, ratio: str) -> Estimate:
    """The error of ERM's weights less that of IRM's, paired by trial."""
    erm, irm = (of(errors, variant, arm, ratio, label) for label in ("ERM", "IRM"))
    return estimate(erm - irm)


def scales(variant: str, arm: str, ratio: str) -> tuple[float, float]:
    label = f"{variant}, {arm}, ratio {ratio}"
    entries = read_sweep(find_sweep("shift-dial")).datasets
    (first, second, *_) = next(e.options["scales"] for e in entries if e.label == label)
    return float(first), float(second)


def pooled_error(variant: str, arm: str, ratio: str) -> float:
    """The error of ERM's weights on infinitely many examples without a confounder.

    The weight of an effect is 1 / (1 + m) where the effects' noise changes and m / (1 + m) where the
    target's does, with m the mean square of the scales; that of its cause is 1 less this.
    """
    m = float(np.mean(np.square(scales(variant, arm, ratio))))
    return float(((1 if variant[1] == "O" else m) / (1 + m)) ** 2)


def page(text: str, errors: Errors) -> str:
    return filled(text, {variant: table(errors, variant) for variant in VARIANTS})


def table(errors: Errors, variant: str) -> list[str]:
    is_known = variant.startswith("F")
    columns = ["", "ratio", "ERM", *["ERM, closed form"] * is_known, "IRM", "ERM less IRM"]
    rows = [columns, ["---", *["---:"] * (len(columns) - 1)]]
    for arm in ARMS:
        for ratio in RATIOS:
            exact = [f"{pooled_error(variant, arm, ratio):.4f}"] if is_known else []
            both = [estimate(of(errors, variant, arm, ratio, label)) for label in ("ERM", "IRM")]
            erm, irm = (f"{each.mean:.4f} ± {each.stderr:.4f}" for each in both)
            found = gap(errors, variant, arm, ratio)
            difference = f"{found.mean:+.4f} [{found.low:+.4f}, {found.high:+.4f}]"
            rows.append([arm, ratio, erm, *exact, irm, difference])
    return [*map(table_row, rows)]


if __name__ == "__main__":
    write(NAME, measured(Path(sys.argv[1])), page)
