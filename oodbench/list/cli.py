"""All algorithms, datasets and networks that are registered, or all about one of them."""

import shutil
from typing import Annotated, Literal

import typer

from oodbench.list.catalogue import has_entry_points, listing, markdown, own_entries
from oodbench.terminal import Plugins, commands, printable

app = commands()

Name = Annotated[
    str | None, typer.Argument(help="Show everything about this class.", show_default=False)
]
Format = Annotated[
    Literal["terminal", "markdown"],
    typer.Option("--format", help="markdown: as docs/catalogue.md."),
]


@app.command(name="list", help=__doc__)
def list_(name: Name = None, plugin: Plugins = None, format_: Format = "terminal") -> None:
    """Print the catalogue, or the page of one class."""
    width = shutil.get_terminal_size().columns
    if name is not None:
        from oodbench.list.details import details, page

        print(printable(page(details(name, plugin or []), width), keep="\n"))
        return
    if plugin or has_entry_points():
        # only importing such a package, and torch with it, tells which classes it registers
        from oodbench.list.details import registered_entries

        entries = registered_entries(plugin or [])
    else:
        entries = own_entries()
    text = markdown(entries) if format_ == "markdown" else listing(entries, width)
    print(printable(text, keep="\n"), end="")
