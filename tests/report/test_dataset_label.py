"""A dataset's `label:` is its name on every screen, and no part of a run's id."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from oodbench.__main__ import main
from oodbench.errors import UserError
from tests.helpers.results.sweeps import tiny, tiny_file

LABEL = "Linear, 40 examples"
DATA = [{"name": "LinearSEM", "num_examples": 40, "label": LABEL}]


def test_it_is_no_part_of_an_id() -> None:
    assert list(tiny(datasets=DATA).runs) == list(tiny().runs)


def test_a_dataset_that_names_itself_takes_it_too(tmp_path: Path) -> None:
    rows = ["age,target,environment", *(f"{n},{n % 2},{'ab'[n // 8]}" for n in range(16))]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    data = {"name": "Table", "file": str(tmp_path / "t.csv")}
    assert {s.dataset_name for s in tiny(datasets=[data]).runs.values()} == {"t"}
    named = tiny(datasets=[data | {"label": LABEL}])
    assert {s.dataset_name for s in named.runs.values()} == {LABEL}


def test_equal_labels_are_refused() -> None:
    other = {"name": "LinearSEM", "num_examples": 50, "label": LABEL}
    with pytest.raises(UserError, match=f"two datasets are called '{LABEL}': give them a `label`"):
        tiny(datasets=[*DATA, other])
    with pytest.raises(UserError, match="two datasets are called 'LinearSEM'"):
        tiny(datasets=["LinearSEM", other | {"label": "LinearSEM"}])
    assert len(tiny(datasets=[*DATA, other | {"label": "50 examples"}]).runs) == 2 * 2 * 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sweep and its results."""
    path = tmp_path_factory.mktemp("label")
    sweep = tiny_file(path, datasets=DATA, steps=4, evaluate_every=2)
    command = ["launch", str(sweep), "--out", str(path / "out"), "--launcher", "debug", "--yes"]
    result = CliRunner().invoke(main, ["sweep", *command], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    (path / "launched.txt").write_text(result.output)
    return path


def test_launch_says_it_in_its_plan_its_progress_and_its_table(folder: Path) -> None:
    text = (folder / "launched.txt").read_text()
    assert f"{LABEL}, 1 test set" in text and f"ERM on {LABEL} (test" in text
    assert f"{LABEL}: mse" in text and "LinearSEM" not in text


def test_screens_and_files_show_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    for command in (
        ("sweep", "status", "out"),
        ("report", "table", "out", "--format", "json", "--dataset", LABEL),
        ("report", "compare", "out"),
        ("report", "why", "out", "--dataset", LABEL, "--algorithm", "IRM"),
    ):
        result = CliRunner().invoke(main, list(command), env={"COLUMNS": "200"})
        assert result.exit_code == 0, result.output
        assert LABEL in result.output and "LinearSEM" not in result.output
    result = CliRunner().invoke(main, ["report", "html", "out", "--out", "page.html"])
    assert result.exit_code == 0 and LABEL in (folder / "page.html").read_text()
