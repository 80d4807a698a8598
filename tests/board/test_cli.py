"""The commands of boards, and what they say to a user's mistake."""

import io
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from oodbench.algorithms import Needs, algorithms
from oodbench.datasets import datasets, make
from oodbench.errors import missing_package
from oodbench.results.boards import RECORDS_FILE, RUNS_FILE
from oodbench.results.directory import Directory
from oodbench.results.read import read_results
from oodbench.results.run_spec import State
from tests.helpers.results.boards import Stored, edited_board, invoke, new_board, remove, stored

pytestmark = pytest.mark.slow

PLUGIN = '''
from oodbench.algorithms import Algorithm, Outputs, register

@register("{name}", paper="none")
class Mine(Algorithm):
    """The mean of the risks times two."""

    needs_more = {needs}

    @classmethod
    def skip(cls, problem):
        return "it needs nine attributes" if cls.needs_more and problem.attributes < 9 else None

    def objective(self, out: Outputs):
        return 2 * out.risks.mean()
'''


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Writes a plug-in with a method of this name, and returns the name of its module."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(name: str, needs: bool = False) -> str:
        (tmp_path / f"plugin_{name.lower()}.py").write_text(PLUGIN.format(name=name, needs=needs))
        return f"plugin_{name.lower()}"

    return write


def test_a_method_of_ones_own_stands_in_the_board(
    board: Path, tmp_path: Path, plugin: Callable[..., str]
) -> None:
    out = tmp_path / "mine"
    text = invoke(
        *("run", board, "--algorithm", "TwiceTheRisk", "--plugin", plugin("TwiceTheRisk")),
        *("--out", out, "--trials", 2, "--draws", 2, "--workers", 1),
    )
    assert "Partial: all rows are cut to 2 of 4 trials, 2 of 4 draws" in text
    assert "TwiceTheRisk beside the board" in text
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


def test_frozen_runs_trained_again_are_equal_bit_for_bit(board: Path) -> None:
    text = invoke("rerun", board, "--sample", 3, "--workers", 1)
    assert "3 equal bit for bit, 0 equal within round-off, 0 off, 0 without a result" in text


def test_runs_that_lack_data_or_a_package_are_left_out_of_a_rerun(
    board: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(*_: object) -> None:
        raise missing_package("digits", "digits-of-a-package", "digits")

    command = ("rerun", board, "--sample", 2, "--workers", 1)
    assert "did you mean digits?" in one_sentence(*command, "--dataset", "digit")
    monkeypatch.setattr(
        algorithms.get("IRM"), "needs", Needs(packages={"no_such": "pip install x"})
    )
    monkeypatch.setattr(datasets.get("ColoredDigits"), "check", check)
    text = " ".join(invoke(*command).split())
    assert "32 runs left out: digits needs the package digits-of-a-package" in text
    assert "16 runs left out: IRM needs no_such: `pip install x`." in text
    assert "2 equal bit for bit" in text
    text = one_sentence(*command, "--dataset", "digits")
    assert "tiny.v1 has no such run to train here; 32 runs left out: digits needs" in text
    monkeypatch.setattr(datasets.get("ColoredDigits"), "check", lambda self: None)
    monkeypatch.setattr(datasets.get("ColoredDigits"), "load", check)
    text = one_sentence(*command, "--dataset", "digits")
    assert "2 runs left out: digits needs" in text


def test_a_frozen_run_with_another_number_is_off(copy: Path) -> None:
    remove(copy, "SEM")
    remove(copy, "digits", "IRM")
    with edited_board(copy) as tables:
        tables.records.loc[tables.records["metric"].eq("accuracy"), "value"] = 2.0
    text = invoke("rerun", copy, "--sample", 1, "--seed", 2, "--workers", 1, code=1)
    assert "off: ERM on digits, trial" in text
    assert "1 off" in text


@pytest.mark.nightly
def test_runs_of_named_rows_alone_are_trained_again(board: Path) -> None:
    dataset = ("rerun", board, "--sample", 40, "--workers", 1)
    assert "Of 32 runs" in invoke(*dataset, "--algorithm", "IRM")
    assert "unknown algorithm 'IRMM' in the board tiny.v1; did you mean IRM" in one_sentence(
        *dataset, "--algorithm", "IRMM"
    )


def test_results_are_valid_as_far_as_they_go(board: Path, mine: Path) -> None:
    assert "is as it must be" in invoke("validate", mine, board)
    assert "names no protocol" in invoke("validate", mine, code=2)


def _trial(tables: Stored) -> None:
    tables.runs = tables.runs[~tables.row("SEM", "ERM") | tables.runs["trial"].lt(3)]


def _run_twice(tables: Stored) -> None:
    tables.runs = pd.concat([tables.runs[:1], tables.runs], ignore_index=True)


def _scores(tables: Stored) -> None:
    tables.records = tables.records[~(_of_row(tables) & tables.records["metric"].eq("val_env"))]


def _one_score(tables: Stored) -> None:
    tables.records = tables.records[~(_of_first(tables) & tables.records["metric"].eq("val_env"))]


def _values(tables: Stored) -> None:
    tables.records = tables.records[~(_of_first(tables) & tables.records["metric"].eq("mse"))]


def _value_twice(tables: Stored) -> None:
    again = tables.records[_of_first(tables) & tables.records["metric"].eq("mse")]
    tables.records = pd.concat([tables.records, again])


def _seconds(tables: Stored) -> None:
    tables.runs.loc[tables.row("SEM", "ERM").idxmax(), "training_seconds"] = -1.0


def _of_row(tables: Stored) -> "pd.Series[bool]":
    return tables.records["id"].isin(tables.runs.loc[tables.row("SEM", "ERM"), "id"])


def _of_first(tables: Stored) -> "pd.Series[bool]":
    return tables.records["id"].eq(str(tables.runs.loc[tables.row("SEM", "ERM"), "id"].iloc[0]))


def _spec(tables: Stored) -> None:
    tables.runs.loc[tables.row("SEM", "ERM"), "holdout"] = 0.3


def _constant(tables: Stored) -> None:
    row = tables.row("SEM", "IRM")
    tables.runs.loc[row, "constant"] = pd.Series([{"mse": {"5": {"in": 0.5}}}] * len(row))


def _environments(tables: Stored) -> None:
    row = tables.row("SEM", "IRM")
    tables.runs.loc[row, "training_environments"] = pd.Series([("0.2",)] * len(row))


def _data(tables: Stored) -> None:
    row = tables.row("SEM", "IRM")
    tables.runs.loc[row, "provenance"] = pd.Series([{}] * len(row))


def _oracle_alone(tables: Stored) -> None:
    is_other = tables.records["split"].eq("score") & tables.records["metric"].ne("oracle")
    tables.records = tables.records[~is_other]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_trial, "ERM on SEM: trial 3 missing (4 are planned)"),
        (_run_twice, "ERM on SEM: 17 runs, and 16 are planned"),
        (_scores, "IRM on SEM: has the rules ["),
        (_one_score, "ERM on SEM: has not one score by val_env of each run, first run {first}"),
        (_values, "has runs without a value on each test environment, first run {first}"),
        (_value_twice, "ERM on SEM: has a value twice, first run {first}"),
        (_seconds, "ERM on SEM: has seconds that cannot be, first run {first}"),
        (_spec, "ERM on SEM: run {first} has the spec of"),
        (_spec, "IRM on SEM: holdout is not that of ERM"),
        (_constant, "IRM on SEM: has not the constant answers of ERM"),
        (_environments, "IRM on SEM: has other environments than ERM in trial 0"),
        (_data, "IRM on SEM: has no digest of its data"),
        (_oracle_alone, "has no rule but oracle, which sees the test environments"),
    ],
)
def test_each_mistake_in_a_board_is_named(
    copy: Path, change: Callable[[Stored], None], message: str
) -> None:
    tables = stored(copy)
    first = tables.runs.loc[tables.row("SEM", "ERM"), "id"].iloc[0]
    with edited_board(copy) as tables:
        change(tables)
    text = " ".join(invoke("validate", copy, code=1).split())
    assert message.format(first=first) in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("row,author\nERM,me\n", "must have the columns row, author, date, paper, pretraining"),
        ("row,author,date,paper,pretraining\nERN,me,,,none\n", "that the board has not: ERN"),
        ("row,author,date,paper,pretraining\nERM,me,,,none\n", "is as it must be"),
    ],
)
def test_the_entries_of_a_board_are_checked(copy: Path, text: str, message: str) -> None:
    (copy / "entries.csv").write_text(text)
    assert message in invoke("validate", copy, code=int("must be" not in message))


def test_the_boards_of_the_package_are_listed(board: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oodbench.results.boards.frozen_folder", lambda: board.parent)
    assert "tiny.v1" in invoke("list")
    assert "ERM" in invoke("table", "tiny.v1")


def one_sentence(*arguments: object) -> str:
    text = invoke(*arguments, code=2)
    assert text.startswith("error: ")
    assert text.count("\n") == 1
    return text


def test_an_unknown_board_is_one_sentence(board: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oodbench.results.boards.frozen_folder", lambda: board.parent)
    text = one_sentence("table", "tiny.v2")
    assert "unknown board or results directory 'tiny.v2'; did you mean tiny.v1" in text


def test_a_folder_does_not_take_the_place_of_a_board(
    board: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oodbench.results.boards.frozen_folder", lambda: board.parent)
    shutil.copytree(board, tmp_path / board.name)
    monkeypatch.chdir(tmp_path)
    for command in ("table", "validate"):
        text = invoke(command, board.name, code=2)
        assert f"is a board and a folder here: type ./{board.name}" in text
        invoke(command, f"./{board.name}")


def test_a_board_as_csv_says_where_rows_are_from(board: Path, mine: Path) -> None:
    lines = invoke("table", board, mine, "--format", "csv").splitlines()
    found = pd.read_csv(io.StringIO("\n".join(lines)))
    assert set(zip(found["label"], found["from"], strict=True)) >= {
        ("ERM", "board"),
        ("VREx", "here"),
    }


@pytest.mark.nightly
def test_rows_beside_a_board_are_compared_with_a_baseline(board: Path, mine: Path) -> None:
    arguments = (board, mine, "--dataset", "digits", "--metric", "loss", "--format", "csv")
    gains = pd.read_csv(io.StringIO(invoke("compare", *arguments)))
    assert set(gains["label"]) == {"IRM", "VREx"} and set(gains["dataset"]) == {"digits"}
    assert "loss" in invoke("table", *arguments)
    chosen = invoke("table", board, mine, "--algorithms", "VREx", "--format", "csv")
    assert {"ERM", "VREx"} <= {line.split(",")[1] for line in chosen.splitlines()}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("run {board} --algorithm , --out x", "--algorithm names no method"),
        ("run {board} --algorithm VREx --out x --trials 9", "has 4 trials, not 9"),
        ("compare {board} {mine} --baseline ERMM", "did you mean ERM"),
        ("table {board} nothing", "unknown board or results directory 'nothing'"),
        ("freeze {half} nothing/b", "is no board yet: copy its sweep to"),
    ],
)
def test_a_mistake_in_the_arguments_is_one_sentence(
    board: Path, half: Path, mine: Path, arguments: str, message: str
) -> None:
    assert message in one_sentence(*arguments.format(board=board, half=half, mine=mine).split())


@pytest.mark.parametrize("name", [RUNS_FILE, RECORDS_FILE])
@pytest.mark.parametrize("kept", [0, 4, 1000, -1])
def test_a_torn_table_is_one_sentence(copy: Path, name: str, kept: int) -> None:
    path = copy / name
    path.write_bytes(path.read_bytes()[:kept])
    assert f"{path} is torn or no table of results" in one_sentence("table", copy)
    assert "torn" in invoke("validate", copy, code=1)


def test_a_table_of_something_else_is_one_sentence(copy: Path) -> None:
    path = copy / RECORDS_FILE
    table = pq.read_table(path)
    pq.write_table(table.drop_columns("step"), path)
    assert f"{path} has no column step" in one_sentence("table", copy)
    other = table.set_column(0, "id", pa.array(["0"] * len(table)))
    pq.write_table(other, path)
    assert f"{path} has records of no run: 0" in one_sentence("table", copy)
    path.unlink()
    assert f"{path}: No such file" in one_sentence("table", copy)


def test_a_plugin_that_needs_more_than_the_protocol_gives_is_told(
    board: Path, tmp_path: Path, plugin: Callable[..., str]
) -> None:
    name = plugin("NeedsMore", needs=True)
    arguments = ("--algorithm", "NeedsMore", "--plugin", name, "--out", tmp_path / "out")
    text = invoke("run", board, *arguments, code=2)
    assert "no possible run: NeedsMore on SEM: it needs nine attributes" in text
    assert not (tmp_path / "out").exists()


def test_runs_that_could_not_stand_in_the_board_are_not_trained(copy: Path, tmp_path: Path) -> None:
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
    invoke(
        *("run", empty, "--algorithm", "all", "--dataset", "SEM"), *("--out", out, "--workers", 1)
    )
    assert ": 3 rows of datasets;" in invoke("freeze", out, empty)
    both = stored(board), stored(empty)
    for row in ("ERM", "IRM"):
        first, second = (
            t.records[t.records["id"].isin(t.runs.loc[t.row("SEM", row), "id"])] for t in both
        )
        assert len(first) and first.reset_index(drop=True).equals(second.reset_index(drop=True))
    text = one_sentence("run", empty, "--algorithm", "all", "--dataset", "SEN", "--out", out)
    assert "unknown dataset 'SEN' in the protocol tiny.v1; did you mean SEM?" in text
    few = ("run", empty, "--algorithm", "IRM", "--trials", 1, "--draws", 1, "--workers", 1)
    text = invoke(*few, "--out", tmp_path / "frozen")
    said, trained = text.split("; they are left out\n")
    assert said == "Not frozen yet: digits" and "here" in trained and "digits" not in trained
    text = invoke(*few, "--dataset", "digits", "--out", tmp_path / "new")
    assert "digits" in text and "beside the board" not in text
