"""Commands where stdin is closed, and where the output's encoding lacks our signs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from oodbench.results.directory import Results
from tests.helpers.made import Made, rising
from tests.helpers.paths import ROOT
from tests.helpers.sweeps import tiny_file

pytestmark = pytest.mark.slow

CLOSED = 'exec "$@" <&-'


def oodbench(
    folder: Path, *arguments: str, closed: bool = False, **environment: str
) -> "subprocess.CompletedProcess[bytes]":
    """A command in a process of its own."""
    command = [sys.executable, "-m", "oodbench", *arguments]
    if closed:
        command = ["sh", "-c", CLOSED, "sh", *command]
    env = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, check=False)


def test_a_launch_asks_nothing_of_a_closed_stdin(tmp_path: Path) -> None:
    tiny_file(tmp_path, algorithms=["ERM"], trials=1, steps=4, evaluate_every=2)
    launch = ("sweep", "launch", "tiny.yaml", "--workers", "1")
    done = oodbench(tmp_path, *launch, closed=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"1 done of 1 runs" in done.stdout


def test_clean_deletes_nothing_where_it_cannot_ask(tmp_path: Path) -> None:
    made = Made(tmp_path / "out")
    made.add("D", "ERM", ("a",), 0, rising(0.5))
    stranger = made.results.path / "runs" / "stranger"
    stranger.mkdir()
    (checkpoint,) = (Results(made.results.path).run(i).checkpoint for i in made.runs)
    checkpoint.write_bytes(b"0")
    done = oodbench(tmp_path, "sweep", "clean", "out", closed=True)
    assert done.returncode == 2 and stranger.is_dir() and checkpoint.exists()
    words = b"error: 'Delete them?' cannot be answered as stdin is closed; add --yes\n"
    assert done.stderr == words
    done = oodbench(tmp_path, "sweep", "clean", "out", "--yes", closed=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert not stranger.exists() and not checkpoint.exists()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ascii")
    made = Made(folder / "out")
    for label in ("ERM", "Bühne 日本"):
        for trial in range(2):
            made.add("D", label, ("a",), trial, rising(0.5 + trial / 8))
    return folder


@pytest.mark.parametrize(
    "arguments",
    [
        ("report", "table", "out"),
        ("report", "table", "out", "--format", "markdown"),
        ("report", "compare", "out"),
        ("report", "why", "out", "--algorithm", "ERM"),
        ("sweep", "status", "out"),
    ],
)
def test_output_without_utf_8_is_whole(results: Path, arguments: tuple[str, ...]) -> None:
    done = oodbench(results, *arguments, LANG="C", LC_ALL="C", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, b"")
    text = done.stdout.decode("ascii")
    assert "ERM" in text
    if arguments[1] in ("table", "compare", "status"):
        assert r"B\xfchne \u65e5\u672c" in text
    if arguments[:3] == ("report", "table", "out") and len(arguments) == 3:
        assert "+- " in text


def test_an_error_without_utf_8_is_one_sentence(results: Path) -> None:
    why = ("report", "why", "out", "--algorithm", "Bühn")
    done = oodbench(results, *why, LANG="C", LC_ALL="C", PYTHONIOENCODING="ascii")
    assert done.returncode == 2 and done.stdout == b""
    text = done.stderr.decode("ascii")
    assert text.startswith("error: ") and text.count("\n") == 1
    assert r"did you mean B\xfchne \u65e5\u672c?" in text
