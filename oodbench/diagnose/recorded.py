"""Pictures of recorded runs: the components AND-mask kept, the labels methods memorized, all trials.

`kept_components` shows the fraction of each layer's gradient that AND-mask keeps and how the weights grow
meanwhile; `memorization` the methods of a sweep on `NoisyLabels` (figures 8, 9 and 16 of
arXiv:2009.00329); `trials` every trial of a sweep, as a mean and its error hide that runs sometimes fail.
"""

import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray

from oodbench.errors import UserError
from oodbench.report.figures import COLOURS, Finding, plain
from oodbench.report.leaderboard import scores
from oodbench.report.numbers import number
from oodbench.report.statistics import mean_and_error
from oodbench.results.directory import Results, RunDirectory
from oodbench.results.frames import load_frames
from oodbench.results.run_spec import State
from oodbench.sweep.plan import single

Array = NDArray[np.float64]
KEPT, NORM = "kept ", "weight norm "
SCORED = {"train": "training labels", "mislabeled": "wrong labels", "test": "test"}
"""Environment of `NoisyLabels` -> the set of labels that is scored on it."""


def kept_components(run: Path | None = None, steps: int = 300, tau: float = 1.0) -> Finding:
    """Return the curves of a recorded `run` of AND-mask, or of a new one on `Spirals`.

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
        steps=steps,
        evaluate_every=max(1, steps // 30),
    )
    with tempfile.TemporaryDirectory() as folder:
        directory = RunDirectory(Path(folder))
        state, message = execute(spec, directory, TrainSettings())
        if state is State.FAILED:
            raise UserError(message)
        title = f"AND-mask on Spirals, tau {tau:g}, {steps} steps"
        return _finding(read_curves(directory), title)


@dataclass(frozen=True, kw_only=True)
class Curves:
    """The curves of a run with L layers and K records."""

    steps: list[int]
    layers: list[str]
    kept: Array
    """Mean fraction (K, L) of a layer's components that the updates since the last record kept."""
    norms: Array
    """Mean norm (K, L) of each layer's weights, biases included."""
    accuracy: dict[str, list[float]]
    """Accuracies, K each: the training environments' mean, and the first test environment's, if any."""


def read_curves(run: RunDirectory) -> Curves:
    """Return the curves of a run directory; raises UserError where AND-mask recorded none."""
    info = run.info()
    records = [r for r in run.records() if any(k.startswith(KEPT) for k in r["train"])]
    if info is None or not records:
        raise UserError(f"{run.path} has no records of the components that AND-mask kept")
    layers = [key.removeprefix(KEPT) for key in records[0]["train"] if key.startswith(KEPT)]
    kept, norms = (
        np.array([[r["train"][start + layer] for layer in layers] for r in records])
        for start in (KEPT, NORM)
    )
    accuracy: dict[str, list[float]] = {}
    training, test = info.context["training_environments"], info.spec.test_environments
    for name, environments in (("training environments", training), ("test environment", test[:1])):
        values = [_accuracy(r, environments) for r in records]
        if not np.isnan(values).any():
            accuracy[name] = values
    steps = [r["step"] for r in records]
    return Curves(steps=steps, layers=layers, kept=kept, norms=norms, accuracy=accuracy)


def _accuracy(record: dict[str, Any], environments: Sequence[str]) -> float:
    """Return the mean over environments of the accuracy on their `in` splits; NaN if there is none."""
    values = [
        e["value"]
        for e in record["evaluations"]
        if (e["metric"], e["split"]) == ("accuracy", "in") and e["environment"] in environments
    ]
    return sum(values) / len(values) if values else math.nan


def _finding(curves: Curves, title: str) -> Finding:
    chosen = sorted({round(i) for i in np.linspace(0, len(curves.steps) - 1, 8)})
    rows = []
    for i in chosen:
        cells = zip(curves.kept[i], curves.norms[i], strict=True)
        accuracy = [f"{100 * values[i]:.1f}" for values in curves.accuracy.values()]
        rows.append([str(curves.steps[i]), *(f"{k:.2g} / {n:.3g}" for k, n in cells), *accuracy])

    def plot(figure: Figure) -> None:
        panels = figure.subplots(1, 3 if curves.accuracy else 2)
        both = {"fraction kept": curves.kept, "weight norm": curves.norms}
        for axes, (name, values) in zip(panels, both.items(), strict=False):
            for layer, column in zip(curves.layers, values.T, strict=True):
                shown = np.where(column > 0, column, np.nan)
                axes.plot(curves.steps, shown, marker=".", label=layer)
            axes.set(yscale="log", title=name, xlabel="step")
        panels[0].legend(fontsize="small")
        for name, line in curves.accuracy.items():
            panels[2].plot(curves.steps, line, label=name)
        if curves.accuracy:
            panels[2].set(title="accuracy", xlabel="step", ylim=(0, 1.02))
            panels[2].legend(fontsize="small")

    header = ["step", *curves.layers, *(f"{name} (%)" for name in curves.accuracy)]
    notes = [
        "Layers: fraction of components kept / norm of the weights, means since the last record."
    ]
    return Finding(title, header, rows, notes, plot, (11, 3.6))


def memorization(results: Path) -> Finding:
    """Return accuracies at the end of every method's runs, and their curves; means over the trials.

    Raises UserError for a sweep without ended runs on such data.
    """
    curves = _curves(Results(results))
    last = curves.groupby("id")["step"].transform("max")
    best = curves[curves["environment"] == "test"].groupby("id")["value"].max()
    rows = []
    for (data, label), curve in curves.groupby(["data", "label"], sort=False):
        end = curve[curve["step"] == last[curve.index]]
        values = [end[end["environment"] == name]["value"] for name in SCORED]
        values.append(best[best.index.isin(curve["id"])])
        cells = [_cell(v.to_numpy(float)) for v in values]
        kept = curve.drop_duplicates(["id", "step"])["kept"].mean()
        share = "" if math.isnan(kept) else f"{kept:.2g}"
        rows.append([str(label), str(data), *cells, share, str(curve["id"].nunique())])

    def plot(figure: Figure) -> None:
        sets = list(curves["data"].unique())
        panels = figure.subplots(len(sets), len(SCORED), squeeze=False, sharex=True, sharey=True)
        for line, data in zip(panels, sets, strict=True):
            for axes, (name, title) in zip(line, SCORED.items(), strict=True):
                shown = curves[(curves["data"] == data) & (curves["environment"] == name)]
                for i, (label, curve) in enumerate(shown.groupby("label", sort=False)):
                    mean = curve.groupby("step")["value"].mean()
                    dash = ("-", "--")[i // len(COLOURS) % 2]
                    axes.plot(mean.index, mean, dash, color=COLOURS[i % len(COLOURS)], label=label)
                axes.set(title=f"{title}, {data}", ylim=(0, 1.02))
        for axes in panels[-1]:
            axes.set_xlabel("step")
        figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside right upper")

    accuracies = [f"{name} (%)" for name in (*SCORED.values(), "best test")]
    header = ["method", "data", *accuracies, "kept", "trials"]
    notes = [
        "Accuracies at the end of the runs, mean ± standard error over trials; best test: of all "
        "evaluations.",
        "kept: fraction of a gradient's components, mean over layers and updates.",
    ]
    size = (11.0, 1.0 + 2.6 * curves["data"].nunique())
    return Finding(f"Memorization in {results}", header, rows, notes, plot, size)


def _curves(results: Results) -> pd.DataFrame:
    """`data`, `label`, `id`, `step`, `environment`, `value` (accuracy) and `kept` of all records."""
    rows: list[tuple[Any, ...]] = []
    for run_id, spec in results.plan()["runs"].items():
        directory = results.run(run_id)
        if "fraction" not in spec["options"] or directory.end() is None:
            continue
        data = f"{spec['options']['fraction']:.0%} redrawn"
        for record in directory.records():
            shares = [v for name, v in record["train"].items() if name.startswith(KEPT)]
            kept = float(np.mean(shares)) if shares else math.nan
            for e in record["evaluations"]:
                if (e["metric"], e["split"]) == ("accuracy", "in"):
                    where = (e["environment"], e["value"], kept)
                    rows.append((data, spec["label"], run_id, record["step"], *where))
    if not rows:
        raise UserError(f"{results.path} holds no ended run on NoisyLabels or CIFARNoise")
    names = ["data", "label", "id", "step", "environment", "value", "kept"]
    return pd.DataFrame(rows, columns=names)


def _cell(values: "np.ndarray[Any, Any]") -> str:
    mean, error = mean_and_error(values)
    return "" if math.isnan(mean) else number(mean, error, "accuracy")


def trials(results: Path, rules: tuple[str, ...], threshold: float) -> Finding:
    """Return the test value of each trial under each selection rule, the methods in the sweep's order.

    `threshold` is what a trial must reach to be counted as solved. Raises UserError for an unknown
    rule, one that the sweep cannot serve, a sweep of several datasets or without a complete trial.
    """
    frames = load_frames(Results(results))
    values = pd.concat([scores(frames, rule).assign(rule=rule) for rule in rules])
    if values.empty or values["dataset"].nunique() > 1:
        raise UserError(f"{results} must hold ended trials of one dataset")
    metric, sign = values["metric"].iloc[0], "≥" if values["higher"].iloc[0] else "≤"
    of_trial = values.groupby(["label", "rule", "trial"], sort=False)["value"].mean().reset_index()
    labels = [label for label in frames.runs["label"].unique() if label in set(values["label"])]
    rows = []
    for label in labels:
        for rule in rules:
            chosen = of_trial.query("label == @label and rule == @rule")["value"].sort_values()
            solved = chosen >= threshold if sign == "≥" else chosen <= threshold
            each = " ".join(f"{value:.3f}" for value in chosen)
            count = f"{solved.sum()}/{len(chosen)}"
            rows.append([label, rule, f"{chosen.median():.3f}", count, each])

    def plot(figure: Figure) -> None:
        axes = figure.subplots()
        for i, rule in enumerate(rules):
            chosen = of_trial[of_trial["rule"] == rule]
            place = chosen["label"].map(labels.index) + 0.25 * (i - (len(rules) - 1) / 2)
            spread = chosen.groupby("label").cumcount() / 100
            axes.plot(place + spread, chosen["value"], "o", alpha=0.6, color=COLOURS[i], label=rule)
        axes.axhline(threshold, color="0.7", zorder=0)
        axes.set(
            ylabel=f"test {metric}", xticks=range(len(labels)), xticklabels=[*map(plain, labels)]
        )
        figure.legend(loc="outside right upper", title="selection")

    header = ["method", "selection", "median", f"{sign} {threshold:g}", "each trial"]
    notes = [f"{metric} on the test environments; run and step of each trial chosen by the rule."]
    return Finding(f"Trials of {results.name}", header, rows, notes, plot, keys=2, prose=(4,))
