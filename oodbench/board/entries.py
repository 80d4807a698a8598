"""The rows of a board that others entered: who, when, with which code, and whether a rerun verified them.

BOARD/entries/ALGORITHM/ has the `submission.json` of the rows (see `About`), the method's file under
method/, the rows' parts under parts/ and, if they were verified, the receipt.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from oodbench.board.files import entry_folders
from oodbench.errors import UserError
from oodbench.report.formats import Block
from oodbench.results.schemas import parse_json

ABOUT = "submission.json"
METHOD = "method"
RECEIPT = "verified.json"
VERIFIED, SUBMITTED = "verified by rerun", "submitted"


class About(BaseModel):
    """The statement in a submission: author, method, paper, versions and pretraining."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    schema_: Literal[1] = 1
    board: str
    protocol: str
    """The SHA-256 of the board's protocol."""
    rows: list[str]
    """The labels of the rows, all of which are of one method."""
    algorithm: Annotated[str, Field(pattern=r"^[A-Za-z]\w*$")]
    """The method's name, and that of the folder of its entry."""
    author: str
    day: str
    paper: str
    pretraining: str
    """The data that the method's networks had been trained on before these runs."""
    versions: dict[str, str]
    """Versions of oodbench (with its commit), torch and Python, and the machine that trained the rows."""
    files: dict[str, str]
    """The SHA-256 of every other file."""


class Receipt(BaseModel):
    """The result of a verification."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    submission: str
    """The SHA-256 of the file that was verified."""
    runs: Annotated[int, Field(ge=1)]
    """The number of runs that were trained again, all of which are equal bit for bit."""
    seed: int
    """The seed by which these runs were chosen."""
    verifier: str
    day: str
    code: str
    """The version and commit of oodbench that trained them."""


def receipt_file(archive: Path) -> Path:
    """The path of the receipt, beside its submission."""
    return archive.with_name(f"{archive.stem}.{RECEIPT}")


def read_receipt(archive: Path) -> Receipt | None:
    """The receipt of a submission, None if there is none; raises UserError for one of another file."""
    path = receipt_file(archive)
    if not path.is_file():
        return None
    receipt = parse_json(path.read_bytes(), Receipt, str(path))
    if receipt.submission != sha256(archive):
        raise UserError(f"{path} is of another file than {archive}: verify it again")
    return receipt


def sha256(path: Path) -> str:
    """The SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


@dataclass(frozen=True)
class Entry:
    """The rows of one submission."""

    about: About
    method: str
    """The first 12 digits of the SHA-256 of the method's file."""
    receipt: Receipt | None

    @property
    def status(self) -> str:
        """The status of the rows, `VERIFIED` or `SUBMITTED`."""
        return VERIFIED if self.receipt else SUBMITTED


def entry_of(about: About, receipt: Receipt | None) -> Entry:
    """The entry of a submission."""
    (digest,) = (d for name, d in about.files.items() if name.startswith(f"{METHOD}/"))
    return Entry(about, digest[:12], receipt)


def entries(board: Path) -> list[Entry]:
    """The entries of a board; raises DamagedFile."""
    known = []
    for folder in entry_folders(board):
        file, path = folder / ABOUT, folder / RECEIPT
        about = parse_json(file.read_bytes(), About, str(file))
        receipt = parse_json(path.read_bytes(), Receipt, str(path)) if path.is_file() else None
        known.append(entry_of(about, receipt))
    return known


def wrong_entry(folder: Path) -> list[str]:
    """The mistakes in an entry, a sentence each; raises DamagedFile."""
    about = parse_json((folder / ABOUT).read_bytes(), About, str(folder / ABOUT))
    files = {name: folder / name for name in about.files}
    there = {path for path in folder.rglob("*") if path.is_file()}
    strange = there - {*files.values(), folder / ABOUT, folder / RECEIPT}
    unlike = [
        name
        for name, path in files.items()
        if not path.is_file() or sha256(path) != about.files[name]
    ]
    unlike += sorted(str(path.relative_to(folder)) for path in strange)
    return [f"{folder}: {name} is not the file that was submitted" for name in unlike]


def statuses(board: Path) -> dict[str, str]:
    """The status of each row that was entered, by label."""
    return {row: entry.status for entry in entries(board) for row in entry.about.rows}


def table(board: Path) -> Block:
    """A table of the rows that others entered: author, day, who verified them, code and paper."""
    rows = []
    for entry in entries(board):
        about, receipt = entry.about, entry.receipt
        by = f"{receipt.verifier}, {receipt.day}: {receipt.runs} runs" if receipt else "-"
        made = f"{about.versions.get('oodbench', '?')}; file {entry.method}"
        row = [", ".join(about.rows), entry.status, f"{about.author}, {about.day}", by, made]
        rows.append([*row, about.paper or "-", about.pretraining])
    header = ["row", "status", "submitted by", "verified by", "code", "paper", "pretraining"]
    return Block("Rows that others entered", header, rows, len(rows))
