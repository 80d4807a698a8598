"""Freezing results: what is frozen, that it never changes, and what is refused."""

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from oodbench.results.parts import Part, read_file, read_parts, write_parts

from oodbench.board.freeze import data_digests, freeze
from oodbench.errors import UserError
from oodbench.results.boards import dataset_file, part_files
from oodbench.results.directory import Results
from oodbench.results.read import read_results
from oodbench.selection import choose
from tests.helpers.boards import (
    PROTOCOL,
    SEM,
    change_part,
    frozen_part,
    invoke,
    new_board,
    remove_part,
    trained,
)
from tests.helpers.sweeps import edited

pytestmark = pytest.mark.slow


def contents(board: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(board)): path.read_bytes()
        for path in board.rglob("*")
        if path.is_file()
    }


def test_every_row_of_every_dataset_is_a_part(board: Path) -> None:
    found = sorted(str(path.relative_to(board)) for path in part_files(board))
    assert found == ["parts/SEM.parquet", "parts/digits.parquet"]
    rows = [(part.dataset, part.label) for part in read_parts(board)]
    assert rows == [(dataset, row) for dataset in ("SEM", "digits") for row in ("ERM", "IRM")]


def test_a_part_has_the_specs_of_its_runs(board: Path, half: Path) -> None:
    specs = {i: spec for part in read_parts(board) for i, spec in part.specs().items()}
    assert {i: spec.id for i, spec in specs.items()} == {i: i for i in Results(half).plan()["runs"]}


@pytest.mark.parametrize("rule", ["train_val", "val_env", "oracle"])
def test_a_part_has_the_chosen_step_score_and_values(board: Path, half: Path, rule: str) -> None:
    frames = read_results(Results(half))
    part = frozen_part(board, "digits", "IRM")
    table = part.table.to_pandas().set_index(["id", "step"])
    chosen = choose(frames, rule).query("label == 'IRM' and dataset_label == 'digits'")
    for row in chosen.to_dict(orient="records"):
        frozen = table.loc[(row["id"], row["step"])]
        assert frozen[f"score/{rule}"] == row["score"]
        (record,) = (r for r in Results(half).run(row["id"]).records() if r["step"] == row["step"])
        (test,) = frozen["test_environments"]
        kept = {"accuracy", "worst_group_accuracy"}
        assert {f"value/{metric}/{test}" for metric in kept} == {
            name for name in frozen.index if name.startswith("value/")
        }
        for entry in record["evaluations"]:
            of_test = (entry["environment"], entry["split"]) == (test, "in")
            if of_test and entry["metric"] in kept:
                place = f"{entry['metric']}/{test}"
                assert frozen[f"value/{place}"] == entry["value"]
                own = f"count_of/{place}"
                assert frozen[own if own in frozen else f"count/{test}"] == entry["count"]


@pytest.mark.nightly
def test_a_row_that_adapts_keeps_the_draws_of_its_adaptation(tmp_path: Path) -> None:
    rows = {"algorithms": ["ERM", {"name": "ERM", "adapt": "T3A"}], "trials": 2}
    small = {"datasets": [PROTOCOL["datasets"][1]], "hparam_draws": 3, **rows}
    results = trained(tmp_path, "out", **small)
    board = new_board(tmp_path, "adapts.v1", **small)
    freeze(results, board)
    part = frozen_part(board, "digits", "ERM + T3A")
    specs = part.specs()
    plan = Results(results).plan()["runs"]
    assert specs and set(specs) == {i for i, s in plan.items() if s["label"] == "ERM + T3A"}
    assert len({str(spec.adapt) for spec in specs.values()}) > 1
    assert "value/accuracy (before)/0.9" in part.table.column_names
    assert "as it must be" in invoke("validate", board)
    shown = invoke("table", board, "--format", "markdown")
    assert "before" in shown and "ERM + T3A" in shown


def test_a_part_says_what_made_it(board: Path) -> None:
    part = frozen_part(board, "SEM", "ERM")
    made = part.about.provenance
    assert made["torch"] and made["machine"] and made["oodbench"] and len(made["source"]) == 16
    assert made["dates"][0] <= made["dates"][1]
    assert set(made["data"]) == {"0.2", "1", "2", "5"}
    assert (part.table["seconds"].to_numpy() > 0).all()
    assert part.table["vectorized"].to_pylist() == [True] * len(part.table)


def test_freezing_again_changes_nothing(board: Path, half: Path) -> None:
    before = contents(board)
    found = freeze(half, board)
    assert (len(found.added), len(found.there)) == (0, 4)
    assert contents(board) == before


def test_parts_are_added_and_others_left_alone(copy: Path, mine: Path) -> None:
    before = read_parts(copy)
    found = freeze(mine, copy)
    assert [part.label for part in found.added] == ["VREx", "VREx"]
    after = {(part.dataset, part.label): part for part in read_parts(copy)}
    assert len(after) == len(before) + 2
    for part in before:
        now = after[part.dataset, part.label]
        assert now.about == part.about and now.equal_numbers(part)


def test_a_frozen_part_is_never_changed(copy: Path, half: Path) -> None:
    def changed(part: Part) -> Part:
        place = part.table.column_names.index("value/mse/5")
        table = part.table.set_column(place, "value/mse/5", [[1.0] * len(part.table)])
        return Part(part.about, table)

    change_part(copy, "SEM", "ERM", changed)
    remove_part(copy, "digits", "IRM")
    before = contents(copy)
    with pytest.raises(UserError, match="new version of the board"):
        freeze(half, copy)
    assert contents(copy) == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trials": 3}, "ERM on SEM: trial 3 missing"),
        ({"hparam_draws": 3}, "ERM on SEM: draw 3 missing"),
        (
            {"steps": 30},
            r"runs are under another protocol, first .*/run.json: .*steps is 30, not 20",
        ),
    ],
)
def test_results_that_are_not_the_whole_protocol_are_refused(
    changes: dict[str, int], message: str, tmp_path: Path
) -> None:
    results = trained(tmp_path, "out", algorithms=["ERM"], datasets=[SEM], **changes)
    board = new_board(tmp_path, "b")
    with pytest.raises(UserError, match=message):
        freeze(results, board)
    assert [path.name for path in board.iterdir()] == ["protocol.yaml"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"selection": "oracle"}, "no board is ranked by it"),
        ({"test_environments": "pairs"}, "cannot hold"),
        ({"datasets": [SEM | {"training": {"test_environments": "pairs"}}]}, "a list of lists of"),
        ({"datasets": [{"name": "FourPoints", "num_examples": 9}]}, "give it a `label`, t"),
        ({"datasets": [{"name": "ImageFolder", "root": "x"}]}, "gives ImageFolder options: "),
        ({"datasets": [{"name": "Table", "file": "a.csv", "label": ""}]}, "Table options: give"),
        ({"algorithms": ["ERM", {"name": "ERM", "ceiling": True}]}, "two algorithms called 'ERM'"),
        ({"datasets": [SEM, SEM]}, "two datasets called 'SEM'"),
    ],
)
def test_what_cannot_be_a_protocol_is_refused(
    half: Path, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        freeze(half, new_board(tmp_path, "b", **changes))


def test_runs_of_several_codes_are_no_part(half: Path, tmp_path: Path) -> None:
    copy = tmp_path / "half"
    shutil.copytree(half, copy)
    file = next((copy / "runs").glob("*/run.json"))
    with edited(file) as run:
        run["provenance"]["commit"] = "0" * 40
    with pytest.raises(UserError, match="several codes"):
        freeze(copy, new_board(tmp_path, "b"))
    text = invoke("validate", copy, tmp_path / "b", code=1)
    assert "on SEM was trained by several codes" in " ".join(text.split())


def test_digests_follow_the_data() -> None:
    first = data_digests("LinearSEM", {"num_examples": 40}, [0], None)
    assert first == data_digests("LinearSEM", {"num_examples": 40}, [0], None)
    assert first != data_digests("LinearSEM", {"num_examples": 41}, [0], None)
    assert first != data_digests("LinearSEM", {"num_examples": 40}, [0, 1], None)


def test_the_parts_of_a_dataset_take_less_in_one_file(board: Path, tmp_path: Path) -> None:
    for path in part_files(board):
        metadata = pq.read_metadata(path)
        assert metadata.num_row_groups == 1 and set(metadata.metadata) == {b"oodbench.parts"}
        size = 0
        for part in read_file(path):
            write_parts([part], tmp_path / "one.parquet")
            size += (tmp_path / "one.parquet").stat().st_size
        assert path.stat().st_size < 0.7 * size < 15_000  # of 32 runs


@pytest.mark.nightly
def test_a_dataset_of_a_board_may_have_more_trials(tmp_path: Path) -> None:
    sem = SEM | {"training": {"trials": 3}}
    small = {"algorithms": ["ERM", "IRM"], "hparam_draws": 2, "trials": 2}
    board = new_board(tmp_path, "own.v1", **small, datasets=[sem, PROTOCOL["datasets"][1]])
    invoke("run", board, "--algorithm", "all", "--out", tmp_path / "all", "--workers", 1)
    assert "4 parts" in invoke("freeze", tmp_path / "all", board)
    assert "is as it must be" in invoke("validate", board)
    assert "trials: 2 to 3, hparam draws: 2" in invoke("table", board, "--notes")
    run = ("run", board, "--algorithm", "VREx", "--workers", 1)
    whole = invoke(*run, "--out", tmp_path / "whole")
    assert "10 runs" in whole and "Partial" not in whole
    cut = " ".join(invoke(*run, "--trials", 2, "--out", tmp_path / "cut").split())
    assert "8 runs" in cut and "all rows are cut to 2 of 3 trials" in cut
    assert "has 3 trials, not 4" in invoke(*run, "--trials", 4, "--out", "x", code=2)
    few = frozen_part(board, "SEM", "IRM")
    fewer = few.table.filter(pa.compute.less(few.table["trial"], 2))
    change_part(board, "SEM", "IRM", lambda part: Part(part.about, fewer))
    assert "IRM on SEM: trial 2 missing (3 are planned)" in invoke("validate", board, code=1)


@pytest.mark.nightly
def test_a_board_that_is_frozen_in_part_says_what_is_to_come(copy: Path, tmp_path: Path) -> None:
    dataset_file(copy, "digits").unlink()
    assert "Not frozen yet: digits" in invoke("table", copy, "--notes")
    assert "1 dataset not frozen yet" in invoke("table", copy)
    assert "Not frozen yet: digits" in invoke("compare", copy, "--notes")
    assert invoke("validate", copy).startswith("Not frozen yet: digits.\n")
    assert "Of 3 runs" in invoke("rerun", copy, "--sample", 3)
    run = invoke("run", copy, "--algorithm", "VREx", "--trials", 1, "--out", tmp_path / "out")
    assert "Not frozen yet: digits; they are left out" in run and "4 runs" in run


def test_results_of_what_is_not_frozen_yet_are_left_out(copy: Path, mine: Path) -> None:
    dataset_file(copy, "digits").unlink()
    shown = invoke("table", copy, mine)
    assert "VREx" in shown and "digits:" not in shown
    only_digits = ("table", copy, mine, "--dataset", "digits")
    assert "unknown dataset 'digits'" in invoke(*only_digits, code=2)


@pytest.mark.nightly
def test_notes_are_on_the_datasets_that_are_shown(copy: Path, tmp_path: Path) -> None:
    run = ("run", copy, "--algorithm", "VREx", "--workers", 1, "--out", tmp_path / "out")
    invoke(*run, "--dataset", "SEM")
    invoke(*run, "--dataset", "digits", "--trials", 2, "--draws", 2)
    both = " ".join(invoke("table", copy, tmp_path / "out", "--notes").split())
    assert "Partial: all rows are cut to 2 of 4 trials, 2 of 4 draws" in both
    sem = invoke("table", copy, tmp_path / "out", "--dataset", "SEM", "--notes")
    assert "trials: 4, hparam draws: 4" in sem and "Partial" not in sem


def test_a_board_without_a_part_says_so(folder: Path, tmp_path: Path) -> None:
    board = new_board(tmp_path, "empty.v1")
    for command in ("table", "compare", "rerun"):
        assert "the board empty.v1 has no part yet" in invoke(command, board, code=2)
