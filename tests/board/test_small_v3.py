"""small.v3: one range on all datasets, for all rows; runs have the same bits anywhere."""

import pytest

from oodbench.board.protocol import protocol_of, restricted
from oodbench.report.comparison import table
from oodbench.report.gaps import gaps_by_rule
from oodbench.report.sources import frames_of
from oodbench.results.boards import find_board
from oodbench.sweep.plan import make_plan
from tests.helpers.commands import python
from tests.helpers.paths import GOLDEN, ROOT

RUNS = GOLDEN / "board_runs.json"
FEATURES = "letters, features"


@pytest.mark.slow
def test_a_draw_is_the_same_on_all_datasets_and_for_all_rows_but_references() -> None:
    each_kind = ["SEM, FOU", "colored digits", "city weather"]
    sweep = restricted(protocol_of(find_board("small.v3")), ["all"], 1, 3, each_kind)
    runs = make_plan(sweep, to_train=False).runs.values()
    trained = [r for r in runs if not r.reference]
    assert len({(r.draw, r.hparams["lr"], r.hparams["weight_decay"]) for r in trained}) == 3
    assert {r.hparams["batch_size"] for r in trained} == {32}
    assert {r.label for r in runs if r.ceiling and r.reference} == {"Forest ceiling"}


def test_features_count_to_the_half_of_their_pictures_and_as_pretrained() -> None:
    gaps = gaps_by_rule(frames_of(["small.v3"], ["letters", FEATURES]))["train_val"]
    assert gaps and gaps.subsets["natural"] == ["letters", FEATURES]
    assert gaps.subsets["pretrained"] == [FEATURES]


def test_a_forest_has_no_row_among_the_metrics_of_a_predictor() -> None:
    tables = {block.title: block for block in table("small.v3", datasets=["SEM, FOU"]).blocks}
    rows = [row[0] for row in tables["SEM, FOU: of the predictor itself"].rows]
    assert "ceiling" in rows and not {"Forest", "Forest ceiling"} & {*rows}


@pytest.mark.nightly
def test_forty_runs_have_the_bits_that_they_have_where_the_board_is_trained() -> None:
    made = python(ROOT, "-m", "tests.golden_board")
    assert "40 of 40 runs equal" in made.stdout, made.stdout + made.stderr


def test_chosen_rows_keep_their_places_among_all() -> None:
    whole, few = (table("small.v3", rows=rows) for rows in ((), ("ANDMask,IRM",)))
    places = []
    for sheet in (whole, few):
        (block,) = (block for block in sheet.blocks if "place" in block.header)
        place = block.header.index("place")
        places.append({row[0]: row[place] for row in block.rows})
    assert places[1].keys() >= {"ANDMask", "IRM"} and places[1].items() <= places[0].items()
    assert len(places[1]) < len(places[0])
