import re
from pathlib import Path

import pytest

from oodbench.report.formats import FORMATS
from tests.report.test_comparison import NASTY, Sweep, command, spec


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize(
    "state", [*(pytest.param(s, marks=pytest.mark.slow) for s in ("done", "diverged")), "failed"]
)
def test_one_run_of_any_end(tmp_path: Path, format_: str, state: str) -> None:
    made = Sweep(tmp_path)
    made.add(spec("D", "ERM", "t", 0, 0), 0.5, state=state)
    for verb in ("table", "compare"):
        code, text, error = command(verb, tmp_path, "--format", format_)
        assert (code, error) == (0, "") and "±" not in text and "Traceback" not in text


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
