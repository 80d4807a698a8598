"""Figures for papers.

Each is plotted from the numbers that tables and the HTML page show.
"""

import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from oodbench.errors import UserError, unknown
from oodbench.files import whole_file
from oodbench.metrics import is_proportion
from oodbench.report.comparison import gains
from oodbench.report.leaderboard import scores
from oodbench.report.statistics import ranked
from oodbench.report.traces import inside_and_test, judged_runs, traces
from oodbench.results.frames import Frames, sweep_runs
from oodbench.selection import candidates, judged, usual
from oodbench.terminal import printable

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Colours of the lines of a picture, which the colour-blind tell apart too (Okabe and Ito, 2008)."""
STYLE: Any = {
    "axes.prop_cycle": cycler(color=COLOURS),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": "medium",
    "font.size": 10,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "oodbench",
}


def plain(name: str) -> str:
    """Return a name as text in a picture: a dollar sign starts no mathematics, control characters are
    escaped.
    """
    return printable(name).replace("$", r"\$")


WIDTHS = {1: 3.25, 2: 6.75}
"""Inches of one and of two columns of a paper."""
SUFFIXES = (".pdf", ".svg", ".png")
MARKERS = "os^DvPX"
DASHES = ("-", "--", ":", "-.")
LETTER = 4.2 / 72
"""The mean width of a letter in inches, at PAPER's font size."""
HANDLE = 30 / 72
"""The width in inches of the line or marker before a name in a legend, with the gap after the name."""
NAME_SHARE = 0.35
"""Share of a panel's width that names beside its axes take at most; longer ones are wrapped."""
TITLE_SHARE = 0.8
"""Share of a panel's width that its title takes at most."""
LEAST_SPAN = 0.1
"""An axis spans at least 10 points of a proportion, else this share of its largest value."""
SCATTER_MARGIN = 0.03
"""Room around the points of a scatter as a share of its axes, so that the frame cuts no marker."""
PAPER = STYLE | {
    "font.size": 8,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.2,
    "pdf.fonttype": 42,  # whole TrueType fonts, which publishers ask for
    "svg.fonttype": "path",
}


@dataclass(frozen=True)
class Panel:
    """The judged runs of a dataset: one at its best step a row, and the values of all their steps."""

    dataset: str
    metric: str
    judged: pd.DataFrame
    """`run`, `label`, `trial`, `test_environments`, `place`, `chosen`, `inside`, `test`."""
    values: pd.DataFrame
    """`run`, `place`, `step`, `inside`, `test`; means over environments as in `inside_and_test`."""

    @property
    def scale(self) -> float:
        """The factor of every value shown: 100 for proportions, which are shown in %, else 1."""
        return 100.0 if is_proportion(self.metric) else 1.0

    @property
    def unit(self) -> str:
        """The name of the metric with its unit, as axes show it."""
        return plain(self.metric) + (" (%)" if is_proportion(self.metric) else "")


def plot(
    name: str,
    frames: Frames,
    rule: str | None = None,
    baseline: str = "ERM",
    columns: int | None = None,
) -> Figure:
    """Return the figure `name` of FIGURES, one or two `columns` of a paper wide.

    By default it is two columns wide if several datasets have a panel each. Raises UserError for an
    unknown figure, rule or baseline, and where there is nothing to plot.
    """
    if name not in FIGURES:
        raise unknown("figure", name, FIGURES)
    if columns is None:
        columns = 2 if name != "ranks" and frames.runs["dataset_label"].nunique() > 1 else 1
    with matplotlib.rc_context(PAPER):
        figure = Figure(figsize=(WIDTHS[columns], WIDTHS[columns]), layout="constrained")
        FIGURES[name](figure, frames, rule or usual(frames), baseline)
    return figure


def save(figure: Figure, out: Path) -> None:
    """Write a figure as .pdf, .svg or .png, whole or not at all; the same bytes for the same figure."""
    if out.suffix not in SUFFIXES:
        raise UserError(f"{out} must end with one of {', '.join(SUFFIXES)}")
    date: Mapping[str, Any] = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}, ".png": {}}
    with matplotlib.rc_context(PAPER), whole_file(out) as file:
        figure.savefig(file, format=out.suffix[1:], dpi=300, metadata=date[out.suffix])


def _curves(figure: Figure, frames: Frames, rule: str, baseline: str) -> None:
    """The chosen runs' mean over trials, with its standard error, at every evaluation."""
    labels = _labels(frames)
    for panel, axes in _panels(figure, frames, rule):
        chosen = panel.judged[panel.judged["chosen"]]
        rows = panel.values.merge(chosen[["run", "label", "trial"]], on="run")
        for label, of_label in rows.groupby("label", sort=False):
            colour, dash = (
                _colour(labels, label),
                DASHES[labels.index(str(label)) // len(COLOURS) % 4],
            )
            per_trial = of_label.groupby(["step", "trial"])["test"].mean().unstack("trial")
            steps, mean = per_trial.index.to_numpy(), panel.scale * per_trial.mean(axis=1)
            error = panel.scale * per_trial.sem(axis=1).fillna(0)
            axes.plot(steps, mean, dash, color=colour)
            axes.fill_between(steps, mean - error, mean + error, color=colour, alpha=0.2, lw=0)
        axes.set(xlabel="step", ylabel=f"test {panel.unit}")
        _widen(axes, "y", panel.scale)
    _legend(figure, labels, markers=False)


def _scatter(figure: Figure, frames: Frames, rule: str, baseline: str) -> None:
    """Each run at its best step by the rule: in-distribution against test, and the diagonal.

    Chosen runs are rings, which hide nothing; others are faint dots below them.
    """
    labels = _labels(frames)
    for panel, axes in _panels(figure, frames, rule):
        points = panel.judged.dropna(subset=["inside", "test"])
        for label, of_label in points.groupby("label", sort=False):
            look: dict[str, Any] = {
                "color": _colour(labels, label),
                "marker": _marker(labels, label),
            }
            for chosen, subset in of_label.groupby("chosen"):
                x, y = panel.scale * subset["inside"], panel.scale * subset["test"]
                if chosen:
                    axes.plot(x, y, ls="", ms=4.5, mfc="none", mew=0.9, zorder=3, **look)
                else:
                    axes.plot(x, y, ls="", ms=2, mew=0, alpha=0.35, zorder=2, **look)
        axes.set(xlabel=f"{panel.unit} in distribution", ylabel=f"test {panel.unit}")
        if panel.scale > 1:  # one scale, in which the diagonal can be seen
            ends = [*axes.get_xlim(), *axes.get_ylim()]
            margin = SCATTER_MARGIN * (max(ends) - min(ends))
            limits = (min(ends) - margin, max(ends) + margin)
            axes.set(xlim=limits, ylim=limits)
        _widen(axes, "x", panel.scale)
        _widen(axes, "y", panel.scale)
        axes.axline((0, 0), slope=1, color="0.6", lw=0.8, ls=":", zorder=1)
    _legend(figure, labels, markers=True)


def _gains(figure: Figure, frames: Frames, rule: str, baseline: str) -> None:
    """The paired gain of each row over the baseline with its 95 % interval, a panel a dataset."""
    table = scores(judged(frames, rule))
    if baseline not in set(table["label"]):
        raise unknown("baseline", baseline, table["label"].unique())
    metrics = dict(zip(table["dataset"], table["metric"], strict=True))
    differences = [(dataset, rows) for dataset, rows in gains(table, baseline) if rows]
    if not differences:
        raise UserError(f"no row can be compared with {baseline}")
    count = max(len(rows) for _, rows in differences)
    columns = 1 if figure.get_figwidth() < WIDTHS[2] else min(3, len(differences))
    width = figure.get_figwidth() / columns
    names = {label: _wrapped(str(label), NAME_SHARE * width) for label in table["label"].unique()}
    room = (1 - NAME_SHARE) * width
    lines = -(-len(differences) // columns)
    figure.set_figheight(lines * (0.75 + 0.2 * count * _most_lines(names.values())))
    grid = figure.subplots(lines, columns, squeeze=False)
    for axes, (dataset, rows) in zip(grid.flat, differences, strict=False):
        metric = metrics.get(dataset, "accuracy")
        scale = 100.0 if is_proportion(metric) else 1.0
        ordered = sorted(rows, key=lambda d: d.gain.mean)
        for place, d in enumerate(ordered):
            colour = "0.4"
            if d.gain.low > 0 or d.gain.high < 0:
                colour = COLOURS[0] if d.gain.mean > 0 else COLOURS[1]
            if not math.isnan(d.gain.low):
                axes.plot([scale * d.gain.low, scale * d.gain.high], [place] * 2, color=colour)
            axes.plot([scale * d.gain.mean], [place], "o", ms=3.5, color=colour)
        axes.axvline(0, color="0.6", lw=0.8, zorder=0)
        axes.set(
            yticks=range(len(ordered)),
            yticklabels=[names[d.label] for d in ordered],
            ylim=(-0.6, len(ordered) - 0.4),
            title=_wrapped(dataset, room),
            xlabel=_wrapped(f"gain over {baseline} ({'points' if scale > 1 else metric})", room),
        )
        _widen(axes, "x", scale)
    for axes in grid.flat[len(differences) :]:
        axes.set_visible(False)


def _ranks(figure: Figure, frames: Frames, rule: str, baseline: str) -> None:
    """Mean ranks on a line; bars join the rows that Nemenyi's test (5 %) does not tell apart."""
    ranking = ranked(scores(judged(frames, rule)), baseline)
    names = [str(label) for label in ranking.mean.index]
    lines = -(-len(names) // 2)
    cliques = ranking.cliques
    texts = [
        _wrapped(f"{name} {ranking.mean[name]:.2f}", NAME_SHARE * figure.get_figwidth())
        for name in names
    ]
    top, step = 0.0, float(_most_lines(texts))
    figure.set_figheight(0.62 + 0.11 * len(cliques) + 0.17 * step * lines)
    axes = figure.subplots()
    axes.plot([1, len(names)], [top, top], color="0", lw=0.8)
    for tick in range(1, len(names) + 1):
        axes.plot([tick, tick], [top, top + 0.35], color="0", lw=0.8)
        axes.text(tick, top + 0.5, str(tick), ha="center", va="bottom")
    ruler = top + 2.1
    end = min(1 + ranking.width, len(names))
    axes.plot([1, end], [ruler] * 2, color="0", lw=0.8)
    text = f"critical difference {ranking.width:.2f}"
    if 1 + ranking.width > len(names):
        middle = (1 + len(names)) / 2  # a short axis is narrower than the text
        text += ", wider than the axis"
        axes.text(middle, ruler + 0.2, text, ha="center", va="bottom")
    else:
        axes.text(1, ruler + 0.2, text, va="bottom")
    for i, clique in enumerate(cliques):
        at = ranking.mean[clique]
        y = top - 0.45 - 0.6 * i
        axes.plot([at.min() - 0.03, at.max() + 0.03], [y, y], color="0.35", lw=2.2)
    base = top - 0.6 - 0.6 * len(cliques)
    margin = 0.06 * (len(names) - 1)
    for i, (rank, text) in enumerate(zip(ranking.mean, texts, strict=True)):
        left = i < lines
        y = base - step * (i if left else len(names) - 1 - i)
        x = 1 - margin if left else len(names) + margin
        axes.plot([rank, rank, x], [top, y, y], color="0.6", lw=0.6, zorder=0)
        axes.annotate(
            text, (x, y), (-2 if left else 2, 0), textcoords="offset points",
            ha="right" if left else "left", va="center",
        )  # fmt: skip
    axes.set_ylim(base - step * (lines - 1) - 0.6, ruler + 1.4)
    axes.axis("off")


FIGURES: Mapping[str, Callable[[Figure, Frames, str, str], None]] = {
    "curves": _curves,
    "scatter": _scatter,
    "ranks": _ranks,
    "gains": _gains,
}
"""The functions that plot the figures, by name."""


def _panels(figure: Figure, frames: Frames, rule: str) -> Iterator[tuple[Panel, Axes]]:
    """Yield each dataset that has judged runs with its axes, which have a title if there are several."""
    panels = _judged(frames, rule)
    if not panels:
        raise UserError("no run has ended with finite values yet")
    columns = 1 if figure.get_figwidth() < WIDTHS[2] else min(3, len(panels))
    lines = -(-len(panels) // columns)
    width = figure.get_figwidth() / columns
    figure.set_figheight(lines * min(0.8 * width, 2.6) + 0.3)
    grid = figure.subplots(lines, columns, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for panel, axes in zip(panels, grid.flat, strict=False):
        if len(panels) > 1:
            axes.set_title(_wrapped(panel.dataset, TITLE_SHARE * width))
        yield panel, axes


def _judged(frames: Frames, rule: str) -> list[Panel]:
    runs = sweep_runs(frames)
    values = traces(frames, runs)
    means = inside_and_test(values)
    judged = judged_runs(candidates(frames, rule), runs, values, means)
    means["step"] = np.asarray(values.steps)[means["place"]]
    metrics = runs.dropna(subset=["metric"]).groupby("dataset_label")["metric"].first()
    return [
        Panel(
            str(dataset),
            str(metrics[dataset]),
            of_dataset,
            means[means["run"].isin(of_dataset["run"])],
        )
        for dataset, of_dataset in judged.groupby("dataset_label", sort=False)
        if of_dataset[["inside", "test"]].notna().all(axis=1).any()
    ]


def _labels(frames: Frames) -> list[str]:
    return [str(label) for label in frames.runs["label"].unique()]


def _colour(labels: Sequence[str], label: object) -> str:
    return COLOURS[labels.index(str(label)) % len(COLOURS)]


def _marker(labels: Sequence[str], label: object) -> str:
    return MARKERS[labels.index(str(label)) % len(MARKERS)]


def _wrapped(name: str, inches: float) -> str:
    """Return a name as `plain` has it, wrapped into lines of at most this width."""
    return "\n".join(map(plain, textwrap.wrap(printable(name), int(inches / LETTER))))


def _most_lines(texts: Iterable[str]) -> int:
    """Return the largest number of lines of a text."""
    return max(text.count("\n") for text in texts) + 1


def _widen(axes: Axes, name: str, scale: float) -> None:
    """Let an axis show LEAST_SPAN at least, so that differences within the noise look small."""
    low, high = axes.get_xlim() if name == "x" else axes.get_ylim()
    least = LEAST_SPAN * (scale if scale > 1 else max(abs(low), abs(high)))
    if high - low < least:
        middle = (low + high) / 2
        limits = (middle - least / 2, middle + least / 2)
        axes.set_xlim(limits) if name == "x" else axes.set_ylim(limits)


def _legend(figure: Figure, labels: Sequence[str], markers: bool) -> None:
    names = [_wrapped(label, figure.get_figwidth() - HANDLE) for label in labels]
    handles = [
        Line2D(
            [], [], color=_colour(labels, x), label=name, mfc="none", ms=4.5,
            marker=_marker(labels, x) if markers else "",
            ls="" if markers else DASHES[labels.index(x) // len(COLOURS) % 4],
        )
        for x, name in zip(labels, names, strict=True)
    ]  # fmt: skip
    longest = max(len(line) for name in names for line in name.split("\n"))
    room = int(figure.get_figwidth() / (LETTER * longest + HANDLE))
    figure.legend(handles=handles, loc="outside upper center", ncols=max(1, min(len(labels), room)))
