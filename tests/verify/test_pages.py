from pathlib import Path

import pytest

from oodbench.verify import targets
from oodbench.verify.measured import Measured
from oodbench.verify.targets import experiment_names, load_experiment
from tests.verify.pages import DOCS, committed_results, experiment_page, index_page, write_pages

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
    assert measured.values.keys() <= {target.key for target in experiment.targets}
    assert (DOCS / f"{name}.md").read_text() == experiment_page(experiment, measured), (
        "`python -m tests.verify.pages` writes it"
    )


def test_the_committed_list_of_pages_is_that_of_the_committed_results() -> None:
    assert (DOCS / "README.md").read_text() == index_page(DOCS)


@pytest.fixture
def docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.yaml").write_text(EXPERIMENT)
    monkeypatch.setattr(targets, "FOLDER", tmp_path)
    first, second, _ = load_experiment("mine").targets
    values = {first.key: [1.0, 2.0], second.key: [399.0]}
    measured = Measured(values=values, provenance={"Data": ["f md5 0"]})
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "mine.json").write_text(measured.model_dump_json())
    return tmp_path


@pytest.mark.slow
def test_a_page_has_everything(docs: Path) -> None:
    write_pages(docs)
    text = (docs / "mine.md").read_text()
    for part in ("# Tiny", "What they did.", "oodbench.verify mine --data-dir DIR"):
        assert part in text
    assert "| ERM" in text and "not run" in text and "Data: f md5 0." in text
    assert "| [Tiny](mine.md) | long | 1 | 0 | 2 |" in (docs / "README.md").read_text()
