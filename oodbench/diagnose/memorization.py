"""What the methods of a sweep on `NoisyLabels` memorized: figures 8, 9 and 16 of arXiv:2009.00329."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from oodbench.diagnose.kept_components import KEPT
from oodbench.errors import UserError
from oodbench.report.figures import COLOURS, Finding
from oodbench.report.numbers import number
from oodbench.report.statistics import mean_and_error
from oodbench.results.directory import Results

SCORED = {"train": "training labels", "mislabeled": "wrong labels", "test": "test"}
"""The environments of `NoisyLabels`, and what accuracy on them is accuracy on."""


def memorization(results: Path) -> Finding:
    """Accuracies at the end of every method's runs, and their curves; means over the trials.

    Raises UserError for a sweep without ended runs on such data.
    """
    curves = _curves(Results(results))
    last = curves.groupby("id")["step"].transform("max")
    best = curves[curves["environment"] == "test"].groupby("id")["value"].max()
    rows = []
    for (data, label), group in curves.groupby(["data", "label"], sort=False):
        end = group[group["step"] == last[group.index]]
        values = [end[end["environment"] == name]["value"] for name in SCORED]
        kept = group.drop_duplicates(["id", "step"])["kept"].mean()
        cells = [*values, best[best.index.isin(group["id"])]]
        share = "" if math.isnan(kept) else f"{kept:.2g}"
        trials = str(group["id"].nunique())
        rows.append(
            [str(label), str(data), *(_cell(c.to_numpy(float)) for c in cells), share, trials]
        )

    def draw(figure: Figure) -> None:
        sets = list(curves["data"].unique())
        panels = figure.subplots(len(sets), len(SCORED), squeeze=False, sharex=True, sharey=True)
        for line, data in zip(panels, sets, strict=True):
            for axes, (name, title) in zip(line, SCORED.items(), strict=True):
                shown = curves[(curves["data"] == data) & (curves["environment"] == name)]
                for i, (label, group) in enumerate(shown.groupby("label", sort=False)):
                    mean = group.groupby("step")["value"].mean()
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
    return Finding(f"Memorization in {results}", header, rows, notes, draw, size)


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
