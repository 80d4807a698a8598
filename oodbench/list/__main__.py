"""All registered algorithms, datasets and networks, or the details of one of them."""

import json
import shutil
from typing import Annotated, Literal

import typer

from oodbench.errors import UserError
from oodbench.list.catalogue import KINDS, listing, markdown, own_entries
from oodbench.registry import points
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
    if format_ == "croissant":
        if name is None:
            raise UserError("--format croissant describes one dataset: give its name")
        from oodbench.list.croissant import UNTOLD, croissant

        print(json.dumps(croissant(name, plugin or []), indent=2))
        terminal(stderr=True).say(f"Its authors add what metadata do not tell: {UNTOLD}.")
        return
    width = shutil.get_terminal_size().columns
    if name is not None:
        from oodbench.list.details import details, page

        print(printable(page(details(name, plugin or []), width), keep="\n"))
        return
    if plugin or any(points(f"oodbench.{kind}s") for kind in KINDS):
        # only an import of an installed package, which imports torch, shows what it registers
        from oodbench.list.details import registered_entries

        entries = registered_entries(plugin or [])
    else:
        entries = own_entries()
    text = markdown(entries) if format_ == "markdown" else listing(entries, width)
    print(printable(text, keep="\n"), end="")


if __name__ == "__main__":
    app()
