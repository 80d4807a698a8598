"""How many environments it takes until the shortcut no longer pays.

Figure 15 of arXiv:2009.00329, where the baseline first succeeds with 1024 environments. The default
here is a small form: spirals of one revolution, a shortcut of four dimensions, a narrow network.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from oodbench.diagnose.mean_gradients import expected_size
from oodbench.errors import UserError
from oodbench.report.figures import Finding
from oodbench.sweep.plan import single
from oodbench.train.run import Run
from oodbench.train.settings import TrainSettings

OPTIONS = {"num_revolutions": 1, "shortcut_dims": 4}
NETWORK = {"name": "MLP", "hparams": {"width": 64}}
ROWS = 1024
"""The number of examples in a step, whatever the number of environments."""
NOISE = 1e-3
"""The fraction of a random gradient that the mask may keep."""


def threshold(environments: int, noise: float = NOISE) -> float:
    """The least tau at which the mask keeps at most `noise` of a random gradient, else 1.

    It is 1 for few environments and less for many, which hardly ever all agree.
    """
    taus = [net / environments for net in range(environments % 2, environments + 1, 2)]
    return min(
        (tau for tau in taus if expected_size(environments, tau, 1).kept <= noise), default=1.0
    )


def accuracy(algorithm: str, environments: int, steps: int, trial: int) -> float:
    """The test accuracy at the end of one run."""
    hparams: dict[str, float] = {"batch_size": max(1, ROWS // environments)}
    if algorithm == "ANDMask":
        hparams["tau"] = threshold(environments)
    spec = single(
        {"name": "Spirals", "num_environments": environments, **OPTIONS},
        {"name": algorithm, "hparams": hparams},
        trials=[trial],
        steps=steps,
        network=NETWORK,
    )
    run = Run(spec, TrainSettings())
    if run.run_steps(steps) is not None:
        raise UserError(f"{algorithm} with {environments} environments diverged in trial {trial}")
    scores = {(e.environment, e.split, e.metric): e.value for e in run.evaluate()}
    return scores["test", "in", "accuracy"]


def environments(counts: Sequence[int], trials: int = 3, steps: int = 300) -> Finding:
    """Test accuracy of ERM and AND-mask by the number of environments, best and all of the trials.

    Raises UserError for fewer than two environments.
    """
    if min(counts) < 2:
        raise UserError(f"environments needs at least 2 environments, not {min(counts)}")
    algorithms = ("ERM", "ANDMask")
    scores = np.array(
        [[[accuracy(a, n, steps, t) for t in range(trials)] for n in counts] for a in algorithms]
    )
    rows = []
    for count, of_count in zip(counts, scores.transpose(1, 0, 2), strict=True):
        cells = [f"{100 * v:.1f}" for of in of_count for v in (of.max(), np.median(of))]
        rows.append([str(count), *cells, f"{threshold(count):.3g}"])

    def plot(figure: Figure) -> None:
        axes = figure.subplots()
        for a, name in enumerate(algorithms):
            axes.plot(counts, scores[a].max(1), color=f"C{a}", label=f"{name}, best")
            axes.plot(np.repeat(counts, trials), scores[a].ravel(), "o", color=f"C{a}", alpha=0.5)
        axes.axhline(0.5, color="grey", lw=0.8, ls=":")
        axes.set_xscale("log", base=2)
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.set(xlabel="training environments", ylabel="test accuracy", ylim=(0.4, 1.02))
        axes.set_title(f"Spirals, best of {trials} trials (dots: each)")
        axes.legend()

    header = [
        "environments",
        *(f"{n} {s} (%)" for n in algorithms for s in ("best", "median")),
        "tau",
    ]
    notes = [
        f"Test accuracy after {steps} steps, {trials} trials; the best is chosen on the test "
        "environment, as in the paper, and shows what is possible, not what to expect.",
        f"tau: the least at which at most {NOISE:g} of a random gradient is kept, else 1.",
    ]
    return Finding("Accuracy by the number of environments", header, rows, notes, plot, (6.4, 4.0))
