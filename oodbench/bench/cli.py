"""What the harness costs: ratios and seconds on one thread, as medians. Lists its parts without torch."""

import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from tabulate import tabulate

from oodbench.bench.race import race
from oodbench.bench.rows import Row
from oodbench.errors import unknown
from oodbench.terminal import DefaultCommands, commands, exit_on_user_error

app = commands(__doc__, cls=DefaultCommands)


def _steps(folder: Path) -> list[Row]:
    import torch

    from oodbench.bench.steps import case_ratios, device_ratios, step_ratios

    on_device = device_ratios() if torch.cuda.is_available() else []
    return [*step_ratios(), *case_ratios(), *on_device]


def _averages(folder: Path) -> list[Row]:
    from oodbench.bench.steps import average_ratios

    return average_ratios()


def _methods(folder: Path) -> list[Row]:
    from oodbench.bench.methods import method_costs

    return method_costs()


def _growth(folder: Path) -> list[Row]:
    from oodbench.bench.methods import method_growth

    return method_growth()


def _shortcuts(folder: Path) -> list[Row]:
    from oodbench.bench.shortcuts import shortcuts

    return shortcuts(folder)


def _runs(folder: Path) -> list[Row]:
    from oodbench.bench.runs import run_cost, status_time

    return [run_cost(folder / "cost"), status_time(folder / "status")]


def _tables(folder: Path) -> list[Row]:
    from oodbench.bench.tables import memory, page_cost, table_time

    return [*table_time(folder), *page_cost(folder), memory(folder)]


def _loading(folder: Path) -> list[Row]:
    from oodbench.bench.data import loading

    return loading(folder)


def _vectorized(folder: Path) -> list[Row]:
    from oodbench.bench.vectorized import vectorized

    return vectorized(folder)


def _vectorized_methods(folder: Path) -> list[Row]:
    from oodbench.bench.vectorized import vectorized_methods

    return vectorized_methods(folder)


def _coinrun(folder: Path) -> list[Row]:
    from oodbench.bench.data import making

    return making(folder)


def _coverage(folder: Path) -> list[Row]:
    from oodbench.bench.tables import coverages

    return coverages()


PARTS: dict[str, Callable[[Path], list[Row]]] = {
    "steps": _steps,
    "averages": _averages,
    "methods": _methods,
    "growth": _growth,
    "shortcuts": _shortcuts,
    "runs": _runs,
    "tables": _tables,
    "loading": _loading,
    "vectorized": _vectorized,
    "vectorized-methods": _vectorized_methods,
    "coinrun": _coinrun,
    "coverage": _coverage,
}
"""The functions that measure each part; they import what they need, and are given an empty folder."""


@app.command("measure")
@exit_on_user_error
def bench(
    part: Annotated[
        list[str] | None, typer.Argument(metavar="[PART]...", help=f"{', '.join(PARTS)}.")
    ] = None,
) -> None:
    """Measure these parts, or all, and print one table."""
    import torch

    for name in part or ():
        if name not in PARTS:
            raise unknown("part", name, PARTS)
    torch.set_num_threads(1)
    rows = []
    for name in part or PARTS:
        with tempfile.TemporaryDirectory() as folder:
            rows += [dataclasses.astuple(row) for row in PARTS[name](Path(folder))]
    print(tabulate(rows, ["what", "reach", "measured", "DomainBed"], disable_numparse=True))


app.command("race")(race)
