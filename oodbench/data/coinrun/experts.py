"""The expert of CoinRun: a search from saved states of the game."""

import heapq
import itertools
import math
from collections.abc import Hashable, Iterator

import numpy as np
from numpy.typing import NDArray

from oodbench.data.coinrun.simulator import ACTIONS, LONGEST, Scene, Simulator, scene

MOVES = np.array([7, 8, 5, 1, 2, 4])
"""The actions that are searched: right, right and up, up, left, left and up, none; no other action
does more."""
FRAMES = 4
"""The number of frames for which a move is held: a decision."""
TEMPERATURE = 0.5
"""The temperature of the expert's distribution, in decisions."""
GREED = 3.0
"""The factor of the search's estimate; above 1 the first way found may be a little too long."""
LIMIT = 2000
"""The number of states from which one search looks on before it gives up."""
WON = "won"
PROBES, PROBE_FRAMES = (4, 7, 1, 8, 2), 16
"""A successor is lost if holding any of these actions for so long loses."""

Episode = Iterator[tuple[NDArray[np.uint8], NDArray[np.float32]]]


class Planner:
    """The expert of one level.

    cost(a) is the number of decisions that the best way found to the coin takes if it begins with
    `a`, infinite where that loses; the distribution is proportional to exp(-cost(a) / TEMPERATURE)
    over the six moves that differ. What searches have found is kept for states that are alike
    (same place to half a tile, similar velocities, same enemies near by), so that costs are close
    to the least ones but not exact: sums of real moves, some begun a quarter of a tile aside.
    """

    def __init__(self, level: int) -> None:
        self.simulator = Simulator(level, len(MOVES))
        self.start = self.simulator.states()[0]
        self._costs: dict[Hashable, float] = {WON: 0.0}

    def close(self) -> None:
        """Free the game's memory."""
        self.simulator.close()

    def episode(self, random: np.random.Generator) -> Episode:
        """Yield the images (64, 64, 3) and distributions (15,) of a game played by drawing from them.

        It ends with the coin, a loss, the game's time, or where no move helps any more.
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
        """The cost of each move from `state`, (6,), 1 where it wins at once; and where it leads."""
        won, lost, successors = self._try(state)
        lost |= self._doomed(successors) & ~won
        costs = np.array(
            [
                1.0 if win else math.inf if loss else 1 + self.cost(successor)
                for win, loss, successor in zip(won, lost, successors, strict=True)
            ]
        )
        return costs, successors

    def cost(self, state: bytes) -> float:
        """The decisions from `state` to the coin, infinite if no way is found.

        Weighted A* over `_alike` states that ends at the coin or where the rest is known.
        """
        first = scene(state)
        root = _alike(first)
        if root in self._costs:
            return self._costs[root]
        order = itertools.count(0, -1)
        depths: dict[Hashable, int] = {root: 0}
        leads: dict[Hashable, list[Hashable]] = {}
        queue: list[tuple[float, int, Hashable, bytes]] = []
        heapq.heappush(queue, (_estimate(first), next(order), root, state))
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

    def _try(self, state: bytes) -> tuple[NDArray[np.bool_], NDArray[np.bool_], list[bytes]]:
        self.simulator.put([state] * len(MOVES))
        return *self.simulator.advance(MOVES, FRAMES), self.simulator.states()

    def _doomed(self, states: list[bytes]) -> NDArray[np.bool_]:
        doomed = np.ones(len(states), bool)
        for action in PROBES:
            if doomed.any():
                self.simulator.put(states)
                doomed &= self.simulator.advance(np.full(len(states), action), PROBE_FRAMES)[1]
        return doomed


def _alike(at: Scene) -> Hashable:
    """States of a level with equal values are taken for one another."""
    near = sorted(
        (round(2 * x), vx > 0) for x, y, vx in at.enemies if abs(x - at.x) < 4 and abs(y - at.y) < 5
    )
    place = round(2 * at.x), round(2 * at.y)
    return *place, round(2 * at.vx), round(4 * at.vy), *near


def _estimate(at: Scene) -> float:
    """GREED times the least number of decisions to the coin, at half a tile a frame."""
    return GREED * max(0.0, at.coin - 1 - at.x) / (0.5 * FRAMES)
