"""Weight averages over a run's steps, which are scored in place of the last weights.

A weight average works with every method: it reads the weights after each update and never changes them. It
averages all that a method predicts by: trained parameters, the method's own parameters, and floating-point
buffers. So the running statistics of batch normalisation are averaged like weights, as in the code of
arXiv:2110.10832; recomputing them by a pass over the data (arXiv:1803.05407) costs more. The averaged
variances are too large, on ColoredDigits with a small convolutional network by a median of 0 to 50%, which
moves accuracies by at most 0.0005 and losses by 0.006. For a method that starts a new network within a run
(JTT), start the average after that.
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
"""Parameters and buffers of a method, by their names there."""


class Average(ABC):
    """A running average of the weights after every update."""

    label: ClassVar[str]
    """The average's name in tables."""
    by_validation: ClassVar[bool] = False
    """Whether it needs the validation losses of the last weights."""

    @dataclass(frozen=True, kw_only=True)
    class Hparams:
        """The numbers of an average."""

    def __init__(self, weights: Weights, hparams: Any, steps: int, evaluate_every: int) -> None:
        """Take the `weights` that training changes in place."""
        self.hparams, self.steps, self.evaluate_every = hparams, steps, evaluate_every
        self.weights = weights
        self.running: Weights = {name: w.detach().clone() for name, w in weights.items()}
        """The average; in a vectorized run, views of the program's."""

    @abstractmethod
    def share(self, step: int) -> float:
        """The share of the weights after the update at `step` in the running average."""

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Average in the weights after the update at `step`."""
        _lerp(self.running, self.weights, self.share(step))

    def validated(self, loss: float) -> None:  # noqa: B027 (few averages need it)
        """Take the validation loss of the last weights, before an evaluation."""

    @property
    def evaluated(self) -> Weights:
        """The weights to be evaluated."""
        return self.running

    @property
    def copies(self) -> int:
        """The largest number of copies of the weights held at once."""
        return 1

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Swap in the evaluated weights during the block."""
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
        """Updates from `hparams.start` to `step`, at least one: the average starts at the last weights."""
        return max(1, step + 1 - int(first_step(self.hparams.start, self.steps)))


class EMA(Average):
    """The exponential moving average of the weights after every update from `start` on.

    With k the number of updates that count so far, theta_bar <- theta_bar + c_k (theta - theta_bar),
    c_k = (1 - decay) / (1 - decay^k): Adam's correction of the start (arXiv:1412.6980, section 3), without
    which the first weights would weigh decay^k. An update `horizon` updates ago weighs about 1/e of the
    last one: decay = 1 - 1 / horizon.
    """

    label = "EMA"

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Average.Hparams):
        """The reach of the mean: a `horizon`, by default a tenth of the run, or a `decay`."""

        horizon: int | float | None = hparam(None, low=0)
        """The reach in updates, at least one; below 1 a share of the run's steps."""
        decay: float | None = hparam(None, low=0.0, high=1.0)
        """arXiv:1703.01780 has 0.999, whatever the number of steps: a horizon of 1,000 updates."""
        start: int | float = hparam(0.0, low=0)
        """The first update that counts; below 1 a share of the run's steps."""

        def __post_init__(self) -> None:
            if self.decay is None and self.horizon is None:
                object.__setattr__(self, "horizon", 0.1)
            elif None not in (self.decay, self.horizon):
                raise UserError("the average ema has a `horizon` or a `decay`, not both")

    @property
    def decay(self) -> float:
        """The factor by which each update multiplies the average of all earlier ones."""
        h = self.hparams
        if h.decay is not None:
            return float(h.decay)
        return 1 - 1 / max(1.0, float(first_step(h.horizon, self.steps)))

    def share(self, step: int) -> float:
        """The share c_k of the class's docstring."""
        decay, k = self.decay, self._counted(step)
        return (1 - decay) / (1 - decay**k) if decay < 1 else 1 / k


class SWA(Average):
    """The mean of the weights after every update from `start` on.

    With a start of 0.75 it is stochastic weight averaging (arXiv:1803.05407), sampled at each update and
    at the method's own learning rate; with 0.02 the simple moving average of arXiv:2110.10832.
    """

    label = "SWA"

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Average.Hparams):
        """The start: arXiv:1803.05407, after 75% of the training."""

        start: int | float = hparam(0.75, low=0)
        """The first update that counts; below 1 a share of the run's steps."""

    def share(self, step: int) -> float:
        """One over the number of updates that count so far."""
        return 1 / self._counted(step)


class SWAD(Average):
    """Dense averages over the valley of the validation loss (arXiv:2102.08604).

    A window is the average of the weights after every update between two evaluations. Its loss is that of
    its last weights on the validation data: the `out` splits of the training environments or, if these are
    empty, the validation environments. `valley` chooses the windows to average, as the authors' code does.
    The evaluated weights are the average if training ended now. Where the valley ends, the authors stop
    training; here the average stays as it is.
    """

    label = "SWAD"
    by_validation = True

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Average.Hparams):
        """The paper's N_s, N_e and r (for VLCS it has r = 0.2)."""

        optimum_patience: int = hparam(3, low=1)
        """Windows after which the least loss counts as the bottom."""
        overfit_patience: int = hparam(6, low=1)
        """Windows above the threshold after which the valley counts as over."""
        tolerance: float = hparam(0.3, low=0.0)
        """The rise of the loss that ends the valley, as a share of the loss at its bottom."""

    def __init__(self, weights: Weights, hparams: Any, steps: int, evaluate_every: int) -> None:
        super().__init__(weights, hparams, steps, evaluate_every)
        self._losses: list[float] = []
        kept = max(hparams.optimum_patience + 1, hparams.overfit_patience)
        self._windows: deque[Weights] = deque(maxlen=kept)
        self._joined = _copy(self.running)
        """The mean of the windows that have joined for good."""
        self._evaluated = self.running

    def share(self, step: int) -> float:
        """One over the number of updates in the window so far."""
        return 1 / (step % self.evaluate_every + 1)

    def validated(self, loss: float) -> None:
        """End a window, and choose the weights to be evaluated."""
        known = len(self._valley()[0])
        self._losses.append(loss if math.isfinite(loss) else math.inf)
        self._windows.append(_copy(self.running))
        joined, _ = self._valley()
        self._add(self._joined, joined[known:], known)
        self._choose()

    @property
    def evaluated(self) -> Weights:
        """The mean over the windows of the valley."""
        return self._evaluated

    @property
    def copies(self) -> int:
        """The running window, the last windows, the mean of joined ones, and the evaluated weights."""
        return 3 + (self._windows.maxlen or 0)

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint."""
        windows = {"windows": list(self._windows), "joined": self._joined}
        return super().state() | {"losses": self._losses} | windows

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        super().restore(state)
        self._losses = [float(loss) for loss in state["losses"]]
        self._windows.clear()
        *windows, self._joined = (
            {name: weights[name] for name in self.running}  # in the order of `_lerp`
            for weights in (*state["windows"], state["joined"])
        )
        self._windows.extend(windows)
        if self._losses:
            self._choose()

    def _choose(self) -> None:
        """Set the evaluated weights to the mean of the windows that would join if training ended now."""
        joined, ending = self._valley()
        self._evaluated = _copy(self._joined)
        self._add(self._evaluated, ending, len(joined))

    def _add(self, mean: Weights, indices: Sequence[int], count: int) -> None:
        for size, index in enumerate(indices, count + 1):
            _lerp(mean, self._windows[index - len(self._losses)], 1 / size)

    def _valley(self) -> tuple[list[int], list[int]]:
        h = self.hparams
        return valley(self._losses, h.optimum_patience, h.overfit_patience, h.tolerance)


def valley(
    losses: Sequence[float], optimum: int, overfit: int, tolerance: float
) -> tuple[list[int], list[int]]:
    """The indices of the windows that SWAD averages after these losses, repeated as they count.

    The first list holds those that have joined for good, the second those that also join if training
    ends here. The bottom is the first window whose loss is the least of the `optimum` from it on; the
    threshold is (1 + tolerance) times the mean of these losses. Once it is known, windows before it join,
    back to the last one above the threshold; then the oldest of the last `overfit` windows joins each
    time, until all of these are above the threshold. Some join more than once, and the one after the
    last above the threshold is left out, as in the authors' code; the paper's algorithm 1 averages from
    the bottom on, and nothing twice.
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
    """An average's `name` and all its numbers, for a spec; raises UserError for unknown ones."""
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
    """Why a method's runs cannot have an average, or None."""
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
    # all floating-point tensors except the network's frozen parameters
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
    torch._foreach_lerp_(list(to.values()), list(weights.values()), share)
