import csv
import io
import json
import math
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from oodbench.errors import UserError
from oodbench.report.cli import app
from oodbench.report.formats import FORMATS, LATEX, latex, markdown, to_terminal
from oodbench.report.leaderboard import leaderboard
from oodbench.report.numbers import number
from oodbench.report.sheet import blocks, print_leaderboard, sheet
from oodbench.report.statistics import mean_and_error
from oodbench.results.directory import Results
from oodbench.results.frames import load_frames
from oodbench.results.join import joined
from oodbench.results.run_spec import RunSpec, State
from oodbench.terminal import Terminal
from tests.helpers.made import write_run
from tests.helpers.paths import GOLDEN
from tests.report.test_leaderboard import with_references

NASTY = r"a_b%<x>|&[*]\$"


def spec(dataset: str, label: str, test: tuple[str, ...], draw: int, trial: int) -> RunSpec:
    return RunSpec(
        dataset=dataset,
        algorithm="ERM",
        hparams={},
        label=label,
        network="mlp",
        network_hparams={},
        test_environments=test,
        draw=draw,
        trial=trial,
        steps=10,
        evaluate_every=10,
    )


class Sweep:
    """A results directory in the making."""

    def __init__(self, path: Path) -> None:
        self.results = Results(path)
        self.runs: dict[str, RunSpec] = {}

    def add(
        self,
        run: RunSpec,
        tests: list[float],
        *,
        score: float = 0.5,
        step: int = 10,
        metric: str = "accuracy",
        own: dict[str, float] | None = None,
        state: str = "done",
    ) -> None:
        """Add a run whose test environments have these values, at one recorded step."""
        self.runs[run.id] = run
        self.results.write_plan("test", {}, self.runs)
        if state == "planned":
            return
        rows: list[tuple[str | None, str | None, str, float]] = [("train", "out", metric, score)]
        for name, value in zip(run.test_environments, tests, strict=True):
            rows += [(name, "in", metric, value), (name, "out", metric, 0.123)]
            rows += [(name, "in", "loss", 1 - value)]
        rows += [(None, None, name, value) for name, value in (own or {}).items()]
        keys = ("environment", "split", "metric", "value", "count")
        evaluations = [dict(zip(keys, (*row, 8), strict=True)) for row in rows]
        write_run(
            self.results,
            run,
            ["train"],
            [{"step": step, "evaluations": evaluations}],
            metric=metric,
            provenance={"oodbench": "0.1.0", "commit": "0123456789abcdef+"},
            state=state,
        )

    def text(self, format_: str, rule: str = "train_val") -> str:
        return FORMATS[format_](sheet(leaderboard(load_frames(self.results), rule)))


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    """Two datasets, three trials; `IRM` lacks a trial on the second one."""
    made = Sweep(tmp_path)
    accuracies = {
        "ERM": [(0.1, 0.5), (0.2, 0.6), (0.3, 0.7)],
        NASTY: [(0.8, 0.6), (0.7, 0.6), (0.6, 0.6)],
        "IRM": [(0.42, 0.9), (0.42, 0.9), (0.42, 0.9)],
    }
    for label, trials in accuracies.items():
        for trial, values in enumerate(trials):
            for test, value in zip(("0.1", "0.9"), values, strict=True):
                run = spec("Digits", label, (test,), 0, trial)
                made.add(
                    run, [value], state="diverged" if label == "ERM" and trial == 2 else "done"
                )
    for label in accuracies:
        for trial in range(3):
            state = "failed" if label == "IRM" and trial == 1 else "done"
            errors = {"ERM": 12.3456, NASTY: 0.00012345, "IRM": 1.0}
            own = {"causal_error": errors[label] * (1 + trial)}
            run = spec("SEM", label, ("test",), 0, trial)
            made.add(run, [errors[label]], metric="mse", own=own, state=state)
    return made


def rows(sweep: Sweep, rule: str = "train_val") -> dict[tuple[str, ...], dict[str, Any]]:
    frame = leaderboard(load_frames(sweep.results), rule).frame
    names = ["dataset", "label", "environment", "metric"]
    records = [{str(k): v for k, v in r.items()} for r in frame.to_dict(orient="records")]
    return {tuple(r[n] for n in names): r for r in records}


def test_values_are_means_with_the_standard_error_over_trials(sweep: Sweep) -> None:
    found = rows(sweep)
    cell = found["Digits", "ERM", "0.1", "accuracy"]
    assert cell["mean"] == pytest.approx(0.2)
    assert cell["stderr"] == pytest.approx(0.1 / math.sqrt(3))  # ddof=0 would give .0471
    assert (cell["n"], cell["planned"], cell["rule"]) == (3, 3, "train_val")
    mean = found["Digits", NASTY, "mean", "accuracy"]
    assert mean["mean"] == pytest.approx((0.7 + 0.65 + 0.6) / 3)
    assert mean["stderr"] == pytest.approx(0.05 / math.sqrt(3))  # over the trials' means
    own = found["SEM", "ERM", "", "causal_error"]
    assert own["mean"] == pytest.approx(2 * 12.3456)
    assert own["stderr"] == pytest.approx(12.3456 / math.sqrt(3))


def test_an_incomplete_trial_is_left_out_and_counted(sweep: Sweep) -> None:
    cell = rows(sweep)["SEM", "IRM", "", "causal_error"]
    assert (cell["n"], cell["planned"]) == (2, 3)
    assert cell["mean"] == pytest.approx((1 + 3) / 2)
    digits, sem, _, over = blocks(leaderboard(load_frames(sweep.results)))
    assert [row[0] for row in digits.rows] == ["IRM", NASTY, "ERM"] and digits.ranked == 3
    assert [row[0] for row in sem.rows] == [NASTY, "ERM", "IRM"] and sem.ranked == 2
    assert [row[-1] for row in sem.rows] == ["3", "3", "2/3"]
    assert over.ranked == 2 and over.rows[-1][-1] == "-"


def test_the_chosen_run_and_step_are_reported(tmp_path: Path) -> None:
    made = Sweep(tmp_path)
    for trial in (0, 1):
        made.add(spec("D", "ERM", ("t",), 0, trial), [0.9], score=0.4, own={"e": 1.0})
        made.add(spec("D", "ERM", ("t",), 1, trial), [0.2], score=0.5 + trial / 10, own={"e": 2.0})
        run = made.results.run(spec("D", "ERM", ("t",), 1, trial).id)
        worse = [{"environment": e, "split": s, "metric": "accuracy", "value": v, "count": 8}
                 for e, s, v in (("train", "out", 0.1), ("t", "in", 1.0))]  # fmt: skip
        run.append({"step": 20, "evaluations": worse})
        run.finish(State.DIVERGED, 20, 1.0)
    found = rows(made)
    assert found["D", "ERM", "t", "accuracy"]["mean"] == pytest.approx(0.2)
    assert found["D", "ERM", "", "e"]["mean"] == pytest.approx(2.0)


def test_one_trial_has_no_error(tmp_path: Path) -> None:
    made = Sweep(tmp_path)
    made.add(spec("D", "ERM", ("t",), 0, 0), [0.25])
    assert math.isnan(rows(made)["D", "ERM", "t", "accuracy"]["stderr"])
    for format_ in ("terminal", "markdown", "latex"):
        text = made.text(format_)
        assert "25.0" in text and "±" not in text and "pm" not in text
    assert json.loads(made.text("json"))[0]["stderr"] is None


def test_a_test_set_of_several_environments_has_a_column_for_each(tmp_path: Path) -> None:
    made = Sweep(tmp_path)
    made.add(spec("D", "ERM", ("a", "b"), 0, 0), [0.25, 0.75])
    (block,) = blocks(leaderboard(load_frames(made.results)))
    assert block.header == ["algorithm", "a", "b", "mean", "n"]
    assert block.rows == [["ERM", "25.0", "75.0", "50.0", "1"]]
    made.add(spec("D", "ERM", ("b", "c"), 0, 0), [0.5, 0.5])
    (block,) = blocks(leaderboard(load_frames(made.results)))
    assert block.header == ["algorithm", "a", "b (of a+b)", "b (of b+c)", "c", "mean", "n"]
    assert block.rows == [["ERM", "25.0", "75.0", "50.0", "50.0", "50.0", "1"]]


def test_a_row_without_a_test_set_that_others_have_is_not_ranked(tmp_path: Path) -> None:
    made = Sweep(tmp_path)
    for label, test in (("ERM", "a"), ("ERM", "b"), ("IRM", "a")):
        made.add(spec("D", label, (test,), 0, 0), [0.5])
    (block,) = blocks(leaderboard(load_frames(made.results)))
    assert block.rows == [["ERM", "50.0", "50.0", "50.0", "1"], ["IRM", "50.0", "-", "-", "0/1"]]
    assert block.ranked == 1 and block.best == set()


def test_a_nan_is_neither_dropped_nor_best(tmp_path: Path) -> None:
    made = Sweep(tmp_path)
    for label, value in (("A", math.nan), ("B", 3.0), ("C", 4.0)):
        for trial in (0, 1):
            tests = [value if trial else 1.0]
            made.add(spec("D", label, ("t",), 0, trial), tests, metric="mse", state="diverged")
    (block,) = blocks(leaderboard(load_frames(made.results)))
    assert [row[:2] for row in block.rows] == [
        ["B", "2.000 ± 1"],
        ["C", "2.500 ± 1.5"],
        ["A", "nan"],
    ]
    assert block.ranked == 3 and block.best == {(0, 1), (0, 2)}


def test_a_nan_spoils_every_mean_over_it(tmp_path: Path) -> None:
    made = Sweep(tmp_path)
    for dataset in ("D", "E"):
        made.add(spec(dataset, "A", ("t", "u"), 0, 0), [math.nan, 1.0], metric="mse")
        made.add(spec(dataset, "B", ("t", "u"), 0, 0), [2.0, 2.0], metric="mse")
    block, _, over = blocks(leaderboard(load_frames(made.results)))
    assert [row[:4] for row in block.rows] == [
        ["B", "2.000", "2.000", "2.000"],
        ["A", "nan", "1.000", "nan"],
    ]
    assert over.rows == [["B", "2.000", "2.000", "1.00"], ["A", "nan", "nan", "2.00"]]


def test_pairs_that_serve_leave_one_out_are_no_columns(tmp_path: Path) -> None:
    made = Sweep(tmp_path)
    for test in (("a",), ("b",), ("a", "b")):
        made.add(spec("D", "ERM", test, 0, 0), [0.5] * len(test))
    (block,) = blocks(leaderboard(load_frames(made.results)))
    assert block.header == ["algorithm", "a", "b", "mean", "n"] and block.ranked == 1


def test_equal_values_are_all_best(tmp_path: Path) -> None:
    made = Sweep(tmp_path)
    for label in ("A", "B"):
        made.add(spec("D", label, ("t",), 0, 0), [0.5])
    (block,) = blocks(leaderboard(load_frames(made.results)))
    assert block.best == {(0, 1), (1, 1), (0, 2), (1, 2)}


def test_the_summary_has_mean_accuracies_and_mean_ranks(sweep: Sweep) -> None:
    sweep.add(spec("More", "ERM", ("t",), 0, 0), [0.75])
    sweep.add(spec("More", NASTY, ("t",), 0, 0), [0.75])
    sweep.add(spec("More", "IRM", ("t",), 0, 0), [0.1])
    over = blocks(leaderboard(load_frames(sweep.results)))[-1]
    assert over.header == ["algorithm", "Digits", "SEM", "More", "mean (%)", "mean rank"]
    by_label = {row[0]: row[-2:] for row in over.rows}
    # ERM: (.4 + .75) / 2, ranks 2, 2, 1.5 among the two rows that are complete everywhere
    assert by_label == {"ERM": ["57.5", "1.83"], NASTY: ["70.0", "1.17"], "IRM": ["38.0", "-"]}
    assert [row[0] for row in over.rows] == [NASTY, "ERM", "IRM"]
    assert over.best == {(0, 4), (0, 5)}


def test_another_metric_changes_the_values_alone(sweep: Sweep) -> None:
    board = leaderboard(load_frames(sweep.results), metric="loss")
    frame = board.frame.set_index(["dataset", "label", "environment"])
    assert frame.loc[("Digits", "ERM", "0.1"), "mean"] == pytest.approx(0.8)
    assert board.higher["loss"] is False
    with pytest.raises(UserError, match=r"unknown metric 'los' in Digits; did you mean loss\?"):
        leaderboard(load_frames(sweep.results), metric="los")


def test_numbers() -> None:
    assert number(0.12345, 0.0123, "accuracy") == "12.3 ± 1.2"
    assert number(1.0, math.nan, "agreement") == "100.0"
    assert number(0.1, 0.012345, "mse") == "0.1000 ± 0.012"
    assert number(12345.6, 7.0, "kl") == "1.235e+04 ± 7.0e+00"
    assert number(1234.5, math.nan, "kl") == "1234"
    assert mean_and_error(np.array([1.0, 3.0])) == (2.0, 1.0)
    assert np.isnan(mean_and_error(np.array([]))).all()


def test_markdown_golden(sweep: Sweep) -> None:
    assert sweep.text("markdown") == (GOLDEN / "table.md").read_text()


def test_latex_golden(sweep: Sweep) -> None:
    assert sweep.text("latex") == (GOLDEN / "table.tex").read_text()


def test_a_terminal_shows_the_best_in_bold_and_never_cuts_a_number(sweep: Sweep) -> None:
    narrow = Terminal(width=20, file=io.StringIO(), force_terminal=True, color_system="standard")
    text = to_terminal(sheet(leaderboard(load_frames(sweep.results))), narrow)
    assert re.search(r"\x1b\[1m *70\.0 ± 5\.8", text)
    assert "0.0001234 ± 0" in text and "…" not in text


def test_markdown_has_as_many_columns_in_every_row(sweep: Sweep) -> None:
    lines = markdown(sheet(leaderboard(load_frames(sweep.results)))).splitlines()
    digits = [line for line in lines[: lines.index("### SEM: mse")] if line.startswith("|")]
    counts = {len(re.findall(r"(?<!\\)\|", line)) for line in digits}
    assert len(digits) == 5 and counts == {6}


def test_latex_leaves_no_special_character_bare(sweep: Sweep) -> None:
    text = latex(sheet(leaderboard(load_frames(sweep.results))))
    body = [line for line in text.splitlines() if not line.startswith("%")]
    for line in body:
        bare = line
        for escaped in LATEX.values():
            bare = bare.replace(escaped, "")
        assert not re.search(r"[%$#_~^<>|±*\[]", bare), line
        assert bare.count("{") == bare.count("}"), line
    cells = [line.count(" & ") for line in body if line.endswith(r"\\")]
    assert len(cells) == 16 and cells[:4] == [4] * 4
    for name in ("table", "tabular"):
        assert text.count(f"\\begin{{{name}}}") == text.count(f"\\end{{{name}}}") == 4


def test_csv_and_json_are_tidy_and_exact(sweep: Sweep) -> None:
    wanted = leaderboard(load_frames(sweep.results)).frame
    table = list(csv.DictReader(io.StringIO(sweep.text("csv"))))
    objects = json.loads(sweep.text("json"))
    assert len(table) == len(objects) == len(wanted) == 3 * 3 + 3 * 3
    for read, given, mean in zip(table, objects, wanted["mean"], strict=True):
        assert float(read["mean"]) == given["mean"] == mean
        assert read["label"] == given["label"] and int(read["n"]) == given["n"]
    assert set(objects[0]) == set(table[0]) == {
        "dataset", "label", "test_environments", "environment", "metric",
        "mean", "stderr", "low", "high", "n", "planned", "rule", "kind", "errors",
    }  # fmt: skip


def test_notes_say_what_made_the_numbers(sweep: Sweep) -> None:
    board = leaderboard(load_frames(sweep.results))
    notes = " ".join([*board.notes, *board.remarks])
    for part in (
        "Selection train_val: mean over the out splits of the training environments",
        "standard error over trials (ddof=1)",
        "trials: 3, hparam draws: 1",
        "accuracy: higher is better; mse: lower is better; causal_error: lower is better",
        "Runs: 24 done, 2 diverged, 1 failed, 0 missing, of 27",
        "Code: oodbench 0.1.0 (0123456789ab+)",
    ):
        assert part in notes


def command(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["table", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.slow
def test_the_command_prints_every_format(sweep: Sweep) -> None:
    for format_ in ("markdown", "latex", "csv", "json"):
        arguments = (sweep.results.path, "--rule", "oracle", "--format", format_)
        assert command(*arguments) == (0, sweep.text(format_, "oracle"), "")
    code, text, _ = command(sweep.results.path)
    assert code == 0 and "Digits: accuracy (%)" in text and "mean rank" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "latx"], "unknown format 'latx'; did you mean latex?"),
        (["--rule", "orcale"], "unknown selection rule 'orcale'; did you mean oracle?"),
        (["--metric", "acuracy"], "unknown metric 'acuracy' in Digits; did you mean accuracy?"),
        (["--rule", "val_env"], "selection val_env needs `validation_environments:`"),
        (["--rule", "leave_one_out"], "selection leave_one_out needs each test environment"),
    ],
)
def test_a_mistake_is_one_sentence(sweep: Sweep, arguments: list[str], message: str) -> None:
    code, text, error = command(sweep.results.path, *arguments)
    assert (code, text) == (2, "")
    assert error.startswith(f"error: {message}") and error.count("\n") == 1


def test_a_sweep_with_nothing_complete_shows_its_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Sweep(tmp_path)
    for trial, state in enumerate(["planned", "planned", "failed"]):
        made.add(spec("D", "ERM", ("t",), 0, trial), [0.5], state=state)
    made.add(spec("E", "ERM", ("t",), 0, 0), [0.5], state="planned")
    for format_ in FORMATS:
        print_leaderboard(joined([made.results.path]), format_=format_)
    assert "0/3" in capsys.readouterr().out
    first, second, over = blocks(leaderboard(load_frames(made.results)))
    assert first.rows == [["ERM", "-", "-", "0/3"]] and first.ranked == 0
    assert second.title == "E: nothing recorded yet" and second.rows[0][-1] == "0/1"
    assert over.rows == [["ERM", "-", "-", "-", "-"]]


@pytest.mark.parametrize("arguments", [["table"], ["compare"], ["table", "--rule", "domainbed"]])
def test_a_directory_without_a_sweep(tmp_path: Path, arguments: list[str]) -> None:
    verb, *options = arguments
    result = CliRunner().invoke(app, [verb, str(tmp_path), *options])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"error: {tmp_path} holds no sweep (no readable sweep.json)\n"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
@pytest.mark.parametrize("verb", ["table", "compare"])
@pytest.mark.parametrize("grey", [False, True])
def test_latex_compiles(sweep: Sweep, tmp_path: Path, verb: str, grey: bool) -> None:
    results = sweep.results
    if grey:
        values = {"clean_100%": 0.9, "ERM": 0.7, NASTY: 0.65}
        results = with_references(tmp_path / "grey", values, {"clean_100%"}).results
    result = CliRunner().invoke(app, [verb, str(results.path), "--format", "latex"])
    labels = re.findall(r"\\label\{(.*)\}", result.stdout)
    assert len(set(labels)) == len(labels) == result.stdout.count(r"\begin{table}")
    assert result.stdout.count(r"\textcolor{gray}{constant}") == grey
    first, _, _ = result.stdout.partition("\n")
    packages = first.removeprefix("% needs ")
    assert ("xcolor" in packages) == grey
    before = rf"\documentclass{{article}}{packages}\begin{{document}}"
    (tmp_path / "t.tex").write_text(f"{before}\n{result.stdout}\\end{{document}}\n")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
    made = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert made.returncode == 0, made.stdout[-2000:]


def test_one_dataset_alone(sweep: Sweep) -> None:
    arguments = ["table", str(sweep.results.path), "--format", "csv", "--dataset"]
    rows = CliRunner().invoke(app, [*arguments, "SEM"]).stdout.splitlines()
    assert len(rows) == 1 + 9 and all(row.startswith("SEM,") for row in rows[1:])
    wrong = CliRunner().invoke(app, [*arguments, "Semm"])
    assert wrong.exit_code == 2 and "did you mean SEM?" in wrong.stderr
