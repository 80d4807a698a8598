"""The leaderboard of any source; that of a board is in one small file, so that no part is read for it."""

import json
import sys
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from oodbench.files import write_whole
from oodbench.notes import brief
from oodbench.report.tables import Sheet
from oodbench.report.tables.stored import (
    NOTES,
    SUMMARY_FILE,
    StaleSummary,
    digest,
    read_summary,
)
from oodbench.results.boards import board_among, find_board
from oodbench.terminal import terminal


def table(
    *sources: str | PathLike[str],
    rule: str | None = None,
    metric: str | None = None,
    also: Sequence[str] = (),
    datasets: Sequence[str] = (),
    rows: Sequence[str] = (),
    allow_mixed: bool = False,
    short: bool = False,
) -> Sheet:
    """Return the leaderboard of results directories, of a board, or of results beside it.

    A notebook shows it as tables; its `frame` has the numbers. `rule` selects, `metric` is shown in place
    of the datasets' own and `also` beside it, for `datasets` and `rows` or all. `short` keeps what of a
    board fits a screen. Raises UserError for what is not there.
    """
    names = [str(source) for source in sources]
    board, directories = board_among(names)
    if board and not directories and not (datasets or rows or rule or metric or also):
        from oodbench.report.tables.short import short_sheet

        whole = whole_board(find_board(board))
        return short_sheet(whole) if short else whole
    # They bring pandas and scipy, a second that a board with a summary need not wait for.
    from oodbench.report.comparison import board_sheet
    from oodbench.report.sources import frames_of, with_prediction_metrics
    from oodbench.report.tables.sheet import leaderboard_sheet

    baseline = "ERM" if board and directories else None  # with which rows trained here are compared
    frames = frames_of(names, datasets, rows, baseline, allow_mixed)
    if rule == "domainbed":
        from oodbench.report.tables.domainbed import tables

        return tables(frames)
    frames = with_prediction_metrics(frames, [rule], [metric, *also])
    if board:
        return board_sheet(frames, rule, metric, also, short)
    return leaderboard_sheet(frames, rule, metric, also)


def whole_board(board: Path) -> Sheet:
    """Return the tables of a board alone: from its summary, or from its parts where that is stale."""
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
    """Write the summary of the parts that a board has now; they decide by which rule it is."""
    (board / SUMMARY_FILE).unlink(missing_ok=True)
    text = _text(_sheet_of_parts(board))
    write_whole(board / SUMMARY_FILE, f"{digest(board, text)}\n{text}")


def _sheet_of_parts(board: Path) -> Sheet:
    from oodbench.report.comparison import board_sheet
    from oodbench.report.sources import beside_board

    return board_sheet(beside_board(str(board), []))


def _text(tables: Sheet) -> str:
    notes = {name: [(note, brief(note)) for note in getattr(tables, name)] for name in NOTES}
    blocks = {"blocks": list(map(vars, tables.blocks)), "paper": vars(tables.paper)}
    values = vars(tables) | notes | blocks
    return json.dumps(values, default=sorted)


if __name__ == "__main__":
    write_summary(find_board(sys.argv[1]))
