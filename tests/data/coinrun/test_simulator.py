import numpy as np
import pytest

from oodbench.data.coinrun import IMAGE, Simulator, scene


def test_states_bring_back_all_that_follows() -> None:
    game = Simulator(1, 2)
    actions = np.random.default_rng(0).integers(0, 15, (60, 2))
    start = game.states()
    for moves in actions[:20]:
        game.step(moves)
    saved = game.states()
    first = []
    for moves in actions[20:]:
        game.step(moves)
        first.append(game.images())
    assert game.images().shape == (2, *IMAGE) and game.images().dtype == np.uint8
    game.put(saved)
    for moves, images in zip(actions[20:], first, strict=True):
        game.step(moves)
        assert np.array_equal(game.images(), images)
    other = Simulator(1, 1)
    assert other.states() == start[:1]
    game.close()
    other.close()


def test_scene_follows_the_physics() -> None:
    game = Simulator(1, 1)
    before = scene(game.states()[0])
    assert (before.x, before.vx, before.vy) == (1.5, 0, 0)
    assert len(before.enemies) == 5
    speed = 0.0
    for _ in range(4):  # on the ground: vx = 0.8 vx + 0.2 * 0.5
        game.step(np.array([7]))
        speed = 0.8 * speed + 0.1
        after = scene(game.states()[0])
        assert after.vx == pytest.approx(speed, abs=1e-6)
        assert after.x == pytest.approx(before.x + speed, abs=1e-5)
        for (x, y, _), (new, same, _) in zip(before.enemies, after.enemies, strict=True):
            assert same == y and 0 < abs(new - x) <= 0.15 + 1e-5  # they walk
        before = after
    game.step(np.array([8]))
    assert scene(game.states()[0]).vy == pytest.approx(1.5)  # a jump begins with this
    game.close()


@pytest.mark.parametrize(("level", "coin", "wins"), [(3, 8, True), (1, 34, False)])
def test_winning_and_losing(level: int, coin: int, wins: bool) -> None:
    game = Simulator(level, 2)
    assert scene(game.states()[0]).coin == coin
    won, lost = game.advance(np.array([8, 4]), 120)  # one runs and jumps, one stands
    assert won.tolist() == [wins, False]
    assert lost.tolist() == [not wins, False]
    game.close()
