"""The commands of boards, and what they say to a user's mistake."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from oodbench.algorithms import Needs, algorithms
from oodbench.datasets import datasets, make
from oodbench.errors import missing_package
from oodbench.results.boards import RECORDS_FILE, RUNS_FILE
from oodbench.results.directory import Directory
from oodbench.results.read import read_results
from oodbench.results.run_spec import State
from tests.helpers.results.boards import edited_board, invoke, new_board, stored

pytestmark = pytest.mark.slow

PLUGIN = '''
from oodbench.algorithms import Algorithm, Outputs, register

@register("TwiceTheRisk", paper="none")
class Mine(Algorithm):
    """The mean of the risks times two."""

    def objective(self, out: Outputs):
        return 2 * out.risks.mean()
'''


def test_a_method_of_ones_own_stands_in_the_board(
    board: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "twice_the_risk.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    out = tmp_path / "mine"
    run = ("run", board, "--algorithm", "TwiceTheRisk", "--plugin", "twice_the_risk")
    text = invoke(*run, "--out", out, "--trials", 2, "--draws", 2, "--workers", 1)
    assert "Partial: all rows are cut to 2 of 4 trials, 2 of 4 draws" in text
    assert "TwiceTheRisk compared with the board" in text
    rows = [line.split() for line in invoke("table", board, out, "--notes").splitlines()]
    assert {row[-1] for row in rows if row[:1] == ["TwiceTheRisk"] and "2" in row} >= {"here"}
    assert {row[-1] for row in rows if row[:1] == ["ERM"] and "2" in row} >= {"board"}
    assert invoke("validate", out, board, code=1).count("trial 2, 3 missing") == 2


def test_rows_of_a_protocol_are_trained_on_features_of_ones_own(tmp_path: Path) -> None:
    images = make("ColoredDigits", {"copies": 1}).load(0)
    np.savez(tmp_path / "mine.npz", **{n: e.x.flatten(1).numpy() for n, e in images.items()})
    (tmp_path / "b.v1").mkdir()
    (tmp_path / "b.v1" / "protocol.yaml").write_text(
        "name: b.v1\nhparam_draws: 1\ntrials: [0]\nsteps: 4\nalgorithms: [ERM, VREx]\ndatasets:\n"
        "  - {name: FrozenFeatures, label: scans, of: ColoredDigits, settings: [copies=1],\n"
        "     network: ResNet18, weights: none.pth, training: {network: Head}}\n  - Spirals\n"
    )
    command = ("run", tmp_path / "b.v1", "--algorithm", "VREx", "--workers", 1)
    own = ("--features", tmp_path / "mine.npz", "--dataset", "scans", "--out", tmp_path / "out")
    assert "VREx" in invoke(*command, *own)
    (run,) = read_results(Directory(tmp_path / "out")).runs.to_dict("records")
    assert run["options"]["sha256"] and run["state"] == State.DONE
    text = invoke(*command, *own[:2], "--dataset", "Spirals", "--out", tmp_path / "no", code=2)
    assert "--features replaces those of one dataset of FrozenFeatures" in text


def test_runs_that_lack_data_or_a_package_are_left_out_of_a_rerun(
    board: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(*_: object) -> None:
        raise missing_package("digits", "digits-of-a-package", "digits")

    command = ("rerun", board, "--sample", 2)
    assert "did you mean digits?" in one_sentence(*command, "--dataset", "digit")
    needs = Needs(packages={"no_such": "pip install x"})
    monkeypatch.setattr(algorithms.get("IRM"), "needs", needs)
    monkeypatch.setattr(datasets.get("ColoredDigits"), "check", check)
    text = " ".join(invoke(*command).split())
    assert "32 runs left out: digits needs the package digits-of-a-package" in text
    assert "16 runs left out: IRM needs no_such: `pip install x`." in text
    assert "2 equal bit for bit" in text
    text = one_sentence(*command, "--dataset", "digits")
    assert "only runs that cannot be trained here; 32 runs left out: digits needs" in text
    monkeypatch.setattr(datasets.get("ColoredDigits"), "check", lambda self: None)
    monkeypatch.setattr(datasets.get("ColoredDigits"), "load", check)
    text = one_sentence(*command, "--dataset", "digits")
    assert "2 runs left out: digits needs" in text


Change = Callable[[pd.DataFrame, "pd.Series[bool]"], pd.DataFrame]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t, of: t[~of | t["trial"].lt(3)], "ERM on SEM: trial 3 missing (4 are planned)"),
        (lambda t, of: pd.concat([t[:1], t]), "ERM on SEM: 17 runs, and 16 are planned"),
        (lambda t, of: t.assign(holdout=0.3 * of), "ERM on SEM: run {first} has the spec of"),
        (lambda t, of: t.assign(holdout=0.3 * of), "IRM on SEM: holdout is not that of ERM"),
        (
            lambda t, of: t.assign(training_environments=[("0.2",) if x else ("1",) for x in of]),
            "IRM on SEM: in trial 0 it has other environments than ERM",
        ),
        (
            lambda t, of: t.assign(provenance=[{"data": str(x)} for x in of]),
            "IRM on SEM: its data have",
        ),
        (
            lambda t, of: t.assign(training_seconds=t["training_seconds"].mask(of, -1.0)),
            "ERM on SEM: has seconds that cannot be, first run {first}",
        ),
        (
            lambda t, of: t.assign(constant=[{"mse": {"5": {"in": float(x)}}} for x in of]),
            "IRM on SEM: its constant answers are not those of ERM",
        ),
        (
            lambda t, of: t.assign(id=t["id"].mask(of & ~of.duplicated())),
            "damaged: a row has no id",
        ),
    ],
)
def test_each_mistake_in_the_runs_of_a_board_is_named(
    copy: Path, change: Change, message: str
) -> None:
    with edited_board(copy) as tables:
        row = tables.row("SEM", "ERM")
        first = tables.runs.loc[row, "id"].iloc[0]
        tables.runs = change(tables.runs, row).reset_index(drop=True)
    text = " ".join(invoke("validate", copy, code=1).split())
    assert message.format(first=first) in text


def without(metric: str) -> Change:
    return lambda t, of: t[~(of & t["metric"].eq(metric))]


@pytest.mark.parametrize(
    ("change", "whole", "message"),
    [
        (without("val_env"), True, "IRM on SEM: has the rules ["),
        (without("val_env"), False, "one score by val_env of each run, first run {first}"),
        (without("mse"), False, "runs without a value on each test environment, first run {first}"),
        (lambda t, of: pd.concat([t, t[of]]), False, "ERM on SEM: has a value twice, first run"),
        (
            lambda t, of: t[t["split"].ne("score") | t["metric"].eq("oracle")],
            True,
            "IRM on SEM: has no score by a rule that does not see the test environments",
        ),
        (
            lambda t, of: pd.concat([t, t[:1].assign(id="stray")]),
            False,
            "there are records of stray",
        ),
    ],
)
def test_each_mistake_in_the_records_of_a_board_is_named(
    copy: Path, change: Change, whole: bool, message: str
) -> None:
    """Those of a whole row, or of its first run."""
    with edited_board(copy) as tables:
        ids = tables.runs.loc[tables.row("SEM", "ERM"), "id"]
        of = tables.records["id"].isin(ids if whole else ids[:1])
        tables.records = change(tables.records, of)
    text = " ".join(invoke("validate", copy, code=1).split())
    assert message.format(first=ids.iloc[0]) in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("row,author\nERM,me\n", "must have the columns row, author, date, paper, pretraining"),
        ("row,author,date,paper,pretraining\nERN,me,,,none\n", "that the board does not have: ERN"),
        ("row,author,date,paper,pretraining\nERM,me,,,none\n", "is as it must be"),
    ],
)
def test_the_entries_of_a_board_are_checked(copy: Path, text: str, message: str) -> None:
    (copy / "entries.csv").write_text(text)
    assert message in invoke("validate", copy, code=int("must be" not in message))


def one_sentence(*arguments: object) -> str:
    text = invoke(*arguments, code=2)
    assert text.startswith("error: ")
    assert text.count("\n") == 1
    return text


def test_boards_go_by_names(board: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oodbench.results.boards.frozen_folder", lambda: board.parent)
    assert "tiny.v1" in invoke("list")
    text = one_sentence("table", "tiny.v2")
    assert "unknown board or results directory 'tiny.v2'; did you mean tiny.v1" in text
    shutil.copytree(board, tmp_path / board.name)
    monkeypatch.chdir(tmp_path)
    for command in ("table", "validate"):
        text = invoke(command, board.name, code=2)
        assert f"is a board and a folder here: type ./{board.name}" in text
        invoke(command, f"./{board.name}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("run {board} --algorithm , --out x", "--algorithm names no method"),
        ("run {board} --algorithm VREx --out x --trials 9", "has 4 trials, not 9"),
        ("compare {board} {mine} --baseline ERMM", "did you mean ERM"),
        ("validate {mine}", "names no protocol"),
        ("table {board} nothing", "unknown board or results directory 'nothing'"),
        ("rerun {board} --algorithm IRMM", "unknown algorithm 'IRMM' in the board"),
        ("freeze {half} nothing/b", "is not a board yet (a new one has a copy of its sweep in"),
        ("freeze {half} {board}2", "is not a board yet; did you mean tiny.v1?"),
    ],
)
def test_a_mistake_in_the_arguments_is_one_sentence(
    board: Path, half: Path, mine: Path, arguments: str, message: str
) -> None:
    assert message in one_sentence(*arguments.format(board=board, half=half, mine=mine).split())


def test_a_table_without_a_column_is_one_sentence(copy: Path) -> None:
    path = copy / RECORDS_FILE
    pq.write_table(pq.read_table(path).drop_columns("step"), path)
    assert f"{path} has no column step" in one_sentence("table", copy)
    path.unlink()
    assert f"{path}: No such file" in one_sentence("table", copy)


@pytest.mark.parametrize("name", [RUNS_FILE, RECORDS_FILE])
@pytest.mark.parametrize("kept", [0, 1000])
def test_a_torn_table_is_one_sentence(copy: Path, name: str, kept: int) -> None:
    path = copy / name
    path.write_bytes(path.read_bytes()[:kept])
    assert f"{path} is torn or no table of results" in one_sentence("table", copy)
    assert "torn" in invoke("validate", copy, code=1)


def test_runs_that_could_not_stand_in_the_board_are_not_trained(copy: Path, tmp_path: Path) -> None:
    run = ("run", copy, "--algorithm", "JTT", "--dataset", "SEM", "--out", tmp_path / "out")
    assert "no possible run: JTT on SEM: it needs a class as each targ" in invoke(*run, code=2)
    file = copy / "protocol.yaml"
    file.write_text(re.sub(r"steps: \d+", "steps: 30", file.read_text()))
    text = one_sentence("run", copy, "--algorithm", "VREx", "--out", tmp_path / "out")
    assert "the plan is not under the protocol of the board tiny.v1: steps of" in text
    assert not (tmp_path / "out").exists()


def test_a_dataset_without_its_package_is_left_out_unless_it_is_named(
    board: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(self: object) -> None:
        raise missing_package("digits", "digits-of-a-package", "digits")

    monkeypatch.setattr(datasets.get("ColoredDigits"), "check", check)
    few = ("run", board, "--algorithm", "VREx", "--trials", 1, "--draws", 1, "--workers", 1)
    text = invoke(*few, "--out", tmp_path / "out")
    assert "left out: digits: `pip install 'oodbench[digits]'` gets what is missing" in text
    assert "1 of 2 datasets" in text and "SEM" in text
    text = one_sentence(*few, "--dataset", "digits", "--out", tmp_path / "other")
    assert "digits needs the package digits-of-a-package" in text


@pytest.mark.nightly
def test_a_board_may_be_trained_dataset_by_dataset(board: Path, tmp_path: Path) -> None:
    empty = new_board(tmp_path, "tiny.v1")
    out = tmp_path / "out"
    train = ("run", empty, "--algorithm", "all", "--out", out)
    invoke(*train, "--dataset", "SEM", "--workers", 1)
    assert ": 3 rows of datasets;" in invoke("freeze", out, empty)
    both = stored(board), stored(empty)
    for row in ("ERM", "IRM"):
        ids = [t.runs.loc[t.row("SEM", row), "id"] for t in both]
        first, second = (t.records[t.records["id"].isin(i)] for t, i in zip(both, ids, strict=True))
        assert len(first) and first.reset_index(drop=True).equals(second.reset_index(drop=True))
    text = one_sentence(*train, "--dataset", "SEN")
    assert "unknown dataset 'SEN' in the protocol tiny.v1; did you mean SEM?" in text
    few = ("run", empty, "--algorithm", "IRM", "--trials", 1, "--draws", 1, "--workers", 1)
    text = invoke(*few, "--out", tmp_path / "frozen")
    said, trained = text.split("; they are left out\n")
    assert said == "Not frozen yet: digits" and "here" in trained and "digits" not in trained
    text = invoke(*few, "--dataset", "digits", "--out", tmp_path / "new")
    assert "digits" in text and "compared with the board" not in text


LITE = "lite: {datasets: [SEM], draws: 2, trials: 3}\n"


@pytest.mark.nightly
def test_a_tier_is_shown_beside_as_much_of_the_board(copy: Path, tmp_path: Path) -> None:
    (copy / "tiers.yaml").write_text(LITE)
    run = ("run", copy, "--algorithm", "VREx", "--tier", "lite", "--workers", 1)
    text = invoke(*run, "--out", tmp_path / "out")
    assert "6 runs" in text and "3 of 4 trials, 2 of 4 draws" in " ".join(text.split())
    assert "1 of 2 datasets" in " ".join(text.split())
    text = invoke(*run, "--trials", 1, "--out", tmp_path / "fewer")
    assert "2 runs" in text and "1 of 4 trials" in " ".join(text.split())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LITE, "unknown tier 'light' in the board tiny.v1; did you mean lite?"),
        ("lite: {draws: 0}", "lite: draws: input should be greater than or equal to 1"),
        ("lite: {steps: 5}", "lite: unknown key 'steps'; known: datasets"),
        ("[lite]", "must hold tiers by name"),
    ],
)
def test_a_mistake_in_a_tier_is_one_sentence(copy: Path, text: str, message: str) -> None:
    (copy / "tiers.yaml").write_text(text)
    told = invoke("run", copy, "--algorithm", "VREx", "--tier", "light", "--out", "x", code=2)
    assert message in told and told.count("\n") == 1
