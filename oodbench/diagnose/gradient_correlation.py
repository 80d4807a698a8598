"""How much of a mean gradient is signal of the mechanism, and how much of the shortcut.

Figure 3.7 in the thesis version of arXiv:2009.00329 (there figure 7): a randomly initialised
network on `Spirals`. Permuting the spirals' points among the examples of each environment leaves
the shortcut alone to tell the classes apart, and permuting the shortcuts leaves the mechanism.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from oodbench.algorithms import Batch, algorithms
from oodbench.errors import UserError
from oodbench.gradients.backward import stacked_gradients
from oodbench.report.figures import Finding
from oodbench.report.statistics import mean_and_error
from oodbench.seeds import derive
from oodbench.sweep.plan import single
from oodbench.train.run import Run
from oodbench.train.settings import TrainSettings

MASKS = {"XORMask": "XOR-mask", "ANDMask": "AND-mask"}
SIGNALS = {"mechanism": slice(2, None), "shortcut": slice(2)}
"""The signals, and the inputs of `Spirals` that are permuted to isolate each."""

PAPER = {"shortcut_dims": 32, "shortcut_scale": 0.1, "standardize": False}
"""The inputs as the paper's text has them. On those of the released code, where the shortcut is as
large as the mechanism and has more dimensions, its signal is nearly the whole gradient."""


def permuted(batch: Batch, dims: slice, seed: int) -> Batch:
    """The batch with the inputs' `dims` permuted among the examples of each environment."""
    generator = torch.Generator().manual_seed(seed)
    x = batch.x.clone()
    for environment in x:
        order = torch.randperm(len(environment), generator=generator)
        environment[:, dims] = environment[order, dims]
    return Batch(x, batch.y)


def correlations(options: dict[str, Any], taus: Sequence[float], trial: int) -> np.ndarray:
    """The correlations of one network and data set, (mask, tau, 3), the masks in the order of `MASKS`.

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
        gradients = stacked_gradients(run.algorithm.network, run.algorithm.units(other, 0))
        signals[name] = torch.cat([g.mean(0).flatten() for g in gradients.values()])
    stacks = stacked_gradients(run.algorithm.network, run.algorithm.units(batch, 0)).values()
    found = np.empty((len(MASKS), len(taus), 3))
    for m, name in enumerate(MASKS):
        cls: Any = algorithms.get(name)
        for t, tau in enumerate(taus):
            hparams = cls.Hparams(tau=tau, rescale=False)
            mask = cls(run.algorithm.network, run.problem, hparams)
            combined = torch.cat([mask.combine(stack).flatten() for stack in stacks])
            kept = combined != 0
            found[m, t] = [
                *(pearson(combined[kept], signals[s][kept]) for s in SIGNALS),
                kept.double().mean().item(),
            ]
    return found


def pearson(a: Tensor, b: Tensor) -> float:
    """The correlation of two vectors; NaN for fewer than three components or a constant one."""
    if len(a) < 3:
        return float("nan")
    a, b = (v.double() - v.double().mean() for v in (a, b))
    scale = a.norm() * b.norm()
    return (a @ b / scale).item() if scale else float("nan")


def correlation(environments: int = 16, examples: int = 1024, seeds: int = 10) -> Finding:
    """Correlations with mechanism and shortcut against tau; means over networks and data sets.

    The defaults are the paper's. Raises UserError for fewer than two environments or seeds.
    """
    if environments < 2 or seeds < 2:
        raise UserError(
            f"correlation needs at least 2 environments and 2 seeds, not {environments} and {seeds}"
        )
    taus = [net / environments for net in range(environments % 2, environments + 1, 2)]
    options = {**PAPER, "num_environments": environments, "num_examples": examples}
    found = np.stack([correlations(options, taus, trial) for trial in range(seeds)])
    rows = []
    for m, mask in enumerate(MASKS.values()):
        for t, tau in enumerate(taus):
            kept = found[:, m, t, 2].mean()
            cells = [_estimate(found[:, m, t, s]) for s in range(2)]
            rows.append([mask, f"{tau:.4g}", *cells, f"{kept:.3g}"])

    def draw(figure: Figure) -> None:
        panels = figure.subplots(1, 2, sharey=True)
        for m, (axes, mask) in enumerate(zip(panels, MASKS.values(), strict=True)):
            for s, (signal, dash) in enumerate(zip(SIGNALS, ("-", "--"), strict=True)):
                values = found[:, m, :, s]
                counts = np.isfinite(values).sum(0)
                there = counts > 1
                x, values = np.array(taus)[there], values[:, there]
                mean = np.nanmean(values, 0)
                error = np.nanstd(values, 0, ddof=1) / np.sqrt(counts[there])
                axes.plot(x, mean, dash, marker=".", color=f"C{s}", label=signal)
                axes.fill_between(x, mean - error, mean + error, color=f"C{s}", alpha=0.25, lw=0)
            axes.plot(taus, found[:, m, :, 2].mean(0), ":", color="grey", label="fraction kept")
            axes.axhline(0, color="black", lw=0.5)
            axes.set(title=mask, xlabel="tau", xlim=(0, 1))
        panels[0].set_ylabel("correlation with the masked gradient")
        panels[1].legend()

    header = ["mask", "tau", "mechanism", "shortcut", "kept"]
    notes = [
        f"Pearson's correlation over the components kept; mean ± standard error of {seeds} "
        "networks and data sets, or of (as many) as kept three components.",
        f"Spirals, {environments} environments of {examples} examples, MLP at initialisation. "
        "XOR-mask keeps |mean sign| < tau, nothing at tau 0.",
    ]
    return Finding("Signals in the mean gradient", header, rows, notes, draw)


def _estimate(values: np.ndarray) -> str:
    """Over the seeds that have a value, with their number if some have none."""
    there = values[np.isfinite(values)]
    if len(there) < 2:
        return "-"
    count = "" if len(there) == len(values) else f" ({len(there)})"
    mean, error = mean_and_error(there)
    return f"{mean:.3f} ± {error:.3f}{count}"
