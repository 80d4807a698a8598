"""The tables of a board in one small file beside its parts, so that `report table BOARD` reads no part.

BOARD/summary.json: a line with the SHA-256 of the protocol, the parts and the next line; then, as JSON, the
tables by the board's usual rule. By the digest a changed part or summary is noticed.
"""

import hashlib
import json
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from oodbench.errors import UserError
from oodbench.files import write_whole
from oodbench.notes import Note, brief
from oodbench.report.tables import Block, Sheet
from oodbench.results.boards import PROTOCOL_FILE, called, find_board, part_files
from oodbench.terminal import terminal

SUMMARY_FILE = "summary.json"
NOTES = ("notes", "remarks", "marks")
"""The fields of a `Sheet` that hold notes; the file has each note with its footnote."""


class StaleSummary(UserError):
    """A summary that is damaged, or was written for other parts than those beside it."""


def whole_board(board: Path) -> Sheet:
    """Return the tables of a board alone: from its summary, or from its parts if that is
    missing or stale.
    """
    stale = None
    try:
        if stored := read_summary(board):
            return stored
    except StaleSummary as error:
        stale = error
    tables = _sheet_of_parts(board)
    if stale:
        terminal(stderr=True).say(f"{stale}; the parts were read instead")
    return tables


def write_summary(board: Path) -> None:
    """Write the summary of the parts that a board has now."""
    text = _text(_sheet_of_parts(board))
    write_whole(board / SUMMARY_FILE, f"{_digest(board, text)}\n{text}")


def read_summary(board: Path) -> Sheet | None:
    """Return the tables of a board, None if there is no summary; raises StaleSummary."""
    path = board / SUMMARY_FILE
    if not path.is_file():
        return None
    digest, _, text = path.read_text(errors="replace").partition("\n")
    values: dict[str, Any] = json.loads(text) if digest == _digest(board, text) else {}
    if values.keys() != {field.name for field in fields(Sheet)}:
        raise StaleSummary(
            f"{path} is damaged or of other parts: "
            f"`python -m oodbench.report.summary {called(board)}` writes it again"
        )
    blocks = [
        Block(**block | {name: set(map(tuple, block[name])) for name in ("best", "near", "second")})
        for block in [*values.pop("blocks"), values.pop("paper")]
    ]
    notes = {
        name: tuple(Note(*note) if isinstance(note, list) else note for note in values[name])
        for name in NOTES
    }
    return Sheet(blocks[:-1], numbers=values["numbers"], paper=blocks[-1], **notes)


def _sheet_of_parts(board: Path) -> Sheet:
    # They bring pandas and scipy, a second that a board with a summary need not wait for.
    from oodbench.report.comparison import board_sheet
    from oodbench.report.sources import beside_board

    return board_sheet(beside_board(str(board), []))


def _text(tables: Sheet) -> str:
    notes = {name: [(note, brief(note)) for note in getattr(tables, name)] for name in NOTES}
    blocks = {"blocks": list(map(vars, tables.blocks)), "paper": vars(tables.paper)}
    values = vars(tables) | notes | blocks
    return json.dumps(values, default=sorted)


def _digest(board: Path, text: str) -> str:
    digest = hashlib.sha256()
    for path in (board / PROTOCOL_FILE, *part_files(board)):
        digest.update(str(path.relative_to(board)).encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    digest.update(text.encode())
    return digest.hexdigest()


if __name__ == "__main__":
    write_summary(find_board(sys.argv[1]))
