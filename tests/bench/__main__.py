"""Ratios and seconds of the harness on one thread, as medians: python -m tests.bench [PART...]."""

from oodbench.arithmetic import prepare

prepare()  # before numpy and torch are loaded

import tempfile
from collections.abc import Callable
from dataclasses import astuple
from importlib import import_module
from pathlib import Path
from typing import Annotated

import torch
import typer
from tabulate import tabulate

from oodbench.errors import unknown
from oodbench.terminal import commands
from tests.bench import Row

app = commands(__doc__)

MEASUREMENTS = {
    "steps": "steps.step_rows",
    "methods": "steps.method_rows",
    "adaptations": "steps.adaptation_rows",
    "runs": "launches.run_rows",
    "tables": "launches.table_rows",
    "loading": "data.loading_rows",
    "vectorized": "vectorized.case_rows",
    "vectorized-methods": "vectorized.method_rows",
}
"""The function of this package that measures each part; its argument is an empty folder."""


@app.command()
def measure(part: Annotated[list[str] | None, typer.Argument()] = None) -> None:
    """Measure these parts, or all, and print one table."""
    for name in part or ():
        if name not in MEASUREMENTS:
            raise unknown("part", name, MEASUREMENTS)
    torch.set_num_threads(1)
    rows = []
    for name in part or MEASUREMENTS:
        module, _, function = MEASUREMENTS[name].partition(".")
        rows_of: Callable[[Path], list[Row]]
        rows_of = getattr(import_module(f"tests.bench.{module}"), function)
        with tempfile.TemporaryDirectory() as folder:
            rows += [astuple(row) for row in rows_of(Path(folder))]
    print(tabulate(rows, ["what", "reach", "measured", "DomainBed"], disable_numparse=True))


if __name__ == "__main__":
    app()
