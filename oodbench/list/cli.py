"""All algorithms, datasets and networks that are registered, or all about one of them."""

import json
import shutil
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import typer

from oodbench.list.catalogue import has_entry_points, listing, markdown, own_entries
from oodbench.terminal import Plugins, commands, printable

app = commands()


class Format(StrEnum):
    """How the catalogue is printed."""

    TERMINAL = "terminal"
    JSON = "json"
    MARKDOWN = "markdown"


Name = Annotated[
    str | None, typer.Argument(help="Show everything about this class.", show_default=False)
]
Formats = Annotated[Format, typer.Option("--format", help="markdown: as docs/catalogue.md.")]


@app.command(name="list", help=__doc__)
def list_(name: Name = None, plugin: Plugins = None, format_: Formats = Format.TERMINAL) -> None:
    """Print the catalogue, or the page of one class."""
    width = shutil.get_terminal_size().columns
    if name is not None:
        from oodbench.list.details import details, page

        about = details(name, plugin or [])
        text = page(about, width) if format_ is not Format.JSON else json.dumps(about, indent=2)
        print(printable(text, keep="\n"))
        return
    if plugin or has_entry_points():
        # only importing such a package, and torch with it, tells which classes it registers
        from oodbench.list.details import registered_entries

        entries = registered_entries(plugin or [])
    else:
        entries = own_entries()
    if format_ is Format.JSON:
        print(json.dumps([asdict(entry) for entry in entries], indent=2))
    else:
        text = markdown(entries) if format_ is Format.MARKDOWN else listing(entries, width)
        print(printable(text, keep="\n"), end="")
