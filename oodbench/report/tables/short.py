"""What of a board's tables fits one screen."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from oodbench.report.tables import Block, Sheet, Shows

BEST = 10
"""The number of best rows."""
OWN = 12
"""The most lines on the rows trained here."""


def short_sheet(tables: Sheet, own: Sequence[str], beside: Collection[str]) -> Sheet:
    """The rows trained here (`own`) and the best of the board, with the notes on what is shown.

    The best are those by the share of the gap closed over several datasets, or by the mean on one; `beside`
    them stand other rows.
    """
    by_kind = {block.shows: block for block in tables.blocks if block.shows is not Shows.DATASET}
    ranking = tables.blocks[0]
    if over := by_kind.get(Shows.OVER_DATASETS):
        ranking = by_kind.get(Shows.GAP_CLOSED, over)
    local = [_summed_up(by_kind[Shows.OWN_ROWS])] if Shows.OWN_ROWS in by_kind else []
    best = _among_best(ranking, {*own[:BEST], *beside})
    count = f"The best {min(BEST, ranking.ranked)} of {ranking.ranked} ranked rows."
    return replace(tables, blocks=[*local, best], notes=(*tables.notes, count), remarks=())


def _summed_up(local: Block) -> Block:
    """Cut the last column of the rows trained here and, if they are many, all but their means."""
    rows = list(range(len(local.cells)))
    if len(rows) > OWN:
        rows = (rows[-local.summary :] if local.summary else rows)[:OWN]
    labels = {str(row[1]) for row in local.cells}
    if len(labels) > 1:
        return local.part(rows, range(len(local.header) - 1))
    columns = [0, *range(2, len(local.header) - 1)]
    return replace(local.part(rows, columns), title=f"{labels.pop()} beside the board", keys=1)


def _among_best(block: Block, labels: Collection[str]) -> Block:
    """Cut a table to its best rows, those of `labels`, and few columns."""
    best = min(BEST, block.ranked)
    rows = [r for r, row in enumerate(block.cells) if r < best or row[0] in labels]
    return block.part(rows, sorted(block.fits))
