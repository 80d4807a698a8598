"""The tutorials that are notebooks, executed as the site executes them."""

import os
import sys
from pathlib import Path

import pytest
from myst_nb.core.read import read_myst_markdown_notebook
from nbclient import NotebookClient

from tests.helpers.paths import ROOT

TUTORIALS = ROOT / "docs" / "tutorials"
PAGES = {page.stem: page.read_text() for page in sorted(TUTORIALS.glob("*.md"))}
NOTEBOOKS = [name for name, text in PAGES.items() if "file_format: mystnb" in text]


def test_there_are_seven() -> None:
    assert len(NOTEBOOKS) == 7


@pytest.mark.nightly
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_and_ends_in_a_picture(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    for variable, value in (("PATH", path), ("PYTHONPATH", str(ROOT)), ("COLUMNS", "88")):
        monkeypatch.setenv(variable, value)
    notebook = read_myst_markdown_notebook(PAGES[name])
    place = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=600, resources=place).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert "image/png" in outputs[-1].get("data", {})
    assert "Traceback" not in str(outputs)
