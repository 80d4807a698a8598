"""A dataset's `label:` is its name on every screen, and no part of a run's id."""

from pathlib import Path

import pytest

from oodbench.errors import UserError
from tests.helpers.commands import type_in
from tests.helpers.results.sweeps import tiny, tiny_file

LABEL = "Linear, 40 examples"
DATA = [{"name": "LinearSEM", "num_examples": 40, "label": LABEL}]


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
    with pytest.raises(UserError, match="'all datasets' is the name of what is over all datasets"):
        tiny(datasets=[other | {"label": "all datasets"}])
    assert len(tiny(datasets=[*DATA, other | {"label": "50 examples"}]).runs) == 2 * 2 * 2


def test_screens_and_files_show_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sweep = tiny_file(tmp_path, datasets=DATA, steps=4, evaluate_every=2)
    shown = {}
    for command in (
        ("sweep", "launch", str(sweep), "--out", "out", "--launcher", "debug", "--yes"),
        ("sweep", "status", "out"),
        ("report", "table", "out", "--format", "json", "--dataset", LABEL),
        ("report", "compare", "out"),
        ("report", "why", "out", "--dataset", LABEL, "--algorithm", "IRM"),
        ("report", "html", "out", "--out", "page.html"),
    ):
        shown[command[1]] = text = type_in(*command, code=0).output
        assert "LinearSEM" not in text
        assert LABEL in text or command[1] == "html"
    for text in (f"{LABEL}, 1 test set", f"ERM on {LABEL} (test", f"{LABEL}: mse"):
        assert text in shown["launch"]
    assert LABEL in Path("page.html").read_text()
