"""CoinRun behavioural cloning: imitate an expert on some levels, and predict its play on others.

The game, a planner that plays it, and a shard of its states for each level.
"""

import contextlib
import heapq
import io
import itertools
import math
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oodbench.data.streams import MemoryMapped
from oodbench.datasets import Environment, Metadata, register
from oodbench.errors import UserError, missing_package
from oodbench.files import whole_file
from oodbench.hparams import hparam
from oodbench.seeds import derive
from oodbench.tasks import Task

from .made import MadeDataset

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
ENTITY = 31
"""Four-byte fields of an entity: x, y, vx, vy, ..., the type being the seventh."""
PLAYER, ENEMY, COIN = 0, 5, 1

MOVES = np.array([7, 8, 5, 1, 2, 4])
"""The actions that are searched: right, right and up, up, left, left and up, none; other actions add
nothing."""
FRAMES = 4
"""The number of frames for which a move is held: a decision."""
TEMPERATURE = 0.5
"""The temperature of the expert's distribution, in decisions."""
GREED = 3.0
"""The factor of the search's estimate; above 1 the first path found may be slightly too long."""
LIMIT = 2000
"""The number of states that a search expands before it gives up."""
WON = "won"
PROBES, PROBE_FRAMES = (4, 7, 1, 8, 2), 16
"""A state is lost if each of these actions, held for this number of frames, loses."""

FOLDER, PLANNER = "CoinRun", "planner"
TRAINING, UNSEEN = "training", "unseen"
FIRST_UNSEEN = 1_000_000
"""The seed of the first test level, above all seeds of training levels, which start at 0."""

Flags = NDArray[np.bool_]


def package() -> str:
    """The installed package of the game; raises MissingError without one."""
    for name in ("procgen", "procgen_gym"):
        if find_spec(name):
            return name
    raise missing_package("a level of CoinRun", "procgen", "coinrun")


class Simulator:
    """Copies of one level of the real game, stepped together; each can be put into any saved state.

    The mode is `hard`: `easy` paints every level alike. A copy restarts the level when its episode ends.
    Both packages of the game give the same states and images, byte by byte.
    """

    def __init__(self, level: int, copies: int) -> None:
        """Start the copies; raises MissingError without a package of the game."""
        self.copies = copies
        settings = {"env_name": "coinrun", "distribution_mode": "hard", "start_level": level}
        settings |= {"num_levels": 1, "rand_seed": 0, "num_threads": 0}
        self._game: Any
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")  # the old gym warns of its age
            if package() == "procgen":
                from procgen import ProcgenGym3Env

                self._game = ProcgenGym3Env(num=copies, **settings)
            else:
                from procgen_gym import ProcgenVecEnv

                self._game = ProcgenVecEnv(num_envs=copies, **settings)
        self._gym3 = hasattr(self._game, "observe")

    def images(self) -> NDArray[np.uint8]:
        """The image that each copy shows, (copies, 64, 64, 3)."""
        images = self._game.observe()[1]["rgb"] if self._gym3 else self._game.reset()[0]
        return np.array(images)

    def states(self) -> list[bytes]:
        """The state of each copy, including its random number generators."""
        states: list[bytes] = self._game.get_state()
        return states

    def put(self, states: Sequence[bytes]) -> None:
        """Put each copy into a state of the same level."""
        self._game.set_state(list(states))

    def step(self, actions: NDArray[np.int64]) -> tuple[Flags, Flags]:
        """Do one frame; returns which copies took the coin, and whose episodes ended, (copies,) each."""
        if self._gym3:
            self._game.act(actions)
            rewards, _, ended = self._game.observe()
        else:
            _, rewards, ended, _, _ = self._game.step(actions)
        return np.asarray(rewards) > 0, np.asarray(ended, bool)

    def advance(self, actions: NDArray[np.int64], frames: int) -> tuple[Flags, Flags]:
        """Hold actions for some frames; returns which copies won and which lost, (copies,) each."""
        won, lost = np.zeros((2, self.copies), bool)
        for _ in range(frames):
            coin, ended = self.step(actions)
            won |= coin & ~lost
            lost |= ended & ~won
        return won, lost

    def close(self) -> None:
        """Free the game's memory."""
        self._game.close()


@dataclass(frozen=True)
class Scene:
    """The moving objects of a state; positions are in tiles, velocities in tiles per frame."""

    x: float
    y: float
    vx: float
    vy: float
    enemies: tuple[tuple[float, float, float], ...]
    """The position and the horizontal velocity of every walking enemy."""
    coin: float
    """The coin's x."""


def scene(state: bytes) -> Scene:
    """Parse a state, following the methods `serialize` of the game's source (openai/procgen 0.10.7)."""
    at = 0

    def fields(count: int, *, text: bool = False) -> NDArray[np.int32]:
        """The next fields; with `text` the last is the length of a text, which is skipped."""
        nonlocal at
        found = np.frombuffer(state, "<i4", count, at)
        at += 4 * count + (int(found[-1]) if text else 0)
        return found

    fields(2, text=True)  # version, name
    fields(12 + 5)  # options, level range
    for _ in range(2):
        fields(2, text=True)  # a random number generator
    fields(3 + 2 + 4 + 3 + 1 + 2 + 1)  # the episode's counters, size of the grid
    entities = fields(int(fields(1)[0]) * ENTITY).reshape(-1, ENTITY)
    fields(4 + 7 + 3 + 2 + 3)  # background, physics, actions, camera
    fields(2, text=True)  # the assets' random number generator
    fields(3 + 6)
    width = int(fields(2)[0])
    grid = fields(int(fields(1)[0]))
    positions, kinds = entities.view("<f4"), entities[:, 6]
    x, y, vx, vy = positions[kinds == PLAYER][0, :4].tolist()
    enemies = tuple((e[0], e[1], e[2]) for e in positions[kinds == ENEMY, :3].tolist())
    return Scene(x, y, vx, vy, enemies, float(np.argmax(grid == COIN) % width))


Episode = Iterator[tuple[NDArray[np.uint8], NDArray[np.float32]]]


class Planner:
    """The expert of one level: a search from saved states of the game.

    cost(a) is the number of decisions on the best path found to the coin that begins with `a`, infinite
    where that loses; the distribution is proportional to exp(-cost(a) / TEMPERATURE) over the six moves
    that differ. Costs are kept for classes of similar states (the same position to half a tile, similar
    velocities, the same enemies near by), so they are only close to the minimal costs: sums of real moves,
    some of which begin a quarter of a tile apart.
    """

    def __init__(self, level: int) -> None:
        self.simulator = Simulator(level, len(MOVES))
        self.start = self.simulator.states()[0]
        self.close = self.simulator.close
        self._costs: dict[Hashable, float] = {WON: 0.0}

    def episode(self, random: np.random.Generator) -> Episode:
        """Yield the images (64, 64, 3) and distributions (15,) of a game played by drawing from them.

        It ends with the coin, a loss, the game's time limit, or when no move helps.
        """
        state = self.start
        for _ in range(LONGEST // FRAMES):
            self.simulator.put([state] * len(MOVES))
            image = self.simulator.images()[0]
            costs, successors = self.costs(state)
            if costs.min() == math.inf:
                return
            odds = np.exp((costs.min() - costs) / TEMPERATURE)
            odds /= odds.sum()
            distribution = np.zeros(ACTIONS, np.float32)
            distribution[MOVES] = odds
            yield image, distribution
            move = random.choice(len(MOVES), p=odds)
            if costs[move] == 1:
                return
            state = successors[move]

    def costs(self, state: bytes) -> tuple[NDArray[np.float64], list[bytes]]:
        """The cost of each move from `state`, (6,), 1 if it wins at once; and the states after them."""
        won, lost, successors = self._try(state)
        doomed = np.ones(len(MOVES), bool)
        for action in PROBES:
            if doomed.any():
                self.simulator.put(successors)
                doomed &= self.simulator.advance(np.full(len(MOVES), action), PROBE_FRAMES)[1]
        lost |= doomed & ~won
        costs = [
            1.0 if win else math.inf if loss else 1 + self.cost(successor)
            for win, loss, successor in zip(won, lost, successors, strict=True)
        ]
        return np.array(costs), successors

    def cost(self, state: bytes) -> float:
        """The decisions from `state` to the coin, infinite if no path is found.

        Weighted A* over `_alike` states, which ends at the coin or at a state whose cost is known.
        """
        first = scene(state)
        root = _alike(first)
        if root in self._costs:
            return self._costs[root]
        order = itertools.count(0, -1)
        depths: dict[Hashable, int] = {root: 0}
        leads: dict[Hashable, list[Hashable]] = {}
        queue = [(_estimate(first), next(order), root, state)]
        while queue and len(leads) < LIMIT:
            _, _, here, state_here = heapq.heappop(queue)
            if here in self._costs:
                self._spread(leads)
                return self._costs[root]
            if here in leads:
                continue
            leads[here] = []
            depth = depths[here] + 1
            for win, loss, successor in zip(*self._try(state_here), strict=True):
                if loss:
                    continue
                there = scene(successor)
                key = WON if win else _alike(there)
                leads[here].append(key)
                if depth < depths.get(key, LONGEST) and key not in leads:
                    depths[key] = depth
                    rest = self._costs.get(key, _estimate(there))
                    if rest < math.inf:
                        heapq.heappush(queue, (depth + rest, next(order), key, successor))
        for dead in [root] if queue else leads:
            self._costs[dead] = math.inf
        return math.inf

    def _spread(self, leads: dict[Hashable, list[Hashable]]) -> None:
        changed = True
        while changed:
            changed = False
            for here, successors in reversed(leads.items()):
                cost = 1 + min((self._costs.get(s, math.inf) for s in successors), default=math.inf)
                if cost < self._costs.get(here, math.inf):
                    self._costs[here] = cost
                    changed = True

    def _try(self, state: bytes) -> tuple[Flags, Flags, list[bytes]]:
        self.simulator.put([state] * len(MOVES))
        return *self.simulator.advance(MOVES, FRAMES), self.simulator.states()


def _alike(at: Scene) -> Hashable:
    """A key that states of a level share if they count as the same in the search."""
    near = sorted(
        (round(2 * x), vx > 0) for x, y, vx in at.enemies if abs(x - at.x) < 4 and abs(y - at.y) < 5
    )
    return round(2 * at.x), round(2 * at.y), round(2 * at.vx), round(4 * at.vy), *near


def _estimate(at: Scene) -> float:
    """GREED times the least number of decisions to the coin, at half a tile a frame."""
    return GREED * max(0.0, at.coin - 1 - at.x) / (0.5 * FRAMES)


@dataclass(frozen=True)
class Shard:
    """The states of one level: images (n, 64, 64, 3) uint8 and distributions (n, 15) float32."""

    part: str
    number: int

    @property
    def files(self) -> tuple[str, str]:
        """The paths of the images and of the distributions in the set's folder."""
        stem = f"{self.part}/{self.number:05d}"
        return f"{stem}.images.npy", f"{stem}.actions.npy"

    def write(self, folder: Path, images: NDArray[np.uint8], actions: NDArray[np.float32]) -> None:
        """Write both files, each atomically."""
        arrays: tuple[NDArray[Any], ...] = (images, actions)
        for file, array in zip(self.files, arrays, strict=True):
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            with whole_file(folder / file) as stream:
                np.save(stream, array)


def make_shard(shard: Shard, folder: Path, settings: "CoinRun.Options") -> None:
    """Make and write the states of one level.

    The states are drawn without replacement from as many whole games as needed. A level without a path
    to the coin is replaced by the next unused one.
    """
    training = shard.part == TRAINING
    first, step = (0, settings.levels) if training else (FIRST_UNSEEN, settings.test_levels)
    count = settings.states if training else 1
    for level in itertools.count(first + shard.number, step):
        stream = np.random.default_rng(derive("coinrun", settings.expert, level))
        with contextlib.closing(Planner(level)) as expert:
            visited = list(expert.episode(stream))
            while visited and len(visited) < count:
                visited += expert.episode(stream)
        if visited:
            break
    chosen = [visited[i] for i in stream.permutation(len(visited))[:count]]
    images, actions = (np.stack(part) for part in zip(*chosen, strict=True))
    shard.write(folder, images, actions)


@register(
    "CoinRun",
    Metadata(
        paper="arXiv:2009.00329, section 3.3",
        licence="MIT (the game: openai/procgen)",
        family="coinrun",
        shift="layout, background and colours of the level",
        network="ResNet18",
        steps=6400,
        folder=FOLDER,
    ),
)
class CoinRun(MadeDataset):
    """Images of a platform game with an expert's distribution over 15 actions.

    Every training level is an environment, `level0`, `level1` and so on; `unseen`, the test environment,
    holds one state of each of many other levels. The default sizes are the paper's: 64 levels of 1,000
    states and 2,000 test levels. `python -m oodbench.data make CoinRun` makes the data, in hard mode; the
    paper's expert, a policy trained for 400 million steps, is not published, so this expert is a search
    (`Planner`).
    """

    @dataclass(frozen=True, kw_only=True)
    class Options(MadeDataset.Options):
        """How much of the set is read: its first `levels`, `states` and `test_levels`."""

        levels: int = hparam(64, low=1, high=FIRST_UNSEEN)
        states: int = hparam(1000, low=1)
        test_levels: int = hparam(2000, low=1)
        expert: str = hparam("planner")
        """The expert that made the set, as its manifest names it."""

    options: Options
    folder, reads_parts = FOLDER, True
    options_of_files = ("levels", "states", "test_levels")
    input_shape = (IMAGE[2], *IMAGE[:2])
    task = Task("distribution", ACTIONS)
    classes = KEYS
    test_environments = (UNSEEN,)

    def __init__(self, options: Options, data_dir: Path | None = None) -> None:
        super().__init__(options, data_dir)
        self.environments = (*(f"level{i}" for i in range(options.levels)), UNSEEN)

    def load(self, trial: int) -> dict[str, Environment]:
        """The levels, the same in every trial; raises UserError for missing or damaged data."""
        options = self.options
        environments = {
            f"level{i}": self._environment([Shard(TRAINING, i)], options.states)
            for i in range(options.levels)
        }
        unseen = [Shard(UNSEEN, i) for i in range(options.test_levels)]
        return environments | {UNSEEN: self._environment(unseen, options.test_levels)}

    def transform(self, x: Tensor, generator: torch.Generator | None) -> Tensor:
        """Map bytes (N, 64, 64, 3) to (N, 3, 64, 64) in [0, 1]."""
        return x.permute(0, 3, 1, 2).float() / 255

    @property
    def settings(self) -> Options:
        """The options."""
        return self.options

    @property
    def pieces(self) -> dict[Shard, tuple[str, str]]:
        """The files of each level's shard."""
        return {shard: shard.files for shard in self.shards}

    @property
    def shards(self) -> list[Shard]:
        """The shards of all levels."""
        training = [Shard(TRAINING, i) for i in range(self.options.levels)]
        return training + [Shard(UNSEEN, i) for i in range(self.options.test_levels)]

    def writer(self, folder: Path) -> Callable[[Shard], None]:
        """`make_shard`; raises UserError without the game, and for another expert."""
        package()
        if self.options.expert != PLANNER:
            raise UserError(f"{self.name} is made by the expert '{PLANNER}' alone")
        return partial(make_shard, folder=folder, settings=self.options)

    def _environment(self, parts: list[Shard], count: int) -> Environment:
        files = [[self.file(f"{FOLDER}/{file}") for file in part.files] for part in parts]
        images, actions = zip(*files, strict=True)
        x, targets = MemoryMapped(images), MemoryMapped(actions)
        y = targets.read(torch.arange(len(targets)))
        if x.shape != IMAGE or len(x) != len(y):
            raise UserError(f"{images[0]} does not hold the images of {actions[0]}")
        return Environment(x if len(x) == count else x[torch.arange(count)], y[:count])
