"""The tables of boards, kept once they were made: a board's numbers never change. Imports no torch."""

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from oodbench.files import write_whole
from oodbench.registry import checkout
from oodbench.report.sheet import Block, Sheet
from oodbench.results.board import PROTOCOL_FILE, part_files


def kept_sheet(board: Path, key: tuple[str | None, ...], make: Callable[[], Sheet]) -> Sheet:
    """The sheet of a board that `key` names among its sheets, made only if it is not there.

    It is kept in $XDG_CACHE_HOME/oodbench, and made again when a file of the board or of this package is
    another. Where nothing can be kept it is made each time.
    """
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    name = hashlib.sha256(json.dumps([str(board.resolve()), *key]).encode()).hexdigest()[:16]
    file = Path(home) / "oodbench" / f"{board.name}-{name}.json"
    stamp = _stamp(board)
    with suppress(OSError, ValueError, KeyError, TypeError):  # none, or torn
        stored = json.loads(file.read_text(encoding="utf-8"))
        if stored["stamp"] == stamp:
            return _sheet(stored)
    found = make()
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps({"stamp": stamp, **_values(found)}))
    return found


def _stamp(board: Path) -> str:
    """A digest of what the system says of the board's files and of this package's modules."""
    package = sorted((checkout() / "oodbench").glob("**/*.py"))
    stats = [(str(f), f.stat()) for f in (board / PROTOCOL_FILE, *part_files(board), *package)]
    told = [(name, s.st_size, s.st_mtime_ns, s.st_ino) for name, s in stats]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


def _values(sheet: Sheet) -> dict[str, Any]:
    """A sheet as JSON has it."""
    blocks = [asdict(block) for block in sheet.blocks]
    for block in blocks:
        block["best"], block["near"] = sorted(block["best"]), sorted(block["near"])
    frame = sheet.frame.to_dict(orient="list")
    return {"blocks": blocks, "notes": sheet.notes, "remarks": sheet.remarks, "frame": frame}


def _sheet(values: dict[str, Any]) -> Sheet:
    blocks = []
    for block in values["blocks"]:
        marks = {name: {tuple(place) for place in block[name]} for name in ("best", "near")}
        blocks.append(Block(**block | marks))
    notes, remarks = tuple(values["notes"]), tuple(values["remarks"])
    return Sheet(blocks, notes, remarks, pd.DataFrame(values["frame"]))
