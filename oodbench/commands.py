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


class DefaultCommands(_Commands):
    """A group whose first command may be left out: arguments that name no command are its own."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Put the first command's name before arguments that begin with no command's."""
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = [next(iter(self.commands)), *args]
        return super().parse_args(ctx, args)


def commands(
    help: str | None = None, *, cls: type[TyperGroup] = _Commands, **settings: Any
) -> typer.Typer:
    """A `typer.Typer` whose help and errors are plain text; `settings` are further ones of Typer's."""
    plain: dict[str, Any] = {"rich_markup_mode": None, "pretty_exceptions_enable": False}
    return typer.Typer(cls=cls, help=help, **plain, **settings)


def confirmed(question: str) -> bool:
    """The user's answer to a question; raises UserError where nobody can answer."""
    if sys.stdin is None or sys.stdin.closed:
        raise UserError(f"'{question}' cannot be answered as stdin is closed; add --yes")
    return typer.confirm(question, default=None)
