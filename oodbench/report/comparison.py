"""A leaderboard with what a reviewer asks: gains over a baseline, ranks, noise."""

import math
from collections.abc import Mapping
from dataclasses import astuple, fields
from typing import Any

import pandas as pd

from oodbench.errors import UserError, unknown
from oodbench.metrics import is_proportion
from oodbench.notes import Note
from oodbench.report.formats import Block, Sheet
from oodbench.report.leaderboard import METHOD, leaderboard_of, scores
from oodbench.report.numbers import gain, number
from oodbench.report.remarks import shared
from oodbench.report.sheet import sheet
from oodbench.report.statistics import (
    BAND,
    FEWEST,
    LEAST,
    RESAMPLES,
    Difference,
    block_table,
    kendall,
    mean_ranks,
    noise,
    paired_differences,
    rank_stability,
    ranked,
)
from oodbench.results.frames import CELL, Frames
from oodbench.selection import Judged, judged, judged_by_all, rule_names

OVERALL = "all datasets"
ERRORS = (
    "gain_stderr: standard error of the gain over the clusters, which are the datasets, or the trials "
    "of one dataset (ddof=1); gain_low, gain_high: its 95 % interval by Student's t; bootstrap_low, "
    "bootstrap_high: the 2.5 % and 97.5 % points of the hierarchical bootstrap; detectable: the "
    "smallest gain that this number of clusters finds with 80 % power at 5 %"
)
"""The explanation of the errors that each row of a file of gains has."""


def comparison(
    frames: Frames, baseline: str, rule: str | None = None, metric: str | None = None
) -> Sheet:
    """Return the leaderboard, then the gains over the baseline, the ranks and the noise.

    Its frame has the gains: a row for each dataset (and OVERALL) and label. Raises UserError for an
    unknown baseline, rule or metric.
    """
    one = judged(frames, rule)
    others = judged_by_all(frames, [name for name in rule_names() if name != one.rule])
    board = leaderboard_of(one, metric, others)
    methods = board.frame[board.frame["kind"] == METHOD]
    labels = [str(label) for label in methods["label"].unique()]
    if baseline not in labels:
        raise unknown("baseline", baseline, labels)
    table = scores(one, metric)
    differences = gains(table, baseline)
    main = sheet(board)
    blocks = [*main.blocks, *_gain_blocks(differences, table), *_rank_blocks(table, baseline)]
    if metric is None:
        blocks += [*_noise_block(one), *_stability_block(table, others)]
    common = shared(one.chosen, one.runs, baseline)
    notes = (*main.notes, *_notes(differences, baseline, common))
    numbers = _frame(differences, one.rule).to_dict("list")
    return Sheet(blocks, notes, main.remarks, numbers, main.marks, _paper(differences, table))


Gains = list[tuple[str, list[Difference]]]
"""A dataset (or OVERALL) and the difference of every other label to the baseline."""


def gains(table: pd.DataFrame, baseline: str) -> Gains:
    """Return the gains on each dataset; if several are measured in proportions, also the gains
    over these.
    """
    differences: Gains = []
    for dataset, scored in table.groupby("dataset", sort=False):
        share = is_proportion(str(scored["metric"].iloc[0]))
        if baseline in set(scored["label"]):
            differences.append(
                (str(dataset), paired_differences(scored, baseline, BAND if share else 0.0))
            )
    shares = table[table["metric"].map(is_proportion).astype(bool)]
    if shares["dataset"].nunique() > 1 and baseline in set(shares["label"]):
        differences.append((OVERALL, paired_differences(shares, baseline)))
    return differences


def _gain_blocks(gains: Gains, table: pd.DataFrame) -> list[Block]:
    metrics = dict(zip(table["dataset"], table["metric"], strict=True)) | {OVERALL: "accuracy"}
    header = [
        "algorithm",
        "gain",
        "95 % interval",
        "P(better)",
        "win/tie/loss",
        "detectable",
        "pairs",
    ]
    blocks = []
    for dataset, rows in gains:
        metric = metrics[dataset]
        ordered = sorted(rows, key=lambda d: (d.pairs < d.planned, -d.gain.mean))
        texts = [_gain_row(d, metric) for d in ordered]
        ranked = sum(d.pairs == d.planned for d in ordered)
        unit = "points" if is_proportion(metric) else metric
        if rows:
            title = f"{dataset}: gain over {rows[0].baseline} ({unit})"
            blocks.append(Block(title, header, texts, ranked))
    return blocks


def _paper(gains: Gains, table: pd.DataFrame) -> Block | None:
    """Return the gains on all datasets as one table, bold where the interval does not hold 0."""
    metrics = dict(zip(table["dataset"], table["metric"], strict=True)) | {OVERALL: "accuracy"}
    by_dataset = [(dataset, {d.label: d for d in rows}) for dataset, rows in gains if rows]
    if not by_dataset:
        return None
    labels = list(dict.fromkeys(label for _, of_dataset in by_dataset for label in of_dataset))
    rows, clear = [], set()
    for r, label in enumerate(labels):
        row = [label]
        for c, (dataset, of_dataset) in enumerate(by_dataset, 1):
            d = of_dataset.get(label)
            row.append("-" if d is None else _gain_cell(d, metrics[dataset]))
            if d is not None and (d.gain.low > 0 or d.gain.high < 0):
                clear.add((r, c))
        rows.append(row)
    baseline = next(iter(by_dataset[0][1].values())).baseline
    title = f"Gain over {baseline} with 95 % intervals; bold where these do not hold 0"
    header = ["algorithm", *(dataset for dataset, _ in by_dataset)]
    return Block(title, header, rows, len(rows), clear)


def _gain_cell(d: Difference, metric: str) -> str:
    """Return a gain and half the width of its interval."""
    half = (d.gain.high - d.gain.low) / 2
    error = "" if math.isnan(half) or d.equal else f" ± {gain(half, metric, '')}"
    return f"{gain(d.gain.mean, metric)}{error}"


def _gain_row(d: Difference, metric: str) -> list[str]:
    pairs = f"{d.pairs}" if d.pairs == d.planned else f"{d.pairs}/{d.planned}"
    counts = f"{d.wins}/{d.ties}/{d.losses}"
    if d.equal:
        return [d.label, gain(0.0, metric, ""), "equal", "-", counts, "-", pairs]
    known = not math.isnan(d.gain.low)
    interval = f"[{gain(d.gain.low, metric)}, {gain(d.gain.high, metric)}]" if known else "-"
    probability = "-" if math.isnan(d.probability) else f"{d.probability:.2f}"
    detectable = gain(d.detectable, metric, "")
    return [d.label, gain(d.gain.mean, metric), interval, probability, counts, detectable, pairs]


def _rank_blocks(table: pd.DataFrame, baseline: str) -> list[Block]:
    try:
        ranking = ranked(table, baseline)
    except UserError:
        return []
    words = [f"Mean ranks over {ranking.blocks} {ranking.over}s"]
    if ranking.friedman is not None:
        words.append(
            f"Friedman chi2 = {ranking.friedman.statistic:.2f}, p = {ranking.friedman.p:.3g}"
        )
    words.append(f"critical difference (Nemenyi, 5 %) = {ranking.width:.2f}")
    rows = [
        [x, f"{rank:.2f}", f"{ranking.holm[x]:.3g}" if x in ranking.holm else "-"]
        for x, rank in zip(map(str, ranking.mean.index), ranking.mean, strict=True)
    ]
    header = ["algorithm", "mean rank", f"p (Holm) against {baseline}"]
    return [Block("; ".join(words), header, rows, len(rows))]


def _noise_block(one: Judged) -> list[Block]:
    """Standard deviations from seeds and from the search, means over the test sets of a dataset."""
    best = one.candidates[one.candidates["complete"]].drop_duplicates("id")
    if best["draw"].nunique() < 2:
        return []
    runs = one.runs.drop_duplicates("dataset_label").set_index("dataset_label")
    sign = best["dataset_label"].map(runs["higher_is_better"]).map({True: 1.0, False: -1.0})
    best["score"] *= sign.astype(float)
    tested = one.test_values(best[["id", "step"]])
    best["value"] = best["id"].map(tested.groupby("id")["value"].mean())
    rows: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for (dataset, label, _), cell in best.groupby(CELL[:3]):
        cells = cell.pivot(index="draw", columns="trial", values=["score", "value"])
        n = noise(cells["score"], cells["value"])
        rows.setdefault((str(dataset), str(label)), []).append((n.seed, n.search))
    texts = []
    for (dataset, label), spreads in rows.items():
        metric = str(runs.loc[dataset, "metric"])
        means = [sum(values) / len(values) for values in zip(*spreads, strict=True)]
        texts.append(
            [
                dataset,
                label,
                *("-" if math.isnan(m) else number(m, math.nan, metric) for m in means),
            ]
        )
    header = ["dataset", "algorithm", "seed noise (SD)", "search noise (SD)"]
    return [
        Block(
            "Noise: from seeds (the best draw over trials) and from the search (the choice of a draw)",
            header,
            texts,
            len(texts),
            keys=2,
        )
    ]


def _stability_block(table: pd.DataFrame, others: Mapping[str, Judged]) -> list[Block]:
    """Kendall's tau of the mean ranks without each dataset, and with each other selection rule."""
    whole = block_table(table)
    if whole.shape[0] < 2 or whole.shape[1] < 3:
        return []
    changes = {f"without {block}": tau for block, tau in rank_stability(whole).items()}
    for other, one in others.items():
        changed = block_table(scores(one))
        if len(changed) >= 2:
            changes[f"selection {other}"] = kendall(mean_ranks(whole), mean_ranks(changed))
    rows = [[change, f"{tau:.2f}"] for change, tau in changes.items() if not math.isnan(tau)]
    return (
        [Block("How the ranking moves", ["change", "Kendall's tau"], rows, len(rows))]
        if rows
        else []
    )


def _notes(gains: Gains, baseline: str, common: str) -> tuple[str, ...]:
    if not any(rows for _, rows in gains):
        return (f"No row can be compared with {baseline}.",)
    return (
        Note(
            f"Gain: the difference to {baseline}, paired by (dataset, environment, trial), positive "
            "where better, averaged over trials, then environments, then datasets. "
            f"{common}".rstrip(),
            f"Gain: the paired difference to {baseline}, positive where better.",
        ),
        Note(
            "Interval: Student's t over the trials of a dataset, or over the datasets. P(better): the "
            f"share of {RESAMPLES:,} resamples of a bootstrap (dataset, environment, trial) in "
            f"which the row is better; it needs {FEWEST} pairs. Both need {LEAST} trials or datasets. "
            "Equal: every pair has two equal values. Win/tie/loss: "
            f"numbers of pairs; a tie is within {100 * BAND:g} points (for other metrics: equal). "
            "Detectable: the smallest gain that this number of trials or datasets finds with 80 % power "
            "at 5 %.",
            f"A tie is within {100 * BAND:g} points; detectable: found with 80 % power at 5 %.",
        ),
    )


def _frame(gains: Gains, rule: str) -> pd.DataFrame:
    rows = []
    for dataset, differences in gains:
        for d in differences:
            mean, stderr, low, high, clusters = astuple(d.gain)
            numbers: Mapping[str, Any] = {
                "dataset": dataset, "label": d.label, "baseline": d.baseline, "gain": mean,
                "gain_stderr": stderr, "gain_low": low, "gain_high": high, "clusters": clusters,
                "bootstrap_low": d.bootstrap[0], "bootstrap_high": d.bootstrap[1],
            }  # fmt: skip
            rest = [
                f.name
                for f in fields(d)
                if f.name not in ("label", "baseline", "gain", "bootstrap")
            ]
            others = {name: getattr(d, name) for name in rest}
            rows.append({**numbers, **others, "rule": rule, "errors": ERRORS})
    return pd.DataFrame(rows)
