"""What papers claim, beside the numbers of a made board."""

import pandas as pd
import pytest

from oodbench.algorithms import algorithms
from oodbench.board.page import claims
from oodbench.board.page.contents import Contents, contents
from oodbench.board.page.html import html_page
from oodbench.board.page.tables import sign
from oodbench.datasets import datasets
from tests.helpers.made_boards import made_board

CLAIMED = {
    "spirals": {"ERM": 0.5, "ANDMask": 0.9, "SANDMask": 0.85, "XORMask": 0.8, "ceiling": 0.95},
    "colored": {"ERM": 0.3, "IRM": 0.7, "VREx": 0.2, "MMREx": 0.3, "ceiling": 0.75},
    "rotated": {"ERM": 0.3, "Mixup": 0.3, "CutMix": 0.1, "LISA": 0.313, "ceiling": 0.9},
    "sem": {"ERM": 0.3, "ANDMask": 0.9, "ceiling": 0.9},
}
NAMES = {
    "spirals": "Spirals",
    "colored": "ColoredDigits",
    "rotated": "RotatedDigits",
    "sem": "LinearSEM",
}


@pytest.fixture(scope="module")
def claimed(tmp_path_factory: pytest.TempPathFactory) -> Contents:
    folder = tmp_path_factory.mktemp("board") / "claims.v1"
    rules = dict.fromkeys(CLAIMED, ("val_env",))
    made_board(folder, CLAIMED, 2, 6, rules=rules, names=NAMES, ceilings=("ceiling",))
    return contents(str(folder))


@pytest.fixture(scope="module")
def table(claimed: Contents) -> pd.DataFrame:
    block = claims.claims(claimed, claimed.gaps["val_env"])
    return pd.DataFrame(block.rows, columns=block.header).set_index("dataset")


def test_a_claim_is_only_of_its_datasets_and_rows(table: pd.DataFrame) -> None:
    assert list(table.index) == ["spirals", "colored", "rotated"]  # the sem has no penalty
    assert list(table["rows"]) == ["3", "3", "3"]
    assert table.loc["spirals", "claim"] == "sign agreement finds spirals (arXiv:2009.00329)"


def test_verdicts_follow_from_the_signs_of_gains(table: pd.DataFrame, claimed: Contents) -> None:
    gaps = claimed.gaps["val_env"]
    for dataset, row in table.iterrows():
        labels = [x for x in CLAIMED[str(dataset)] if x not in ("ERM", "ceiling")]
        firm = [x for x in labels if gaps.signs[str(dataset), x] == 1]
        own = {x: sign(gaps.differences[str(dataset), x]) for x in labels}
        for column, there in (
            ("gain", firm),
            ("uncorrected", [x for x in labels if own[x] == 1 and x not in firm]),
            ("lose", [x for x in labels if own[x] == -1]),
        ):
            texts = {f"{x} {gaps.shares[x][str(dataset)]:z.2f}" for x in there} or {"none"}
            assert set(row[column].split(", ")) == texts
    assert list(table["verdict"][["spirals", "colored"]]) == [claims.HOLDS, claims.IN_PART]
    assert table.loc["rotated", "verdict"] in (claims.OPEN, claims.NOT)
    assert str(table.loc["rotated", "lose"]).startswith("CutMix")


def test_the_sentence_counts_the_verdicts(claimed: Contents) -> None:
    block = claims.claims(claimed, claimed.gaps["val_env"])
    text = claims.sentence(block)
    assert text.startswith(
        "Of 3 claims on a dataset, holds: sign agreement finds spirals (spirals);"
    )


def test_cells_of_texts_are_named_for_narrow_screens(claimed: Contents) -> None:
    section = html_page(claimed).partition("What papers claim</h2>")[2].partition("</section>")[0]
    assert [section.count(f'data-head="{name}"') for name in ("claim", "verdict")] == [3, 3]


def test_every_row_and_dataset_that_is_named_is_registered() -> None:
    labels = {"GroupDRO over groups", "ERM + RWG", "ERM + SUBG", "average"}
    for claim in claims.CLAIMS:
        assert set(claim.rows) <= {*algorithms, *labels}
        assert {name.split(" ")[0] for name in claim.datasets} <= {*datasets}
