"""What of a board's tables fits one screen; without a look into the board's parts."""

from dataclasses import replace

from oodbench.report.tables import GAP_CLOSED, OVER_DATASETS, OWN_ROWS, Block, Sheet

BEST = 10
"""The number of best rows."""
OWN = 12
"""The most lines on the rows trained here."""
IN_PERCENT = "datasets in %"
"""The name in tables of the mean over all datasets whose metric is a proportion."""
MEANS = ("mean", "mean (%)", "mean rank")
"""The columns that rows are ranked by; a table without one is ranked by its second column."""
KEPT = (*MEANS, "place", "P(better)", "n", "from")
"""The columns that are kept, beside those by other rules."""


def short_sheet(tables: Sheet) -> Sheet:
    """Return the rows trained here and the best of the board, with the notes on what is shown.

    The best are those by the share of the gap closed over several datasets, or by the mean on one.
    """
    own = _own(tables.blocks)
    over = [block for block in tables.blocks if block.title == OVER_DATASETS]
    gap = [block for block in tables.blocks if block.title.startswith(GAP_CLOSED)]
    ranking = ((gap or over) if over else tables.blocks)[0]
    local = [_summed_up(block) for block in tables.blocks if block.title == OWN_ROWS]
    best = _among_best(ranking, own)
    count = f"The best {min(BEST, ranking.ranked)} of {ranking.ranked} ranked rows."
    return replace(tables, blocks=[*local, best], notes=(*tables.notes, count), remarks=())


def _own(blocks: list[Block]) -> list[str]:
    """List the rows that were trained here."""
    places = [(block, block.header.index("from")) for block in blocks if "from" in block.header]
    rows = [row[0] for block, column in places for row in block.rows if "here" in row[column]]
    return list(dict.fromkeys(rows))


def _summed_up(local: Block) -> Block:
    """Cut the last column of the rows trained here and, if they are many, all but their means."""
    rows = list(range(len(local.rows)))
    if len(rows) > OWN:
        rows = ([r for r in rows if local.rows[r][0] == IN_PERCENT] or rows)[:OWN]
    labels = {row[1] for row in local.rows}
    if len(labels) > 1:
        return local.part(rows, range(len(local.header) - 1))
    columns = [0, *range(2, len(local.header) - 1)]
    return replace(local.part(rows, columns), title=f"{labels.pop()} beside the board", keys=1)


def _among_best(block: Block, own: list[str]) -> Block:
    """Cut a table to its best rows, the first of one's own, the baseline, the constant and few columns."""
    wanted = {"ERM", "constant", "ceiling", *own[:BEST]}
    rows = [
        r for r, row in enumerate(block.rows) if r < min(BEST, block.ranked) or row[0] in wanted
    ]
    second = [1] * (not set(MEANS) & set(block.header))
    kept = [c for c, name in enumerate(block.header) if name in KEPT or name.startswith("by ")]
    columns = [0, *second, *kept]
    return block.part(rows, columns)
