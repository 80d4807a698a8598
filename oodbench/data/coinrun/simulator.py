"""Levels of CoinRun in the real game; a copy can be put into any saved state."""

import contextlib
import io
import struct
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oodbench.errors import missing_package

IMAGE = (64, 64, 3)
KEYS = (
    *("left down", "left", "left up", "down", "no key", "up", "right down", "right", "right up"),
    *"DAWSQE",
)
"""The keys of each action, as the game's package lists them."""
ACTIONS = len(KEYS)
"""The number of actions: 0 to 8 are moves, 3 * (left, still, right) + (down, still, up), others none."""
LONGEST = 1000
"""The number of frames after which the game ends an episode."""


class Simulator:
    """Copies of one level, stepped together.

    The mode is `hard`: `easy` paints every level alike. A copy whose episode ends starts the level
    again by itself. Both packages of the game give the same states and images, byte by byte.
    """

    def __init__(self, level: int, copies: int) -> None:
        """Start the copies; raises MissingError without a package of the game."""
        self.copies = copies
        settings = {"env_name": "coinrun", "distribution_mode": "hard", "start_level": level}
        self._game = _game(copies, settings | {"num_levels": 1, "rand_seed": 0, "num_threads": 0})
        self._gym3 = hasattr(self._game, "observe")

    def images(self) -> NDArray[np.uint8]:
        """The image that each copy shows, (copies, 64, 64, 3)."""
        images = self._game.observe()[1]["rgb"] if self._gym3 else self._game.reset()[0]
        return np.array(images)

    def states(self) -> list[bytes]:
        """The state of each copy, its random numbers included."""
        states: list[bytes] = self._game.get_state()
        return states

    def put(self, states: Sequence[bytes]) -> None:
        """Put each copy into a state of the same level."""
        self._game.set_state(list(states))

    def step(self, actions: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Do one frame; returns which copies took the coin, and whose episodes ended, (copies,) each."""
        if self._gym3:
            self._game.act(actions)
            rewards, _, ended = self._game.observe()
        else:
            _, rewards, ended, _, _ = self._game.step(actions)
        return np.asarray(rewards) > 0, np.asarray(ended, bool)

    def advance(
        self, actions: NDArray[np.int64], frames: int
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Hold actions for some frames; returns which copies won and which lost within, (copies,) each."""
        won, lost = np.zeros((2, self.copies), bool)
        for _ in range(frames):
            coin, ended = self.step(actions)
            won |= coin & ~lost
            lost |= ended & ~won
        return won, lost

    def close(self) -> None:
        """Free the game's memory."""
        self._game.close()


def package() -> str:
    """The package of the game that is installed; raises MissingError if none is."""
    for name in ("procgen", "procgen_gym"):
        if find_spec(name):
            return name
    raise missing_package("a level of CoinRun", "procgen", "coinrun")


def _game(copies: int, settings: dict[str, Any]) -> Any:
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")  # the old gym's complaints about its age
        if package() == "procgen":
            from procgen import ProcgenGym3Env

            return ProcgenGym3Env(num=copies, **settings)
        from procgen_gym import ProcgenVecEnv

        return ProcgenVecEnv(num_envs=copies, **settings)


@dataclass(frozen=True)
class Scene:
    """The things that move in a state; places are in tiles, velocities in tiles a frame."""

    x: float
    y: float
    vx: float
    vy: float
    enemies: tuple[tuple[float, float, float], ...]
    """The place and the horizontal velocity of every walking enemy."""
    coin: float
    """The coin's x."""


ENTITY = 31
"""Four-byte fields of an entity: x, y, vx, vy, ..., the type being the seventh."""
PLAYER, ENEMY, COIN = 0, 5, 1


def scene(state: bytes) -> Scene:
    """Read a state, after the methods `serialize` of the game's source (openai/procgen 0.10.7)."""
    reader = _Reader(state)
    reader.skip(1)  # version
    reader.text()  # name
    reader.skip(12 + 5)  # options, level range
    for _ in range(2):  # random number generators
        reader.skip(1)
        reader.text()
    reader.skip(3 + 2 + 4 + 3 + 1 + 2 + 1)  # the episode's counters, size of the grid
    entities = reader.array(reader.number() * ENTITY).reshape(-1, ENTITY)
    places, kinds = entities.view("<f4"), entities[:, 6]
    reader.skip(4 + 7 + 3 + 2 + 3)  # background, physics, actions, camera
    reader.skip(1)
    reader.text()  # the assets' random number generator
    reader.skip(3 + 6)
    width, _ = reader.number(), reader.number()
    grid = reader.array(reader.number())
    x, y, vx, vy = places[kinds == PLAYER][0, :4].tolist()
    enemies = tuple((e[0], e[1], e[2]) for e in places[kinds == ENEMY, :3].tolist())
    return Scene(x, y, vx, vy, enemies, float(np.argmax(grid == COIN) % width))


class _Reader:
    """The fields of a state one after the other."""

    def __init__(self, state: bytes) -> None:
        self._state, self._at = state, 0

    def skip(self, fields: int) -> None:
        self._at += 4 * fields

    def number(self) -> int:
        self._at += 4
        return int(struct.unpack_from("<i", self._state, self._at - 4)[0])

    def text(self) -> None:
        size = self.number()
        self._at += size

    def array(self, fields: int) -> NDArray[np.int32]:
        self._at += 4 * fields
        return np.frombuffer(self._state, "<i4", fields, self._at - 4 * fields)
