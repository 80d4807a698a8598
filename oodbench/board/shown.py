"""Texts of boards, kept once they were made: a board's numbers never change. Imports no pandas."""

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from oodbench.board.files import PROTOCOL_FILE, part_files
from oodbench.files import write_whole
from oodbench.registry import checkout
from oodbench.terminal import terminal


def kept_text(board: Path, key: tuple[str | None, ...], make: Callable[[], str]) -> str:
    """The text of a board that `key` names among its texts, made only if it is not there.

    It is kept in $XDG_CACHE_HOME/oodbench for terminals of this width, encoding and colours, and made
    again when a file of the board or of this package is another. Where nothing can be kept it is made
    each time.
    """
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    name = _digest([str(board.resolve()), *key, *_terminal()])[:16]
    file = Path(home) / "oodbench" / f"{board.name}-{name}.json"
    stamp = _stamp(board)
    with suppress(OSError, ValueError, KeyError, TypeError):  # none, or torn
        stored = json.loads(file.read_text(encoding="utf-8"))
        if stored["stamp"] == stamp:
            return str(stored["text"])
    text = make()
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps({"stamp": stamp, "text": text}))
    return text


def _terminal() -> list[object]:
    """All of the terminal that a text depends on."""
    console = terminal()
    wraps = console.is_terminal or "COLUMNS" in os.environ
    return [console.width, console.encoding, console.color_system, console.no_color, wraps]


def _stamp(board: Path) -> str:
    """A digest of what the system says of the board's files and of this package's modules."""
    package = sorted((checkout() / "oodbench").glob("**/*.py"))
    stats = [(str(f), f.stat()) for f in (board / PROTOCOL_FILE, *part_files(board), *package)]
    return _digest([(name, s.st_size, s.st_mtime_ns, s.st_ino) for name, s in stats])


def _digest(values: list[object]) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()
