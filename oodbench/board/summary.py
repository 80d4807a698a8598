"""The leaderboard of a board in one small file beside its parts, so that `board show` reads no part.

BOARD/summary.json: a line with the SHA-256 of the protocol, the parts and the next line; then, as JSON, the
leaderboard by the board's usual rule. Neither a changed part nor a changed summary has that digest.
"""

import hashlib
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pandas as pd

from oodbench.board.beside import beside_board
from oodbench.board.files import PROTOCOL_FILE, part_files
from oodbench.errors import UserError
from oodbench.files import write_whole
from oodbench.report.leaderboard import Leaderboard, leaderboard

SUMMARY_FILE = "summary.json"


class StaleSummary(UserError):
    """A summary that is not of the parts beside it, or is damaged."""


def write_summary(board: Path) -> None:
    """Sum up the parts that a board has now."""
    text = _text(leaderboard(beside_board(str(board), [])))
    write_whole(board / SUMMARY_FILE, f"{_digest(board, text)}\n{text}")


def read_summary(board: Path) -> Leaderboard | None:
    """The leaderboard of a board, None if there is no summary; raises StaleSummary."""
    path = board / SUMMARY_FILE
    if not path.is_file():
        return None
    digest, _, text = path.read_text(errors="replace").partition("\n")
    values: dict[str, Any] = json.loads(text) if digest == _digest(board, text) else {}
    if values.keys() != {field.name for field in fields(Leaderboard)}:
        raise StaleSummary(
            f"{path} is damaged or of other parts: `board summarize {board.name}` writes it again"
        )
    lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return Leaderboard(**values | lists | {"frame": pd.DataFrame(values["frame"])})


def check_summary(board: Path) -> None:
    """Raise StaleSummary unless the summary is what the parts give today, or there is none."""
    stored = read_summary(board)
    if stored is not None and _text(stored) != _text(leaderboard(beside_board(str(board), []))):
        raise StaleSummary(
            f"{board / SUMMARY_FILE} is not what the parts give with this version of oodbench: "
            f"`board summarize {board.name}` writes it again"
        )


def _text(board: Leaderboard) -> str:
    return json.dumps(vars(board) | {"frame": board.frame.to_dict("list")})


def _digest(board: Path, text: str) -> str:
    digest = hashlib.sha256()
    for path in (board / PROTOCOL_FILE, *part_files(board)):
        digest.update(str(path.relative_to(board)).encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    digest.update(text.encode())
    return digest.hexdigest()
