"""The leaderboard of any source, and comparisons of its rows: gains, ranks, the gap closed."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike

import pandas as pd

from oodbench.errors import counted, unknown
from oodbench.metrics import is_proportion
from oodbench.notes import Note
from oodbench.report.cells import CEILING, METHOD, scores, with_prediction_metrics
from oodbench.report.gaps import ALL, BASELINE, CLEAR, FLOOR, GROUPS, Gaps, gaps_of, share_cells
from oodbench.report.numbers import Cell, Number, bracketed, count, gain, unit_of_gains
from oodbench.report.sources import frames_of
from oodbench.report.statistics import (
    BAND,
    LEAST,
    RESAMPLES,
    Difference,
    block_table,
    mean_ranks,
    paired_differences,
    ranks,
    significant,
)
from oodbench.report.tables import Block, Sheet
from oodbench.report.tables.leaderboard import leaderboard
from oodbench.report.tables.sheet import sheet
from oodbench.results.boards import board_among
from oodbench.results.run_spec import CONSTANT, OVERALL
from oodbench.results.tables import ROW, Tables, only, origins

ERRORS = (
    "gain_stderr: standard error of the gain over the clusters, which are the datasets, or the trials "
    "of one dataset (ddof=1); gain_low, gain_high: its 95 % interval by Student's t; detectable: the "
    "smallest gain that this number of clusters finds with 80 % power at 5 %"
)
"""The explanation of the errors, which is in every row of a file of gains."""
COUNTED = ("wins", "ties", "losses", "pairs", "planned", "detectable", "equal")
"""The fields of a difference that a file of gains copies."""
BEST = 10
"""The most rows of a board on a screen."""
OWN = 12
"""The most lines about rows trained here on a screen."""


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
    """The leaderboard of results directories, of a board, or of both together.

    A notebook shows it as tables; its `frame` has the numbers. `rule` selects. `metric` replaces the
    datasets' own metrics, and `also` adds columns of further ones. `datasets` and `rows` are all by
    default. `short` reduces a board to what fits a screen. Raises UserError for unknown names.
    """
    names = [str(source) for source in sources]
    board, directories = board_among(names)
    baseline = BASELINE if board and directories else None  # rows trained here are compared with it
    tables = frames_of(names, datasets, () if board else rows, baseline, allow_mixed)
    if rule == "domainbed":
        from oodbench.report.tables import domainbed

        return domainbed.tables(only(tables, (), rows, baseline))
    tables = with_prediction_metrics(tables, rule, [metric, *also])
    if board:
        shown = only(tables, (), rows, baseline) if rows else None
        return board_sheet(tables, rule, metric, also, short, shown)
    return sheet(leaderboard(tables, rule, metric, also))


def comparison(
    tables: Tables, baseline: str, rule: str | None = None, metric: str | None = None
) -> Sheet:
    """The leaderboard, followed by gains over the baseline and ranks.

    Its frame has the gains by dataset (and OVERALL) and label. Raises UserError for an unknown baseline,
    rule or metric.
    """
    board = leaderboard(tables, rule, metric)
    labels = [str(x) for x in board.frame.loc[board.frame["kind"] == METHOD, "label"].unique()]
    if baseline not in labels:
        raise unknown("baseline", baseline, labels)
    table, main = scores(board.cells), sheet(board)
    found = gains(table, baseline)
    blocks = [_gain_block(name, [*rows.values()]) for name, rows in found.items()]
    rows = [
        {"dataset": dataset, "label": d.label, "baseline": d.baseline, "gain": d.gain.mean}
        | {f"gain_{name}": getattr(d.gain, name) for name in ("stderr", "low", "high")}
        | {"clusters": d.gain.n}
        | {name: getattr(d, name) for name in COUNTED}
        | {"rule": board.rule, "errors": ERRORS}
        for dataset, differences in found.items()
        for d in differences.values()
    ]
    return replace(
        main,
        blocks=[*main.blocks, *blocks, *_rank_blocks(table)],
        notes=(*main.notes, *_notes(baseline, bool(found))),
        frame=_with_reasons(pd.DataFrame(rows), board.cells, baseline),
        paper=_paper(found, baseline) if found else None,
    )


def _with_reasons(frame: pd.DataFrame, cells: pd.DataFrame, baseline: str) -> pd.DataFrame:
    lacking = cells[(cells["undefined"] != "") & (cells["kind"] == METHOD)]
    if lacking.empty or frame.empty:
        return frame
    every = pd.concat([lacking, lacking.assign(dataset_label=OVERALL)])
    why = every.groupby(ROW)["undefined"].max().to_dict()
    rows = zip(frame["dataset"], frame["label"], strict=True)
    reasons = [why.get((d, label)) or why.get((d, baseline), "") for d, label in rows]
    return frame.assign(undefined=reasons)


Gains = Mapping[str, Mapping[str, Difference]]
"""The difference to the baseline, by dataset (or OVERALL) and label."""


def gains(table: pd.DataFrame, baseline: str) -> Gains:
    """The gains on each dataset with a baseline and other rows; OVERALL has several datasets in %."""
    found = {}
    for name, scored in _by_dataset(table).items():
        if baseline in set(scored["label"]) and scored["label"].nunique() > 1:
            band = BAND if is_proportion(str(scored["metric"].iloc[0])) else 0.0
            found[name] = {d.label: d for d in paired_differences(scored, baseline, band)}
    return found


def _by_dataset(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The scores on each dataset; as OVERALL those of all datasets in %, if there are several."""
    parts = {str(dataset): scored for dataset, scored in table.groupby("dataset", sort=False)}
    shares = table[table["metric"].isin(list(filter(is_proportion, table["metric"].unique())))]
    return parts | ({OVERALL: shares} if shares["dataset"].nunique() > 1 else {})


def _gain_block(dataset: str, differences: list[Difference]) -> Block:
    header = ["algorithm", "gain", "95 % interval", "win/tie/loss", "detectable", "pairs"]
    ordered = sorted(differences, key=lambda d: (d.pairs < d.planned, -d.gain.mean))
    unit = unit_of_gains(ordered[0].metric)
    title = f"{dataset}: gain over {ordered[0].baseline} ({unit})"
    rows: list[list[Cell]] = []
    for d in ordered:
        mean, low, high = (gain(v, d.metric) for v in (d.gain.mean, d.gain.low, d.gain.high))
        interval = "-" if math.isnan(d.gain.low) else f"[{low}, {high}]"
        detectable = gain(d.detectable, d.metric, "")
        if d.equal:
            mean, interval, detectable = gain(0.0, d.metric, ""), "equal", "-"
        counts = f"{d.wins}/{d.ties}/{d.losses}"
        rows.append([d.label, mean, interval, counts, detectable, count(d.pairs, d.planned)])
    return Block(title, header, rows, sum(d.pairs == d.planned for d in ordered))


def _paper(gains: Gains, baseline: str) -> Block:
    """All gains in one table, bold if the interval does not contain 0."""
    rows: list[list[Cell]] = []
    clear = set()
    for label in dict.fromkeys(label for of_dataset in gains.values() for label in of_dataset):
        row: list[Cell] = [label]
        for of_dataset in gains.values():
            d = of_dataset.get(label)
            if d is None:
                row.append("-")
                continue
            if d.gain.low > 0 or d.gain.high < 0:
                clear.add((len(rows), len(row)))
            half = math.nan if d.equal else (d.gain.high - d.gain.low) / 2
            error = "" if math.isnan(half) else gain(half, d.metric, "")
            row.append(Number(gain(d.gain.mean, d.metric), error))
        rows.append(row)
    title = f"Gain over {baseline} with 95 % intervals; bold where these do not hold 0"
    return Block(title, ["algorithm", *gains], rows, len(rows), clear, explains_bold=True)


def _rank_blocks(table: pd.DataFrame) -> list[Block]:
    blocks = block_table(table) if len(table) else pd.DataFrame()
    if min(blocks.shape) < 2:
        return []
    means = mean_ranks(blocks).items()
    rows: list[list[Cell]] = [[str(x), f"{rank:.2f}"] for x, rank in means]
    title = f"Mean ranks over {len(blocks)} {blocks.index.name}s"
    return [Block(title, ["algorithm", "mean rank"], rows, len(rows))]


def _notes(baseline: str, found: bool) -> tuple[Note | str, ...]:
    if not found:
        return (f"No row can be compared with {baseline}.",)
    return (
        Note(
            f"Gain: the difference to {baseline}, paired by (dataset, environment, trial), positive "
            "where better, averaged over trials, then environments, then datasets. The runs of a pair "
            "share data and splits, networks of one shape their initial weights, and equal batch sizes "
            "the order of batches.",
            f"Gain: the paired difference to {baseline}, positive where better.",
        ),
        Note(
            "Interval: Student's t over the trials of a dataset, or over the datasets; it needs "
            f"{LEAST} of them. Equal: every pair has two equal values. Win/tie/loss: "
            f"numbers of pairs; a tie is within {100 * BAND:g} points (for other metrics: equal). "
            "Detectable: the smallest gain that this number of trials or datasets finds with 80 % power "
            "at 5 %.",
            f"A tie is within {100 * BAND:g} points; detectable: found with 80 % power at 5 %.",
        ),
    )


def board_sheet(
    tables: Tables,
    rule: str | None = None,
    metric: str | None = None,
    also: Sequence[str] = (),
    short: bool = False,
    shown: Tables | None = None,
) -> Sheet:
    """The leaderboard of the tables of `beside_board`, the gap closed, and the rows trained here.

    `shown` has the runs of the rows to show; their ranks and places are those among all rows. `short` keeps
    what fits a screen: the rows trained here, and the board's best. Raises UserError for an unknown rule or
    metric.
    """
    whole = leaderboard(tables, rule, metric, also)
    board = whole if shown is None else leaderboard(shown, whole.rule, metric, also)
    every = sheet(whole)
    main = every if shown is None else sheet(replace(board, whole=whole))
    blocks, paper, notes = every.blocks, every.paper or every.blocks[0], main.notes
    ranking = paper
    if not short or board.frame["dataset"].nunique() > 1:
        found = gaps_of(whole.chosen, whole.cells)
        if found is not None:
            text = "The share of the gap: 0 is ERM, 1 the ceiling; 95 % intervals."
            others = (gaps_of(other.chosen, other.cells) for other in whole.others)
            ranking = headline(found, filter(None, others))
            blocks, notes = [*blocks, ranking], (Note(about(found), text), *notes)
    labels = None if shown is None else {*shown.runs["label"], CONSTANT}
    if labels is not None:
        paper, ranking = _of_rows(paper, labels), _of_rows(ranking, labels)
        blocks = [part for b in blocks if len((part := _of_rows(b, labels)).rows) > part.grey]
        notes = (*notes, "Places, ranks and marks are those among all rows of the board.")
    local = compare_own_rows(scores(whole.cells), origins(whole.chosen.runs), labels, short)
    own_blocks = [local] if local else []
    if not short:
        return replace(main, blocks=[*blocks, *own_blocks], notes=notes, paper=paper)
    own = [x for x, origin in origins(board.chosen.runs).items() if "here" in origin]
    always = {*own[:BEST], BASELINE, CONSTANT, CEILING}
    best = min(BEST, ranking.ranked)
    rows = [r for r, row in enumerate(ranking.rows) if r < best or row[0] in always]
    few = ranking.part(rows, sorted(ranking.fits))
    counts = [f"The best {best} of {ranking.ranked} ranked rows."] * (labels is None)
    return replace(main, blocks=[*own_blocks, few], notes=(*notes, *counts), remarks=())


def _of_rows(block: Block, labels: Collection[str]) -> Block:
    rows = [r for r, row in enumerate(block.rows) if row[0] in labels]
    return block.part(rows, range(len(block.header)))


def about(gaps: Gaps) -> str:
    """The note that explains the shares, their means and their intervals."""
    text = (
        f"On a dataset (row - {BASELINE}) / (ceiling - {BASELINE}), of means over trials: 0 is {BASELINE}, "
        "1 the ceiling, for accuracies and losses alike. In means over datasets it is bounded below at "
        f"{FLOOR:g}. Brackets: 95 % intervals of a bootstrap ({RESAMPLES:,} resamples) over datasets, then "
        "their trials, with the same trials for all rows; two datasets give none. P(better): the share of "
        f"these resamples in which the row is better than {BASELINE}."
    )
    if gaps.unclear:
        text += (
            f" The head-room of {'; '.join(gaps.unclear)} is not clear (more than {CLEAR:g} of its "
            "standard errors), and no share of it is given."
        )
    return text


def headline(gaps: Gaps, others: Iterable[Gaps] = ()) -> Block:
    """Each row's place and mean shares over all datasets and groups of datasets.

    `others`, the gaps by other rules, add columns with their mean shares.
    """
    by_others = {f"by {g.rule} ({len(g.subsets[ALL])})": g.means_over(ALL) for g in others}
    groups = [g for g in GROUPS if gaps.subsets.get(g, gaps.subsets[ALL]) != gaps.subsets[ALL]]
    of_groups = [
        {row.Index: share_cells(row)[0] for row in gaps.over[g].itertuples()} for g in groups
    ]
    rows: list[list[Cell]] = []
    for row in gaps.over[ALL].itertuples():
        label, (mean, *places) = str(row.Index), share_cells(row)
        other = (known.get(label, "-") for known in by_others.values())
        rows.append([label, mean, *other, *places, *(means[label] for means in of_groups)])
    name, *names = (f"{group} ({len(gaps.subsets[group])})" for group in (ALL, *groups))
    kept = ["algorithm", name, *by_others, "place", "P(better)"]
    title = f"Share of the gap closed by {gaps.rule}: 0 is {BASELINE}, 1 the ceiling [95 %]"
    grey, header = int(gaps.over[ALL]["grey"].sum()), [*kept, *names]
    return Block(title, header, rows, len(gaps.means), grey=grey, fits=range(len(kept)))


def left_by_holm(differences: Sequence[Difference]) -> str:
    """How many gains and losses remain after Holm's correction over these differences."""
    signs, tests = significant(differences), sum(not d.equal for d in differences)
    lost = signs.count(-1)
    left = f"{counted(signs.count(1), 'gain')} and {lost} loss{'es' * (lost != 1)}"
    return f"Holm's correction over {counted(tests, 'comparison')} with the baseline leaves {left}."


def compare_own_rows(
    table: pd.DataFrame,
    places: Mapping[str, str],
    shown: Collection[str] | None = None,
    short: bool = False,
) -> Block | None:
    """The rows trained here, all or those `shown`: rank, gains over the baseline and the best frozen row.

    `table` has the `scores`, `places` the `origins` of rows. `short` drops the last column, a single row's
    label, and all but the means of many rows. None if no row was trained here.
    """
    local = [x for x, origin in places.items() if origin == "here" and (not shown or x in shown)]
    frozen = [x for x, origin in places.items() if origin != "here"]
    found = {name: _own_rows(group, local, frozen) for name, group in _by_dataset(table).items()}
    means = [["datasets in %", *row] for row in found.pop(OVERALL, [])]
    rows = [[dataset, *row] for dataset, of_dataset in found.items() for row in of_dataset]
    if not rows:
        return None
    header = ["dataset", "algorithm", "rank"]
    header += [f"gain over {BASELINE} [95 %]", "best of the board", "gain over it [95 %]"]
    several = len(rows) + len(means) > OWN
    kept = [*rows, *means] if not (short and several) else (means or rows)[:OWN]
    block = Block("Trained here, compared with the board", header, kept, len(kept), keys=2)
    if not short:
        return block
    labels = {str(row[1]) for row in rows}
    if len(labels) > 1:
        return block.part(range(len(kept)), range(5))
    block = replace(block, title=f"{labels.pop()} compared with the board", keys=1)
    return block.part(range(len(kept)), [0, 2, 3, 4])


def _own_rows(group: pd.DataFrame, local: Sequence[str], frozen: Sequence[str]) -> list[list[Cell]]:
    blocks, several = block_table(group), group["dataset"].nunique() > 1
    ranked = ranks(blocks if several else pd.DataFrame([blocks.mean()])).mean()
    on_board = ranked[ranked.index.isin(frozen)].sort_values(kind="stable")
    best = str(on_board.index[0]) if len(on_board) else None
    rows: list[list[Cell]] = []
    for label in (x for x in local if x in set(group["label"])):
        rank = "-"
        if label in ranked.index:
            rank = f"{ranked[label]:{'.2f' if several else 'g'}} of {len(ranked)}"
        elif several:  # a mean over fewer datasets
            rows.append([label, *["-"] * 4])
            continue
        over_baseline, over_best = (_gain(group, label, other) for other in (BASELINE, best))
        rows.append([label, rank, over_baseline, best or "-", over_best])
    return rows


def _gain(group: pd.DataFrame, label: str, other: str | None) -> str:
    if other is None or other == label or other not in set(group["label"]):
        return "-"
    (difference,) = paired_differences(group[group["label"].isin((label, other))], other)
    return gain_cell(difference)


def gain_cell(d: Difference) -> str:
    """A gain with its interval, or "equal"."""
    if d.equal or not d.pairs:
        return "equal" if d.equal else "-"
    return bracketed(d.gain.mean, d.gain.low, d.gain.high, lambda v: gain(v, d.metric))
