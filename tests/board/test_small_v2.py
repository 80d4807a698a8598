"""small.v2 and small.v3: one range on all datasets, for all rows; runs have the same bits anywhere."""

import pandas as pd
import pytest

from oodbench.board.protocol import protocol_of, restricted
from oodbench.report.sources import range_notes
from oodbench.results.boards import find_board
from oodbench.sweep.plan import make_plan
from tests.helpers.commands import python
from tests.helpers.paths import GOLDEN, ROOT

RUNS = GOLDEN / "board_runs.json"
DATASETS = ["unit test 3", "SEM, FOU", "colored digits", "spirals"]
"""One of each kind of data of which ranges could depend on it, and that needs no file."""
NEXT = ["SEM, FOU", "colored digits", "city weather"]
"""The same of small.v3."""


@pytest.mark.slow
def test_a_draw_is_the_same_on_all_datasets_and_for_all_rows() -> None:
    sweep = restricted(
        protocol_of(find_board("small.v2")), ["all"], trials=1, draws=3, datasets=DATASETS
    )
    runs = make_plan(sweep, to_train=False).runs.values()
    notes = range_notes(pd.DataFrame([vars(r) | {"dataset_label": r.dataset_name} for r in runs]))
    fitted = "ICP, LinearIRM, LinearVREx, LeastSquares"
    assert notes == [f"Rows with other values of batch_size than ERM in the same draw: {fitted}."]
    drawn = {(r.draw, r.hparams["lr"], r.hparams["weight_decay"]) for r in runs}
    assert len(drawn) == 3


@pytest.mark.slow
def test_the_next_board_has_one_range_and_draws_for_all_rows_but_references() -> None:
    protocol = protocol_of(find_board("small.v3"))
    sweep = restricted(protocol, ["all"], trials=1, draws=3, datasets=NEXT)
    runs = make_plan(sweep, to_train=False).runs.values()
    trained = [r for r in runs if not r.reference]
    assert len({(r.draw, r.hparams["lr"], r.hparams["weight_decay"]) for r in trained}) == 3
    assert {r.hparams["batch_size"] for r in trained} == {32}
    assert {r.label for r in runs if r.ceiling and r.reference} == {"Forest ceiling"}


@pytest.mark.nightly
def test_forty_runs_have_the_bits_that_they_have_where_the_board_is_trained() -> None:
    made = python(ROOT, "-m", "tests.golden_board")
    assert "40 of 40 runs equal" in made.stdout, made.stdout + made.stderr
