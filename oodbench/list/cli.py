"""All algorithms, datasets and networks that are registered, or all about one of them."""

import json
import shutil
from typing import Annotated, Literal

import typer

from oodbench.errors import UserError
from oodbench.terminal import Plugins, commands, printable, terminal

app = commands()

Name = Annotated[
    str | None, typer.Argument(help="Show everything about this class.", show_default=False)
]
Format = Annotated[
    Literal["terminal", "markdown", "croissant"],
    typer.Option("--format", help="markdown: docs/catalogue.md; croissant: a dataset in JSON-LD."),
]


@app.command(name="list", help=__doc__)
def list_(name: Name = None, plugin: Plugins = None, format_: Format = "terminal") -> None:
    """Print the catalogue, or the page of one class."""
    plugins, width = plugin or [], shutil.get_terminal_size().columns
    if format_ == "croissant":
        from oodbench.list.croissant import UNTOLD, croissant

        if name is None:
            raise UserError("--format croissant describes one dataset: give its name")
        print(json.dumps(croissant(name, plugins), indent=2))
        terminal(stderr=True).say(f"Its authors add what metadata do not tell: {UNTOLD}.")
    elif name is not None:
        from oodbench.list.details import details, page

        print(printable(page(details(name, plugins), width), keep="\n"))
    else:
        from oodbench.list.catalogue import listing, markdown, registered_entries

        entries = registered_entries(plugins)
        text = markdown(entries) if format_ == "markdown" else listing(entries, width)
        print(printable(text, keep="\n"), end="")
