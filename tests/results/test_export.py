"""Every format of an export, read back by its own library."""

import sys
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from oodbench.errors import MissingError
from oodbench.report.cli import app
from oodbench.results.export import tidy, write_tensorboard
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


def test_tensorboard_reads_every_value(made: Made, tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    out = tmp_path / "events"
    export(made, "tensorboard", out)
    runs = sorted(file.parent for file in out.rglob("events.out.tfevents.*"))
    assert len(runs) == 4 and all(len(run.relative_to(out).parts) == 4 for run in runs)
    found = {}
    for run in runs:
        events = accumulator.EventAccumulator(str(run))
        events.Reload()
        for tag in events.Tags()["scalars"]:
            for event in events.Scalars(tag):
                found[run.name[-8:], tag, event.step] = event.value
    records = tidy(load_frames(made.results)).astype({"id": str}).to_dict(orient="records")
    wanted = {
        (r["id"][:8], f"{r['metric']}/{r['environment']}/{r['split']}", r["step"]): r["value"]
        for r in records
    }
    assert found == pytest.approx(wanted, rel=1e-6)


def test_tags_of_tensorboard_have_no_control_characters(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

    class Nasty(Made):
        environments = (NASTY, "b")

    made = Nasty(tmp_path / "results")
    made.add("D", "ERM", ("b",), 0, rising(0.5), steps=(10,))
    assert write_tensorboard(load_frames(made.results), tmp_path / "events") == 4
    (file,) = (tmp_path / "events").rglob("events.out.tfevents.*")
    events = accumulator.EventAccumulator(str(file))
    events.Reload()
    shown = r"\x1b[31m[/x] :M: a/b"
    wanted = {f"accuracy/{name}/{split}" for name in (shown, "b") for split in ("in", "out")}
    assert set(events.Tags()["scalars"]) == wanted


def test_a_mistake_is_one_sentence_and_changes_nothing(made: Made, tmp_path: Path) -> None:
    for arguments, words in (
        (["--format", "xml", "--out", str(tmp_path / "x")], "unknown format 'xml'"),
        (["--format", "tensorboard", "--out", str(made.results.path)], "is there already"),
        (["--out", str(tmp_path / "none" / "x")], "No such file or directory"),
    ):
        result = CliRunner().invoke(app, ["export", str(made.results.path), *arguments])
        assert result.exit_code == 2 and words in result.stderr
        assert result.stderr.count("\n") == 1


def test_without_tensorboard_the_error_says_how_to_get_it(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.event_file_writer", None)
    with pytest.raises(MissingError, match=r"package tensorboard: `pip install 'oodbench\[tens"):
        write_tensorboard(load_frames(made.results), tmp_path / "events")
    assert not (tmp_path / "events").exists()
