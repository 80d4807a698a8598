"""Paths of frozen and reported boards, and the names of those that the package has."""

import fcntl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from oodbench.errors import UserError, unknown
from oodbench.files import is_temporary
from oodbench.registry import checkout
from oodbench.yaml_values import read_yaml

PROTOCOL_FILE = "protocol.yaml"
"""The sweep of a frozen board."""
TIERS_FILE = "tiers.yaml"
"""The tiers of a frozen board: which datasets, draws and trials of its protocol each has."""
ENTRIES = "entries"
"""The folder of a board with a folder for each row that somebody else entered."""
NUMBERS_FILE = "reported.csv"
"""The numbers of a reported board."""


@contextmanager
def alone(board: Path) -> Iterator[None]:
    """Wait until no other process writes to a board, and keep others waiting."""
    with (board / PROTOCOL_FILE).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def find_board(name: str) -> Path:
    """The folder of a board, given by its name or as a path; raises UserError."""
    path = Path(name)
    if path.is_dir() and (path / PROTOCOL_FILE).is_file():
        return path
    known = board_names()
    if any((folder / NUMBERS_FILE).is_file() for folder in (path, frozen_folder() / name)):
        raise UserError(f"{name} is a board of reported numbers: only `board show` takes it")
    if name not in known:
        raise unknown("board", name, known)
    return frozen_folder() / name


def called(board: Path) -> str:
    """What a user types for a board: its name, or the folder of one that the package has not."""
    return board.name if board.parent == frozen_folder() else str(board)


def frozen_folder() -> Path:
    """The folder of the boards that the package has."""
    return checkout() / "oodbench" / "board" / "frozen"


def board_names() -> list[str]:
    """The boards that the package has."""
    return sorted(path.parent.name for path in frozen_folder().glob(f"*/{PROTOCOL_FILE}"))


def dataset_file(board: Path, dataset: str) -> Path:
    """The file of a dataset's parts, on a board or in an entry; the dataset as tables call it."""
    return board / "parts" / f"{_file_name(dataset)}.parquet"


def _file_name(name: str) -> str:
    """A name as it stands in a path: characters that a file system may refuse become %-escapes."""
    kept = "".join(c if c.isalnum() or c in "-_.+ =,()" else f"%{ord(c):02x}" for c in name)
    return kept if kept.strip(".") else f"%{ord(kept[0]):02x}{kept[1:]}"


def datasets_to_come(board: Path) -> list[str]:
    """The datasets of a board's protocol of which nothing is frozen yet, as tables call them."""
    entries = read_yaml(board / PROTOCOL_FILE).get("datasets", [])
    names = [e if isinstance(e, str) else str(e.get("label") or e.get("name")) for e in entries]
    frozen = {path.relative_to(board / "parts").parts[0] for path in _own_files(board)}
    return [
        name for name in names if not {_file_name(name), f"{_file_name(name)}.parquet"} & frozen
    ]


def to_come(datasets: Sequence[str]) -> str:
    """The sentence, without a full stop, on datasets of which nothing is frozen yet."""
    return f"Not frozen yet: {'; '.join(datasets)}"


def entry_folders(board: Path) -> list[Path]:
    """The folders of the rows that others entered."""
    folders = (path for path in sorted((board / ENTRIES).glob("*")) if path.is_dir())
    return [path for path in folders if not is_temporary(path)]


def part_files(board: Path) -> Iterator[Path]:
    """The files of a board's parts: its own, then those of its entries."""
    yield from _own_files(board)
    for entry in entry_folders(board):
        yield from _own_files(entry)


def _own_files(folder: Path) -> list[Path]:
    """The files of a board or an entry, one for each dataset; a board of 0.2.0 has one for each row."""
    return sorted([*(folder / "parts").glob("*.parquet"), *(folder / "parts").glob("*/*.parquet")])


def reported_names() -> list[str]:
    """The reported boards that the package has."""
    return sorted(path.parent.name for path in frozen_folder().glob(f"*/{NUMBERS_FILE}"))


def find_reported(name: str) -> Path | None:
    """The folder of a reported board, given by its name or as a path; None if there is none."""
    path = Path(name)
    if (path / NUMBERS_FILE).is_file():
        return path
    return frozen_folder() / name if name in reported_names() else None
