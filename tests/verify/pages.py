"""The pages docs/papers/: python -m tests.verify.pages writes them from the results committed there."""

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import matplotlib
import numpy as np
import typer
from matplotlib.figure import Figure

from oodbench.errors import UserError
from oodbench.report.figures import COLOURS, STYLE
from oodbench.report.tables import markdown
from oodbench.terminal import commands
from oodbench.verify.measured import Line, Measured, Panel
from oodbench.verify.targets import Experiment, Target, experiment_names, load_experiment
from oodbench.verify.verdicts import Comparison, compare_targets, verdict_sheet

DOCS = Path("docs/papers")
COLUMNS = 3
"""The number of panels side by side."""
FEW = 12
"""Lines of at most this many points have markers: a single point would be invisible without."""

app = commands(__doc__)


@app.command()
def write_pages(
    docs: Annotated[
        Path, typer.Argument(help="The folder with results/NAME.json, for the pages.")
    ] = DOCS,
) -> None:
    """Write a page and a picture for every experiment that has results, and the list of them."""
    if not (docs / "results").is_dir():
        raise UserError(f"{docs / 'results'} is no folder; `verify --save` writes one")
    for name in experiment_names():
        experiment, measured = load_experiment(name), committed_results(docs, name)
        (docs / f"{name}.md").write_text(experiment_page(experiment, measured))
        picture = docs / f"{name}.svg"
        panels = all_panels(experiment, measured)
        if panels and not (picture.is_file() and digest(panels) in picture.read_text()):
            plot_panels(panels, picture)
    (docs / "README.md").write_text(index_page(docs))


def committed_results(docs: Path, name: str) -> Measured:
    """Return the committed results of an experiment in `docs`; empty without a file."""
    path = docs / "results" / f"{name}.json"
    return Measured.model_validate_json(path.read_text()) if path.is_file() else Measured(values={})


def index_page(docs: Path) -> str:
    """Return the page that lists the others, in Markdown."""
    rows = []
    for name in experiment_names():
        experiment = load_experiment(name)
        comparisons = compare_targets(experiment, committed_results(docs, name))
        cells = " | ".join(str(sum(c.off is off for c in comparisons)) for off in _COUNTED.values())
        cost = "cheap" if experiment.cheap else "long"
        rows.append(f"| [{experiment.title}]({name}.md) | {cost} | {cells} |")
    lines = [
        "# The papers' numbers, and ours",
        "",
        "Each page is written by `python -m tests.verify.pages` from the results that are committed in",
        "`results/`, which `python -m oodbench.verify NAME --save docs/papers/results` makes.",
        "Targets agree if ours is within three standard errors of the difference.",
        "",
        f"| experiment | cost | {' | '.join(_COUNTED)} |",
        f"| :-- | :-- |{' --: |' * len(_COUNTED)}",
        *rows,
        "",
    ]
    return "\n".join(lines)


_COUNTED = {"agree": False, "off": True, "no verdict": None}


def experiment_page(experiment: Experiment, measured: Measured) -> str:
    """Return an experiment's page in Markdown: paper, method, command, and both numbers side by side."""
    needs = " --data-dir DIR" if "Data" in measured.provenance else ""
    has_picture = bool(all_panels(experiment, measured))
    blocks = [
        f"# {experiment.title}",
        f"Source: {experiment.paper}.",
        experiment.about.strip(),
        f"    python -m oodbench.verify {experiment.name}{needs}",
        *([f"![{experiment.title}]({experiment.name}.svg)"] if has_picture else []),
        "## Paper and ours",
        markdown(verdict_sheet(experiment, measured)),
    ]
    return "\n\n".join(blocks)


def all_panels(experiment: Experiment, measured: Measured) -> list[Panel]:
    """Return the panels of an experiment's picture: paper and ours side by side, then the curves."""
    comparisons = [c for c in compare_targets(experiment, measured) if c.values]
    by_place: dict[str, list[Comparison]] = {}
    for c in comparisons:
        by_place.setdefault(_place(c.target), []).append(c)
    if len(by_place) > 1 and len(comparisons) < 3 * len(by_place):  # few: one panel for all
        by_place = {"paper and ours": comparisons}
    return [*(_rows(experiment, *item) for item in by_place.items()), *measured.panels]


def _rows(experiment: Experiment, title: str, comparisons: Sequence[Comparison]) -> Panel:
    """Return the paper's values above ours, with their standard errors, or the tolerance of an
    exact value.
    """
    targets = [c.target for c in comparisons]
    paper = Line(
        label="paper",
        x=[t.value for t in targets],
        y=[0.12 - i for i in range(len(targets))],
        error=[t.error if t.error_is == "tolerance" else t.stderr for t in targets],
    )
    ours = Line(
        label="ours",
        x=[c.mean for c in comparisons],
        y=[-0.12 - i for i in range(len(targets))],
        error=[0.0 if math.isnan(c.stderr) else c.stderr for c in comparisons],
    )
    labels = [_label(experiment, t) for t in targets]
    if len({_place(t) for t in targets}) > 1:
        labels = [f"{label}: {_place(t)}" for label, t in zip(labels, targets, strict=True)]
    metrics = {t.metric for t in targets}
    x = metrics.pop() if len(metrics) == 1 else ""
    lines = [paper, ours]
    return Panel(title=title, x=x, y="", lines=lines, rows=labels, marks=experiment.marks)


def _place(target: Target) -> str:
    return f"{target.environment}: {target.metric}" if target.environment else target.metric


def _label(experiment: Experiment, target: Target) -> str:
    """Return the row of a target, with the fields that distinguish it from other targets of that row."""
    alike = [t for t in experiment.targets if (t.row, t.dataset) == (target.row, target.dataset)]
    words = [target.row, target.short or target.dataset]
    if len({t.sweep for t in alike}) > 1:
        words.append(target.sweep)
    if len({t.test_environments for t in alike}) > 1:
        words.append(f"without {'+'.join(target.test_environments or ())}")
    if len({t.selection for t in alike}) > 1:
        words.append(target.selection)
    if target.step is not None:
        words.append(f"step {target.step}")
    return ", ".join(word for word in words if word)


def digest(panels: Sequence[Panel]) -> str:
    """Return the SHA-256 of the panels, with which their picture is marked."""
    text = "\n".join(panel.model_dump_json() for panel in panels)
    return hashlib.sha256(text.encode()).hexdigest()


def plot_panels(panels: Sequence[Panel], path: Path) -> None:
    """Write the panels as an SVG picture, marked with their digest."""
    columns = min(COLUMNS, len(panels))
    lines = -(-len(panels) // columns)
    tallest = max((len(panel.rows) for panel in panels), default=0)
    longest = max((len(row) for panel in panels for row in panel.rows), default=0)
    width = max(4.2, 2.8 + 0.07 * longest)
    size = (width * columns + 0.4, max(3.2, 0.28 * tallest + 1.2) * lines)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        axes = np.ravel(figure.subplots(lines, columns, squeeze=False))
        for ax, panel in zip(axes, panels, strict=False):
            _plot(ax, panel)
        for ax in axes[len(panels) :]:
            ax.remove()
        figure.savefig(path, metadata={"Date": None, "Description": digest(panels)})


def _plot(ax: Any, panel: Panel) -> None:
    """Plot one panel into its axes."""
    ax.set(title=panel.title, xlabel=panel.x, ylabel=panel.y)
    for i, line in enumerate(panel.lines):
        colour = COLOURS[i % len(COLOURS)]
        x, y = np.array(line.x), np.array(line.y)
        if line.dx is not None:
            ax.quiver(x, y, line.dx, line.dy, color=colour, label=line.label, angles="xy")
        elif panel.rows:
            ax.errorbar(x, y, xerr=line.error, fmt="o", color=colour, label=line.label, ms=4)
        elif line.points:
            ax.errorbar(x, y, yerr=line.error, fmt="o", color=colour, label=line.label, ms=4)
        else:
            mark = "o" if len(x) <= FEW else None
            ax.plot(x, y, color=colour, label=line.label, marker=mark, ms=3)
            if line.error is not None:
                ax.fill_between(x, y - line.error, y + line.error, color=colour, alpha=0.2, lw=0)
    for i, (name, value) in enumerate(panel.marks.items()):
        ax.axvline(value, color="0.5", ls=(":", "--", "-.")[i % 3], lw=1, label=name)
    if panel.rows:
        ax.set_yticks([-i for i in range(len(panel.rows))], panel.rows)
        ax.locator_params(axis="x", nbins=5)
        values = [v for line in panel.lines for v in line.x]
        if min(values) > 0 and max(values) > 100 * min(values):
            ax.set_xscale("log")
    labels = ax.get_legend_handles_labels()[1]
    if len(labels) > 1:
        columns = 4 if sum(len(label) + 4 for label in labels) < 36 else 2
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "borderaxespad": 4.5}
        ax.legend(fontsize="small", ncols=columns, columnspacing=1.0, **below)


if __name__ == "__main__":
    app()
