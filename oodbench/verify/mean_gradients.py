"""How much of a mean gradient is noise, how much the mechanism and how much the shortcut.

Noise: proposition 2 and figure 4 of arXiv:2009.00329: n components, each environment's gradient is
from N(0, sigma^2), d environments. The paper bounds the masked size; here it is exact.

Signals: figure 3.7 in its thesis version (there figure 7): a randomly initialised network on `Spirals`.
Permuting the spirals' points among the examples of each environment leaves the shortcut alone to tell
the classes apart, and permuting the shortcuts leaves the mechanism.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.stats import binom
from torch import Tensor

from oodbench.algorithms import Batch, Problem, algorithms
from oodbench.gradients.backward import stacked_gradients
from oodbench.networks.base import build
from oodbench.seeds import derive
from oodbench.steps import units
from oodbench.sweep.plan import single
from oodbench.tasks import Task
from oodbench.train.run import Run
from oodbench.train.settings import TrainSettings

MASKS = {"XORMask": "XOR-mask", "ANDMask": "AND-mask"}
SIGNALS = {"mechanism": slice(2, None), "shortcut": slice(2)}
"""The signals, and the inputs of `Spirals` that are permuted to isolate each."""

PAPER = {"shortcut_dims": 32, "shortcut_scale": 0.1, "standardize": False}
"""The inputs as the paper's text has them. On those of the released code, where the shortcut is as
large as the mechanism and has more dimensions, its signal is nearly the whole gradient."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """Expected squared norms of the mean gradient and the expected fraction that is kept."""

    unmasked: float
    masked: float
    kept: float


def expected_size(environments: int, tau: float, components: int, sigma: float = 1.0) -> Size:
    """Return the exact sizes for d environments.

    Given k positive signs the magnitudes are independent half-normals, with the mean
    sigma sqrt(2/pi) and the variance sigma^2 (1 - 2/pi), so that the mean of the d gradients has
    the second moment (sigma/d)^2 (d (1 - 2/pi) + (2k - d)^2 2/pi). The mask keeps |2k - d| >= tau d,
    and k is binomial. For tau = 1 this is n sigma^2 2^(1-d) (2/pi + (1 - 2/pi)/d), for tau = 0 it
    is n sigma^2 / d.
    """
    k = np.arange(environments + 1)
    net = np.abs(2 * k - environments)
    weight = binom.pmf(k, environments, 0.5) * (net >= tau * environments - 1e-4)
    moment = environments * (1 - 2 / np.pi) + net**2 * 2 / np.pi
    masked = components * (sigma / environments) ** 2 * float(weight @ moment)
    unmasked = components * sigma**2 / environments
    return Size(unmasked=unmasked, masked=masked, kept=float(weight.sum()))


def sampled_sizes(
    environments: int, tau: float, components: int, sigma: float, trials: int, seed: int
) -> tuple[list[float], list[float]]:
    """Return squared norms of the mean of random gradients, unmasked and after AND-mask, by trial."""
    cls: Any = algorithms.get("ANDMask")
    problem = Problem((1,), Task("binary"), tuple(map(str, range(environments))), 1)
    algorithm = cls(build("Linear", {}, (1,), 1, 0), problem, cls.Hparams(tau=tau, rescale=False))
    generator = torch.Generator().manual_seed(derive("noise", seed, environments))
    unmasked, masked = [], []
    for _ in range(trials):
        gradients = sigma * torch.randn(environments, components, generator=generator)
        unmasked.append(gradients.mean(0).square().sum().item())
        masked.append(algorithm.combine(gradients).square().sum().item())
    return unmasked, masked


def permuted(batch: Batch, dims: slice, seed: int) -> Batch:
    """Return the batch with the inputs' `dims` permuted among the examples of each environment."""
    generator = torch.Generator().manual_seed(seed)
    x = batch.x.clone()
    for environment in x:
        order = torch.randperm(len(environment), generator=generator)
        environment[:, dims] = environment[order, dims]
    return Batch(x, batch.y)


def correlations(options: dict[str, Any], taus: Sequence[float], trial: int) -> np.ndarray:
    """Return the correlations of one network and data set, (mask, tau, 3), in the order of `MASKS`.

    The three: Pearson's correlation of the masked mean gradient with the mechanism's and with the
    shortcut's mean gradient, over the components that the mask kept, of all parameters; and the
    fraction of components kept. NaN where fewer than three are left.
    """
    spec = single(
        {"name": "Spirals", **options},
        {"name": "ANDMask", "hparams": {"rescale": False}},
        trials=[trial],
    )
    run = Run(spec, TrainSettings())
    data = [run.data.environments[name] for name in run.names]
    batch = Batch(torch.stack([e.x for e in data]), torch.stack([e.y for e in data]))
    signals = {}
    for name, others in SIGNALS.items():
        other = permuted(batch, others, derive("permuted", name, trial))
        gradients = stacked_gradients(run.algorithm.network, units(run.algorithm, other, 0))
        signals[name] = torch.cat([g.mean(0).flatten() for g in gradients.values()])
    stacks = stacked_gradients(run.algorithm.network, units(run.algorithm, batch, 0)).values()
    values = np.empty((len(MASKS), len(taus), 3))
    for m, name in enumerate(MASKS):
        cls: Any = algorithms.get(name)
        for t, tau in enumerate(taus):
            hparams = cls.Hparams(tau=tau, rescale=False)
            mask = cls(run.algorithm.network, run.problem, hparams)
            combined = torch.cat([mask.combine(stack).flatten() for stack in stacks])
            kept = combined != 0
            values[m, t] = [
                *(pearson(combined[kept], signals[s][kept]) for s in SIGNALS),
                kept.double().mean().item(),
            ]
    return values


def pearson(a: Tensor, b: Tensor) -> float:
    """Return the correlation of two vectors; NaN for fewer than three components or a constant one."""
    if len(a) < 3:
        return float("nan")
    a, b = (v.double() - v.double().mean() for v in (a, b))
    scale = a.norm() * b.norm()
    return (a @ b / scale).item() if scale else float("nan")
