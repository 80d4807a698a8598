"""Figures for papers, plotted from the numbers of tables and of the HTML page."""

import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from oodbench.errors import UserError, unknown
from oodbench.files import whole_file
from oodbench.metrics import is_proportion
from oodbench.report.cells import cells, reported_metrics, scores
from oodbench.report.comparison import gains
from oodbench.report.numbers import scale, unit_of_gains, with_unit
from oodbench.results.tables import CELL, Tables, records_at, records_of
from oodbench.selection.judge import judge
from oodbench.terminal import printable

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Colours that are distinct to colour-blind readers, too (Okabe and Ito, 2008)."""
WIDTHS = {1: 3.25, 2: 6.75}
"""Widths in inches of one and two columns of a paper."""
MOST = 3
"""The most panels side by side."""
SUFFIXES = (".pdf", ".svg", ".png")
MARKERS = "os^DvPX"
RING: Any = {"ms": 4.5, "mfc": "none", "mew": 0.9, "zorder": 3}
DOT: Any = {"ms": 2, "mew": 0, "alpha": 0.35, "zorder": 2}
DASHES = ("-", "--", ":", "-.")
LETTER = 4.2 / 72
"""The mean width of a letter in inches, at the font size of PAPER."""
HANDLE = 30 / 72
"""The width in inches of a legend's line or marker and the gaps around it."""
NAME_SHARE = 0.35
"""The most of a panel's width for the names of rows; longer names are wrapped."""
TITLE_SHARE = 0.8
"""The most of a panel's width for its title."""
LEAST_SPAN = 0.1
"""The least span of an axis: 10 points of a proportion, else this share of the largest value."""
SCATTER_MARGIN = 0.03
"""The margin of a scatter as a share of its axes, so that the frame cuts no marker."""
PAPER: Any = {
    "axes.prop_cycle": cycler(color=COLOURS),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": "medium",
    "axes.linewidth": 0.6,
    "font.size": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "pdf.fonttype": 42,  # whole TrueType fonts, which publishers ask for
    "svg.fonttype": "path",
    "svg.hashsalt": "oodbench",
}


def plain(name: str) -> str:
    """A name as text in a picture: `$` starts no mathematics, and control characters are escaped."""
    return printable(name).replace("$", r"\$")


def plot(name: str, frames: Tables, rule: str | None = None, baseline: str = "ERM") -> Figure:
    """The figure `name` of FIGURES, two columns wide for several datasets.

    Raises UserError for an unknown figure, rule or baseline, and if there is nothing to plot.
    """
    if name not in FIGURES:
        raise unknown("figure", name, FIGURES)
    columns = 2 if frames.runs["dataset_label"].nunique() > 1 else 1
    with matplotlib.rc_context(PAPER):
        figure = Figure(figsize=(WIDTHS[columns], WIDTHS[columns]), layout="constrained")
        FIGURES[name](figure, frames, rule, baseline)
    return figure


def save(figure: Figure, out: Path) -> None:
    """Write a figure as .pdf, .svg or .png, atomically, with the same bytes for the same figure."""
    if out.suffix not in SUFFIXES:
        raise UserError(f"{out} must end with one of {', '.join(SUFFIXES)}")
    date: Mapping[str, Any] = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}, ".png": {}}
    with matplotlib.rc_context(PAPER), whole_file(out) as file:
        figure.savefig(file, format=out.suffix[1:], dpi=300, metadata=date[out.suffix])


def _curves(figure: Figure, frames: Tables, rule: str | None, baseline: str) -> None:
    labels = list(frames.runs["label"].unique())
    for metric, _, runs, axes in _panels(figure, frames, rule):
        for label, of_label in runs.groupby("label", sort=False):
            colour, dash, _ = _look(labels, label)
            per_trial = of_label.groupby(["step", "trial"])["test"].mean().unstack("trial")
            steps, mean = per_trial.index.to_numpy(), scale(metric) * per_trial.mean(axis=1)
            error = scale(metric) * per_trial.sem(axis=1).fillna(0)
            axes.plot(steps, mean, dash, color=colour)
            axes.fill_between(steps, mean - error, mean + error, color=colour, alpha=0.2, lw=0)
        axes.set(xlabel="step", ylabel=f"test {plain(with_unit(metric))}")
        _widen(axes, "y", metric)
    _legend(figure, labels, markers=False)


def _scatter(figure: Figure, frames: Tables, rule: str | None, baseline: str) -> None:
    """Each run at its best step by the rule: in-distribution against test value, and the diagonal.

    Chosen runs are rings; other runs are faint dots below them.
    """
    labels = list(frames.runs["label"].unique())
    for metric, runs, _, axes in _panels(figure, frames, rule):
        unit = plain(with_unit(metric))
        points = runs.dropna(subset=["inside", "test"])
        for label, of_label in points.groupby("label", sort=False):
            colour, _, marker = _look(labels, label)
            for chosen, subset in of_label.groupby("chosen"):
                x, y = scale(metric) * subset["inside"], scale(metric) * subset["test"]
                look = RING if chosen else DOT
                axes.plot(x, y, ls="", color=colour, marker=marker, **look)
        axes.set(xlabel=f"{unit} in distribution", ylabel=f"test {unit}")
        if is_proportion(metric):  # one scale on both axes shows the diagonal
            ends = [*axes.get_xlim(), *axes.get_ylim()]
            margin = SCATTER_MARGIN * (max(ends) - min(ends))
            limits = (min(ends) - margin, max(ends) + margin)
            axes.set(xlim=limits, ylim=limits)
        _widen(axes, "x", metric)
        _widen(axes, "y", metric)
        axes.axline((0, 0), slope=1, color="0.6", lw=0.8, ls=":", zorder=1)
    _legend(figure, labels, markers=True)


def _gains(figure: Figure, frames: Tables, rule: str | None, baseline: str) -> None:
    table = scores(cells(judge(frames, rule)))
    labels = table["label"].unique()
    if baseline not in labels:
        raise unknown("baseline", baseline, labels)
    differences = gains(table, baseline)
    if not differences:
        raise UserError(f"no row can be compared with {baseline}")
    width = figure.get_figwidth() / min(MOST, len(differences))
    names = {label: _wrapped(str(label), NAME_SHARE * width) for label in labels}
    most = max(text.count("\n") for text in names.values()) + 1
    height = 0.75 + 0.2 * max(map(len, differences.values())) * most
    grid = _grid(figure, len(differences), height)
    for axes, (dataset, rows) in zip(grid, differences.items(), strict=True):
        ordered = sorted(rows.values(), key=lambda d: d.gain.mean)
        metric = ordered[0].metric
        for y, d in enumerate(ordered):
            mean, low, high = (scale(metric) * v for v in (d.gain.mean, d.gain.low, d.gain.high))
            colour = COLOURS[0] if low > 0 else COLOURS[1] if high < 0 else "0.4"
            if not math.isnan(low):
                axes.plot([low, high], [y, y], color=colour)
            axes.plot([mean], [y], "o", ms=3.5, color=colour)
        axes.axvline(0, color="0.6", lw=0.8, zorder=0)
        room = (1 - NAME_SHARE) * width
        axes.set(
            yticks=range(len(ordered)),
            yticklabels=[names[d.label] for d in ordered],
            ylim=(-0.6, len(ordered) - 0.4),
            title=_wrapped(dataset, room),
            xlabel=_wrapped(f"gain over {baseline} ({unit_of_gains(metric)})", room),
        )
        _widen(axes, "x", metric)


FIGURES: Mapping[str, Callable[[Figure, Tables, str | None, str], None]] = {
    "curves": _curves,
    "scatter": _scatter,
    "gains": _gains,
}
"""The functions that plot the figures, by name."""


def _panels(
    figure: Figure, frames: Tables, rule: str | None
) -> Iterator[tuple[str, pd.DataFrame, pd.DataFrame, Axes]]:
    """Yield for each dataset with judged runs its metric, two tables of runs, and axes.

    The first table has each run at its best step: `label`, `chosen`, `inside` and `test` (see
    `_inside_and_test`). The second has the chosen runs at every `step`, with their `trial`.
    """
    one = judge(frames, rule)
    best, runs = one.candidates.drop_duplicates("run"), one.runs.drop_duplicates("id")
    best = best.assign(chosen=best["complete"] & ~best.duplicated(CELL))
    records = records_at(frames, best[["id", "step"]].drop_duplicates())
    points = best.merge(_inside_and_test(records, runs), on=["id", "step"], how="left")
    chosen = best[best["chosen"]].sort_values("run")[[*CELL, "id"]]
    curves = _inside_and_test(records_of(frames.records, chosen["id"]), runs)
    curves, (metrics, _) = chosen.merge(curves, on="id"), reported_metrics(frames)
    there = points.loc[points[["inside", "test"]].notna().all(axis=1), "dataset_label"]
    datasets = [d for d in points["dataset_label"].unique() if d in set(there)]
    if not datasets:
        raise UserError("no run has ended with finite values yet")
    width = figure.get_figwidth() / min(MOST, len(datasets))
    grid = _grid(figure, len(datasets), min(0.8 * width, 2.6), 0.3)
    for dataset, axes in zip(datasets, grid, strict=True):
        if len(datasets) > 1:
            axes.set_title(_wrapped(dataset, TITLE_SHARE * width))
        of_dataset = (table[table["dataset_label"] == dataset] for table in (points, curves))
        yield metrics[dataset], *of_dataset, axes


def _grid(figure: Figure, panels: int, height: float, above: float = 0.0) -> list[Axes]:
    columns = min(MOST, panels)
    lines = -(-panels // columns)
    figure.set_figheight(lines * height + above)
    axes = figure.subplots(lines, columns, squeeze=False).flat
    for empty in axes[panels:]:
        empty.set_visible(False)
    return list(axes[:panels])


def _inside_and_test(records: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """`id`, `step`, `inside`, `test`: means of the dataset's metric over environments, NaN if a value is.

    `inside` is over the training environments' `out` splits (`in` without a holdout), `test` over the test
    environments' `in` splits.
    """
    names = ["environment", "split", "test_environments", "training_environments", "holdout"]
    table = records.astype({"id": object, "metric": object}).merge(
        runs[["id", "metric", *names[2:]]], on=["id", "metric"]
    )
    table["kind"] = [
        "test"
        if e in tests and split == "in"
        else "inside" * (e in training and split == ("out" if holdout else "in"))
        for e, split, tests, training, holdout in table[names].itertuples(index=False, name=None)
    ]
    values = table.fillna({"value": -math.inf}).groupby(["id", "step", "kind"])["value"].mean()
    wide = values.replace(-math.inf, math.nan).unstack().reindex(columns=["inside", "test"])
    return pd.DataFrame(wide).reset_index()


def _look(labels: Sequence[str], label: object) -> tuple[str, str, str]:
    """The colour, dash and marker of a label."""
    i = labels.index(str(label))
    dash = DASHES[i // len(COLOURS) % len(DASHES)]
    return COLOURS[i % len(COLOURS)], dash, MARKERS[i % len(MARKERS)]


def _wrapped(name: str, inches: float) -> str:
    return "\n".join(map(plain, textwrap.wrap(printable(name), int(inches / LETTER))))


def _widen(axes: Axes, name: str, metric: str) -> None:
    """Widen an axis to LEAST_SPAN, so that differences within the noise look small."""
    low, high = axes.get_xlim() if name == "x" else axes.get_ylim()
    least = LEAST_SPAN * (100.0 if is_proportion(metric) else max(abs(low), abs(high)))
    if high - low < least:
        middle = (low + high) / 2
        limits = (middle - least / 2, middle + least / 2)
        axes.set_xlim(limits) if name == "x" else axes.set_ylim(limits)


def _legend(figure: Figure, labels: Sequence[str], markers: bool) -> None:
    names = [_wrapped(label, figure.get_figwidth() - HANDLE) for label in labels]
    handles = []
    for label, name in zip(labels, names, strict=True):
        colour, dash, marker = _look(labels, label)
        look: dict[str, Any] = {"marker": marker, "ls": ""} if markers else {"ls": dash}
        handles.append(Line2D([], [], color=colour, label=name, mfc="none", ms=4.5, **look))
    longest = max(len(line) for name in names for line in name.split("\n"))
    room = int(figure.get_figwidth() / (LETTER * longest + HANDLE))
    figure.legend(handles=handles, loc="outside upper center", ncols=max(1, min(len(labels), room)))
