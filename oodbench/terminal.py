"""Declaration, questions, output and errors of commands.

Commands print through `terminal`, or `print` a text that `printable` has escaped.
"""

import errno
import io
import os
import re
import sys
import textwrap
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, ParamSpec, TypeVar

import typer
from rich import box
from rich.cells import cell_len
from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from oodbench.errors import MOST_THREADS, UserError, described, users_line
from oodbench.errors import counted as counted

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=Callable[..., Any])

LIMITS = errno.ENOSPC, errno.EMFILE, errno.EAGAIN, errno.EFBIG, errno.ENOENT  # may name no file
LEAST_WIDTH = 20  # columns that are printed, even if COLUMNS says less
VMAP_IS_SLOW = "There is a performance drop"
"""The beginning of torch's warning that `vmap` has no rule for a function, which no user can change."""


class Commands(TyperGroup):
    """A group whose help shows the first paragraph of each command's help, not just its first words."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command, whose short help is the first paragraph of its help."""
        command = super().get_command(ctx, cmd_name)
        if command is not None and command.help and not command.short_help:
            command.short_help = command.help.partition("\n\n")[0]
        return command

    def invoke(self, ctx: Any) -> Any:
        """Run a command; an error on `--out` says if the command takes a results directory."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            wrong: Any = error
            if getattr(error, "option_name", "") == "--out":
                known = [getattr(each, "help", None) or "" for each in wrong.ctx.command.params]
                if any("results director" in text for text in known):
                    name, wrong.possibilities = wrong.ctx.info_name, ()
                    wrong.message += f"; the results directory is the argument: {name} DIR"
            raise


Plugins = Annotated[
    list[str] | None, typer.Option("--plugin", metavar="MODULE", help="Imported first.")
]
"""The option by which a command imports a user's modules."""
DataDir = Annotated[Path | None, typer.Option(help="Where datasets that need files find them.")]
"""The option by which a command finds data."""
Workers = Annotated[
    int | None, typer.Option(min=1, max=MOST_THREADS, help="Processes; one per core or device.")
]
StepsPerSecond = Annotated[
    float | None,
    typer.Option(min=1e-9, help="A run's speed, such as your GPU's; nothing is measured then."),
]
Stale = Annotated[
    Literal["retrain", "keep"] | None,
    typer.Option("--stale", help="Train runs of changed code or data again, or keep them."),
]
Threads = Annotated[
    int, typer.Option(min=1, max=MOST_THREADS, help="CPU threads of a run; changes the last bits.")
]


class _App(typer.Typer):
    def command(self, *args: Any, **settings: Any) -> Callable[[C], C]:
        register: Any = super().command(*args, **settings)
        return lambda command: register(exit_on_user_error(command))


def commands(help: str | None = None, **settings: Any) -> typer.Typer:
    """An app whose help and errors are plain text; `settings` are further ones of Typer's.

    A user's mistake ends each command as described in `exit_on_user_error`.
    """
    plain = {"rich_markup_mode": None, "pretty_exceptions_enable": False, "add_completion": False}
    return _App(cls=Commands, help=help, **plain | settings)


def confirmed(question: str) -> bool:
    """The user's answer to a question; raises UserError if nobody can answer."""
    if sys.stdin is None or sys.stdin.closed:
        raise UserError(f"'{question}' cannot be answered as stdin is closed; add --yes")
    return typer.confirm(question, default=None)


def format_warnings() -> None:
    """From now on, print a `UserWarning` as one line, without file and line number."""
    warnings.filterwarnings("ignore", VMAP_IS_SLOW)
    usual: Any = warnings.formatwarning

    def formatted(message: Any, category: type[Warning], *place: Any, **line: Any) -> str:
        if category is UserWarning:
            return _for_stderr(f"warning: {message}")
        return str(usual(message, category, *place, **line))

    warnings.formatwarning = formatted


def exit_on_user_error(command: Callable[P, R]) -> Callable[P, R]:
    """Wrap a command so that a `UserError` or an unusable path ends it with one line and exit code 2.

    So does any other error that a user's code raises, with the line of this code. A `UserWarning` is
    printed as one line, without file and line number.
    """

    @wraps(command)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # closed, it is None
                stream.reconfigure(errors="backslashreplace")  # for what it cannot encode
        usual = warnings.formatwarning
        format_warnings()
        try:
            return command(*args, **kwargs)
        except Exception as error:
            if (sentence := _sentence(error)) is None:
                raise
            print(_for_stderr(f"error: {sentence}"), file=sys.stderr, end="")
            raise SystemExit(2) from error
        finally:
            warnings.formatwarning = usual

    return wrapper


def _sentence(error: Exception) -> str | None:
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OSError):
        if Path(os.curdir).stat().st_nlink == 0:  # deleted: no relative path can be resolved
            return "the working directory has been removed; change to one that is there"
        if error.strerror is not None and (error.filename or error.errno in LIMITS):
            return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, MemoryError) or "failed to map segment" in str(error):
        return f"there is too little memory here (`ulimit -v`, a job's limit): {error}"
    if users_line(error, outer=2) is None:  # below a command and its wrappers
        return None
    return described(error)


CONTROLS = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # C0, delete and C1: escape sequences start with one of them
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # line separators, order of writing
    "\ufeff\ud800-\udfff]"  # the byte order mark, and half characters that UTF-8 cannot encode
)


def printable(text: str, keep: str = "") -> str:
    r"""The text with every control character but those in `keep` as an escape such as `\x1b`."""
    if text.isprintable():  # true for nearly every cell of a table, and ten times as fast
        return text
    return CONTROLS.sub(
        lambda m: m[0] if m[0] in keep else m[0].encode("unicode_escape").decode(), text
    )


def printable_json(text: str) -> str:
    """JSON text in which control characters inside strings are written as JSON escapes."""
    return re.sub(CONTROLS, lambda m: m[0] if m[0] == "\n" else f"\\u{ord(m[0]):04x}", text)


def wrapped(text: str, width: int) -> str:
    """Each line of the text wrapped at words, under the words of an item (`- `); a path stays whole."""
    lines = []
    for line in text.split("\n"):
        indent = " " * (len(line) - len(line.lstrip(" -")))
        lines += textwrap.wrap(
            line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        ) or [""]
    return "\n".join(lines)


ASCII = str.maketrans({"±": "+-", "≥": ">=", "≤": "<=", "…": "...", "→": "->"})
"""ASCII substitutes for signs that the terminal's encoding lacks."""
TITLE = 16
"""The width at which longer titles are wrapped in a table that is too wide."""
GAP = 2
"""Blanks between two columns of a table."""
PROSE = 32
"""The smallest width to which a column of prose is wrapped, to leave room for other columns."""


class Terminal(Console):
    """A console on which every string is plain text, its control characters shown as escapes."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)
        self.width = max(self.width, LEAST_WIDTH)

    def render_str(self, text: str, **options: Any) -> Text:
        """The string as a `Text`, as `print`, tables and progress bars show it."""
        text = printable(text, "\n")
        if not self.encoding.startswith("utf"):
            text = text.translate(ASCII)
        return super().render_str(text, **options)

    def say(self, text: str) -> None:
        """Print prose, `wrapped`."""
        self.print(self.wrapped(text), soft_wrap=True)

    def wrapped(self, text: str) -> str:
        """The text with its lines wrapped at words.

        Output into a file or a pipe is not wrapped unless COLUMNS is set.
        """
        if not (self.is_terminal or "COLUMNS" in os.environ):
            return text
        return wrapped(text, self.width)

    def tables(
        self,
        header: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        keys: int = 1,
        prose: Collection[int] = (),
        line_after: int = 0,
        styles: Mapping[tuple[int, int], str] = MappingProxyType({}),
    ) -> Group:
        """A table as wide as the terminal, or several tables if numbers would be cut.

        Each table repeats the first `keys` columns. The columns `prose` are wrapped at words, and all other
        columns but the keys are aligned to the right. A line follows the first `line_after` rows; `styles`
        has the styles of cells by (row, column).
        """
        titles = [self.render_str(title) for title in header]
        cells = [
            [self.render_str(text, style=styles.get((r, c), "")) for c, text in enumerate(row)]
            for r, row in enumerate(rows)
        ]
        longest = [max((row[c].cell_len for row in cells), default=0) for c in range(len(titles))]
        named = [*zip(longest, (title.plain for title in titles), strict=True)]
        widths = [max(n, cell_len(title)) for n, title in named]
        if _width(widths) > self.width:
            widths = [max(n, *map(cell_len, wrapped(t, TITLE).split("\n"))) for n, t in named]
        least = [min(n, PROSE) if c in prose else n for c, n in enumerate(widths)]
        shown: list[RenderableType] = []
        for block in _blocks(least, keys, self.width):
            table = Table(
                box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0)
            )
            for c in block:
                justify: JustifyMethod = "left" if c < keys or c in prose else "right"
                width = None if c in prose else widths[c]
                table.add_column(titles[c], justify=justify, width=width)
            for r, row in enumerate(cells):
                table.add_row(*(row[c] for c in block), end_section=r + 1 == line_after)
            natural = _width([widths[c] for c in block])
            table.width = max(min(natural, self.width), _width([least[c] for c in block]))
            shown += [table, Text()]
        return Group(*shown)


def _width(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _blocks(widths: Sequence[int], keys: int, width: int) -> list[list[int]]:
    blocks = [[*range(keys)]]
    for c in range(keys, len(widths)):
        if len(blocks[-1]) > keys and _width([widths[i] for i in (*blocks[-1], c)]) > width:
            blocks.append([*range(keys)])
        blocks[-1].append(c)
    return blocks


def _for_stderr(text: str) -> str:
    console = terminal(stderr=True)
    with console.capture() as captured:
        console.say(text)
    return captured.get()


def duration(seconds: float) -> str:
    """Seconds as text in a readable unit: s, min or h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 100 else f"{hours:,.0f} h"


def terminal(stderr: bool = False) -> Terminal:
    """A console on stdout (or stderr) with the width that the terminal, or COLUMNS, has now.

    Progress bars are drawn on terminals alone: FORCE_COLOR, which notebooks set, only colours a pipe.
    """
    stream = sys.stderr if stderr else sys.stdout
    drawn = None if stream is not None and stream.isatty() else False
    return Terminal(stderr=stderr, force_interactive=drawn)


def plain_terminal() -> Terminal:
    """A console for stored text, without colours even in a notebook."""
    return Terminal(force_terminal=False, force_jupyter=False)
