import itertools
import math
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from statsmodels.stats.multitest import multipletests

from oodbench.errors import UserError
from oodbench.report import statistics as ranking

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what scikit-posthocs imports is not ours
    import scikit_posthocs


def table(rng: np.random.Generator, blocks: int, labels: int) -> pd.DataFrame:
    names = [f"L{i}" for i in range(labels)]
    return pd.DataFrame(rng.normal(size=(blocks, labels)).round(1), columns=names)


@pytest.mark.parametrize(("blocks", "labels"), [(4, 3), (7, 14), (31, 6)])
def test_friedman_and_ranks_are_those_of_scipy(blocks: int, labels: int) -> None:
    made = table(np.random.default_rng(blocks), blocks, labels)
    wanted = scipy.stats.friedmanchisquare(*made.to_numpy().T)
    found = ranking.friedman(made)
    assert found is not None
    assert (found.statistic, found.p) == pytest.approx((wanted.statistic, wanted.pvalue))
    ranks = scipy.stats.rankdata(-made.to_numpy(), axis=1).mean(axis=0)
    assert ranking.mean_ranks(made).reindex(made.columns).tolist() == pytest.approx(ranks.tolist())
    assert ranking.mean_ranks(made).is_monotonic_increasing


def test_friedman_without_differences() -> None:
    same = pd.DataFrame(np.ones((3, 3)), columns=list("ABC"))
    found = ranking.friedman(same)
    assert found is not None and (found.statistic, found.p) == (0.0, 1.0)
    assert ranking.friedman(same[["A", "B"]]) is None and ranking.friedman(same.iloc[:1]) is None


def test_holm_is_that_of_statsmodels() -> None:
    made = table(np.random.default_rng(3), 9, 6)
    found = ranking.holm_against(made, "L2")
    mean = ranking.mean_ranks(made)
    z = (mean["L0"] - mean["L2"]) / math.sqrt(6 * 7 / (6 * 9))
    assert found.loc["L0", "p"] == pytest.approx(2 * scipy.stats.norm.sf(abs(z)))
    wanted = multipletests(found["p"], method="holm")[1]
    assert found["holm"].tolist() == pytest.approx(wanted.tolist())
    assert "L2" not in found.index and len(found) == 5


def test_the_critical_difference_is_the_one_of_scikit_posthocs() -> None:
    made = table(np.random.default_rng(5), 8, 5)
    p = scikit_posthocs.posthoc_nemenyi_friedman(made.to_numpy())
    mean, width = ranking.mean_ranks(made), ranking.critical_difference(5, 8)
    for a, b in itertools.combinations(range(5), 2):
        apart = abs(mean[f"L{a}"] - mean[f"L{b}"]) > width
        assert apart == (p.iloc[a, b] < 0.05)
    # q = 2.949 at 10 labels, 2.728 at 5 (Demsar 2006, table 5)
    assert ranking.critical_difference(5, 30) == pytest.approx(
        2.728 * math.sqrt(30 / 180), rel=1e-3
    )
    assert round(ranking.critical_difference(14, 7), 2) == 7.50


def test_cliques_are_the_widest_groups() -> None:
    mean = pd.Series({"C": 3.0, "A": 1.0, "B": 1.8, "D": 6.0})
    assert ranking.cliques(mean, 1.0) == [["A", "B"]]
    assert ranking.cliques(mean, 1.5) == [["A", "B"], ["B", "C"]]
    assert ranking.cliques(mean, 9.0) == [["A", "B", "C", "D"]]


def test_blocks_hold_complete_labels_and_put_divergence_last() -> None:
    cells = itertools.product("ABC", ["D0", "D1"], ["e0", "e1"], range(2))
    frame = pd.DataFrame(cells, columns=["label", "dataset", "environment", "trial"])
    frame = frame.assign(value=frame["label"].map({"A": 1.0, "B": 2.0, "C": 3.0}), higher=True)
    frame.loc[(frame["label"] == "C") & (frame["dataset"] == "D0"), "value"] = math.nan
    made = ranking.block_table(frame)
    assert made.to_numpy()[1].tolist() == [1.0, 2.0, 3.0]
    assert ranking.ranks(made).to_numpy()[0].tolist() == [2.0, 1.0, 3.0]
    short = frame[~((frame["label"] == "B") & (frame["trial"] == 1))]
    assert list(ranking.block_table(short)) == ["A", "C"]
    lower = ranking.block_table(frame.assign(higher=False))
    assert lower.to_numpy()[1].tolist() == [-1.0, -2.0, -3.0]
    alone = ranking.block_table(frame[frame["dataset"] == "D1"])
    assert (
        alone.index.tolist() == ["e0", "e1"] and alone.to_numpy().tolist() == [[1.0, 2.0, 3.0]] * 2
    )


def test_kendall_and_the_stability_of_a_ranking() -> None:
    made = table(np.random.default_rng(1), 5, 6)
    found = ranking.rank_stability(made)
    assert list(found) == ["0", "1", "2", "3", "4"]
    whole, part = ranking.mean_ranks(made), ranking.mean_ranks(made.drop(2))
    wanted = scipy.stats.kendalltau(*(r.reindex(made.columns) for r in (whole, part))).statistic
    assert found["2"] == pytest.approx(wanted)
    assert ranking.rank_stability(made.iloc[:1]) == {}
    assert math.isnan(ranking.kendall(whole, whole.iloc[:1]))


def test_ranks_come_with_their_tests_or_with_the_reason_why_there_are_none() -> None:
    cells = itertools.product("ABC", ["D0", "D1"], ["e0", "e1"], range(2))
    frame = pd.DataFrame(cells, columns=["label", "dataset", "environment", "trial"])
    frame = frame.assign(value=frame["label"].map({"A": 1.0, "B": 2.0, "C": 3.0}), higher=True)
    found = ranking.ranked(frame, "A")
    assert (found.over, found.blocks) == ("dataset", 2)
    assert found.mean.to_dict() == {"C": 1.0, "B": 2.0, "A": 3.0}
    assert found.width == ranking.critical_difference(3, 2)
    assert found.friedman is not None and found.friedman.statistic == pytest.approx(4.0)
    assert list(found.holm.index) == ["C", "B"] and found.stability == {"D0": 1.0, "D1": 1.0}
    assert found.cliques == [["C", "B", "A"]]
    assert ranking.ranked(frame, "none").holm.empty
    alone = frame[frame["dataset"] == "D0"]
    assert list(ranking.ranked(alone, "A").stability) == ["e0", "e1"]
    for part, reason in (
        (alone[alone["environment"] == "e0"], "two datasets or two test environments"),
        (frame[frame["label"] == "A"], "two algorithms that are complete everywhere"),
        (frame.iloc[:0], "two datasets"),
    ):
        with pytest.raises(UserError, match=reason):
            ranking.ranked(part, "A")
