"""The linear example of arXiv:2009.00329's notebook, from the starts that its printed weights imply.

Where a weight ends depends on where it started: the mask leaves the coordinates that are an
environment's own to the weight decay, which shrinks them by the same factor from every start, and
the mean gradient leaves it one direction. The start of every other direction is forgotten. So the
printed weights, divided by that factor, are a start that ends where theirs did.
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
from oodbench.verify.measured import Measured

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


@computation("ilc-linear")
def ilc_linear(trials: int, frames: Mapping[str, Frames]) -> Measured:
    """The largest difference between our weights and the printed ones by run; the same in every trial."""
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
