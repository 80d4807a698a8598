import math
from collections.abc import Iterator

import numpy as np
import pytest

from oodbench.data.coinrun import FRAMES, MOVES, TEMPERATURE, Planner, Simulator, scene

LEVEL = 3


@pytest.fixture(scope="module")
def planner() -> Iterator[Planner]:
    found = Planner(LEVEL)
    yield found
    found.close()


def least(game: Simulator, state: bytes) -> int:
    """The decisions to the coin by breadth-first search over every exact place and velocity."""
    level, seen, depth = [state], set(), 0
    while True:
        depth += 1
        following = []
        for at in level:
            game.put([at] * len(MOVES))
            won, lost = game.advance(MOVES, FRAMES)
            if won.any():
                return depth
            for there, loss in zip(game.states(), lost, strict=True):
                if not loss and scene(there) not in seen:
                    seen.add(scene(there))
                    following.append(there)
        level = following


@pytest.mark.nightly
def test_costs_are_near_the_least_ones(planner: Planner) -> None:
    costs, successors = planner.costs(planner.start)
    best = least(planner.simulator, planner.start)
    assert best <= planner.cost(planner.start) <= best + 1
    for cost, successor in zip(costs[[0, 5]], np.array(successors)[[0, 5]], strict=True):
        exact = 1 + least(planner.simulator, bytes(successor))
        assert exact - 1 <= cost <= exact + 2


def test_the_best_moves_win_in_a_new_game(planner: Planner) -> None:
    game = Simulator(LEVEL, 1)
    expected = planner.cost(planner.start)
    decisions, won = 0, np.zeros(1, bool)
    while not won.any() and decisions < 20:
        decisions += 1
        costs, _ = planner.costs(game.states()[0])
        won, lost = game.advance(MOVES[[costs.argmin()]], FRAMES)
        assert not lost.any()
    assert won.all() and decisions <= expected + 2
    game.close()


def test_an_episode_is_a_game_played_by_its_own_distributions(planner: Planner) -> None:
    episode = list(planner.episode(np.random.default_rng(0)))
    again = list(Planner(LEVEL).episode(np.random.default_rng(0)))
    costs, _ = planner.costs(planner.start)
    weights = np.exp(-costs / TEMPERATURE)
    expected = np.zeros(15)
    expected[MOVES] = weights / weights.sum()
    np.testing.assert_allclose(episode[0][1], expected, rtol=1e-5)
    game = Simulator(LEVEL, 1)
    assert np.array_equal(episode[0][0], game.images()[0])
    game.close()
    for image, distribution in episode:
        assert image.shape == (64, 64, 3) and image.dtype == np.uint8
        assert distribution.sum() == pytest.approx(1) and (distribution >= 0).all()
        assert not distribution[[0, 3, 6, *range(9, 15)]].any()
    assert len(again) > 1 and np.array_equal(again[0][1], episode[0][1])


@pytest.mark.nightly
def test_a_fall_onto_enemies_is_lost() -> None:
    planner = Planner(1)
    lost = np.zeros(6, bool)
    state = planner.start
    while not lost.all():  # run on until nothing helps
        before, (_, lost, states) = state, planner._try(state)
        state = states[0]
    costs, _ = planner.costs(before)
    assert (costs == math.inf).all()
    planner.start = before
    assert not list(planner.episode(np.random.default_rng(0)))
    planner.close()
