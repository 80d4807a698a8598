"""Numbers of arXiv:2009.00329 (AND-mask): figure 4, figure 3.7 of the thesis, and the linear example.

Figure 4 shows the size of masked random gradients of n components, which are drawn from N(0, sigma^2) for
each environment. Figure 3.7 shows signals in the gradients of a network with random weights on `Spirals`.
If the mechanism's inputs are permuted among the examples of each environment, only the shortcut tells the
classes apart; if the shortcut's inputs are permuted, only the mechanism.

The linear example is the paper's notebook, whose initial weights are unknown. Directions that are not
trained (with the mask, coordinates of a single environment) decay by the same factor, and all other
directions forget their start. Training from the printed weights divided by this factor must therefore end
at the printed weights.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from oodbench.algorithms import Batch, Problem, algorithms
from oodbench.gradients.backward import stacked_gradients
from oodbench.networks.base import build
from oodbench.results.tables import Tables
from oodbench.seeds import derive
from oodbench.sweep.file import find_sweep, read_sweep
from oodbench.sweep.plan import make_plan, single
from oodbench.tasks import Task
from oodbench.train.run import Run
from oodbench.train.settings import TrainSettings
from oodbench.verify.targets import Values

MASKS = {"XORMask": "XOR-mask", "ANDMask": "AND-mask"}
SIGNALS = {"mechanism": slice(2, None), "shortcut": slice(2)}
"""The signals, and the inputs of `Spirals` that are permuted to isolate them."""

PAPER = {"shortcut_dims": 32, "shortcut_scale": 0.1, "standardize": False}
"""The inputs as in the paper's text. In the released code the shortcut is as large as the mechanism and has
more dimensions, so that its signal is nearly the whole gradient."""

ALL, FIRST, LAST = ("test",), ("3", "4", "test"), ("1", "2", "test")
PRINTED = {
    ("ERM", ALL): [0.31931, 0.31931, 0.31931, 0.31931, 0.12607],
    ("ERM", FIRST): [0.32612, 0.32612, -0.0083, -0.01935, 0.06488],
    ("ERM", LAST): [-0.00753, -0.0162, 0.32526, 0.32526, 0.07348],
    ("ANDMask", ALL): [-0.01037, -0.00366, 0.00346, -0.00259, 3.03233],
    ("ANDMask", FIRST): [0.00093, 0.00121, 0.00498, 0.00368, 2.98875],
    ("ANDMask", LAST): [0.01625, -0.00105, 0.00531, 0.0009, 2.96843],
    ("ANDMask, geometric mean", ALL): [0.02175, 0.00457, 0.01312, 0.01974, 2.84444],
    ("ANDMask, geometric mean", FIRST): [0.0018, -0.01145, 0.00337, -0.00017, 3.04045],
    ("ANDMask, geometric mean", LAST): [0.01133, -0.01592, -0.00759, 0.01496, 2.94207],
}
"""The notebook's weights after 1001 steps, by row and test environments."""

SHRINKING = float(np.prod(1 - 0.01 * 0.3 * 0.9995 ** np.arange(1, 1002)))
"""The factor by which a weight decay of 0.01 shrinks weights in 1001 steps at rates 0.3 * 0.9995^k."""


def gradient_correlation(trials: int, frames: Mapping[str, Tables]) -> Values:
    """The correlations of figure 3.7 at a few values of tau, with a new network for each trial."""
    taus = [0.0, 0.25, 0.5, 0.75, 1.0]
    measured = np.stack([correlations({**PAPER}, taus, trial) for trial in range(trials)])
    plain = measured[:, list(MASKS).index("ANDMask"), 0]
    values: Values = {}
    for m, mask in enumerate(MASKS.values()):
        for s, signal in enumerate(SIGNALS):
            for t, tau in enumerate(taus):
                finite = [float(v) for v in measured[:, m, t, s] if np.isfinite(v)]
                if finite:
                    values[f"{mask}, {signal}, tau {tau:g}"] = finite
                    less = measured[:, m, t, s] - plain[:, s]
                    name = f"{mask} less none, {signal}, tau {tau:g}"
                    values[name] = [float(v) for v in less if np.isfinite(v)]
    return values


def random_gradients(trials: int, frames: Mapping[str, Tables]) -> Values:
    """The squared norms of figure 4, with new random gradients for each trial."""
    taus = {0.6: (5, 10, 20, 50, 100, 200), 1.0: (2, 4, 6, 8)}
    values: Values = {}
    for tau, counts in taus.items():
        for d in counts:
            unmasked, masked = sampled_sizes(d, tau, 3000, 1.0, trials)
            values |= {f"unmasked, d = {d}": unmasked, f"AND-mask, tau {tau:g}, d = {d}": masked}
    return values


def ilc_linear(trials: int, frames: Mapping[str, Tables]) -> Values:
    """The largest difference between our weights and the printed ones, by run."""
    values: Values = {}
    for spec in make_plan(read_sweep(find_sweep("ilc-linear"), ["trials=1"])).runs.values():
        printed = torch.tensor(PRINTED[spec.label, spec.test_environments])
        run = Run(spec, TrainSettings())
        (weights,) = (p for p in run.algorithm.parameters() if p.requires_grad)
        with torch.no_grad():
            weights.copy_(printed / SHRINKING)
        run.run_steps(spec.steps)
        difference = float((weights.detach() - printed).abs().max())
        values[f"{spec.label} on {', '.join(run.names)}"] = [difference]
    return values


def sampled_sizes(
    environments: int, tau: float, components: int, sigma: float, trials: int
) -> tuple[list[float], list[float]]:
    """The squared norms, by trial, of the mean of random gradients, unmasked and masked by AND-mask."""
    cls: Any = algorithms.get("ANDMask")
    problem = Problem((1,), Task("binary"), tuple(map(str, range(environments))), 1)
    algorithm = cls(build("Linear", {}, (1,), 1, 0), problem, cls.Hparams(tau=tau, rescale=False))
    generator = torch.Generator().manual_seed(derive("noise", 0, environments))
    unmasked, masked = [], []
    for _ in range(trials):
        gradients = sigma * torch.randn(environments, components, generator=generator)
        unmasked.append(gradients.mean(0).square().sum().item())
        masked.append(algorithm.combine(gradients).square().sum().item())
    return unmasked, masked


def permuted(batch: Batch, dims: slice, seed: int) -> Batch:
    """The batch with the inputs `dims` permuted among the examples of each environment."""
    generator = torch.Generator().manual_seed(seed)
    x = batch.x.clone()
    for environment in x:
        order = torch.randperm(len(environment), generator=generator)
        environment[:, dims] = environment[order, dims]
    return Batch(x, batch.y)


def correlations(options: dict[str, Any], taus: Sequence[float], trial: int) -> np.ndarray:
    """Three numbers for each mask and tau, (len(MASKS), len(taus), 3), with a trial's network and data.

    The first two are Pearson's correlations of the masked mean gradient with the mean gradients of
    mechanism and shortcut, over the kept components of all parameters (NaN for fewer than three). The third
    is the fraction of components that are kept.
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
        gradients = stacked_gradients(run.algorithm.network, run.algorithm.units(other, 0))
        signals[name] = torch.cat([g.mean(0).flatten() for g in gradients.values()])
    stacks = stacked_gradients(run.algorithm.network, run.algorithm.units(batch, 0)).values()
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
    """The correlation of two vectors; NaN for fewer than three components or a constant one."""
    both = torch.stack([a, b]).double()
    return torch.corrcoef(both)[0, 1].item() if len(a) >= 3 else float("nan")
