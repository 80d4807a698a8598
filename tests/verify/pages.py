"""The pages docs/papers/: python -m tests.verify.pages writes them from the results committed there."""

from pathlib import Path

from oodbench.report.tables import markdown
from oodbench.verify.measured import Measured
from oodbench.verify.targets import Experiment, experiment_names, load_experiment
from oodbench.verify.verdicts import compare_targets, verdict_sheet
from tests.helpers.paths import ROOT

DOCS = ROOT / "docs" / "papers"


def write_pages(docs: Path) -> None:
    """Write a page for every experiment that has results in `docs`, and the list of them."""
    for name in experiment_names():
        experiment, measured = load_experiment(name), committed_results(docs, name)
        (docs / f"{name}.md").write_text(experiment_page(experiment, measured))
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
        "`results/`: copies of what `python -m oodbench.verify NAME` writes, `results/verify/NAME.json`.",
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
    blocks = [
        f"# {experiment.title}",
        f"Source: {experiment.paper}.",
        experiment.about.strip(),
        f"    python -m oodbench.verify {experiment.name}{needs}",
        "## Paper and ours",
        markdown(verdict_sheet(experiment, measured)),
    ]
    return "\n\n".join(blocks)


if __name__ == "__main__":
    write_pages(DOCS)
