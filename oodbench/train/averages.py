"""Weight averages over a run's steps, which are scored in place of the last weights.

A weight average works with every method. It reads the weights after each update and never changes them.
It averages the trained parameters, the method's own parameters and all floating-point buffers. The running
statistics of batch normalisation are therefore averaged like weights, as in the code of arXiv:2110.10832;
recomputing them by a pass over the data (arXiv:1803.05407) costs more. Averaged variances are too large:
on ColoredDigits with a small convolutional network by a median of 0 to 50%, which moves accuracies by at
most 0.0005 and losses by 0.006. If a method starts a new network within a run (JTT), start the average
later.
"""

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from oodbench.algorithms import Algorithm, first_step
from oodbench.errors import UserError, unknown
from oodbench.hparams import checked, hparam

Weights = dict[str, Tensor]
"""A method's parameters and buffers, by name."""


class Average(ABC):
    """A running average of the weights after every update."""

    label: ClassVar[str]
    """The name in tables."""
    by_validation: ClassVar[bool] = False
    """Whether the average needs validation losses of the last weights."""
    copies = 1
    """The largest number of copies of the weights in memory at once."""

    @dataclass(frozen=True, kw_only=True)
    class Hparams:
        """The average's settings."""

    def __init__(self, weights: Weights, hparams: Any, steps: int, evaluate_every: int) -> None:
        """Take the `weights`, which training changes in place."""
        self.hparams, self.steps, self.evaluate_every = hparams, steps, evaluate_every
        self.weights = weights
        self.running: Weights = {name: w.detach().clone() for name, w in weights.items()}
        """The average; in a vectorized run, views of the program's matrices."""
        self.evaluated = self.running
        """The weights to score."""

    @abstractmethod
    def share(self, step: int) -> float:
        """The share in the average of the weights after the update at `step`."""

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Add the weights after the update at `step` to the average."""
        _lerp(self.running, self.weights, self.share(step))

    def validated(self, loss: float) -> None:  # noqa: B027 (few averages need it)
        """Take the validation loss of the last weights, before an evaluation."""

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within the block, the method has the evaluated weights."""
        last = {name: weight.data for name, weight in self.weights.items()}
        try:
            for name, weight in self.weights.items():
                weight.data = self.evaluated[name]
            yield
        finally:
            for name, weight in self.weights.items():
                weight.data = last[name]

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint."""
        return {"running": self.running}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        for name, values in self.running.items():
            values.copy_(state["running"][name])

    def _counted(self, step: int) -> int:
        # at least one: before `start`, the average is the last weights
        return max(1, step + 1 - int(first_step(self.hparams.start, self.steps)))


class EMA(Average):
    """The exponential moving average of the weights after every update from `start` on.

    The k-th of these updates does theta_bar <- theta_bar + c_k (theta - theta_bar) with
    c_k = (1 - decay) / (1 - decay^k). This is Adam's bias correction (arXiv:1412.6980, section 3); without
    it the first weights would have the weight decay^k. With decay = 1 - 1 / horizon, an update has about
    1/e of the weight of the update `horizon` steps later.
    """

    label = "EMA"

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Average.Hparams):
        """Either a `horizon`, by default a tenth of the run, or a `decay`."""

        horizon: int | float | None = hparam(None, low=0)
        """The time constant in updates, at least one; below 1 a share of the run's steps."""
        decay: float | None = hparam(None, low=0.0, high=1.0)
        """arXiv:1703.01780 has 0.999 for any number of steps, a horizon of 1,000 updates."""
        start: int | float = hparam(0.0, low=0)
        """The first averaged update; below 1 a share of the run's steps."""

        def __post_init__(self) -> None:
            if self.decay is None and self.horizon is None:
                object.__setattr__(self, "horizon", 0.1)
            elif None not in (self.decay, self.horizon):
                raise UserError("the average ema has a `horizon` or a `decay`, not both")

    def share(self, step: int) -> float:
        """c_k of the class's docstring."""
        decay, k = self.hparams.decay, self._counted(step)
        if decay is None:
            decay = 1 - 1 / max(1.0, float(first_step(self.hparams.horizon, self.steps)))
        return (1 - decay) / (1 - decay**k) if decay < 1 else 1 / k


class SWA(Average):
    """The mean of the weights after every update from `start` on.

    With a start of 0.75 it is stochastic weight averaging (arXiv:1803.05407), sampled at each update and
    at the method's own learning rate; with 0.02 the simple moving average of arXiv:2110.10832.
    """

    label = "SWA"

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Average.Hparams):
        """By default averaging starts after 75% of the steps, as in arXiv:1803.05407."""

        start: int | float = hparam(0.75, low=0)
        """The first averaged update; below 1 a share of the run's steps."""

    def share(self, step: int) -> float:
        """One over the number of averaged updates so far."""
        return 1 / self._counted(step)


class SWAD(Average):
    """Dense averages over the valley of the validation loss (arXiv:2102.08604).

    A window is the average of the weights after every update between two evaluations. The loss of a window
    is the validation loss of the last weights in it, on the `out` splits of the training environments or,
    if these are empty, on the validation environments. `valley` chooses the windows to average, as the
    authors' code does. At every evaluation the evaluated weights are the average that would result if
    training ended there. The authors end training at the end of the valley; here only the average ends.
    """

    label = "SWAD"
    by_validation = True

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Average.Hparams):
        """The paper's N_s, N_e and r (for VLCS it has r = 0.2)."""

        optimum_patience: int = hparam(3, low=1)
        """The number of windows, from the least loss on, that confirm the bottom of the valley."""
        overfit_patience: int = hparam(6, low=1)
        """The number of consecutive windows above the threshold that end the valley."""
        tolerance: float = hparam(0.3, low=0.0)
        """The rise of the loss that ends the valley, as a share of the loss at its bottom."""

    def __init__(self, weights: Weights, hparams: Any, steps: int, evaluate_every: int) -> None:
        super().__init__(weights, hparams, steps, evaluate_every)
        self._losses: list[float] = []
        kept = max(hparams.optimum_patience + 1, hparams.overfit_patience)
        self._windows: deque[Weights] = deque(maxlen=kept)
        self._joined = _copy(self.running)
        """The mean of the windows that have joined for good."""
        # the running window, the last windows, the mean of joined ones, and the evaluated weights
        self.copies = 3 + kept

    def share(self, step: int) -> float:
        """One over the number of updates in the window so far."""
        return 1 / (step % self.evaluate_every + 1)

    def validated(self, loss: float) -> None:
        """End a window, and update the evaluated weights."""
        known = len(self._valley()[0])
        self._losses.append(loss if math.isfinite(loss) else math.inf)
        self._windows.append(_copy(self.running))
        joined, _ = self._valley()
        self._add(self._joined, joined[known:], known)
        self._choose()

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint."""
        windows = {"windows": list(self._windows), "joined": self._joined}
        return super().state() | {"losses": self._losses} | windows

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        super().restore(state)
        self._losses, self._joined = state["losses"], state["joined"]
        self._windows.extend(state["windows"])
        if self._losses:
            self._choose()

    def _choose(self) -> None:
        joined, ending = self._valley()
        self.evaluated = _copy(self._joined)
        self._add(self.evaluated, ending, len(joined))

    def _add(self, mean: Weights, indices: Sequence[int], count: int) -> None:
        for size, index in enumerate(indices, count + 1):
            _lerp(mean, self._windows[index - len(self._losses)], 1 / size)

    def _valley(self) -> tuple[list[int], list[int]]:
        h = self.hparams
        return valley(self._losses, h.optimum_patience, h.overfit_patience, h.tolerance)


def valley(
    losses: Sequence[float], optimum: int, overfit: int, tolerance: float
) -> tuple[list[int], list[int]]:
    """The indices of the windows that SWAD averages, given every window's loss so far.

    The first list has the windows that have joined the average for good, the second those that join as well
    if training ends now. A window is listed once for each time that it joins.

    The bottom is the first window with the least loss among itself and the `optimum` - 1 windows after it.
    The threshold is (1 + tolerance) times the mean of these `optimum` losses. Once the bottom is known,
    the windows before it join, back to the last window above the threshold. After that, each further
    evaluation adds the oldest of the last `overfit` windows, until all `overfit` are above the threshold.
    As in the authors' code, some windows join twice, and the window right after the last one above the
    threshold does not join; in the paper's algorithm 1 windows join once, from the bottom on.
    """
    joined: list[int] = []
    queue: list[int] = []
    bottom, threshold = None, math.inf
    for last in range(len(losses)):
        queue = list(range(max(0, last - overfit + 1), last + 1))
        if bottom is None:
            recent = losses[max(0, last - optimum + 1) : last + 1]
            if len(recent) < optimum or min(recent) < recent[0]:
                continue
            bottom = last - optimum + 1
            threshold = (1 + tolerance) * sum(recent) / optimum
            if overfit < optimum:
                joined += range(bottom + 1, bottom + 1 + optimum - overfit)
            elif overfit > optimum:
                early = queue[: overfit - optimum + 1]
                above = [i + 1 for i, index in enumerate(early) if losses[index] > threshold]
                joined += early[max(above, default=0) + 1 :]
        elif queue[0] >= bottom:
            if min(losses[index] for index in queue) > threshold:
                return joined or [bottom], []
            joined.append(queue[0])
    if bottom is None:
        return [], [len(losses) - 1] if losses else []
    ending = []
    for i, index in enumerate(queue[1:], 1):
        if min(losses[later] for later in queue[i:]) > threshold:
            break
        ending.append(index)
    return joined, ending if joined or ending else [bottom]


AVERAGES: dict[str, type[Average]] = {"ema": EMA, "swa": SWA, "swad": SWAD}


def numbers(average: Mapping[str, Any]) -> dict[str, Any]:
    """An average's `name` and all its settings; raises UserError for an unknown name or setting."""
    name = average.get("name")
    if name not in AVERAGES:
        raise unknown("average", str(name), [*AVERAGES, "none"])
    values = asdict(_hparams(average))
    return {"name": name, **{key: value for key, value in values.items() if value is not None}}


def _hparams(average: Mapping[str, Any]) -> Any:
    given = {key: value for key, value in average.items() if key != "name"}
    return checked(AVERAGES[average["name"]].Hparams, given, f"the average {average['name']}")


def reason_against(
    average: str, cls: type[Algorithm], task: str, holdout: float, validation: Sequence[str]
) -> str | None:
    """The reason why a method's weights cannot be averaged, or None."""
    if not cls.trains_network:
        return "it trains no network whose weights could be averaged"
    if AVERAGES[average].by_validation:
        if task == "boxes":
            return f"{average} needs validation losses, and boxes have none"
        if not holdout and not validation:
            return f"{average} needs validation losses: a `holdout` above 0, or validation environments"
    return None


def make_average(
    average: Mapping[str, Any], algorithm: Algorithm, steps: int, evaluate_every: int
) -> Average:
    """The average of a new run's weights; raises UserError for an average over several runs."""
    if average["name"] not in AVERAGES:
        raise UserError("an average of several runs is made by `python -m oodbench.train average`")
    # all floating-point tensors but the network's frozen parameters
    weights: Weights = {
        name: p
        for name, p in algorithm.named_parameters()
        if p.requires_grad or not name.startswith("network.")
    }
    weights |= {name: b for name, b in algorithm.named_buffers() if b.is_floating_point()}
    return AVERAGES[average["name"]](weights, _hparams(average), steps, evaluate_every)


def _copy(weights: Weights) -> Weights:
    return {name: values.clone() for name, values in weights.items()}


def _lerp(to: Weights, weights: Weights, share: float) -> None:
    torch._foreach_lerp_([*to.values()], [weights[name] for name in to], share)
