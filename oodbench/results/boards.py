"""Folders and names of boards."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from oodbench.errors import UserError, unknown
from oodbench.registry import checkout
from oodbench.yaml_values import read_yaml

PROTOCOL_FILE = "protocol.yaml"
"""The sweep of a frozen board."""
RUNS_FILE, RECORDS_FILE = "runs.parquet", "records.parquet"
"""The two tables of a frozen board, see `oodbench.results.parquet`."""
TIERS_FILE = "tiers.yaml"
"""The tiers of a frozen board: which datasets, draws and trials of its protocol each has."""
HALVES_FILE = "halves.yaml"
"""The `constructed` and the `natural` datasets of a board: whether somebody built the shift."""
ENTRIES_FILE = "entries.csv"
"""Who entered which rows of a frozen board."""


def find_board(name: str) -> Path:
    """The folder of a board, given by its name or as a path; raises UserError."""
    if _is_shipped(name):
        return frozen_folder() / name
    if (Path(name) / PROTOCOL_FILE).is_file():
        return Path(name)
    raise unknown("board", name, board_names())


def _is_shipped(name: str) -> bool:
    if name not in board_names():
        return False
    if Path(name).is_dir():
        raise UserError(
            f"{name} is a board and a folder here: type ./{name} for the folder, or go elsewhere"
        )
    return True


def called(board: Path) -> str:
    """How a user refers to a board: its name, or its folder if the package does not ship it."""
    if board.parent == frozen_folder():
        return board.name
    return f"./{board}" if str(board) in board_names() else str(board)


def frozen_folder() -> Path:
    """The folder of the package's boards."""
    return checkout() / "oodbench" / "board" / "frozen"


def board_names() -> list[str]:
    """The names of the package's boards."""
    return sorted(path.parent.name for path in frozen_folder().glob(f"*/{PROTOCOL_FILE}"))


def board_among(sources: str | Sequence[str]) -> tuple[str | None, list[Path]]:
    """Split sources into a board, or None, and results directories.

    A source is a results directory, a board's folder or a board's name. Raises UserError for anything
    else, and for more than one board.
    """
    boards, directories = [], []
    for source in [sources] if isinstance(sources, str) else sources:
        path = Path(source)
        if _is_shipped(source) or (path / PROTOCOL_FILE).is_file():
            boards.append(source)
        elif path.is_dir():
            directories.append(path)
        else:
            known = board_names() + [str(p.parent) for p in path.parent.glob("*/sweep.json")]
            at = path.absolute()
            hint = f" ({at} is a file)" if path.exists() else f" (there is no folder {at})"
            raise unknown("board or results directory", source, known, hint=hint)
    if len(boards) > 1:
        raise UserError(f"{' and '.join(boards)} are several boards: a report is of one")
    return boards[0] if boards else None, directories


def frozen_datasets(board: Path) -> list[str]:
    """Labels of the datasets with frozen rows."""
    if not (board / RUNS_FILE).is_file():
        return []
    (column,) = columns_of(board, ["dataset_label"])
    return list(dict.fromkeys(column))


def columns_of(board: Path, names: Sequence[str]) -> list[list[Any]]:
    """Read columns of a board's runs without pandas, which takes long to load; raises DamagedFile."""
    import pyarrow.parquet as pq

    from oodbench.results.schemas import DamagedFile

    file = board / RUNS_FILE
    try:
        with pq.ParquetFile(file) as opened:
            table = opened.read(columns=list(names))
        return [table[name].to_pylist() for name in names]
    except (OSError, ValueError, KeyError) as error:
        raise DamagedFile(f"{file} is torn or no table of results: {error}") from None


def datasets_to_come(board: Path) -> list[str]:
    """Labels of the datasets in a board's protocol that have no frozen rows yet."""
    frozen = set(frozen_datasets(board))
    return [name for name in _names(read_yaml(board / PROTOCOL_FILE)) if name not in frozen]


def halves(name: str) -> dict[str, list[str]]:
    """Dataset labels of each half of a board; empty if the board has no halves file.

    Raises UserError for a dataset that the protocol does not have.
    """
    board = find_board(name)
    file = board / HALVES_FILE
    by_half: dict[str, list[str]] = read_yaml(file) if file.is_file() else {}
    names = _names(read_yaml(board / PROTOCOL_FILE))
    for dataset in (dataset for members in by_half.values() for dataset in members):
        if dataset not in names:
            raise unknown("dataset", dataset, names, str(file))
    return by_half


def _names(protocol: Mapping[str, Any]) -> list[str]:
    entries = protocol.get("datasets", [])
    return [e if isinstance(e, str) else str(e.get("label") or e.get("name")) for e in entries]


def nothing_frozen(board: Path) -> str:
    """What is said of a board without frozen rows, with the commands that make some."""
    name = called(board)
    return (
        f"a protocol of {len(datasets_to_come(board))} datasets and no frozen rows yet: `python -m "
        f"oodbench.board run {name} --data-dir DIR` trains them, `python -m oodbench.board freeze "
        f"results/{board.name} {name}` adds them"
    )


def to_come(datasets: Sequence[str]) -> str:
    """A clause on datasets that have no frozen row yet."""
    return f"Not frozen yet: {'; '.join(datasets)}"
