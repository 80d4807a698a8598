"""A board of another version: it is shown and valid as it was frozen, and says what differs here."""

import re
from pathlib import Path
from typing import Any

import pytest

from oodbench.board.rerun import changed_data
from oodbench.report.sources import beside_board
from oodbench.results.boards import find_board
from oodbench.results.parquet import specs_of
from oodbench.results.provenance import made_by
from oodbench.results.read import read_board
from tests.helpers.results.boards import SEM, edited_board, invoke, remove, trained
from tests.helpers.results.made import texts

pytestmark = pytest.mark.slow

OLDER = {"oodbench": "0.1.9", "commit": "0123456789abcdef", "machine": "x86_64, A(R) Chip @ 2 GHz"}
BOTH_SIDES = (
    r"The board was trained by oodbench 0\.1\.9, torch [^,]*, A Chip, portable arithmetic; "
    r"the runs here by oodbench"
)


@pytest.fixture
def older(copy: Path) -> Path:
    """The board as another version might have frozen it elsewhere: accuracies are 25 points higher."""
    with edited_board(copy) as tables:
        tables.runs["provenance"] = [made | OLDER for made in tables.runs["provenance"]]
        is_value = tables.records["metric"].eq("accuracy")
        tables.records.loc[is_value, "value"] += 0.25
    return copy


def test_its_tables_say_what_trained_it_and_it_is_valid_whatever_methods_and_data_are_today(
    older: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = r"Trained by oodbench 0\.1\.9, torch [^,]*, A Chip, portable arithmetic\."
    for command in ("table", "compare"):
        assert re.search(made, " ".join(invoke(command, older).split()))

    def gone(*arguments: object, **options: object) -> None:
        raise AssertionError("the methods, ranges or data of today were asked")

    for name in ("sweep.resolve.draw_hparams", "sweep.plan.make_plan", "datasets.make"):
        monkeypatch.setattr(f"oodbench.{name}", gone)
    assert "is as it must be" in invoke("validate", older)


@pytest.mark.parametrize(
    ("written", "instead", "message"),
    [
        ("steps: 20", "steps: 30", "ERM on SEM: steps is not the protocol's"),
        ("evaluate_every: 10", "evaluate_every: 5", "evaluate every is not the protocol's"),
        ("num_examples: 40", "num_examples: 50", "IRM on SEM: num examples is not the protocol's"),
        ("- IRM", "- {name: IRM, hparams: {lr: 0.5}}", "IRM on digits: lr is not the protocol's"),
        ("- IRM", "- {name: IRM, hparams: {clip_norm: 1.0}}", "clip norm is not the protocol's"),
        ("- IRM", "- {name: ERM, label: IRM}", "IRM on digits: algorithm is not the protocol's"),
        ("- IRM", "- {name: IRM, average: swa, label: IRM}", "average is not the protocol's"),
        ("- IRM", "- {name: IRM, adapt: T3A, label: IRM}", "adapt is not the protocol's"),
        ("hparam_draws: 4", "hparam_draws: 5", "draw 4 missing (5 are planned)"),
        ("trials: 4", "trials: 3", "4 of 16 runs are under another protocol, first run"),
        ("label: digits", "label: images", "digits: the protocol does not have this dataset"),
    ],
)
def test_what_is_not_under_its_protocol_is_said(
    older: Path, written: str, instead: str, message: str
) -> None:
    file = older / "protocol.yaml"
    text = file.read_text()
    assert written in text
    file.write_text(text.replace(written, instead))
    assert message in invoke("validate", older, code=1)


def test_trained_again_by_this_version_its_runs_differ_for_a_reason(older: Path) -> None:
    remove(older, "SEM")
    text = invoke("rerun", older, "--sample", 3, code=1)
    text = " ".join(text.split())
    assert "0 equal bit for bit, 0 equal within round-off, 3 off, 0 without a result" in text
    assert re.search(r"off: \w+ on digits, trial \d, draw \d \(run \w+\)", text)
    assert re.search(r"furthest off is \w+ on digits, trial \d, draw \d, by 25\.0 points", text)
    assert re.search(BOTH_SIDES, text)


def test_a_run_that_this_version_cannot_train_is_a_failure(older: Path) -> None:
    remove(older, "digits")
    remove(older, "SEM", "IRM")
    with edited_board(older) as tables:
        tables.runs["hparams"] = [hparams | {"gone": 1.0} for hparams in tables.runs["hparams"]]
        new = dict(zip(tables.runs["id"], (s.id for s in specs_of(tables.runs)), strict=True))
        for table in (tables.runs, tables.records):
            table["id"] = table["id"].map(new)
    text = " ".join(invoke("rerun", older, "--sample", 1, code=1).split())
    assert re.search(r"without a result: ERM on SEM, trial \d, draw \d \(run \w+\): .*gone", text)
    assert "none of 1 run has a result." in text


def test_rows_of_another_version_stand_beside_it_with_the_reason(older: Path, half: Path) -> None:
    frames = beside_board(str(older), [half])
    assert "ERM, IRM on SEM: 32 of 32 runs here are equal to the board's." in texts(frames.notes)
    *_, unlike, made = texts(frames.notes)
    assert unlike.startswith("ERM (here), IRM (here) on digits: of 32 runs that are also on")
    assert unlike.endswith("by 25.0 points of accuracy.")
    assert re.match(BOTH_SIDES, made)


def test_a_method_whose_ranges_have_moved_has_a_row_of_its_own(older: Path, tmp_path: Path) -> None:
    rows = [{"name": "IRM", "hparams": {"penalty_weight": [1.0, 2.0, 3.0, 4.0]}}]
    moved = trained(tmp_path, "moved", algorithms=rows, datasets=[SEM])
    frames = beside_board(str(older), [moved])
    assert {"IRM", "IRM (here)"} < set(frames.runs["label"]) and frames.runs["id"].is_unique
    assert "; 16 have other hyperparameters than the board's." in " ".join(texts(frames.notes))


@pytest.mark.parametrize("dataset", ["colored digits", "SEM, FOU", "SEM, PES", "city weather"])
def test_the_data_of_the_packages_board_are_those_of_today(dataset: str) -> None:
    runs = read_board(find_board("small.v3")).runs
    of_row = runs[runs["dataset_label"].eq(dataset) & runs["label"].eq("ERM")]
    assert changed_data(of_row, runs, None) == ""


@pytest.mark.parametrize(
    ("machine", "name"),
    [
        ("x86_64, Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz", "Intel Xeon Platinum 8481C"),
        ("x86_64, AMD EPYC 7B13 64-Core Processor", "AMD EPYC 7B13"),
        ("aarch64, Neoverse-N1", "aarch64, Neoverse-N1"),
    ],
)
def test_what_trained_some_runs_is_said_in_short(machine: str, name: str) -> None:
    made: dict[str, Any] = {"oodbench": "0.2.0", "torch": "2.9", "machine": machine}
    made |= {"device": "cpu"}
    assert made_by([made, made, {}]) == f"oodbench 0.2.0, torch 2.9, {name}"
    others = [made, made | {"torch": "2.8", "device": "cuda:0", "arithmetic": "native"}]
    assert made_by(others) == (
        f"oodbench 0.2.0, torch 2.9 and torch 2.8, {name}, cuda, native arithmetic"
    )
