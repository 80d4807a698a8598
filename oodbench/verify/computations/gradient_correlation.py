"""Figure 3.7 in the thesis version of arXiv:2009.00329, as targets."""

from collections.abc import Mapping

import numpy as np

from oodbench.diagnose.gradient_correlation import MASKS, PAPER, SIGNALS, correlations
from oodbench.results.frames import Frames
from oodbench.verify.computations import computation
from oodbench.verify.measured import Line, Measured, Panel


@computation("gradient-correlation")
def gradient_correlation(trials: int, frames: Mapping[str, Frames]) -> Measured:
    """The correlations in the thesis' figure at a few values of tau; each trial has its own network."""
    taus = [0.0, 0.25, 0.5, 0.75, 1.0]
    found = np.stack([correlations({**PAPER}, taus, trial) for trial in range(trials)])
    plain = found[:, list(MASKS).index("ANDMask"), 0]
    values: dict[str, list[float]] = {}
    panels = []
    for m, mask in enumerate(MASKS.values()):
        lines = []
        for s, signal in enumerate(SIGNALS):
            line = Line(label=signal, x=[], y=[])
            for t, tau in enumerate(taus):
                there = [float(v) for v in found[:, m, t, s] if np.isfinite(v)]
                if there:
                    values[f"{mask}, {signal}, tau {tau:g}"] = there
                    less = found[:, m, t, s] - plain[:, s]
                    name = f"{mask} less none, {signal}, tau {tau:g}"
                    values[name] = [float(v) for v in less if np.isfinite(v)]
                    line.x.append(tau)
                    line.y.append(float(np.mean(there)))
            lines.append(line)
        panels.append(Panel(title=mask, x="tau", y="correlation", lines=lines))
    return Measured(values=values, panels=panels)
