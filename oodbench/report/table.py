"""The leaderboard of any source."""

from collections.abc import Sequence
from os import PathLike

from oodbench.report.comparison import board_sheet
from oodbench.report.gaps import BASELINE
from oodbench.report.sources import frames_of, with_prediction_metrics
from oodbench.report.tables import Sheet
from oodbench.report.tables.leaderboard import leaderboard
from oodbench.report.tables.sheet import sheet
from oodbench.results.boards import board_among
from oodbench.results.tables import only


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
    """The leaderboard of results directories, of a board, or of results beside it.

    A notebook shows it as tables; its `frame` has the numbers. `rule` selects, `metric` is shown in place
    of the datasets' own and `also` beside it, for `datasets` and `rows` or all. `short` keeps what of a
    board fits a screen. Raises UserError for what is not there.
    """
    names = [str(source) for source in sources]
    board, directories = board_among(names)
    baseline = BASELINE if board and directories else None  # with which rows here are compared
    tables = frames_of(names, datasets, () if board else rows, baseline, allow_mixed)
    if rule == "domainbed":
        from oodbench.report.tables import domainbed

        return domainbed.tables(only(tables, (), rows, baseline))
    tables = with_prediction_metrics(tables, [rule], [metric, *also])
    if board:
        shown = only(tables, (), rows, baseline) if rows else None
        return board_sheet(tables, rule, metric, also, short, shown)
    return sheet(leaderboard(tables, rule, metric, also))
