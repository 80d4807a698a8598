"""Leaderboards on the command line: python -m oodbench.report table DIR. Imports no torch."""

from pathlib import Path
from typing import Annotated

import typer

from oodbench.errors import reports_mistakes, unknown
from oodbench.formats import FORMATS
from oodbench.layout import sheet
from oodbench.records import Results
from oodbench.selection import RULES
from oodbench.tables import leaderboard

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)


def print_table(
    results: Results,
    selection: str = "train_val",
    format_: str = "terminal",
    metric: str | None = None,
) -> None:
    """Print the leaderboard of a results directory; raises UserError for unknown names."""
    if format_ not in FORMATS:
        raise unknown("format", format_, FORMATS)
    print(FORMATS[format_](sheet(leaderboard(results.load(), selection, metric))), end="")


@app.callback()
def _commands() -> None:
    """Leaderboards of a results directory."""


@app.command()
@reports_mistakes
def table(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The results directory.")],
    selection: Annotated[str, typer.Option(help=f"{', '.join(RULES)}.")] = "train_val",
    format_: Annotated[str, typer.Option("--format", help=f"{', '.join(FORMATS)}.")] = "terminal",
    metric: Annotated[str | None, typer.Option(help="Shown instead of the datasets' own.")] = None,
) -> None:
    """Print the leaderboard: test environments, their average, mean ± standard error, counts."""
    print_table(Results(directory), selection, format_, metric)


if __name__ == "__main__":
    app()
