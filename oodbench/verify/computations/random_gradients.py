"""Proposition 2 and figure 4 of arXiv:2009.00329, as targets."""

from collections.abc import Mapping

import numpy as np

from oodbench.diagnose.random_gradients import expected_size, sampled_sizes
from oodbench.results.frames import Frames
from oodbench.verify.computations import computation
from oodbench.verify.measured import Line, Measured, Panel


@computation("random-gradients")
def random_gradients(trials: int, frames: Mapping[str, Frames]) -> Measured:
    """The sizes that figure 4 shows, with a draw of the gradients for each trial."""
    taus = {0.6: (5, 10, 20, 50, 100, 200), 1.0: (2, 4, 6, 8)}
    values: dict[str, list[float]] = {}
    for tau, counts in taus.items():
        for d in counts:
            unmasked, masked = sampled_sizes(d, tau, 3000, 1.0, trials, 0)
            values |= {f"unmasked, d = {d}": unmasked, f"AND-mask, tau {tau:g}, d = {d}": masked}
    x = [float(d) for d in taus[0.6]]
    lines = []
    for name, exact in (
        ("unmasked", [expected_size(d, 0.6, 3000).unmasked for d in taus[0.6]]),
        ("AND-mask, tau 0.6", [expected_size(d, 0.6, 3000).masked for d in taus[0.6]]),
    ):
        found = [float(np.mean(values[f"{name}, d = {d}"])) for d in taus[0.6]]
        lines.append(Line(label=f"{name}: exact", x=x, y=exact))
        lines.append(Line(label=f"{name}: measured", x=x, y=found, points=True))
    panel = Panel(title="Mean of random gradients", x="environments", y="squared norm", lines=lines)
    return Measured(values=values, panels=[panel])
