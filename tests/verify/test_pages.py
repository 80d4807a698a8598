from pathlib import Path

import pytest
from typer.testing import CliRunner

from oodbench.registry import folder
from oodbench.verify import targets
from oodbench.verify.measured import Line, Measured, Panel
from oodbench.verify.targets import experiment_names, load_experiment
from tests.verify import pages as papers
from tests.verify.pages import (
    all_panels,
    app,
    committed_results,
    digest,
    experiment_page,
    index_page,
    plot_panels,
)

DOCS = folder("docs") / "papers"
EXPERIMENT = """
title: Tiny
paper: none
sweeps: [quickstart]
about: What they did.
shared: {source: Table 1, metric: mse, error_is: stderr, error: 0.5}
targets:
  - {row: ERM, value: 1, environment: test}
  - {row: IRM, value: 400, environment: test}
  - {row: ERM, value: 3, environment: training}
"""


@pytest.mark.parametrize("name", experiment_names())
def test_the_committed_page_is_that_of_the_committed_results(name: str) -> None:
    experiment, measured = load_experiment(name), committed_results(DOCS, name)
    assert (DOCS / f"{name}.md").read_text() == experiment_page(experiment, measured), (
        "`python -m tests.verify.pages` writes it"
    )
    found = all_panels(experiment, measured)
    assert not found or digest(found) in (DOCS / f"{name}.svg").read_text()


def test_the_committed_list_of_pages_is_that_of_the_committed_results() -> None:
    assert (DOCS / "README.md").read_text() == index_page(DOCS)


@pytest.mark.parametrize("name", experiment_names())
def test_committed_results_are_those_of_targets(name: str) -> None:
    assert set(committed_results(DOCS, name).values) <= set(load_experiment(name).by_key)


@pytest.fixture
def docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One experiment with results."""
    (tmp_path / "mine.yaml").write_text(EXPERIMENT)
    monkeypatch.setattr(targets, "FOLDER", tmp_path)
    first, second, _ = load_experiment("mine").targets
    line = Line(label="a line", x=[0, 1], y=[1, 2], error=[0.1, 0.1])
    arrows = Line(label="arrows", x=[0], y=[1], dx=[1], dy=[1])
    points = Line(label="points", x=[0, 1], y=[1, 2], points=True)
    panel = Panel(title="curves", x="here", y="there", lines=[line, arrows, points])
    values = {first.key: [1.0, 2.0], second.key: [399.0]}
    measured = Measured(values=values, panels=[panel], provenance={"Data": ["f md5 0"]})
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "mine.json").write_text(measured.text())
    return tmp_path


@pytest.mark.slow
def test_a_page_has_everything(docs: Path) -> None:
    result = CliRunner().invoke(app, [str(docs)])
    assert result.exit_code == 0, result.output
    text = (docs / "mine.md").read_text()
    for part in ("# Tiny", "What they did.", "oodbench.verify mine --data-dir DIR", "(mine.svg)"):
        assert part in text
    assert "| ERM" in text and "not run" in text and "Data: f md5 0." in text
    picture = (docs / "mine.svg").read_text()
    for word in ("curves", "a line", "arrows", "points", "paper", "ours", "test: mse", "IRM"):
        assert word in picture
    assert "training: mse" not in picture
    assert "| [Tiny](mine.md) | long | 1 | 0 | 2 |" in (docs / "README.md").read_text()


def test_few_targets_share_a_panel_and_many_do_not(docs: Path) -> None:
    experiment = load_experiment("mine")
    values = {target.key: [1.0] for target in experiment.targets}
    (shared,) = all_panels(experiment, Measured(values=values))
    assert shared.rows == ["ERM: test: mse", "IRM: test: mse", "ERM: training: mse"]
    targets = [
        target.model_copy(update={"row": f"{target.row}{i}", "short": "D", "error_is": "tolerance"})
        for target in experiment.targets
        for i in range(3)
    ]
    many = experiment.model_copy(update={"targets": tuple(targets)})
    found = all_panels(many, Measured(values={target.key: [1.0] for target in targets}))
    assert [panel.title for panel in found] == ["test: mse", "training: mse"]
    assert found[1].rows == ["ERM0, D", "ERM1, D", "ERM2, D"]
    assert found[1].lines[0].error == [0.5, 0.5, 0.5]


def test_the_same_results_are_not_drawn_again_and_others_are(docs: Path) -> None:
    CliRunner().invoke(app, [str(docs)])
    time = (docs / "mine.svg").stat().st_mtime_ns
    CliRunner().invoke(app, [str(docs)])
    assert (docs / "mine.svg").stat().st_mtime_ns == time
    results = docs / "results" / "mine.json"
    results.write_text(results.read_text().replace("399.0", "398.0"))
    CliRunner().invoke(app, [str(docs)])
    assert (docs / "mine.svg").stat().st_mtime_ns > time


def test_a_picture_is_the_same_every_time(docs: Path) -> None:
    found = all_panels(load_experiment("mine"), committed_results(docs, "mine"))
    plot_panels(found, docs / "one.svg")
    plot_panels(found, docs / "two.svg")
    assert (docs / "one.svg").read_bytes() == (docs / "two.svg").read_bytes()


def test_without_results(docs: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "not run" in experiment_page(load_experiment("mine"), committed_results(empty, "mine"))
    assert "svg" not in experiment_page(load_experiment("mine"), committed_results(empty, "mine"))
    result = CliRunner().invoke(papers.app, [str(empty)])
    assert result.exit_code == 2
    assert "verify --save" in result.output
