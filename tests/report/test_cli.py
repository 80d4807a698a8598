"""The leaderboard's numbers, in every format that `report table` prints."""

import csv
import io
import json
import math
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from oodbench.report.tables import FORMATS, print_sheet
from oodbench.report.tables.leaderboard import leaderboard
from oodbench.report.tables.sheet import sheet
from oodbench.results.read import joined
from tests.helpers.paths import GOLDEN
from tests.helpers.results.made import OneStep, any_version, report, spec
from tests.report.test_leaderboard import with_references

NASTY = r"a_b%<x>|&[*]\$"


def text(sweep: OneStep, format_: str, rule: str = "train_val") -> str:
    return FORMATS[format_](sheet(sweep.leaderboard(rule)))


@pytest.fixture
def empty(tmp_path: Path) -> OneStep:
    return OneStep(tmp_path)


def of_two_datasets(path: Path) -> OneStep:
    """Two datasets, three trials; `IRM` lacks a trial on the second one."""
    made = OneStep(path)
    accuracies = {
        "ERM": [(0.1, 0.5), (0.2, 0.6), (0.3, 0.7)],
        NASTY: [(0.8, 0.6), (0.7, 0.6), (0.6, 0.6)],
        "IRM": [(0.42, 0.9), (0.42, 0.9), (0.42, 0.9)],
    }
    for label, trials in accuracies.items():
        for trial, values in enumerate(trials):
            state = "diverged" if label == "ERM" and trial == 2 else "done"
            for test, value in zip(("0.1", "0.9"), values, strict=True):
                made.add(spec("Digits", label, test, trial=trial), value, state=state)
    for label, error in {"ERM": 12.3456, NASTY: 0.00012345, "IRM": 1.0}.items():
        for trial in range(3):
            state = "failed" if label == "IRM" and trial == 1 else "done"
            predictor = {"causal_error": error * (1 + trial)}
            run = spec("SEM", label, "test", trial=trial)
            made.add(run, error, metric="mse", predictor=predictor, state=state)
    return made


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> OneStep:
    """Nothing may be added to it."""
    return of_two_datasets(tmp_path_factory.mktemp("sweep"))


def test_a_test_set_of_several_environments_has_a_column_for_each(empty: OneStep) -> None:
    empty.add(spec("D", "ERM", "a+b"), 0.25, 0.75)
    (block,) = empty.blocks()
    assert block.header == ["algorithm", "a", "b", "mean", "n"]
    assert block.rows == [["ERM", "25.0", "75.0", "50.0", "1"]]
    empty.add(spec("D", "ERM", "b+c"), 0.5, 0.5)
    (block,) = empty.blocks()
    assert block.header == ["algorithm", "a", "b (of a+b)", "b (of b+c)", "c", "mean", "n"]
    assert block.rows == [["ERM", "25.0", "75.0", "50.0", "50.0", "50.0", "1"]]


def test_a_row_without_a_test_set_that_others_have_is_not_ranked(empty: OneStep) -> None:
    for label, test in (("ERM", "a"), ("ERM", "b"), ("IRM", "a")):
        empty.add(spec("D", label, test), 0.5)
    (block,) = empty.blocks()
    assert block.rows == [["ERM", "50.0", "50.0", "50.0", "1"], ["IRM", "50.0", "-", "-", "0/1"]]
    assert block.ranked == 1 and block.best == set()


def test_a_nan_is_neither_dropped_nor_best(empty: OneStep) -> None:
    for label, value in (("A", math.nan), ("B", 3.0), ("C", 4.0)):
        for trial, test in enumerate((1.0, value)):
            empty.add(spec("D", label, trial=trial), test, metric="mse", state="diverged")
    (block,) = empty.blocks()
    texts = [row[:2] for row in block.rows]
    assert texts == [["B", "2.000"], ["C", "2.500"], ["A", "nan"]]
    assert block.ranked == 3 and block.best == {(0, 1)}


def test_a_nan_spoils_every_mean_over_it(empty: OneStep) -> None:
    for dataset in "DE":
        empty.add(spec(dataset, "A", "t+u"), math.nan, 1.0, metric="mse")
        empty.add(spec(dataset, "B", "t+u"), 2.0, 2.0, metric="mse")
    block, _, over = empty.blocks()
    texts = [row[:4] for row in block.rows]
    assert texts == [["B", "2.000", "2.000", "2.000"], ["A", "nan", "1.000", "nan"]]
    assert over.rows == [["B", "2.000", "2.000", "1.00"], ["A", "nan", "nan", "2.00"]]


def test_the_summary_has_mean_accuracies_and_mean_ranks(tmp_path: Path) -> None:
    sweep = of_two_datasets(tmp_path)
    for label, value in {"ERM": 0.75, NASTY: 0.75, "IRM": 0.1}.items():
        sweep.add(spec("More", label), value)
    over = sweep.blocks()[-1]
    assert over.header == ["algorithm", "Digits", "SEM", "More", "mean (%)", "mean rank"]
    by_label = {row[0]: row[-2:] for row in over.rows}
    # ERM: (.4 + .75) / 2, ranks 2, 2, 1.5 among the two rows that are complete everywhere
    assert by_label == {"ERM": ["57.5", "1.83"], NASTY: ["70.0", "1.17"], "IRM": ["38.0", "-"]}
    assert [row[0] for row in over.rows] == [NASTY, "ERM", "IRM"]
    assert over.best == {(0, 1), (0, 2), (0, 3), (1, 3), (0, 4), (0, 5)}


@pytest.mark.parametrize(("format_", "file"), [("markdown", "table.md"), ("latex", "table.tex")])
def test_a_format_is_golden(sweep: OneStep, format_: str, file: str) -> None:
    assert any_version(text(sweep, format_)) == (GOLDEN / file).read_text()


def test_csv_and_json_are_tidy_and_exact(sweep: OneStep) -> None:
    wanted = sweep.leaderboard().frame
    table = list(csv.DictReader(io.StringIO(text(sweep, "csv"))))
    objects = json.loads(text(sweep, "json"))
    assert len(table) == len(objects) == len(wanted) == 3 * 3 + 3 * 3
    for read, given, mean in zip(table, objects, wanted["mean"], strict=True):
        assert float(read["mean"]) == given["mean"] == mean
        assert read["label"] == given["label"] and int(read["n"]) == given["n"]
    half = 4.302653 * objects[0]["stderr"]  # a 95 % interval of three trials
    assert objects[0]["low"] == pytest.approx(objects[0]["mean"] - half)
    assert objects[0]["high"] == pytest.approx(objects[0]["mean"] + half)
    assert set(objects[0]) == set(table[0]) == {
        "dataset", "label", "test_environments", "environment", "metric",
        "mean", "stderr", "low", "high", "n", "planned", "rule", "kind", "errors",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["table", "--format", "latx"], "unknown format 'latx'; did you mean latex?"),
        (["table", "--rule", "orcale"], "unknown selection rule 'orcale'; did you mean oracle?"),
        (["table", "--metric", "acuracy"], "unknown metric 'acuracy' in Digits; did you mean accu"),
        (["table", "--rule", "val_env"], "selection val_env needs `validation_environments:`"),
        (["table", "--rule", "leave_one_out"], "selection leave_one_out needs each test env"),
        (["table", "--dataset", "Semm"], "unknown dataset 'Semm'; did you mean SEM?"),
        (["compare", "--baseline", "ERN"], "unknown baseline 'ERN'; did you mean ERM?"),
    ],
)
def test_a_mistake_is_one_sentence(sweep: OneStep, arguments: list[str], message: str) -> None:
    code, shown, error = report(*arguments, sweep.results.path)
    assert (code, shown) == (2, "")
    assert error.startswith(f"error: {message}") and error.count("\n") == 1


@pytest.mark.slow
def test_a_sweep_with_nothing_complete_shows_its_counts(
    empty: OneStep, capsys: pytest.CaptureFixture[str]
) -> None:
    for trial, state in enumerate(["planned", "planned", "failed"]):
        empty.add(spec("D", "ERM", trial=trial), 0.5, state=state)
    empty.add(spec("E", "ERM"), 0.5, state="planned")
    for format_ in FORMATS:
        print_sheet(sheet(leaderboard(joined([empty.results.path]))), format_)
    assert "0/3" in capsys.readouterr().out
    first, second, over = empty.blocks()
    assert first.rows == [["ERM", "-", "0/3"]] and first.ranked == 0
    assert second.title == "E: nothing recorded yet" and second.rows[0][-1] == "0/1"
    assert over.rows == [["ERM", "-", "-", "-", "-"]]


@pytest.mark.parametrize(
    "arguments", [["table"], ["table", "--rule", "domainbed"], ["compare"], ["html"], ["why"]]
)
def test_a_directory_without_a_sweep_is_one_sentence(tmp_path: Path, arguments: list[str]) -> None:
    error = f"error: {tmp_path} holds no sweep (no readable sweep.json)\n"
    assert report(*arguments, tmp_path) == (2, "", error)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
@pytest.mark.parametrize(
    ("verb", "grey"), [("table", False), ("table", True), ("compare", False), ("hparams", False)]
)
def test_latex_compiles(tmp_path: Path, verb: str, grey: bool) -> None:
    sweep = of_two_datasets(tmp_path / "sweep")
    for label, value in {"ERM": 0.5, NASTY: 0.6, "IRM": 0.599}.items():
        sweep.add(spec(r"#^~\{}$<script>", label), value)
    path = sweep.results.path
    if grey:
        values = {"clean_100%": 0.9, "ERM": 0.7, NASTY: 0.65}
        path = with_references(tmp_path / "grey", values, {"clean_100%"}).results.path
    _, shown, _ = report(verb, path, "--format", "latex")
    labels = re.findall(r"\\label\{(.*)\}", shown)
    assert len(set(labels)) == len(labels) == shown.count(r"\begin{table}")
    assert len(labels) == 1
    grey = r"\textcolor{gray}{" in shown
    first, _, _ = shown.partition("\n")
    packages = first.removeprefix("% needs ")
    assert ("xcolor" in packages) == grey
    before = rf"\documentclass{{article}}{packages}\begin{{document}}"
    (tmp_path / "t.tex").write_text(f"{before}\n{shown}\\end{{document}}\n")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
    made = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert made.returncode == 0, made.stdout[-2000:]
