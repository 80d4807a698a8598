"""The share of the gap closed, places and counts: each formula beside a library or brute force."""

import itertools
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

from oodbench.report import gaps as g
from oodbench.report import statistics as st
from oodbench.report.numbers import place

LABELS = ["ERM", "A", "B", "C"]
HIGHER = {"accuracies": True, "losses": False, "others": True}
TRIALS = 4


def made(labels: list[str] = LABELS, seed: int = 0, shift: float = 0.0) -> pd.DataFrame:
    """Scores of two environments on each dataset."""
    rng = np.random.default_rng(seed)
    places = itertools.product(HIGHER, labels, "tu", range(TRIALS))
    frame = pd.DataFrame(places, columns=["dataset", "label", "environment", "trial"])
    up = np.array([1.0 if HIGHER[d] else -1.0 for d in frame["dataset"]])
    value = rng.normal(size=len(frame)) + up * shift
    return frame.assign(value=value, higher=up > 0, metric="m")


@pytest.fixture(scope="module")
def scores() -> pd.DataFrame:
    return made()


@pytest.fixture(scope="module")
def ceilings() -> pd.DataFrame:
    return made(["ceiling"], 1, 5.0)


@pytest.fixture(scope="module")
def trials(scores: pd.DataFrame) -> pd.DataFrame:
    return st.by_trial(scores)


@pytest.fixture(scope="module")
def rooms(trials: pd.DataFrame, ceilings: pd.DataFrame) -> pd.DataFrame:
    return g.head_rooms(trials, st.by_trial(ceilings)["ceiling"])


def test_the_ceiling_of_a_dataset_is_the_best_that_has_every_trial() -> None:
    table = st.by_trial(made(["poor", "rich", "torn"], 1))
    table.loc["accuracies"] = [[0.1, 0.2, 0.9], [0.1, 0.3, math.nan], [0.1, 0.1, 0.9], [0.1] * 3]
    table.loc["losses", :] = [[-1.0, -2.0, math.nan]] * TRIALS
    table.loc["others", :] = [[math.nan, 0.5, math.nan], *[[0.5, math.nan, math.nan]] * 3]
    best = g.best_ceiling(table)
    wanted = [0.2, 0.3, 0.1, 0.1, *[-1.0] * TRIALS, *[0.5] * TRIALS]
    assert best.tolist() == wanted and best.index.equals(table.index)


def test_where_baseline_and_ceiling_diverge_together_the_head_room_is_not_clear(
    trials: pd.DataFrame, ceilings: pd.DataFrame
) -> None:
    top, broken = st.by_trial(ceilings)["ceiling"].copy(), trials.copy()
    top["losses", 0] = broken.loc[("losses", 0), "ERM"] = -math.inf
    found = g.head_rooms(broken, top)
    assert list(found.index[found["clear"]]) == ["accuracies", "others"]


def test_round_off_makes_no_other_shares(trials: pd.DataFrame, rooms: pd.DataFrame) -> None:
    near = trials.assign(A=trials["ERM"] * (1 + 4e-16), B=trials["C"] * (1 - 4e-16))
    assert not near["A"].equals(near["ERM"])
    table = g.shares(near, rooms)
    assert (table["A"] == 0).all() and table["B"].equals(table["C"])


def test_a_diverged_run_is_at_the_floor_and_a_missing_trial_has_no_share(
    scores: pd.DataFrame, rooms: pd.DataFrame
) -> None:
    one = (scores["dataset"] == "losses") & (scores["trial"] == 1)
    broken = scores.assign(value=scores["value"].mask(one & (scores["label"] == "A")))
    table = g.shares(st.by_trial(broken), rooms)
    assert table.loc["losses", "A"] == -math.inf
    fewer = scores[~(one & (scores["label"] == "B"))]
    table = g.shares(st.by_trial(fewer), rooms)
    assert table["B"].isna()["losses"] and table.drop(columns="B").notna().all(axis=None)
    one_of_two = scores[~(one & (scores["label"] == "B") & (scores["environment"] == "t"))]
    assert st.by_trial(one_of_two)["B"].isna().to_numpy().sum() == 1


def exact_resamples(trials: pd.DataFrame, rooms: pd.DataFrame, datasets: list[str]) -> np.ndarray:
    """The mean share of A in every resample of the datasets and of two trials each."""
    shares = []
    for drawn in itertools.product(datasets, repeat=len(datasets)):
        for picks in itertools.product(itertools.product(range(2), repeat=2), repeat=len(datasets)):
            parts = []
            for dataset, picked in zip(drawn, picks, strict=True):
                table: Any = trials.loc[dataset].iloc[list(picked)].mean()
                room = rooms["mean"].to_dict()[dataset]
                parts.append(max((table["A"] - table["ERM"]) / room, -1))
            shares.append(np.mean(parts))
    return np.array(shares)


def test_the_bootstrap_resamples_datasets_then_paired_trials(
    trials: pd.DataFrame, rooms: pd.DataFrame
) -> None:
    two = trials[trials.index.get_level_values("trial") < 2]
    datasets = ["accuracies", "losses"]
    expected = exact_resamples(two, rooms, datasets)
    drawn = g.resampled(two, rooms, datasets, resamples=40_000)
    share = drawn["A"]
    assert share.mean() == pytest.approx(expected.mean(), abs=0.01)
    assert share.std() == pytest.approx(expected.std(), rel=0.02)
    assert set(share.round(9)) == set(np.round(expected, 9))
    assert (drawn["ERM"] == 0).all()
    assert len(g.resampled(trials, rooms)) == st.RESAMPLES == 10_000
    assert place(1, 1, 2) == "1 [1, 2]"


def test_places_count_those_ahead_in_every_resample() -> None:
    better = pd.Series({"A": 0.5, "B": 0.2, "C": 0.2})
    drawn = np.array([[3, 2, 1], [3, 2, 2], [1, 1, 0], [0, 1, 2]], float)
    places = g.places(better, drawn)
    assert places["place"].tolist() == [1, 2, 2]
    # the places of A are 1, 1, 1, 3; of B 2, 2, 1, 2; of C 3, 2, 3, 1
    assert places["place_low"].tolist() == [1, 1, 1]
    assert places["place_high"].tolist() == [3, 2, 3]
