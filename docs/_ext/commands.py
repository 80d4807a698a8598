"""A page with every command and its options, from the same texts as `--help`."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import typer.main
from docstrings import escaped

import oodbench

HEAD = """Commands
========

``python -m oodbench.ROOM VERB --help`` prints the same. ``oodbench ROOM VERB`` is the same command.
"""


def page() -> str:
    """The page, as reStructuredText."""
    lines = [HEAD]
    for room in rooms():
        app = importlib.import_module(f"oodbench.{room}.__main__").app
        lines += [room, "-" * len(room), ""]
        for name, command in verbs(typer.main.get_command(app), f"python -m oodbench.{room}"):
            lines += described(name, command)
    return "\n".join(lines)


def rooms() -> list[str]:
    """The rooms of the package that have commands."""
    return sorted(file.parent.name for file in Path(oodbench.__file__).parent.glob("*/__main__.py"))


def verbs(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    """Each command with what is typed before its arguments."""
    inner_commands = getattr(command, "commands", None)
    if inner_commands is not None:
        for verb, inner in inner_commands.items():
            yield from verbs(inner, f"{name} {verb}")
    else:
        yield name, command


def described(name: str, command: click.Command) -> list[str]:
    """A command's heading, usage, sentence and options."""
    context = command.make_context(name, [], resilient_parsing=True)
    usage = " ".join(command.collect_usage_pieces(context))
    text = (command.help or "").partition("\f")[0]
    lines = [name, "~" * len(name), "", "::", "", f"    {name} {usage}", "", escaped(text), ""]
    options = [p for p in command.params if p.param_type_name == "option" and not p.hidden]
    for option in options:
        if (record := option.get_help_record(context)) is not None:
            lines += [f"``{record[0]}``", f"    {meaning(record[1])}", ""]
    return lines


def meaning(text: str) -> str:
    """An option's text, without the paths of the machine that builds the site."""
    return escaped(text.replace(sys.executable, "python")) or "A switch."
