"""The tables and sentences on the share of the gap, beside the runs themselves."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from oodbench.errors import UserError
from oodbench.report import comparison
from oodbench.report.gaps import Gaps, gaps_by_rule, losses, resampled
from oodbench.report.html import contents, orders, selection_cost, selection_costs
from oodbench.results.boards import HALVES_FILE, halves
from oodbench.results.read import read_board
from oodbench.results.tables import Tables, subset
from tests.helpers.results.boards import invoke
from tests.helpers.results.made_boards import Means, made_board
from tests.report.html.conftest import KINDS
from tests.report.html.conftest import kinds as kinds

CLEAR = ["alpha", "beta, b", "gamma"]


@pytest.fixture(scope="module")
def made(kinds: tuple[Tables, pd.DataFrame]) -> Path:
    return Path(kinds[0].runs["directory"].iloc[0])


@pytest.fixture(scope="module")
def runs(kinds: tuple[Tables, pd.DataFrame]) -> pd.DataFrame:
    return kinds[1]


@pytest.fixture(scope="module")
def frames(kinds: tuple[Tables, pd.DataFrame]) -> Tables:
    """The board without the row that diverged."""
    return subset(kinds[0], kinds[0].runs[kinds[0].runs["label"] != "D"])


@pytest.fixture(scope="module")
def gaps(frames: Tables) -> Gaps:
    by_rule = gaps_by_rule(frames)["val_env"]
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


def cells(table: Any) -> dict[str, dict[str, str]]:
    header, rows = (
        (table["header"], table["rows"]) if isinstance(table, dict) else (table.header, table.rows)
    )
    return {row[0]: dict(zip(header, row, strict=True)) for row in rows}


def test_the_headline_is_the_mean_over_clear_head_room(runs: pd.DataFrame, gaps: Gaps) -> None:
    table = cells(comparison.headline(gaps))
    assert gaps.unclear == ["delta"] and "delta" in comparison.about(gaps)
    groups = {"all (3)": CLEAR, "constructed (2)": CLEAR[:2], "natural (1)": CLEAR[2:]}
    for label in ("A", "B", "T", "C"):
        for group, datasets in groups.items():
            there = [d for d in datasets if label in KINDS[d]]
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


def test_a_row_may_lack_a_dataset_without_shares(frames: Tables, gaps: Gaps) -> None:
    table = frames.runs
    few = table[~(table["label"].eq("A") & table["dataset_label"].eq("delta"))]
    fewer = gaps_by_rule(subset(frames, few)).get("val_env")
    assert fewer is not None
    over = fewer.over["all"]
    assert over.index[0] == "A"
    drawn = resampled(fewer.trials, fewer.rooms, CLEAR)["A"]
    first = list(over.loc["A", ["low", "high", "better"]])
    assert first == [*np.quantile(drawn, [0.025, 0.975]), (drawn > 0).mean()]
    assert over.loc[["A"]].equals(gaps.over["all"].loc[["A"]])


def test_selection_costs_a_share_of_the_head_room(runs: pd.DataFrame, frames: Tables) -> None:
    by_rule = gaps_by_rule(frames)
    table = cells(selection_costs(by_rule, "val_env"))

    def lost(dataset: str, label: str, rule: str = "val_env") -> float:
        best, own = (mean(runs, dataset, label, r) for r in ("oracle", rule))
        erm, top = (mean(runs, dataset, x, "oracle") for x in ("ERM", "ceiling"))
        return min(max((best - own) / (top - erm), -1), 1)

    labels = ("ERM", "A", "B", "C")
    there = {label: [d for d in CLEAR if label in KINDS[d]] for label in labels}
    for x, own in there.items():
        assert [table[x][d] for d in own] == [f"{lost(d, x):z.2f}" for d in own]
    means = {
        rule: np.mean([np.mean([lost(d, x, rule) for d in own]) for x, own in there.items()])
        for rule in ("val_env", "train_val")
    }
    assert losses(by_rule) == pytest.approx(means)
    assert next(iter(losses(by_rule))) == min(means, key=lambda rule: means[rule])
    for rule, value in means.items():
        assert table["mean over rows"][f"mean by {rule}"] == f"{value:z.2f}"
        assert f"by {rule}" in selection_cost(by_rule)


def test_orders_are_compared_by_datasets_and_rules(runs: pd.DataFrame, frames: Tables) -> None:
    table = cells(orders(gaps_by_rule(frames), "val_env"))
    assert list(table) == [
        *("bounded at -0.5", "bounded at -2", "bounded at -5"),
        *("without alpha", "without beta, b", "without gamma"),
        *("constructed", "natural", "by train_val", "by oracle"),
    ]

    def means(datasets: list[str], rule: str = "val_env", floor: float = -1.0) -> list[float]:
        shares = (
            [max(share(runs, d, x, rule), floor) for d in datasets] for x in ("ERM", "A", "B")
        )
        return [sum(of_label) / len(datasets) for of_label in shares]

    for name, other in (
        ("without alpha", means(CLEAR[1:])),
        ("bounded at -5", means(CLEAR, floor=-5.0)),
        ("by oracle", means(CLEAR, "oracle")),
    ):
        tau = scipy.stats.kendalltau(means(CLEAR), other).statistic
        place = 1 + sum(value > other[1] for value in other)
        first = ("ERM", "A", "B")[other.index(max(other))]
        assert list(table[name].values())[1:] == [f"{tau:z.2f}", first, str(place)]


def test_rules_without_a_common_dataset_are_not_compared(tmp_path: Path) -> None:
    means: Means = {d: {"ERM": 0.5, "A": 0.55, "ceiling": 0.8} for d in "abcd"}
    rules = {d: ("val_env" if d in "ab" else "train_val", "oracle") for d in means}
    made_board(tmp_path, means, 2, 3, rules=rules, ceilings=("ceiling",))
    page = contents(read_board(tmp_path))
    (table,) = page["tables"]
    assert page["cost"] == "" and table["title"] == "What changes the order of rows"
    assert "by oracle" in cells(table) and "by train_val" not in cells(table)


def test_the_headline_stands_in_the_table_of_a_board(made: Path, tmp_path: Path) -> None:
    shown = invoke("table", made, "--format", "markdown")
    assert shown.count("### Share of the gap closed by val_env: 0 is ERM, 1 the ceiling") == 1
    shown = invoke("table", made, "--rule", "domainbed", code=2)
    assert "DomainBed's rules need all records" in shown
    equal: Means = {"a": {"ERM": 0.5, "R": 0.6}, "b": {"ERM": 0.5, "R": 0.6}}
    rules = dict.fromkeys(equal, ("val_env",))
    made_board(board := tmp_path / "b", equal, 2, 3, rules=rules)
    assert "Share of the gap" not in invoke("table", board)


def test_a_half_names_datasets_of_the_protocol(made: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(made, tmp_path / "gaps.v1")
    (copy / HALVES_FILE).write_text("natural: [alfa]")
    with pytest.raises(UserError, match=r"'alfa'.*halves\.yaml.* alpha"):
        halves(str(copy))
    (copy / HALVES_FILE).unlink()
    assert not halves(str(copy))
