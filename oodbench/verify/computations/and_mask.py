"""The numbers of arXiv:2009.00329 (AND-mask) that are computed: figures 3.7 and 4, and the linear example.

The example is that of the paper's notebook, from the starts that its printed weights imply. Where a weight
ends depends on where it started: the mask leaves the coordinates that are an environment's own to the
weight decay, which shrinks them by the same factor from every start, and the mean gradient leaves it one
direction. The start of every other direction is forgotten. So the printed weights, divided by that factor,
are a start that ends where theirs did.
"""

from collections.abc import Mapping

import numpy as np
import torch

from oodbench.results.frames import Frames
from oodbench.sweep.file import find_sweep, read_sweep
from oodbench.sweep.plan import make_plan
from oodbench.train.run import Run
from oodbench.train.settings import TrainSettings
from oodbench.verify.computations import computation
from oodbench.verify.mean_gradients import (
    MASKS,
    PAPER,
    SIGNALS,
    correlations,
    expected_size,
    sampled_sizes,
)
from oodbench.verify.measured import Line, Measured, Panel

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
"""The weights after 1001 steps, as the notebook stores them, by row and what is held out."""

SHRINKING = float(np.prod(1 - 0.01 * 0.3 * 0.9995 ** np.arange(1, 1002)))
"""The factor that the weight decay of 0.01 leaves of a weight, at rates of 0.3 * 0.9995^k."""


@computation("gradient-correlation")
def gradient_correlation(trials: int, frames: Mapping[str, Frames]) -> Measured:
    """Return the correlations in the thesis' figure at a few values of tau, of a network for each trial."""
    taus = [0.0, 0.25, 0.5, 0.75, 1.0]
    measured = np.stack([correlations({**PAPER}, taus, trial) for trial in range(trials)])
    plain = measured[:, list(MASKS).index("ANDMask"), 0]
    values: dict[str, list[float]] = {}
    panels = []
    for m, mask in enumerate(MASKS.values()):
        lines = []
        for s, signal in enumerate(SIGNALS):
            line = Line(label=signal, x=[], y=[])
            for t, tau in enumerate(taus):
                finite = [float(v) for v in measured[:, m, t, s] if np.isfinite(v)]
                if finite:
                    values[f"{mask}, {signal}, tau {tau:g}"] = finite
                    less = measured[:, m, t, s] - plain[:, s]
                    name = f"{mask} less none, {signal}, tau {tau:g}"
                    values[name] = [float(v) for v in less if np.isfinite(v)]
                    line.x.append(tau)
                    line.y.append(float(np.mean(finite)))
            lines.append(line)
        panels.append(Panel(title=mask, x="tau", y="correlation", lines=lines))
    return Measured(values=values, panels=panels)


@computation("random-gradients")
def random_gradients(trials: int, frames: Mapping[str, Frames]) -> Measured:
    """Return the sizes that figure 4 shows, with random gradients of its own for each trial."""
    taus = {0.6: (5, 10, 20, 50, 100, 200), 1.0: (2, 4, 6, 8)}
    values: dict[str, list[float]] = {}
    for tau, counts in taus.items():
        for d in counts:
            unmasked, masked = sampled_sizes(d, tau, 3000, 1.0, trials, 0)
            values |= {f"unmasked, d = {d}": unmasked, f"AND-mask, tau {tau:g}, d = {d}": masked}
    x = [float(d) for d in taus[0.6]]
    lines = []
    exact = [expected_size(d, 0.6, 3000) for d in taus[0.6]]
    sizes = {"unmasked": [e.unmasked for e in exact]}
    sizes["AND-mask, tau 0.6"] = [e.masked for e in exact]
    for name, y in sizes.items():
        means = [float(np.mean(values[f"{name}, d = {d}"])) for d in taus[0.6]]
        lines.append(Line(label=f"{name}: exact", x=x, y=y))
        lines.append(Line(label=f"{name}: measured", x=x, y=means, points=True))
    panel = Panel(title="Mean of random gradients", x="environments", y="squared norm", lines=lines)
    return Measured(values=values, panels=[panel])


@computation("ilc-linear")
def ilc_linear(trials: int, frames: Mapping[str, Frames]) -> Measured:
    """Return the largest difference between our weights and the printed ones by run, for all trials."""
    values: dict[str, list[float]] = {}
    for spec in make_plan(read_sweep(find_sweep("ilc-linear"), ["trials=1"])).runs.values():
        printed = torch.tensor(PRINTED[spec.label, spec.test_environments])
        run = Run(spec, TrainSettings())
        (weights,) = (p for p in run.algorithm.parameters() if p.requires_grad)
        with torch.no_grad():
            weights.copy_(printed / SHRINKING)
        run.run_steps(spec.steps)
        difference = float((weights.detach() - printed).abs().max())
        values[f"{spec.label} on {', '.join(run.names)}"] = [difference]
    return Measured(values=values)
