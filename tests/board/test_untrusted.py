"""A submission's runs must be those that the protocol plans for its method."""

from pathlib import Path
from typing import Any

import pytest

from oodbench.board.checks import planned_rows
from oodbench.board.protocol import protocol_of
from oodbench.board.untrusted import Task, check_rows
from oodbench.errors import UserError
from tests.helpers.boards import new_board


@pytest.fixture
def honest(tmp_path: Path) -> Task:
    board = new_board(tmp_path, "tiny.v1")
    planned = planned_rows(protocol_of(board), ["IRM"], None, ["SEM", "digits"])
    return Task(
        board=board,
        algorithm="IRM",
        method=tmp_path / "irm.py",
        rows={"IRM": {dataset: sorted(specs) for (dataset, _), specs in planned.items()}},
        transductive={},
        specs=[],
        out=tmp_path / "out",
        data_dir=None,
        workers=1,
    )


def test_the_planned_runs_pass(honest: Task) -> None:
    assert [len(ids) for ids in honest.rows["IRM"].values()] == [16, 16]
    check_rows(honest)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"spirals": ["0"]}, "unknown dataset 'spirals'"),
        ({"digits": ["0"]}, "17 runs of IRM on digits are not those that the protocol plans"),
    ],
)
def test_other_runs_are_refused(honest: Task, changes: dict[str, Any], sentence: str) -> None:
    rows = {"IRM": honest.rows["IRM"] | changes}
    with pytest.raises(UserError, match=sentence):
        check_rows(honest.model_copy(update={"rows": rows}))


def test_a_row_may_lack_a_dataset(honest: Task) -> None:
    rows = {"IRM": {"SEM": honest.rows["IRM"]["SEM"]}}
    check_rows(honest.model_copy(update={"rows": rows}))


def test_a_row_is_transductive_as_its_method_declares(honest: Task) -> None:
    turned = honest.model_copy(update={"transductive": {"IRM": ["SEM"]}})
    with pytest.raises(UserError, match="IRM is not transductive, and its part on SEM says"):
        check_rows(turned)
