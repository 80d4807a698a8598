import csv
import io
import math
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from oodbench.errors import UserError
from oodbench.report.cli import app
from oodbench.report.comparison import OVERALL, comparison
from oodbench.report.formats import FORMATS, Block
from oodbench.report.leaderboard import leaderboard, scores
from oodbench.report.sheet import sheet
from oodbench.results.directory import Results
from oodbench.results.frames import load_frames
from oodbench.results.join import joined
from oodbench.results.run_spec import RunSpec
from tests.helpers.made import write_run

NASTY = r"a_b%<script>&#^~\{}$|*[x]"
CODE = {"oodbench": "0.1.0", "commit": "0123456789abcdef"}


def spec(dataset: str, label: str, test: str, draw: int, trial: int, steps: int = 10) -> RunSpec:
    return RunSpec(
        dataset=dataset,
        algorithm=label,
        hparams={"draw": draw},
        label=label,
        network="mlp",
        network_hparams={},
        test_environments=(test,),
        draw=draw,
        trial=trial,
        steps=steps,
        evaluate_every=steps,
    )


class Sweep:
    """A results directory in the making."""

    def __init__(self, path: Path, code: dict[str, str] | None = None) -> None:
        self.results = Results(path)
        self.code = code or CODE
        self.runs: dict[str, RunSpec] = {}

    def add(
        self,
        run: RunSpec,
        value: float,
        score: float = 0.5,
        state: str = "done",
        metric: str = "accuracy",
        shift: str = "colour",
    ) -> None:
        self.runs[run.id] = run
        keys = ("environment", "split", "metric", "value", "count")
        rows = [
            ("train", "out", metric, score, 8),
            (run.test_environments[0], "in", metric, value, 8),
        ]
        evaluations = [dict(zip(keys, row, strict=True)) for row in rows]
        write_run(
            self.results,
            run,
            ["train"],
            [{"step": run.steps, "evaluations": evaluations}],
            metric=metric,
            context={"shift": shift},
            provenance=self.code,
            state=state,
        )
        self.results.write_plan("test", {}, self.runs)


def usual(
    path: Path, labels: dict[str, float], datasets: tuple[str, ...] = ("D", "E"), trials: int = 3
) -> Sweep:
    """Every label has its value, and noise that all labels share."""
    made = Sweep(path)
    for d, dataset in enumerate(datasets):
        for label, value in labels.items():
            for e, test in enumerate(("t", "u")):
                for trial in range(trials):
                    shared = 0.01 * (trial + 2 * e + 3 * d)
                    own = 0.001 * trial * (label != "ERM")
                    made.add(spec(dataset, label, test, 0, trial), value + shared + own)
    return made


def by_title(blocks: list[Block]) -> dict[str, Block]:
    return {block.title: block for block in blocks}


def command(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def test_gains_are_paired_within_datasets_and_over_them(tmp_path: Path) -> None:
    made = usual(tmp_path, {"ERM": 0.5, "IRM": 0.6, "DANN": 0.45})
    found = comparison(joined([made.results.path]), "ERM")
    rows = found.frame.to_dict(orient="records")
    gains: dict[Any, Any] = {(row["dataset"], row["label"]): row for row in rows}
    gain = gains["D", "IRM"]
    assert gain["gain"] == pytest.approx(0.101) and gain["clusters"] == 3
    assert gain["gain_stderr"] == pytest.approx(0.001 / math.sqrt(3))
    assert gain["gain_low"] == pytest.approx(0.101 - 4.3027 * 0.001 / math.sqrt(3), abs=1e-6)
    assert (gain["wins"], gain["ties"], gain["losses"]) == (6, 0, 0)
    over = gains[OVERALL, "IRM"]
    assert over["clusters"] == 2 and over["gain"] == pytest.approx(0.101)
    block = by_title(found.blocks)["D: gain over ERM (points)"]
    assert block.rows[0] == ["IRM", "+10.1", "[+9.9, +10.3]", "1.00", "6/0/0", "0.3", "6"]
    assert block.rows[1][:2] == ["DANN", "-4.9"] and block.rows[1][4] == "0/0/6"
    (ranks,) = [b for b in found.blocks if b.title.startswith("Mean ranks over 2 datasets")]
    assert [row[:2] for row in ranks.rows] == [["IRM", "1.00"], ["ERM", "2.00"], ["DANN", "3.00"]]
    assert "Friedman chi2 = 4.00" in ranks.title and "Nemenyi" in ranks.title
    (moves,) = [b for b in found.blocks if b.title == "How the ranking moves"]
    assert moves.rows[:2] == [["without D", "1.00"], ["without E", "1.00"]]


def test_one_trial_has_a_gain_and_no_interval(tmp_path: Path) -> None:
    made = usual(tmp_path, {"ERM": 0.5, "IRM": 0.6}, ("D",), trials=1)
    found = comparison(joined([made.results.path]), "ERM")
    block = by_title(found.blocks)["D: gain over ERM (points)"]
    assert block.rows == [["IRM", "+10.0", "-", "-", "2/0/0", "-", "2"]]
    for format_ in ("terminal", "markdown", "latex"):
        assert "nan" not in FORMATS[format_](found)


def test_equal_cells_are_called_equal(tmp_path: Path) -> None:
    made = Sweep(tmp_path)
    for label in ("ERM", "IRM"):
        for trial in range(3):
            made.add(spec("D", label, "t", 0, trial), 0.5 + trial / 10)
    found = comparison(joined([tmp_path]), "ERM")
    block = by_title(found.blocks)["D: gain over ERM (points)"]
    assert block.rows == [["IRM", "0.0", "equal", "-", "0/3/0", "-", "3"]]


def test_an_incomplete_row_is_shown_and_not_ranked(tmp_path: Path) -> None:
    made = usual(tmp_path, {"ERM": 0.5, "IRM": 0.6, "DANN": 0.4}, ("D",))
    made.add(spec("D", "IRM", "t", 1, 0), 0.9, state="failed")
    found = comparison(joined([made.results.path]), "ERM")
    block = by_title(found.blocks)["D: gain over ERM (points)"]
    assert [row[0] for row in block.rows] == ["DANN", "IRM"] and block.ranked == 1
    assert block.rows[1][-1] == "5/6"
    (ranks,) = [b for b in found.blocks if b.title.startswith("Mean ranks")]
    assert [row[0] for row in ranks.rows] == ["ERM", "DANN"]


def test_a_diverged_run_counts(tmp_path: Path) -> None:
    made = usual(tmp_path, {"ERM": 0.5}, ("D",))
    for test in ("t", "u"):
        for trial in range(3):
            made.add(spec("D", "IRM", test, 0, trial), math.nan, state="diverged")
    found = comparison(joined([made.results.path]), "ERM")
    gain = found.frame.iloc[0]
    assert gain["losses"] == 6 and math.isnan(gain["gain"])


def test_search_noise_is_shown_where_draws_differ(tmp_path: Path) -> None:
    made = Sweep(tmp_path)
    for draw, value in enumerate((0.5, 0.7)):
        for trial in range(3):
            made.add(spec("D", "ERM", "t", draw, trial), value + trial / 100, score=0.1 * draw)
    found = comparison(joined([tmp_path]), "ERM")
    (block,) = [b for b in found.blocks if b.title.startswith("Noise")]
    assert block.keys == 2
    # the better draw is drawn with 3/4: sqrt(3)/4 of .2
    assert block.rows[0][:3] == ["D", "ERM", "1.0"]
    assert float(block.rows[0][3]) == pytest.approx(100 * 0.2 * math.sqrt(3) / 4, rel=0.05)


def test_directories_become_one(tmp_path: Path) -> None:
    mine = usual(tmp_path / "mine", {"ERM": 0.5, "IRM": 0.6})
    theirs = usual(tmp_path / "theirs", {"ERM": 0.5, "DANN": 0.4})  # the same runs of ERM
    frames = joined([mine.results.path, theirs.results.path])
    assert sorted(frames.runs["label"].unique()) == ["DANN", "ERM", "IRM"]
    assert len(frames.runs) == 3 * 12 and frames.metrics["id"].nunique() == 36
    table = scores(frames)
    assert len(table) == 36 and table["environment"].unique().tolist() == ["t", "u"]


def test_other_runs_of_a_label_get_the_name_of_their_directory(tmp_path: Path) -> None:
    mine, theirs = Sweep(tmp_path / "mine"), Sweep(tmp_path / "theirs")
    mine.add(spec("D", "ERM", "t", 0, 0), 0.5)
    other = RunSpec(**{**spec("D", "ERM", "t", 0, 0).__dict__, "hparams": {"draw": 7}})
    theirs.add(other, 0.6)
    frames = joined([mine.results.path, theirs.results.path])
    assert frames.runs["label"].tolist() == ["ERM", "ERM (theirs)"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("steps", r"mine and .*theirs differ in steps of D \(10 against 20\)"),
        ("draws", "differ in draws of D"),
        ("code", r"differ in code \(.*0123456789ab.* against .*feedfeedfeed"),
    ],
)
def test_what_was_not_made_alike_is_refused(tmp_path: Path, change: str, message: str) -> None:
    mine = Sweep(tmp_path / "mine")
    mine.add(spec("D", "ERM", "t", 0, 0), 0.5)
    code = {**CODE, "commit": "feedfeedfeedfeed"} if change == "code" else CODE
    theirs = Sweep(tmp_path / "theirs", code)
    theirs.add(spec("D", "IRM", "t", 0, 0, steps=20 if change == "steps" else 10), 0.6)
    if change == "draws":
        theirs.add(spec("D", "IRM", "t", 1, 0), 0.6)
    directories = [mine.results.path, theirs.results.path]
    with pytest.raises(UserError, match=message):
        joined(directories)
    mixed = comparison(joined(directories, allow_mixed=True), "ERM")
    assert mixed.frame["label"].tolist() == ["IRM"]


def test_the_command(tmp_path: Path) -> None:
    made = usual(tmp_path, {"ERM": 0.5, "IRM": 0.6})
    run = CliRunner().invoke
    shown = run(app, ["compare", str(made.results.path), "--format", "csv"])
    rows = list(csv.DictReader(io.StringIO(shown.stdout)))
    assert [row["dataset"] for row in rows] == ["D", "E", OVERALL]
    wrong = run(app, ["compare", str(made.results.path), "--baseline", "ERN"])
    assert (wrong.exit_code, wrong.stdout) == (2, "")
    assert wrong.stderr == "error: unknown baseline 'ERN'; did you mean ERM?\n"
    empty = run(app, ["compare", str(tmp_path / "none")])
    assert empty.exit_code == 2 and "holds no sweep" in empty.stderr


def test_what_is_near_the_best_is_marked(tmp_path: Path) -> None:
    made = Sweep(tmp_path)
    for label, middle, spread in (("A", 0.60, 0.04), ("B", 0.59, 0.001), ("C", 0.50, 0.2)):
        for trial in range(3):
            made.add(spec("D", label, "t", 0, trial), middle + spread * (trial - 1))
    found = sheet(leaderboard(load_frames(made.results)))
    (block,) = found.blocks
    assert [row[0] for row in block.rows] == ["A", "B", "C"]
    assert block.best == {(0, 1), (0, 2)} and block.near == {(1, 1), (1, 2)}
    marks = "Bold: the best value. Underlined: no further from it than its standard error."
    assert found.marks == (marks,) and marks not in found.notes
    assert r"\underline{59.0 $\pm$ 0.1}" in FORMATS["latex"](found)
    assert "<u>59.0 ± 0.1</u>" in FORMATS["markdown"](found)


def test_datasets_are_grouped_by_kind_of_shift(tmp_path: Path) -> None:
    made = Sweep(tmp_path)
    kinds = {"D": ("colour", "accuracy"), "E": ("colour", "accuracy"), "F": ("scale", "mse")}
    for dataset, (shift, metric) in kinds.items():
        for label, value in (("A", 0.5), ("B", 0.6 if dataset == "D" else 0.7)):
            made.add(spec(dataset, label, "t", 0, 0), value, metric=metric, shift=shift)
    block = sheet(leaderboard(load_frames(made.results))).blocks[-1]
    assert block.title == "By kind of shift: means over its datasets"
    assert block.header == ["algorithm", "colour (%)", "scale (rank)"]
    assert block.rows == [["B", "65.0", "2.00"], ["A", "50.0", "1.00"]]
    assert block.best == {(0, 1), (1, 2)}


def test_intervals_are_in_the_numbers(tmp_path: Path) -> None:
    made = usual(tmp_path, {"ERM": 0.5}, ("D",))
    text = FORMATS["csv"](sheet(leaderboard(load_frames(made.results))))
    row = next(csv.DictReader(io.StringIO(text)))
    half = 4.302653 * float(row["stderr"])
    assert float(row["low"]) == pytest.approx(float(row["mean"]) - half, rel=1e-5)
    assert float(row["high"]) == pytest.approx(float(row["mean"]) + half, rel=1e-5)


def test_the_latex_compiles_as_it_is(tmp_path: Path) -> None:
    latex = shutil.which("pdflatex")
    if latex is None:
        pytest.skip("pdflatex is not installed")
    made = usual(tmp_path / "r", {"ERM": 0.5, NASTY: 0.6, "B": 0.599}, ("D", NASTY, "<script>"))
    text = FORMATS["latex"](comparison(joined([made.results.path]), "ERM"))
    page = r"\documentclass{article}\usepackage{booktabs}\begin{document}" + text
    (tmp_path / "t.tex").write_text(page + r"\end{document}")
    command = [latex, "-halt-on-error", "-interaction=nonstopmode", "t.tex"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, re.findall(r"^!.*", result.stdout, re.M)
    assert (tmp_path / "t.pdf").stat().st_size > 10_000


def test_trials_that_one_directory_lacks_are_no_other_protocol(tmp_path: Path) -> None:
    mine, theirs = Sweep(tmp_path / "mine"), Sweep(tmp_path / "theirs")
    for trial in range(3):
        drawn = {"validation_environments": (f"v{trial}",)}
        run = spec("D", "ERM", "t", 0, trial)
        mine.add(RunSpec(**{**run.__dict__, **drawn}), 0.5)
        if trial < 2:
            run = spec("D", "IRM", "t", 0, trial)
            theirs.add(RunSpec(**{**run.__dict__, **drawn}), 0.6)
    found = comparison(joined([mine.results.path, theirs.results.path]), "ERM")
    assert found.frame["pairs"].tolist() == [2] and found.frame["planned"].tolist() == [3]


def test_runs_without_their_records_are_broken(tmp_path: Path) -> None:
    made = Sweep(tmp_path)
    for label in ("ERM", "IRM"):
        for trial in range(2):
            run = spec("D", label, "t", 0, trial)
            made.add(run, float("nan"), score=float("nan"), state="diverged")
            (made.results.run(run.id).path / "metrics.jsonl").unlink()
    for verb in ("table", "compare"):
        code, text, _ = command(verb, tmp_path)
        assert code == 0 and "4 broken" in text
    code, _, error = command("table", tmp_path, "--rule", "domainbed")
    assert code == 2 and error.startswith("error: DomainBed's rules need accuracies")
