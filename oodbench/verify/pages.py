"""The pages docs/papers/: python -m oodbench.verify.pages writes them from the results committed there."""

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
from oodbench.report.formats import markdown
from oodbench.terminal import commands, exit_on_user_error
from oodbench.verify.measured import Line, Measured, Panel
from oodbench.verify.targets import Experiment, Target, experiment_names, load_experiment
from oodbench.verify.verdicts import Comparison, compare_targets, verdict_sheet

DOCS = Path("docs/papers")
COLUMNS = 3
"""The number of panels side by side."""
FEW = 12
"""The most points of a line that are marked, as a single one would not be seen."""

app = commands(__doc__)


@app.command()
@exit_on_user_error
def write_pages(
    docs: Annotated[Path, typer.Argument(help="Holds results/NAME.json; gets the pages.")] = DOCS,
) -> None:
    """Write a page and a picture for every experiment that has results, and the list of them."""
    if not (docs / "results").is_dir():
        raise UserError(f"{docs / 'results'} is no folder; `verify --save` fills one")
    for name in experiment_names():
        experiment, measured = load_experiment(name), committed_results(docs, name)
        (docs / f"{name}.md").write_text(experiment_page(experiment, measured))
        picture = docs / f"{name}.svg"
        found = drawn_panels(experiment, measured)
        if found and not (picture.is_file() and digest(found) in picture.read_text()):
            draw_panels(found, picture)
    (docs / "README.md").write_text(index_page(docs))


def committed_results(docs: Path, name: str) -> Measured:
    """The results of an experiment that are committed in `docs`; empty without a file."""
    path = docs / "results" / f"{name}.json"
    return Measured.model_validate_json(path.read_text()) if path.is_file() else Measured(values={})


def index_page(docs: Path) -> str:
    """The page that lists the others, in Markdown."""
    rows = []
    for name in experiment_names():
        experiment = load_experiment(name)
        found = compare_targets(experiment, committed_results(docs, name))
        count = {text: sum(c.off is off for c in found) for text, off in _COUNTED.items()}
        cells = " | ".join(str(number) for number in count.values())
        cost = "cheap" if experiment.cheap else "long"
        rows.append(f"| [{experiment.title}]({name}.md) | {cost} | {cells} |")
    lines = [
        "# The papers' numbers, and ours",
        "",
        "Each page is written by `python -m oodbench.verify.pages` from the results that are committed in",
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
    """What the paper did, what we do, the command, and both side by side, in Markdown."""
    needs = " --data-dir DIR" if "Data" in measured.provenance else ""
    parts = [
        f"# {experiment.title}",
        f"Source: {experiment.paper}.",
        experiment.about.strip(),
        f"    python -m oodbench.verify {experiment.name}{needs}",
        *(
            [f"![{experiment.title}]({experiment.name}.svg)"]
            if drawn_panels(experiment, measured)
            else []
        ),
        "## Paper and ours",
        markdown(verdict_sheet(experiment, measured)),
    ]
    return "\n\n".join(parts)


def drawn_panels(experiment: Experiment, measured: Measured) -> list[Panel]:
    """The panels of an experiment's picture: paper and ours side by side, then the curves."""
    found = [c for c in compare_targets(experiment, measured) if c.values]
    return [*_side_by_side(experiment, found), *measured.panels]


def _side_by_side(experiment: Experiment, found: Sequence[Comparison]) -> list[Panel]:
    """A panel for each environment and metric, a row for each target; one for all if they are few."""
    groups: dict[str, list[Comparison]] = {}
    for c in found:
        groups.setdefault(_place(c.target), []).append(c)
    if len(groups) == 1 or len(found) >= 3 * len(groups):
        return [_rows(experiment, place, mine) for place, mine in groups.items()]
    return [_rows(experiment, "paper and ours", found)]


def _rows(experiment: Experiment, title: str, mine: Sequence[Comparison]) -> Panel:
    """Theirs above ours, with their standard errors, or the tolerance around an exact value."""
    rows = [float(-i) for i in range(len(mine))]
    theirs = Line(
        label="paper",
        x=[c.target.value for c in mine],
        y=[y + 0.12 for y in rows],
        error=[
            c.target.error if c.target.error_is == "tolerance" else c.target.stderr for c in mine
        ],
    )
    ours = Line(
        label="ours",
        x=[c.mean for c in mine],
        y=[y - 0.12 for y in rows],
        error=[0.0 if math.isnan(c.stderr) else c.stderr for c in mine],
    )
    labels = [_label(experiment, c) for c in mine]
    if len({_place(c.target) for c in mine}) > 1:
        labels = [f"{label}: {_place(c.target)}" for label, c in zip(labels, mine, strict=True)]
    metrics = {c.target.metric for c in mine}
    return Panel(
        title=title,
        x=metrics.pop() if len(metrics) == 1 else "",
        y="",
        lines=[theirs, ours],
        rows=labels,
        marks=experiment.marks,
    )


def _place(target: Target) -> str:
    return f"{target.environment}: {target.metric}" if target.environment else target.metric


def _label(experiment: Experiment, c: Comparison) -> str:
    mine = c.target
    alike = [t for t in experiment.targets if (t.row, t.dataset) == (mine.row, mine.dataset)]
    parts = [mine.row, mine.short or mine.dataset]
    parts += [mine.sweep] if len({t.sweep for t in alike}) > 1 else []
    tests = mine.test_environments or ()
    parts += [f"without {'+'.join(tests)}"] if len({t.test_environments for t in alike}) > 1 else []
    parts += [mine.selection] if len({t.selection for t in alike}) > 1 else []
    parts += [f"step {mine.step}"] if mine.step is not None else []
    return ", ".join(part for part in parts if part)


def digest(found: Sequence[Panel]) -> str:
    """The SHA-256 of the panels, with which their picture is marked."""
    text = "\n".join(panel.model_dump_json() for panel in found)
    return hashlib.sha256(text.encode()).hexdigest()


def draw_panels(found: Sequence[Panel], path: Path) -> None:
    """Write the panels as an SVG picture, marked with their digest."""
    columns = min(COLUMNS, len(found))
    lines = -(-len(found) // columns)
    tallest = max((len(panel.rows) for panel in found), default=0)
    longest = max((len(row) for panel in found for row in panel.rows), default=0)
    width = max(4.2, 2.8 + 0.07 * longest)
    size = (width * columns + 0.4, max(3.2, 0.28 * tallest + 1.2) * lines)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        axes = np.ravel(figure.subplots(lines, columns, squeeze=False))
        for ax, panel in zip(axes, found, strict=False):
            _draw(ax, panel)
        for ax in axes[len(found) :]:
            ax.remove()
        figure.savefig(path, metadata={"Date": None, "Description": digest(found)})


def _draw(ax: Any, panel: Panel) -> None:
    """One panel into its axes."""
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
