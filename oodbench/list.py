"""All algorithms and datasets that are registered, with their papers."""

import inspect
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Column, Table

from oodbench.errors import UserError, reports_mistakes

app = typer.Typer(pretty_exceptions_enable=False, subcommand_metavar="")

Plugins = Annotated[list[str] | None, typer.Option("--plugin", help="A module to import first.")]


@app.callback(invoke_without_command=True, help=__doc__)
@reports_mistakes
def list_(plugin: Plugins = None) -> None:
    """Print the two tables."""
    from oodbench.registry import load_plugins

    load_plugins(plugin or [])
    _show(("algorithm", "paper", "summary"), algorithm_rows())
    _show(("dataset", "family", "environments", "paper", "summary"), dataset_rows())


def algorithm_rows() -> list[tuple[str, ...]]:
    """(name, paper, first line of the docstring) of every algorithm."""
    from oodbench.algorithms import algorithms

    classes = [algorithms.get(name) for name in algorithms]
    return [(cls.name, cls.paper, summary(cls)) for cls in classes]


def dataset_rows() -> list[tuple[str, ...]]:
    """(name, family, environments, paper, first line of the docstring) of every dataset."""
    from oodbench.datasets import datasets, make

    rows: list[tuple[str, ...]] = []
    for name in datasets:
        cls = datasets.get(name)
        try:
            names = make(name, {}).environments
        except UserError:  # they are in files of the user's
            names = ("those of its files",)
        short = names if len(names) <= 6 else (*names[:2], "...", *names[-2:])
        rows.append((name, cls.metadata.family, ", ".join(short), cls.metadata.paper, summary(cls)))
    return rows


def summary(cls: type) -> str:
    """The first line of a class's own docstring."""
    return inspect.cleandoc(cls.__doc__ or "").partition("\n")[0]


def _show(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    columns = (Column(name, min_width=16 * (name == "paper")) for name in header)
    table = Table(*columns, box=SIMPLE)
    for row in rows:
        table.add_row(*row)
    Console().print(table)


if __name__ == "__main__":
    app()
