"""Every format of an export, read back by its own library."""

from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from oodbench.report.cli import app
from oodbench.results.export import tidy
from oodbench.results.frames import load_frames
from tests.helpers.made import Made, rising

NASTY = "\x1b[31m[/x] :M: a/b"


@pytest.fixture
def made(tmp_path: Path) -> Made:
    made = Made(tmp_path / "results")
    for label in ("ERM", NASTY):
        for trial in (0, 1):
            made.add("D", label, ("a",), trial, rising(0.5 + trial / 8))
    return made


def export(made: Made, format_: str, out: Path) -> None:
    arguments = ["export", str(made.results.path), "--format", format_, "--out", str(out)]
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == f"72 rows are in {out}.\n"


def test_parquet_holds_the_records(made: Made, tmp_path: Path) -> None:
    export(made, "parquet", tmp_path / "all.parquet")
    found = pd.read_parquet(tmp_path / "all.parquet")
    pd.testing.assert_frame_equal(found, tidy(load_frames(made.results)), check_categorical=False)
    assert set(found["label"]) == {"ERM", NASTY}, "names are as they were given"


def test_csv_holds_the_records_without_control_characters(made: Made, tmp_path: Path) -> None:
    export(made, "csv", tmp_path / "all.csv")
    assert "\x1b" not in (tmp_path / "all.csv").read_text()
    found, wanted = pd.read_csv(tmp_path / "all.csv"), tidy(load_frames(made.results))
    assert found["value"].tolist() == wanted["value"].tolist()
    assert set(found["label"]) == {"ERM", r"\x1b[31m[/x] :M: a/b"}
    assert list(found) == list(wanted)


def test_a_mistake_is_one_sentence_and_changes_nothing(made: Made, tmp_path: Path) -> None:
    for arguments, words in (
        (["--format", "xml", "--out", str(tmp_path / "x")], "unknown format 'xml'"),
        (["--out", str(tmp_path / "none" / "x")], "No such file or directory"),
    ):
        result = CliRunner().invoke(app, ["export", str(made.results.path), *arguments])
        assert result.exit_code == 2 and words in result.stderr
        assert result.stderr.count("\n") == 1
