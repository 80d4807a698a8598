import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from oodbench.results.directory import Directory
from oodbench.sweep import file as sweep_file
from oodbench.verify import targets
from oodbench.verify.measured import Measured
from tests.helpers.commands import type_in
from tests.helpers.results.sweeps import TINY

EXPERIMENT = {
    "title": "Tiny",
    "paper": "none",
    "cheap": True,
    "sweeps": ["tiny"],
    "about": "a",
    "shared": {"source": "T", "metric": "mse", "environment": "test", "error_is": "tolerance"},
    "targets": [
        {"row": "ERM", "value": 0.0, "error": 1e9},
        {"row": "IRM", "value": 0.0, "error": 1e9, "tuned_on_test": True},
    ],
}


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One experiment and its sweep instead of ours."""
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps" / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    own = tmp_path / "targets"
    own.mkdir()
    monkeypatch.setattr(targets, "FOLDER", own)
    monkeypatch.setattr(sweep_file, "folder", lambda name: tmp_path / name)
    write(tmp_path, EXPERIMENT)
    return tmp_path


def write(folders: Path, experiment: dict[str, Any], name: str = "mine") -> None:
    (folders / "targets" / f"{name}.yaml").write_text(yaml.safe_dump(experiment))


def run(folders: Path, *arguments: str) -> tuple[int, str]:
    out = f"--out={folders / 'out'}"
    result = type_in("verify", *arguments, out, "--launcher=debug")
    return result.exit_code, result.output


@pytest.mark.slow
def test_it_trains_compares_saves_and_resumes(folders: Path) -> None:
    code, text = run(folders, "mine", "--trials=1")
    assert code == 0, text
    assert "tuned on test data" in text
    assert "Protocol: none (sweep tiny)" in text and "torch: " in text and "Code: " in text
    saved = Measured.model_validate_json((folders / "out" / "mine.json").read_text())
    assert [len(values) for values in saved.values.values()] == [1, 1]
    results = Directory(folders / "out" / "tiny")
    first = {i: results.run(i).made_by()["started"] for i in results.specs()}
    assert len(first) == 2
    assert run(folders, "cheap", "--trials=2")[0] == 0
    assert {i: results.run(i).made_by()["started"] for i in first} == first
    assert [results.run(i).state() for i in results.specs()] == ["done"] * 4
    saved = Measured.model_validate_json((folders / "out" / "mine.json").read_text())
    assert [len(values) for values in saved.values.values()] == [2, 2]


@pytest.mark.slow
def test_a_missed_target_is_an_error_only_where_it_is_reproducible(folders: Path) -> None:
    off = {**EXPERIMENT["targets"][0], "value": -5.0, "error": 1.0}  # type: ignore[index]
    write(folders, EXPERIMENT | {"targets": [off]})
    code, text = run(folders, "mine", "--trials=1")
    assert code == 1
    assert "MISSED" in text
    write(folders, EXPERIMENT | {"targets": [off | {"reproducible": False, "note": "why"}]})
    code, text = run(folders, "--trials=1", "--read")
    assert code == 0
    assert "off, see the note" in text and "ERM: why" in text


def test_nothing_run_is_an_error(folders: Path) -> None:
    code, text = run(folders, "--read")
    assert code == 1
    assert "not run" in text


@pytest.mark.slow
def test_what_lacks_data_or_a_package_is_named_and_left_out(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    for name, dataset, row in (
        ("pictures", "ColoredMNIST", "ERM"),
        ("compiled", "LinearSEM", "LinearIRM"),
    ):
        sweep = TINY | {"name": name, "datasets": [dataset], "algorithms": [row]}
        (folders / "sweeps" / f"{name}.yaml").write_text(yaml.safe_dump(sweep))
        target = {"row": row, "value": 0.0, "error": 1e9}
        write(folders, EXPERIMENT | {"sweeps": [name], "targets": [target]}, name)
    code, text = run(folders, "cheap", "--trials=1")
    assert code == 0, text
    assert "pictures is left out: it needs `python -m oodbench.data download ColoredMNIST" in text
    assert "compiled is left out: it needs `pip install oodbench[linear]`" in text
    assert text.index("is left out") < text.index("runs in sweep")
    assert "agrees" in text
    assert sorted(p.name for p in (folders / "out").iterdir()) == ["mine.json", "tiny"]
