"""Every trial of a sweep beside its median: what a mean and its error hide when runs fail now and then."""

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from oodbench.errors import UserError
from oodbench.report.figures import COLOURS, Finding, plain
from oodbench.report.leaderboard import scores
from oodbench.results.directory import Results
from oodbench.results.frames import load_frames


def trials(results: Path, rules: tuple[str, ...], threshold: float) -> Finding:
    """The test value of each trial under each selection rule, the methods in the sweep's order.

    `threshold` is what a trial must reach to be counted as solved. Raises UserError for an unknown
    rule, one that the sweep cannot serve, a sweep of several datasets or without a complete trial.
    """
    frames = load_frames(Results(results))
    found = pd.concat([scores(frames, rule).assign(rule=rule) for rule in rules])
    if found.empty or found["dataset"].nunique() > 1:
        raise UserError(f"{results} must hold ended trials of one dataset")
    metric, solves = found["metric"].iloc[0], "≥" if found["higher"].iloc[0] else "≤"
    of_trial = found.groupby(["label", "rule", "trial"], sort=False)["value"].mean().reset_index()
    labels = [label for label in frames.runs["label"].unique() if label in set(found["label"])]
    rows = []
    for label in labels:
        for rule in rules:
            values = of_trial.query("label == @label and rule == @rule")["value"].sort_values()
            solved = values >= threshold if solves == "≥" else values <= threshold
            each = " ".join(f"{value:.3f}" for value in values)
            count = f"{solved.sum()}/{len(values)}"
            rows.append([label, rule, f"{values.median():.3f}", count, each])

    def draw(figure: Figure) -> None:
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

    header = ["method", "selection", "median", f"{solves} {threshold:g}", "each trial"]
    notes = [f"{metric} on the test environments; run and step of each trial chosen by the rule."]
    return Finding(f"Trials of {results.name}", header, rows, notes, draw, keys=2, prose=(4,))
