"""The tables and sentences on the share of the gap, beside the runs themselves."""

from pathlib import Path

import pandas as pd
import pytest
import scipy.stats

from oodbench.report import gaps as gap_tables
from oodbench.report.gaps import Gaps, gaps_of
from oodbench.report.html.contents import datasets_agree, rules_agree
from oodbench.report.tables import Block
from oodbench.report.tables.leaderboard import leaderboard_by_rule
from oodbench.results.frames import Frames, subset
from oodbench.results.load import frozen
from oodbench.selection import judged
from tests.helpers.boards import invoke
from tests.helpers.made_boards import Means, made_board

MEANS: Means = {
    "alpha": {"ERM": 0.5, "A": 0.8, "B": 0.45, "C": 0.5, "T": 0.9, "ceiling": 0.95},
    "beta": {"ERM": 2.0, "A": 1.0, "B": 9.0, "C": 2.1, "T": 0.5, "ceiling": 0.4},
    "gamma": {"ERM": 0.4, "A": 0.5, "B": 0.35, "ceiling": 0.8},
    "delta": {"ERM": 0.6, "A": 0.7, "B": 0.5, "C": 0.5, "ceiling": None},
}
"""`C` has no run of gamma; delta's ceiling has the runs of ERM."""
NAMES = {"alpha": "ColoredDigits", "beta": "LinearSEM", "gamma": "Flights", "delta": "Spirals"}
CLEAR = ["alpha", "beta", "gamma"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("board") / "gaps.v1"


@pytest.fixture(scope="module")
def runs(made: Path) -> pd.DataFrame:
    return made_board(
        *(made, MEANS, 3, 5),
        rules=dict.fromkeys(MEANS, ("val_env", "train_val", "oracle")),
        lower=("beta",),
        names=NAMES,
        constant={"alpha": 0.4},
        ceilings=("ceiling",),
        transductives=("T",),
    )


@pytest.fixture(scope="module")
def frames(made: Path, runs: pd.DataFrame) -> Frames:
    return frozen(str(made))


@pytest.fixture(scope="module")
def gaps(frames: Frames) -> Gaps:
    by_rule = gaps_of(leaderboard_by_rule(judged(frames, "val_env")))
    assert by_rule is not None
    return by_rule


def mean(runs: pd.DataFrame, dataset: str, label: str, rule: str = "val_env") -> float:
    """The mean over trials of what a rule chooses."""
    rows = runs[(runs["dataset"] == dataset) & (runs["label"] == label)]
    score = rows[rule].where(rows["up"], -rows[rule])
    return float(rows.loc[score.groupby(rows["trial"]).idxmax(), "t"].mean())


def share(runs: pd.DataFrame, dataset: str, label: str, rule: str = "val_env") -> float:
    erm, row, top = (mean(runs, dataset, x, rule) for x in ("ERM", label, "ceiling"))
    return (row - erm) / (top - erm)


def cells(block: Block) -> dict[str, dict[str, str]]:
    return {row[0]: dict(zip(block.header, row, strict=True)) for row in block.rows}


def test_the_headline_is_the_bounded_mean_over_datasets_with_clear_head_room(
    runs: pd.DataFrame, gaps: Gaps
) -> None:
    table = cells(gap_tables.headline(gaps))
    assert gaps.unclear == ["delta"] and "delta" in gap_tables.about(gaps)
    groups = {"all (3)": CLEAR, "constructed (2)": CLEAR[:2], "natural (1)": CLEAR[2:]}
    for label in ("A", "B", "T", "C"):
        for group, datasets in groups.items():
            there = [d for d in datasets if label in MEANS[d]]
            wanted = sum(max(share(runs, d, label), -1) for d in there) / len(datasets)
            cell = table[label][group]
            if there == datasets:
                assert cell.split(" [")[0] == f"{wanted:z.2f}"
                assert ("[" in cell) == (len(datasets) != 2)
                if len(datasets) == 2:
                    continue
                low, high = map(float, cell.split(" [")[1].rstrip("]").split(", "))
                assert low <= wanted + 0.005 and wanted - 0.005 <= high
            else:
                assert cell == "-"
    assert list(table) == ["A", "ERM", "B", "C", "T", "constant"]
    assert table["ERM"]["all (3)"] == "0"
    assert table["constant"]["all (3)"] == table["T"]["place"] == table["C"]["place"] == "-"
    assert [table[x]["place"].split(" ")[0] for x in ("A", "ERM", "B")] == ["1", "2", "3"]


def test_a_row_that_lacks_only_a_dataset_without_shares_has_a_mean_and_a_place(
    frames: Frames, gaps: Gaps
) -> None:
    table = frames.runs
    few = table[~(table["label"].eq("A") & table["dataset_label"].eq("delta"))]
    fewer = gaps_of(leaderboard_by_rule(judged(subset(frames, few), "val_env")))
    assert fewer is not None
    assert fewer.ranked["all"][0].label == "A"
    assert fewer.ranked["all"][0] == gaps.ranked["all"][0]


def test_agreement_of_datasets_is_kendalls_tau(runs: pd.DataFrame, gaps: Gaps) -> None:
    table = cells(datasets_agree(gaps))
    for one, other in (("alpha", "beta"), ("beta", "gamma")):
        labels = [x for x in ("ERM", "A", "B", "C") if {one, other} <= datasets_of(x)]
        orders = ([share(runs, d, x) for x in labels] for d in (one, other))
        assert table[one][other] == f"{scipy.stats.kendalltau(*orders).statistic:z.2f}"


def datasets_of(label: str) -> set[str]:
    return {dataset for dataset, rows in MEANS.items() if label in rows}


def test_rules_agree_over_the_datasets_that_both_judge(frames: Frames) -> None:
    rules = ("val_env", "train_val", "oracle")
    boards = {rule: leaderboard_by_rule(judged(frames, rule)) for rule in rules}
    by_rule = {rule: gaps for rule, board in boards.items() if (gaps := gaps_of(board))}
    assert cells(rules_agree(by_rule))["val_env"]["oracle"].endswith("(3 datasets)")


def test_the_headline_stands_in_the_table(made: Path) -> None:
    shown = invoke("table", made, "--format", "markdown")
    assert shown.count("### Share of the gap closed by val_env: 0 is ERM, 1 the ceiling") == 1


def test_a_board_without_a_ceiling_has_no_share(tmp_path: Path) -> None:
    means: Means = {"a": {"ERM": 0.5, "R": 0.6}, "b": {"ERM": 0.5, "R": 0.6}}
    made_board(board := tmp_path / "b", means, 2, 3, rules=dict.fromkeys(means, ("val_env",)))
    assert "Share of the gap" not in invoke("table", board)
