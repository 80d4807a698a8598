import os
import subprocess
import sys
from pathlib import Path

import pytest

from oodbench.errors import UserError, unknown
from oodbench.terminal import exit_on_user_error
from tests.helpers.paths import ROOT


@pytest.mark.parametrize(
    ("name", "known", "sentence"),
    [
        ("IRN", ["ERM", "IRM", "DANN"], "unknown algorithm 'IRN'; did you mean IRM?"),
        ("irm", ["ERM", "IRM"], "unknown algorithm 'irm'; did you mean IRM or ERM?"),
        ("zzz", ["ERM", "IRM"], "unknown algorithm 'zzz'; known: ERM, IRM"),
        ("zzz", [], "unknown algorithm 'zzz'; there are none"),
    ],
)
def test_an_unknown_name_is_told_with_the_nearest(
    name: str, known: list[str], sentence: str
) -> None:
    assert str(unknown("algorithm", name, known)) == sentence


def test_a_number_where_a_text_is_wanted_is_told_so() -> None:
    message = str(unknown("environment", 0.9, ["0.1", "0.9"], "ColoredDigits"))
    assert message == "unknown environment 0.9 in ColoredDigits; did you mean the text '0.9'?"


def test_the_place_is_named_and_a_long_list_is_cut() -> None:
    message = str(unknown("name", "??", range(100, 130), "the sweep x.yaml"))
    assert message.startswith("unknown name '??' in the sweep x.yaml; known: 100, 101,")
    assert message.endswith("123, ...")
    assert len(str(unknown("name", "y" * 5000, range(10**4)))) < 240


def test_a_mistake_ends_a_command_with_one_line_and_code_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    @exit_on_user_error
    def command(what: str) -> str:
        if what == "mistake":
            raise UserError("the sentence")
        if what == "file":
            (tmp_path / "missing").read_text()
        if what == "bug":
            raise KeyError(what)
        return what

    assert command("fine") == "fine"
    for what, line in {
        "mistake": "error: the sentence\n",
        "file": f"error: {tmp_path / 'missing'}: No such file or directory\n",
    }.items():
        with pytest.raises(SystemExit) as left:
            command(what)
        assert left.value.code == 2
        assert capsys.readouterr() == ("", line)
    with pytest.raises(KeyError):
        command("bug")


@pytest.mark.parametrize("path", ["results", None])
def test_a_working_directory_that_is_gone_costs_one_line(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    path: str | None,
) -> None:
    @exit_on_user_error
    def command() -> None:
        print(Path(path).stat() if path else Path.cwd())

    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(SystemExit) as left:
        command()
    sentence = "error: the working directory has been removed; change to one that is there\n"
    assert (left.value.code, capsys.readouterr().err) == (2, sentence)


def test_a_mistake_is_wrapped_at_words_as_wide_as_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @exit_on_user_error
    def command() -> None:
        raise UserError("here has 2 problems:\n- steps must be a number\n- a/path/that/stays/whole")

    monkeypatch.setenv("COLUMNS", "20")
    with pytest.raises(SystemExit):
        command()
    assert capsys.readouterr().err.splitlines() == [
        "error: here has 2",
        "problems:",
        "- steps must be a",
        "  number",
        "- a/path/that/stays/whole",
    ]


def test_a_warning_to_the_user_is_one_line_without_its_place_in_the_code() -> None:
    code = (
        "import warnings; from oodbench.terminal import exit_on_user_error as r\n"
        "r(lambda: warnings.warn('the images are small'))()\n"
        "warnings.warn('afterwards')\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "default"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    first, second, *_ = done.stderr.splitlines()
    assert first == "warning: the images are small"
    assert "UserWarning: afterwards" in second


def test_an_operating_system_error_without_a_path_is_a_bug() -> None:
    @exit_on_user_error
    def command() -> None:
        raise OSError("no path")

    with pytest.raises(OSError, match="no path"):
        command()


def test_a_user_error_is_a_value_error() -> None:
    assert issubclass(UserError, ValueError)
