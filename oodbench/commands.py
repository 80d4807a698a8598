"""How a command is declared, and how it asks. Imports no rich."""

import sys
from typing import Any

import typer
from typer.core import TyperGroup

from oodbench.errors import UserError


class _Commands(TyperGroup):
    """A group whose help shows the whole first paragraph of each command's, not its first words."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is not None and command.help and not command.short_help:
            command.short_help = command.help.partition("\n\n")[0]
        return command


def commands(help: str | None = None, **settings: Any) -> typer.Typer:
    """A `typer.Typer` whose help and errors are plain text; `settings` are further ones of Typer's."""
    plain: dict[str, Any] = {"rich_markup_mode": None, "pretty_exceptions_enable": False}
    return typer.Typer(cls=_Commands, help=help, **plain, **settings)


def confirmed(question: str) -> bool:
    """The user's answer to a question; raises UserError where nobody can answer."""
    if sys.stdin is None or sys.stdin.closed:
        raise UserError(f"'{question}' cannot be answered as stdin is closed; add --yes")
    return typer.confirm(question, default=None)
