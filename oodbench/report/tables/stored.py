"""The file with the tables of a board, which `oodbench.report.summary` writes.

BOARD/summary.json: a line with the SHA-256 of the protocol, the parts and the next line; then, as JSON, the
tables by the board's usual rule. By the digest a changed part or summary is noticed.
"""

import hashlib
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from oodbench.errors import UserError
from oodbench.notes import Note
from oodbench.report.tables import Block, Sheet
from oodbench.results.boards import PROTOCOL_FILE, RECORDS_FILE, RUNS_FILE, called

SUMMARY_FILE = "summary.json"
NOTES = ("notes", "remarks", "marks")
"""The fields of a `Sheet` that hold notes; the file has each note with its footnote."""


class StaleSummary(UserError):
    """A summary that is damaged, or was written for other parts than those beside it."""


def read_summary(board: Path) -> Sheet | None:
    """Return the tables of a board, None if there is no summary; raises StaleSummary."""
    path = board / SUMMARY_FILE
    if not path.is_file():
        return None
    stored, _, text = path.read_text(errors="replace").partition("\n")
    values: dict[str, Any] = json.loads(text) if stored == digest(board, text) else {}
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


def digest(board: Path, text: str) -> str:
    """Return the SHA-256 of the protocol and parts that a board has, and of this text."""
    found = hashlib.sha256()
    for path in (board / name for name in (PROTOCOL_FILE, RUNS_FILE, RECORDS_FILE)):
        found.update(str(path.relative_to(board)).encode())
        found.update(hashlib.sha256(path.read_bytes()).digest())
    found.update(text.encode())
    return found.hexdigest()
