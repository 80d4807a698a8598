"""The cost of the harness: ratios and seconds on one thread, as medians."""

import tempfile
from collections.abc import Callable
from dataclasses import astuple
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from tabulate import tabulate

from oodbench.errors import unknown
from oodbench.terminal import Commands, commands
from tests.bench import Row
from tests.bench.race import race


class DefaultCommands(Commands):
    """A group whose first command may be left out: arguments that name no command are its."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Put the first command's name before arguments that do not begin with a command's."""
        if not args or args[0] not in (*self.commands, *ctx.help_option_names):
            args = [next(iter(self.commands)), *args]
        return super().parse_args(ctx, args)


app = commands(__doc__, cls=DefaultCommands)

MEASUREMENTS = {
    "steps": "steps.step_rows",
    "methods": "steps.method_rows",
    "adaptations": "adaptations.adaptation_rows",
    "runs": "launches.run_rows",
    "tables": "launches.table_rows",
    "loading": "data.loading_rows",
    "vectorized": "vectorized.case_rows",
    "vectorized-methods": "vectorized.method_rows",
}
"""The function of this package that measures each part; its argument is an empty folder."""


@app.command("measure")
def measure(
    part: Annotated[
        list[str] | None, typer.Argument(metavar="[PART]...", help=f"{', '.join(MEASUREMENTS)}.")
    ] = None,
) -> None:
    """Measure these parts, or all, and print one table."""
    for name in part or ():
        if name not in MEASUREMENTS:
            raise unknown("part", name, MEASUREMENTS)
    import torch

    torch.set_num_threads(1)
    rows = []
    for name in part or MEASUREMENTS:
        module, _, function = MEASUREMENTS[name].partition(".")
        rows_of: Callable[[Path], list[Row]]
        rows_of = getattr(import_module(f"tests.bench.{module}"), function)
        with tempfile.TemporaryDirectory() as folder:
            rows += [astuple(row) for row in rows_of(Path(folder))]
    print(tabulate(rows, ["what", "reach", "measured", "DomainBed"], disable_numparse=True))


app.command("race")(race)
