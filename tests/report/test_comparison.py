import math
import re
from pathlib import Path
from typing import Any

import pytest

from oodbench.errors import UserError
from oodbench.report.comparison import comparison
from oodbench.report.tables import FORMATS, Block, Sheet
from oodbench.report.tables.sheet import sheet
from oodbench.results.read import joined, read_results
from tests.helpers.results.made import CODE, Made, OneStep, flat, leaderboard, report, spec


@pytest.fixture
def sweep(tmp_path: Path) -> OneStep:
    return OneStep(tmp_path)


def filled(
    sweep: OneStep, labels: dict[str, float], datasets: str = "DE", trials: int = 3
) -> OneStep:
    """Every label has its value, and noise that all labels share."""
    for d, dataset in enumerate(datasets):
        for label, value in labels.items():
            for e, test in enumerate(("t", "u")):
                for trial in range(trials):
                    shared = 0.01 * (trial + 2 * e + 3 * d)
                    other = 0.001 * trial * (label != "ERM")
                    sweep.add(spec(dataset, label, test, trial=trial), value + shared + other)
    return sweep


def compared(*sweeps: OneStep) -> Sheet:
    return comparison(joined([sweep.results.path for sweep in sweeps]), "ERM")


def block(compared: Sheet, title: str = "D: gain over ERM (points)") -> Block:
    """The one block with a title that starts so."""
    (block,) = [block for block in compared.blocks if block.title.startswith(title)]
    return block


@pytest.mark.slow
def test_gains_are_paired_within_datasets_and_over_them(sweep: OneStep) -> None:
    shown = compared(filled(sweep, {"ERM": 0.5, "IRM": 0.6, "DANN": 0.45}))
    rows = shown.frame.to_dict(orient="records")
    gains: dict[Any, Any] = {(row["dataset"], row["label"]): row for row in rows}
    gain = gains["D", "IRM"]
    assert gain["gain"] == pytest.approx(0.101) and gain["clusters"] == 3
    assert gain["gain_stderr"] == pytest.approx(0.001 / math.sqrt(3))
    assert gain["gain_low"] == pytest.approx(0.101 - 4.3027 * 0.001 / math.sqrt(3), abs=1e-6)
    assert (gain["wins"], gain["ties"], gain["losses"]) == (6, 0, 0)
    over = gains["all datasets", "IRM"]
    assert over["clusters"] == 2 and over["gain"] == pytest.approx(0.101)
    first, second = block(shown).rows
    assert first == ["IRM", "+10.1", "[+9.9, +10.3]", "6/0/0", "0.3", "6"]
    assert second[:2] == ["DANN", "-4.9"] and second[3] == "0/0/6"
    ranks = block(shown, "Mean ranks over 2 datasets")
    assert [row[:2] for row in ranks.rows] == [["IRM", "1.00"], ["ERM", "2.00"], ["DANN", "3.00"]]


def test_one_trial_has_no_interval_and_equal_cells_are_called_equal(sweep: OneStep) -> None:
    for label in ("ERM", "IRM"):
        for trial in range(3):
            sweep.add(spec("E", label, trial=trial), 0.5 + trial / 10)
    shown = compared(filled(sweep, {"ERM": 0.5, "IRM": 0.6}, "D", trials=1))
    assert block(shown).rows == [["IRM", "+10.0", "-", "2/0/0", "-", "2"]]
    equal = block(shown, "E: gain over ERM")
    assert equal.rows == [["IRM", "0.0", "equal", "0/3/0", "-", "3"]]
    for format_ in ("terminal", "markdown", "latex"):
        assert "nan" not in FORMATS[format_](shown)


def test_an_incomplete_row_is_shown_and_not_ranked(sweep: OneStep) -> None:
    filled(sweep, {"ERM": 0.5, "IRM": 0.6, "DANN": 0.4}, "D")
    sweep.add(spec("D", "IRM", draw=1), 0.9, state="failed")
    shown = compared(sweep)
    gains = block(shown)
    assert [row[0] for row in gains.rows] == ["DANN", "IRM"] and gains.ranked == 1
    assert gains.rows[1][-1] == "5/6"
    assert [row[0] for row in block(shown, "Mean ranks").rows] == ["ERM", "DANN"]


@pytest.fixture
def mine(tmp_path: Path) -> OneStep:
    return OneStep(tmp_path / "mine")


@pytest.fixture
def theirs(tmp_path: Path) -> OneStep:
    return OneStep(tmp_path / "theirs")


def test_other_runs_of_a_label_have_their_directorys_name(mine: OneStep, theirs: OneStep) -> None:
    mine.add(spec("D", "ERM"), 0.5)
    theirs.add(spec("D", "ERM", hparams={"draw": 7}), 0.6)
    frames = joined([mine.results.path, theirs.results.path])
    assert frames.runs["label"].tolist() == ["ERM", "ERM (theirs)"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("steps", r"mine and .*theirs differ in steps of D \(10 against 20\)"),
        ("draws", "differ in draws of D"),
        ("noise", r"differ in noise of D \(.none. against .*label_noise"),
        ("options", r"differ in options of D \(\{\} against \{.size.: 9\}\)"),
        ("code", r"differ in code \(.*0123456789ab.* against .*feedfeedfeed"),
    ],
)
def test_what_was_not_made_alike_is_refused(
    mine: OneStep, theirs: OneStep, change: str, message: str
) -> None:
    mine.add(spec("D", "ERM"), 0.5)
    if change == "code":
        theirs.code = {**CODE, "commit": "feedfeedfeedfeed"}
    steps = 20 if change == "steps" else 10
    noise = {"kind": "label_noise", "amount": 0.1} if change == "noise" else None
    about: dict[str, Any] = {"options": {"size": 9}} if change == "options" else {}
    theirs.add(spec("D", "IRM", steps=steps, evaluate_every=steps, noise=noise, **about), 0.6)
    if change == "draws":
        theirs.add(spec("D", "IRM", draw=1), 0.6)
    directories = [mine.results.path, theirs.results.path]
    with pytest.raises(UserError, match=message):
        joined(directories)
    mixed = comparison(joined(directories, allow_mixed=True), "ERM")
    assert mixed.frame["label"].tolist() == ["IRM"]
    for verb in (["table"], ["why", "--algorithm", "IRM"], ["hparams"]) * (change == "steps"):
        code, _, error = report(*verb, *directories)
        assert code == 2 and re.search(message, error) and error.count("\n") == 1, verb
        assert report(*verb, *directories, "--allow-mixed")[0] == 0, verb


def test_a_ceiling_that_one_has_is_no_other_protocol(mine: OneStep, theirs: OneStep) -> None:
    mine.add(spec("D", "ERM"), 0.5)
    theirs.code = {"code": "DomainBed (it records no version)"}  # results of another program
    theirs.add(spec("D", "IRM"), 0.5)
    theirs.add(spec("D", "top", ceiling=True, options={"as_test": "t"}), 0.9)
    assert len(joined([mine.results.path, theirs.results.path]).runs) == 3


def made_by(commit: str, digest: str) -> dict[str, object]:
    method = {"files": {"/there/my.py": digest}, "bytes": {"/there/my.py": digest}}
    return {**CODE, "commit": commit, "digests": {"method": method}}


def test_the_digests_of_what_both_have_decide(mine: OneStep, theirs: OneStep) -> None:
    """The third method is in one directory alone: its code is compared with nobody's."""
    for sweep, labels, commit in ((mine, ("ERM",), "0" * 40), (theirs, ("ERM", "IRM"), "f" * 40)):
        for label in labels:
            sweep.code = made_by(commit, "a" if label == "ERM" else "b")
            sweep.add(spec("D", label), 0.5)
    directories = [mine.results.path, theirs.results.path]
    assert set(joined(directories).runs["label"]) == {"ERM", "IRM"}
    theirs.code = made_by("0" * 40, "c")
    theirs.add(spec("D", "ERM", trial=7), 0.5)
    theirs.write_plan()
    with pytest.raises(UserError, match=r"differ in the code of ERM .*my\.py"):
        joined(directories)


def test_trials_that_one_lacks_are_no_other_protocol(mine: OneStep, theirs: OneStep) -> None:
    for sweep, label, trials in ((mine, "ERM", 3), (theirs, "IRM", 2)):
        for trial in range(trials):
            drawn = spec("D", label, trial=trial, validation_environments=(f"v{trial}",))
            sweep.add(drawn, 0.5)
    frame = compared(mine, theirs).frame
    assert frame["pairs"].tolist() == [2] and frame["planned"].tolist() == [3]


def test_what_is_near_the_best_is_marked(sweep: OneStep) -> None:
    for label, middle, spread in (("A", 0.60, 0.04), ("B", 0.59, 0.001), ("C", 0.50, 0.2)):
        for trial in range(3):
            sweep.add(spec("D", label, trial=trial), middle + spread * (trial - 1))
    shown = sheet(sweep.leaderboard())
    (table,) = shown.blocks
    assert [row[0] for row in table.rows] == ["A", "B", "C"]
    assert table.best == {(0, 1)} and table.near == {(1, 1)}
    assert r"\underline{59.0 {\scriptsize $\pm$ 0.1}}" in FORMATS["latex"](shown)


def half(path: Path, trials: tuple[int, ...]) -> Made:
    made = Made(path)
    for label in ("ERM", "IRM"):
        for trial in trials:
            made.add("D", label, ("a",), trial, flat(0.25 + trial / 8))
    return made


def test_the_table_of_two_directories_is_that_of_all_runs(tmp_path: Path) -> None:
    halves = half(tmp_path / "1", (0, 1)), half(tmp_path / "2", (1, 2))
    whole = half(tmp_path / "whole", (0, 1, 2))
    wanted = leaderboard(read_results(whole.results)).frame
    assert leaderboard(joined([made.results.path for made in halves])).frame.equals(wanted)


def test_the_complete_copy_of_a_run_is_taken(tmp_path: Path) -> None:
    halves = half(tmp_path / "1", (0, 1)), half(tmp_path / "2", (0, 1))
    for wanted, made in enumerate(halves):
        for run_id, run in made.runs.items():
            if run.trial == wanted:
                (made.results.run(run_id).path / "done.json").unlink()
    assert set(joined([made.results.path for made in halves]).runs["state"]) == {"done"}


def test_a_test_environment_may_be_alone_and_in_a_set(sweep: OneStep) -> None:
    for label, value in (("ERM", 0.5), ("IRM", 0.6)):
        for trial in range(3):
            sweep.add(spec("D", label, "t", trial=trial), value)
            sweep.add(spec("D", label, "t+u", trial=trial), value + 0.1, value + 0.2)
    shown = compared(sweep)
    assert shown.blocks[0].header[1:5] == ["t", "t (of t+u)", "u", "mean"]
    assert block(shown).rows[0][:4] == ["IRM", "+10.0", "[+10.0, +10.0]", "9/0/0"]
