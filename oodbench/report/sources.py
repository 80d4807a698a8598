"""What a report is of: results directories, or a board with results directories beside it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from oodbench.errors import UserError, unknown
from oodbench.results.boards import PROTOCOL_FILE, board_names

if TYPE_CHECKING:
    from oodbench.results.frames import Frames


def board_among(sources: Sequence[str]) -> tuple[str | None, list[Path]]:
    """Return the board among some sources, if there is one, and the results directories.

    A source is a results directory, a board's folder or a board's name. Raises UserError for one that is
    nothing of these, and for several boards.
    """
    boards, directories = [], []
    for source in sources:
        path = Path(source)
        if (path / PROTOCOL_FILE).is_file() or (source in board_names() and not path.is_dir()):
            boards.append(source)
        elif path.is_dir():
            directories.append(path)
        else:
            raise unknown("board or results directory", source, [*board_names(), *_beside(path)])
    if len(boards) > 1:
        raise UserError(f"{' and '.join(boards)} are several boards: a report is of one")
    return boards[0] if boards else None, directories


def _beside(path: Path) -> list[str]:
    """List the results directories in the folder that a path names."""
    found = path.parent.glob("*/sweep.json") if path.parent.is_dir() else []
    return [str(file.parent) for file in found]


def frames_of(
    sources: Sequence[str],
    datasets: Sequence[str] = (),
    rows: Sequence[str] = (),
    baseline: str | None = None,
    allow_mixed: bool = False,
) -> "Frames":
    """Return the runs of some sources as those of one sweep, restricted as `only` does.

    Raises UserError as `board_among`, `beside_board` and `joined` do, and for unknown datasets or rows.
    """
    from oodbench.results.frames import only  # brings pandas, which takes half a second

    board, directories = board_among(sources)
    if board is None:
        from oodbench.results.join import joined

        return only(joined(directories, allow_mixed), datasets, rows, baseline)
    from oodbench.report.beside import beside_board

    return only(beside_board(board, directories, datasets), (), rows, baseline)
