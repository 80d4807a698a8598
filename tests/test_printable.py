"""Names and failures of others are text in whatever a command prints: no markup, no control character."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from oodbench.__main__ import main
from oodbench.report.formats import FORMATS
from oodbench.terminal import printable
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


def test_merged_results_and_figures_are_made_of_such_names(results: Path, tmp_path: Path) -> None:
    text = output("report", "merge", results, results, "--out", tmp_path / f"merged {NASTY[:9]}")
    assert "5 runs of 2 directories" in text and not HIDDEN.search(text)
    text = output("report", "merge", results, tmp_path / NASTY.replace("/", ""), "--out", "x")
    assert text.startswith("error: ") and not HIDDEN.search(text)
    for kind in ("curves", "scatter", "gains"):
        out = tmp_path / f"{kind}.svg"
        assert "Traceback" not in output("report", "figure", kind, results, "--out", out)
        assert out.stat().st_size > 1000
    wrong = output("report", "figure", NASTY, results, "--out", tmp_path / "x.svg")
    assert wrong.startswith("error: ") and SHOWN in wrong and not HIDDEN.search(wrong)


@pytest.mark.parametrize(
    "command",
    [
        ("data", "check", NASTY),
        ("data", "download", NASTY, "--data-dir", "data"),
        ("data", "verify", NASTY, "--data-dir", "data"),
        ("data", "verify", "Spirals", "--data-dir", "data", "--set", f"{NASTY}=1"),
        ("data", "list", "--plugin", NASTY),
        ("verify", NASTY),
        ("verify", "--only", NASTY),
        ("verify", "--format", NASTY, "--read"),
        ("sweep", "retry", NASTY),
        ("sweep", "clean", NASTY),
        ("sweep", "cancel", NASTY),
        ("list", NASTY),
    ],
)
def test_a_wrong_name_is_text_in_its_error(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = output(*command)
    assert "error: " in text.lower() and not HIDDEN.search(text)
    assert r"\x1b]0;owned" in text


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
    text = output("sweep", "retry", "out", "--launcher", "debug")
    assert "1 done of 1 runs" in text and not HIDDEN.search(text)
    (tmp_path / "out" / "runs" / NASTY.replace("/", "")).mkdir()
    text = output("sweep", "clean", "out", "--yes")
    assert "1 runs that are not in the sweep" in text and not HIDDEN.search(text)
    for wrong in ({"algorithms": [NASTY]}, {"datasets": [NASTY]}, {NASTY: 1}, {"network": NASTY}):
        text = output("sweep", "plan", tiny_file(tmp_path, **wrong))
        assert "error: " in text and not HIDDEN.search(text)
