"""The size of masked and unmasked mean gradients that are nothing but noise.

Proposition 2 and figure 4 of arXiv:2009.00329: n components, each environment's gradient drawn
from N(0, sigma^2), d environments. The paper bounds the masked size; here it is exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.stats import binom

from oodbench.algorithms import Problem, algorithms
from oodbench.errors import UserError
from oodbench.networks.base import build
from oodbench.report.figures import Finding
from oodbench.report.statistics import mean_and_error
from oodbench.seeds import derive
from oodbench.tasks import Task


@dataclass(frozen=True, kw_only=True)
class Size:
    """Expected squared norms of the mean gradient and the expected fraction that is kept."""

    unmasked: float
    masked: float
    kept: float


def expected_size(environments: int, tau: float, components: int, sigma: float = 1.0) -> Size:
    """The exact sizes for d environments.

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
    environments: int, tau: float, components: int, sigma: float, draws: int, seed: int
) -> tuple[list[float], list[float]]:
    """Squared norms of the mean of random gradients, unmasked and after AND-mask, per draw."""
    cls: Any = algorithms.get("ANDMask")
    problem = Problem((1,), Task("binary"), tuple(map(str, range(environments))), 1)
    algorithm = cls(build("Linear", {}, (1,), 1, 0), problem, cls.Hparams(tau=tau, rescale=False))
    generator = torch.Generator().manual_seed(derive("noise", seed, environments))
    unmasked, masked = [], []
    for _ in range(draws):
        gradients = sigma * torch.randn(environments, components, generator=generator)
        unmasked.append(gradients.mean(0).square().sum().item())
        masked.append(algorithm.combine(gradients).square().sum().item())
    return unmasked, masked


def random_gradients(
    counts: Sequence[int],
    tau: float = 0.6,
    components: int = 3000,
    draws: int = 20,
    seed: int = 0,
) -> Finding:
    """Exact and measured sizes by the number of environments (sigma = 1).

    Raises UserError for a tau outside [0, 1] and for numbers that are too small.
    """
    if not 0 <= tau <= 1:
        raise UserError(f"random-gradients: tau must be in [0, 1], not {tau}")
    if min(counts) < 1 or components < 1 or draws < 2:
        raise UserError(
            "random-gradients needs at least 1 environment, 1 component and 2 draws, "
            f"not {min(counts)}, {components} and {draws}"
        )
    exact = [expected_size(d, tau, components) for d in counts]
    found = [sampled_sizes(d, tau, components, 1.0, draws, seed) for d in counts]
    rows = [
        [
            str(d),
            f"{e.unmasked:.4g}",
            _estimate(unmasked),
            f"{e.masked:.4g}",
            _estimate(masked),
            f"{e.kept:.3g}",
        ]
        for d, e, (unmasked, masked) in zip(counts, exact, found, strict=True)
    ]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for i, (name, sizes) in enumerate(
            (
                ("unmasked", [e.unmasked for e in exact]),
                (f"AND-mask, tau {tau:g}", [e.masked for e in exact]),
            )
        ):
            means = [float(np.mean(both[i])) for both in found]
            axes.plot(counts, sizes, color=f"C{i}", label=f"{name}: exact")
            seen = [(d, m) for d, m in zip(counts, means, strict=True) if m > 0]
            axes.plot(*zip(*seen, strict=True), "o", color=f"C{i}", label=f"{name}: measured")
        axes.set(xscale="log", yscale="log", xlabel="environments", ylabel="mean squared norm")
        axes.set_ylim(bottom=1e-4)
        axes.set_title(f"Mean of random gradients, {components} components, sigma 1")
        axes.legend()

    header = ["environments", "unmasked", "measured", f"masked, tau {tau:g}", "measured", "kept"]
    notes = [
        f"Squared norms; measured: mean ± standard error of {draws} draws of {components} "
        "components. Where fewer than one component is expected to be kept, most draws are 0.",
    ]
    return Finding("The mean of random gradients", header, rows, notes, draw, (6.4, 4.2))


def _estimate(values: Sequence[float]) -> str:
    mean, error = mean_and_error(values)
    return f"{mean:.4g} ± {error:.2g}"
