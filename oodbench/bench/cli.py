"""What the harness costs: ratios and seconds on one thread, as medians."""

import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import torch
import typer
from tabulate import tabulate

from oodbench.bench.data import loading, making
from oodbench.bench.methods import method_costs
from oodbench.bench.rows import Row
from oodbench.bench.runs import run_cost, status_time
from oodbench.bench.shortcuts import shortcuts
from oodbench.bench.steps import device_ratios, mask_ratios, step_ratios
from oodbench.bench.tables import coverages, memory, page_cost, table_time
from oodbench.bench.vectorized import vectorized
from oodbench.commands import commands
from oodbench.errors import reports_mistakes, unknown

app = commands(__doc__)


def _steps(folder: Path) -> list[Row]:
    on_device = device_ratios() if torch.cuda.is_available() else []
    return [*step_ratios(), *mask_ratios(), *on_device]


def _tables(folder: Path) -> list[Row]:
    return [*table_time(folder), *page_cost(folder), memory(folder)]


PARTS: dict[str, Callable[[Path], list[Row]]] = {
    "steps": _steps,
    "methods": lambda folder: method_costs(),
    "shortcuts": shortcuts,
    "runs": lambda folder: [run_cost(folder / "cost"), status_time(folder / "status")],
    "tables": _tables,
    "loading": loading,
    "vectorized": vectorized,
    "coinrun": making,
    "coverage": lambda folder: coverages(),
}
"""What can be measured, by name; each part is given an empty folder."""


@app.command()
@reports_mistakes
def bench(
    part: Annotated[
        list[str] | None, typer.Argument(metavar="[PART]...", help=f"{', '.join(PARTS)}.")
    ] = None,
) -> None:
    """Measure these parts, or all, and print one table."""
    for name in part or ():
        if name not in PARTS:
            raise unknown("part", name, PARTS)
    torch.set_num_threads(1)
    rows = []
    for name in part or PARTS:
        with tempfile.TemporaryDirectory() as folder:
            rows += [dataclasses.astuple(row) for row in PARTS[name](Path(folder))]
    print(tabulate(rows, ["what", "reach", "measured", "DomainBed"], disable_numparse=True))
