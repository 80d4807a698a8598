import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from oodbench.report.cli import app
from oodbench.report.formats import FORMATS
from tests.report.test_comparison import NASTY, Sweep, spec


def command(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


VERBS = (("table",), ("compare",), ("table", "--rules", "domainbed"))


@pytest.mark.parametrize("verb", VERBS)
def test_an_empty_directory_is_one_sentence(tmp_path: Path, verb: tuple[str, ...]) -> None:
    code, text, error = command(verb[0], tmp_path, *verb[1:])
    assert (code, text) == (2, "") and error.count("\n") == 1 and "holds no sweep" in error


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("state", ["done", "diverged", "failed"])
def test_one_run_of_any_end(tmp_path: Path, format_: str, state: str) -> None:
    made = Sweep(tmp_path)
    made.add(spec("D", "ERM", "t", 0, 0), 0.5, state=state)
    for verb in VERBS[:2]:
        code, text, error = command(verb[0], tmp_path, "--format", format_)
        assert (code, error) == (0, "") and "±" not in text and "Traceback" not in text


def test_runs_without_their_records_are_broken(tmp_path: Path) -> None:
    made = Sweep(tmp_path)
    for label in ("ERM", "IRM"):
        for trial in range(2):
            run = spec("D", label, "t", 0, trial)
            made.add(run, float("nan"), score=float("nan"), state="diverged")
            (made.results.run(run.id).path / "metrics.jsonl").unlink()
    for verb in VERBS[:2]:
        code, text, _ = command(verb[0], tmp_path)
        assert code == 0 and "4 broken" in text
    code, _, error = command("table", tmp_path, "--rules", "domainbed")
    assert code == 2 and error.startswith("error: DomainBed's rules need accuracies")


@pytest.mark.parametrize("format_", ["markdown", "latex", "terminal"])
def test_special_characters_stay_what_they_are(tmp_path: Path, format_: str) -> None:
    made = Sweep(tmp_path)
    for label in ("ERM", NASTY):
        for trial in range(2):
            made.add(spec("<script>", label, "a_b%", 0, trial), 0.5 + trial / 10)
    code, text, _ = command("compare", tmp_path, "--format", format_)
    assert code == 0
    if format_ == "latex":
        assert r"\textless{}script\textgreater{}" in text and r"a\_b\%" in text
    if format_ == "markdown":
        assert r"\<script>" in text and not re.search(r"(?<!\\)<script>", text)
