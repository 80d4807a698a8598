import itertools
import math

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import statsmodels.api as sm
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower

from oodbench.report import statistics as st


def scores(
    rng: np.random.Generator, datasets: int, environments: int, trials: int, spread: float = 1.0
) -> pd.DataFrame:
    """Scores of A, which are 0, and of B, which are random."""
    places = itertools.product(range(datasets), "AB", range(environments), range(trials))
    rows = [
        (f"D{d}", x, f"e{e}", t, rng.normal(0, spread) * (x == "B"), True) for d, x, e, t in places
    ]
    names = ["dataset", "label", "environment", "trial", "value", "higher"]
    return pd.DataFrame(rows, columns=names)


@pytest.mark.parametrize("n", [3, 10])
def test_an_estimate_is_that_of_statsmodels(n: int) -> None:
    values = np.random.default_rng(n).normal(size=n)
    found = st.estimate(values)
    wanted = sm.stats.DescrStatsW(values)
    assert found.mean == pytest.approx(wanted.mean)
    assert found.stderr == pytest.approx(scipy.stats.sem(values))
    assert (found.low, found.high) == pytest.approx(wanted.tconfint_mean(alpha=0.05))


def test_a_difference_is_paired_and_has_the_sign_of_better() -> None:
    frame = scores(np.random.default_rng(0), 3, 3, 4, spread=1e-3)
    frame = frame.sort_values("label", kind="stable")
    frame["value"] += 0.25 * (frame["label"] == "B")
    frame["value"] += np.tile(np.random.default_rng(1).normal(size=36), 2)
    (found,) = st.paired_differences(frame, "A")
    assert found.gain.mean == pytest.approx(0.25, abs=0.01)
    assert found.gain.stderr < 0.01 and found.gain.n == 3
    assert (found.wins, found.ties, found.losses) == (36, 0, 0)
    assert found.pairs == found.planned == 36
    (lower,) = st.paired_differences(frame.assign(higher=False), "A")
    assert lower.gain.mean == pytest.approx(-found.gain.mean) and lower.losses == 36


def test_a_mean_gain_weighs_datasets_and_environments_alike() -> None:
    values = {("D", "a", 0): 1.0, ("D", "a", 1): 3.0, ("D", "b", 0): 6.0, ("E", "c", 0): 8.0}
    rows = [(d, "B", e, t, v, True) for (d, e, t), v in values.items()]
    rows += [(d, "A", e, t, 0.0, True) for d, e, t in values]
    names = ["dataset", "label", "environment", "trial", "value", "higher"]
    (found,) = st.paired_differences(pd.DataFrame(rows, columns=names), "A")
    assert found.gain.mean == pytest.approx(((2 + 6) / 2 + 8) / 2)


def test_ties_losses_and_what_is_missing() -> None:
    frame = scores(np.random.default_rng(0), 1, 1, 4)
    frame.loc[frame["label"] == "B", "value"] = [0.004, -0.004, 0.006, math.nan]
    (found,) = st.paired_differences(frame, "A")
    assert (found.wins, found.ties, found.losses) == (1, 2, 1)
    assert math.isnan(found.gain.mean)  # a diverged run is not dropped
    frame.loc[frame.index[:2], "value"] = math.nan  # the baseline diverges in two trials
    assert frame["label"].iloc[0] == "A"
    (both,) = st.paired_differences(frame, "A")
    assert (both.wins, both.ties, both.losses) == (3, 0, 1)
    frame.loc[frame.index[3], "value"] = math.nan  # as the row does
    (both,) = st.paired_differences(frame, "A")
    assert (both.wins, both.ties, both.losses) == (3, 1, 0)
    (short,) = st.paired_differences(frame.iloc[:-1], "A")
    assert (short.pairs, short.planned) == (3, 4)


def test_equal_values_are_called_equal() -> None:
    frame = scores(np.random.default_rng(0), 1, 2, 3).assign(value=0.5)
    (found,) = st.paired_differences(frame, "A")
    assert found.equal and (found.wins, found.ties, found.losses) == (0, 6, 0)
    frame.loc[frame.index[-1], "value"] = 0.5 + 1e-9
    (found,) = st.paired_differences(frame, "A")
    assert not found.equal
    frame.loc[frame.index[-1], "value"] = math.nan
    (found,) = st.paired_differences(frame, "A")
    assert not found.equal


@pytest.mark.parametrize("n", [3, 5, 10, 50])
def test_the_detectable_difference_is_that_of_statsmodels(n: int) -> None:
    wanted = 2.0 * TTestPower().solve_power(None, n, 0.05, 0.8)
    assert st.detectable_difference(2.0, n) == pytest.approx(wanted, rel=1e-3)
    assert math.isnan(st.detectable_difference(2.0, 2))


def test_equal_values_share_their_mean_rank() -> None:
    table = pd.DataFrame({"A": [1e3, 3.0], "B": [1e3 + 1e-10, 2.0], "C": [0.0, 1.0]})
    assert st.mean_ranks(table).to_dict() == {"A": 1.25, "B": 1.75, "C": 3.0}


def test_holm_is_that_of_statsmodels() -> None:
    p = pd.Series(np.random.default_rng(3).uniform(0, 0.1, size=9))
    assert st.holm(p).tolist() == pytest.approx(multipletests(p, method="holm")[1].tolist())


def test_one_label_has_no_order() -> None:
    assert math.isnan(st.kendall(pd.Series({"A": 1.0, "B": 2.0}), pd.Series({"A": 1.0})))


def test_gains_and_losses_are_those_that_holm_leaves() -> None:
    noise = np.random.default_rng(16).normal(size=(5, 4))
    gains = np.array([9.0, -9.0, 2.0, -2.0, 0.0])[:, None] + noise
    p = scipy.stats.ttest_1samp(gains, 0, axis=1).pvalue
    holm, strict = (np.asarray(multipletests(p, method=m)[0]) for m in ("holm", "bonferroni"))
    assert strict.sum() < holm.sum() < np.sum(p < 0.05)
    rows = (np.zeros(4), *gains)
    differences = [
        st.Difference("A", "ERM", st.estimate(row), 0, 0, 0, 4, 4, 0.0, not row.any())
        for row in rows
    ]
    wanted = [0, *np.where(holm, np.sign(gains.mean(axis=1)), 0).tolist()]
    assert st.significant(differences) == wanted and {-1, 0, 1} == set(wanted)
