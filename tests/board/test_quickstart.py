from oodbench.board.protocol import protocol_of, restricted
from oodbench.board.quickstart import BOARD, DATASET, ROWS
from oodbench.results.board import find_board
from oodbench.sweep.file import find_sweep, read_sweep
from oodbench.sweep.plan import make_plan


def test_the_sweep_of_that_name_has_the_runs_of_the_board() -> None:
    whole = restricted(protocol_of(find_board(BOARD)), ROWS, datasets=[DATASET])
    assert set(make_plan(read_sweep(find_sweep("quickstart"))).runs) == set(make_plan(whole).runs)
