"""What AND-mask keeps of each layer's gradient during a run, and how the weights grow meanwhile."""

import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from oodbench.errors import UserError
from oodbench.report.figures import Finding
from oodbench.results.directory import RunDirectory
from oodbench.results.run_spec import State
from oodbench.sweep.plan import single

Array = NDArray[np.float64]
KEPT, NORM = "kept ", "weight norm "


def kept_components(
    run: Path | None = None, steps: int = 300, tau: float = 1.0, trial: int = 0
) -> Finding:
    """The curves of a run of AND-mask: those recorded in `run`, else a new one on `Spirals`.

    Raises UserError for a run without such records.
    """
    if run is not None:
        directory = RunDirectory(run)
        return _finding(read_curves(directory), f"AND-mask during the run {run.name}")
    from oodbench.train.execute import execute
    from oodbench.train.settings import TrainSettings

    spec = single(
        {"name": "Spirals"},
        {"name": "ANDMask", "hparams": {"tau": tau}},
        trials=[trial],
        steps=steps,
        evaluate_every=max(1, steps // 30),
    )
    with tempfile.TemporaryDirectory() as folder:
        directory = RunDirectory(Path(folder))
        state, message = execute(spec, directory, TrainSettings())
        if state is State.FAILED:
            raise UserError(message)
        title = f"AND-mask on Spirals, tau {tau:g}, trial {trial}, {steps} steps"
        return _finding(read_curves(directory), title)


@dataclass(frozen=True, kw_only=True)
class Curves:
    """A run's records, L layers long in one direction and K records in the other."""

    steps: list[int]
    layers: list[str]
    kept: Array
    """Mean fraction (K, L) of a layer's components that the updates since the last record kept."""
    norms: Array
    """Mean norm (K, L) of each layer's weights, biases included."""
    accuracy: dict[str, list[float]]
    """Accuracies, K each: over the training environments and the first test environment, if any."""


def read_curves(run: RunDirectory) -> Curves:
    """The curves of a run directory; raises UserError where AND-mask recorded none."""
    info = run.info()
    records = [r for r in run.records() if any(k.startswith(KEPT) for k in r["train"])]
    if info is None or not records:
        raise UserError(f"{run.path}: no AND-mask run has recorded there what it kept")
    layers = [key.removeprefix(KEPT) for key in records[0]["train"] if key.startswith(KEPT)]
    kept, norms = (
        np.array([[r["train"][start + layer] for layer in layers] for r in records])
        for start in (KEPT, NORM)
    )
    accuracy: dict[str, list[float]] = {}
    training, test = info.context["training_environments"], info.spec.test_environments
    for name, environments in (("training environments", training), ("test environment", test[:1])):
        scores = [_accuracy(r, environments) for r in records]
        if not np.isnan(scores).any():
            accuracy[name] = scores
    steps = [r["step"] for r in records]
    return Curves(steps=steps, layers=layers, kept=kept, norms=norms, accuracy=accuracy)


def _accuracy(record: dict[str, Any], environments: Sequence[str]) -> float:
    """The mean over environments of the accuracy on their `in` splits; NaN if there is none."""
    found = [
        e["value"]
        for e in record["evaluations"]
        if (e["metric"], e["split"]) == ("accuracy", "in") and e["environment"] in environments
    ]
    return sum(found) / len(found) if found else math.nan


def _finding(curves: Curves, title: str) -> Finding:
    chosen = sorted({round(i) for i in np.linspace(0, len(curves.steps) - 1, 8)})
    rows = []
    for i in chosen:
        cells = zip(curves.kept[i], curves.norms[i], strict=True)
        accuracy = [f"{100 * values[i]:.1f}" for values in curves.accuracy.values()]
        rows.append([str(curves.steps[i]), *(f"{k:.2g} / {n:.3g}" for k, n in cells), *accuracy])

    def draw(figure: Figure) -> None:
        panels = figure.subplots(1, 3 if curves.accuracy else 2)
        for axes, values, name in zip(
            panels[:2], (curves.kept, curves.norms), ("fraction kept", "weight norm"), strict=True
        ):
            for layer, column in zip(curves.layers, values.T, strict=True):
                shown = np.where(column > 0, column, np.nan)
                axes.plot(curves.steps, shown, marker=".", label=layer)
            axes.set(yscale="log", title=name, xlabel="step")
        panels[0].legend(fontsize="small")
        for name, scores in curves.accuracy.items():
            panels[2].plot(curves.steps, scores, label=name)
        if curves.accuracy:
            panels[2].set(title="accuracy", xlabel="step", ylim=(0, 1.02))
            panels[2].legend(fontsize="small")

    header = ["step", *curves.layers, *(f"{name} (%)" for name in curves.accuracy)]
    notes = [
        "Layers: fraction of components kept / norm of the weights, means since the record before."
    ]
    return Finding(title, header, rows, notes, draw, (11, 3.6))
