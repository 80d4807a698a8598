"""Names and failures of others are text in whatever a command prints: no markup, no control character."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from oodbench.__main__ import main
from oodbench.printable import printable
from oodbench.report.formats import FORMATS
from tests.helpers.made import Made, rising
from tests.helpers.sweeps import tiny_file

NASTY = "[bold]b[/x] :M: \x1b]0;owned\x07\x9b31m\u202e%s{0}<b>"
SHOWN = "[bold]b[/x] :M: \\x1b]0;owned\\x07\\x9b31m\\u202e%s{0}<b>"
HIDDEN = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    class Nasty(Made):
        environments = (NASTY, "b", "c")

    made = Nasty(tmp_path_factory.mktemp("nasty"))
    for label in ("ERM", NASTY):
        for trial in range(2):
            made.add(NASTY, label, (NASTY,), trial, rising(0.5 + trial / 8), metric="accuracy")
    made.add(NASTY, NASTY, (NASTY,), 2, rising(0.5), state="failed", error=f"ValueError: {NASTY}")
    return made.results.path


def output(*arguments: object) -> str:
    result = CliRunner().invoke(main, [str(a) for a in arguments], env={"COLUMNS": "500"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.output


def test_control_characters_become_escapes() -> None:
    assert printable(NASTY) == SHOWN
    assert printable("a\nb\tc") == r"a\nb\tc" and printable("a\nb\tc", keep="\n") == "a\nb\\tc"
    assert printable("Bühne ± 1 日本") == "Bühne ± 1 日本"
    assert printable("\udc80").encode() == rb"\udc80"


@pytest.mark.parametrize(
    "command",
    [
        *(("report", "table", "--format", format_) for format_ in FORMATS),
        *(("report", "compare", "--format", format_) for format_ in FORMATS),
        ("report", "why", "--algorithm", NASTY),
        ("report", "why", "--algorithm", f"no such {NASTY}"),
        ("report", "table", "--dataset", f"{NASTY}?"),
        ("sweep", "status"),
        ("diagnose", "trials", "--selection", "train_val"),
    ],
)
def test_every_command_prints_names_as_they_are(
    results: Path, tmp_path: Path, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = output(*command[:2], results, *command[2:])
    assert "Traceback" not in text and not HIDDEN.search(text)
    if command[-1] == "json":
        assert any(row["label"] == NASTY for row in json.loads(text)), "JSON has escapes of its own"
    elif command[-1] not in ("latex", "markdown", "html"):
        assert SHOWN in text


def test_exported_files_have_no_control_characters(results: Path, tmp_path: Path) -> None:
    output("report", "export", results, "--format", "csv", "--out", tmp_path / "all.csv")
    output("report", "html", results, "--out", tmp_path / "page.html")
    for name in ("all.csv", "page.html"):
        assert not HIDDEN.search((tmp_path / name).read_text()), name


@pytest.mark.slow
def test_a_plan_a_launch_and_its_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"name": "ERM", "label": NASTY}]
    data = [{"name": "LinearSEM", "num_examples": 40, "label": NASTY}]
    sweep = tiny_file(tmp_path, algorithms=rows, datasets=data, trials=1, steps=2, evaluate_every=1)
    for command in (("plan",), ("launch", "--launcher", "debug", "--yes", "--out", "out")):
        text = output("sweep", command[0], sweep, *command[1:])
        assert SHOWN in text and not HIDDEN.search(text)
    for wrong in ({"algorithms": [NASTY]}, {"datasets": [NASTY]}, {NASTY: 1}, {"network": NASTY}):
        text = output("sweep", "plan", tiny_file(tmp_path, **wrong))
        assert "error: " in text and not HIDDEN.search(text)
