"""What commands print: whatever is named as text, one line an error; with a closed stdin, without UTF-8."""

import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from oodbench.errors import UserError
from oodbench.report.tables import FORMATS
from oodbench.results.directory import Directory
from oodbench.terminal import exit_on_user_error, printable
from tests.helpers.commands import python, run, type_in
from tests.helpers.paths import ROOT
from tests.helpers.results.made import Made, rising
from tests.helpers.results.sweeps import tiny_file

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
    result = type_in(*arguments)
    assert not isinstance(result.exception, Exception), repr(result.exception)
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
    ],
)
@pytest.mark.usefixtures("here")
def test_every_command_prints_names_as_they_are(results: Path, command: tuple[str, ...]) -> None:
    text = output(*command[:2], results, *command[2:])
    assert "Traceback" not in text and not HIDDEN.search(text)
    if command[-1] == "json":
        assert any(row["label"] == NASTY for row in json.loads(text)), "JSON has escapes of its own"
    elif command[-1] not in ("latex", "markdown"):
        assert SHOWN in text


@pytest.mark.parametrize(
    "command",
    [
        ("data", "check", NASTY),
        ("data", "check", "Spirals", "--data-dir", "data", "--set", f"{NASTY}=1"),
        ("verify", NASTY),
        ("sweep", "status", NASTY),
    ],
)
@pytest.mark.usefixtures("here")
def test_a_wrong_name_is_text_in_its_error(command: tuple[str, ...]) -> None:
    text = output(*command)
    assert "error: " in text.lower() and not HIDDEN.search(text)
    assert r"\x1b]0;owned" in text


@pytest.mark.slow
def test_a_plan_a_launch_and_its_errors(here: Path) -> None:
    rows = [{"name": "ERM", "label": NASTY}]
    data = [{"name": "LinearSEM", "num_examples": 40, "label": NASTY}]
    sweep = tiny_file(here, algorithms=rows, datasets=data, trials=1, steps=2, evaluate_every=1)
    launch = ("launch", sweep, "--launcher", "debug", "--yes", "--out", "out")
    texts = [output("sweep", *command) for command in (("plan", sweep), launch)]
    assert all(SHOWN in text for text in texts)
    texts.append(output("sweep", *launch, "--failed"))
    assert "1 done of 1 run" in texts[-1]
    (here / "out" / "runs" / NASTY.replace("/", "")).mkdir()
    texts.append(output("sweep", "clean", "out", "--yes"))
    assert "1 run outside the sweep" in texts[-1]
    for wrong in ({"algorithms": [NASTY]}, {"datasets": [NASTY]}, {NASTY: 1}, {"network": NASTY}):
        texts.append(output("sweep", "plan", tiny_file(here, **wrong)))
        assert "error: " in texts[-1]
    assert not HIDDEN.search("".join(texts))


def test_a_mistake_ends_a_command_with_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    @exit_on_user_error
    def command(error: Exception | None) -> str:
        if error:
            raise error
        return "fine"

    assert command(None) == "fine"
    for mistake, line in (
        (UserError("the sentence"), "the sentence"),
        (FileNotFoundError(2, "No such file", "missing"), "missing: No such file"),
    ):
        with pytest.raises(SystemExit) as left:
            command(mistake)
        assert left.value.code == 2
        assert capsys.readouterr() == ("", f"error: {line}\n")
    for bug in (KeyError("a bug"), OSError("no path")):
        with pytest.raises(type(bug)):
            command(bug)


def test_a_warning_to_the_user_is_one_line_without_its_place_in_the_code() -> None:
    def formatted() -> str:
        return warnings.formatwarning("the images are small", UserWarning, "code.py", 3)

    assert exit_on_user_error(formatted)() == "warning: the images are small\n"
    assert formatted().startswith("code.py:3: UserWarning: the images are small")


def without_stdin(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = ["sh", "-c", 'exec "$@" <&-', "sh", sys.executable, "-m", "oodbench", *arguments]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)


@pytest.mark.nightly
def test_a_launch_asks_nothing_of_a_closed_stdin(tmp_path: Path) -> None:
    tiny_file(tmp_path, algorithms=["ERM"], trials=1, steps=4, evaluate_every=2)
    done = without_stdin(tmp_path, "sweep", "launch", "tiny.yaml", "--workers", "1")
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 done of 1 run" in done.stdout


@pytest.mark.slow
def test_clean_deletes_nothing_where_it_cannot_ask(tmp_path: Path) -> None:
    made = Made(tmp_path / "out")
    made.add("D", "ERM", ("a",), 0, rising(0.5))
    stranger = made.results.path / "runs" / "stranger"
    stranger.mkdir()
    (checkpoint,) = (Directory(made.results.path).run(i).checkpoint for i in made.runs)
    checkpoint.write_bytes(b"0")
    done = without_stdin(tmp_path, "sweep", "clean", "out")
    assert done.returncode == 2 and stranger.is_dir() and checkpoint.exists()
    assert done.stderr.endswith("cannot be answered as stdin is closed; add --yes\n")
    assert run("clean", tmp_path / "out", "--yes").exit_code == 0
    assert not stranger.exists() and not checkpoint.exists()


@pytest.mark.slow
def test_output_without_utf_8_is_whole(tmp_path: Path) -> None:
    made = Made(tmp_path / "out")
    for label in ("ERM", "Bühne 日本"):
        for trial in range(3):
            made.add("D", label, ("a",), trial, rising(0.5 + trial / 8))
    made.write_plan()
    command = ("-m", "oodbench", "report", "table", "out")
    done = python(tmp_path, *command, LANG="C", LC_ALL="C", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.isascii()
    assert "ERM" in done.stdout and r"B\xfchne \u65e5\u672c" in done.stdout
    assert "+- " in done.stdout


@pytest.mark.nightly
def test_a_pipe_that_takes_colours_gets_no_progress_bar(tmp_path: Path) -> None:
    """Notebooks set FORCE_COLOR."""
    tiny_file(tmp_path, trials=2, steps=4, evaluate_every=2)
    launch = ("-m", "oodbench.sweep", "launch", "tiny.yaml", "--yes", "--launcher", "debug")
    done = python(tmp_path, *launch, FORCE_COLOR="1")
    assert done.returncode == 0, done.stderr
    assert "[1/" in done.stdout and "\x1b[1m" in done.stdout and "\x1b[2K" not in done.stdout
