"""Metrics that are computed from kept predictions, in frames."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from oodbench.metrics import of_predictions
from oodbench.results.directory import Results
from oodbench.results.frames import Frames, load_frames, stacked
from oodbench.results.predictions import read_predictions
from oodbench.results.run_spec import COMPLETE
from oodbench.selection import choose, served


def with_prediction_metric(
    frames: Frames, rules: Sequence[str | None], metric: str | None
) -> Frames:
    """Add to the frames of `joined` a metric computed from predictions at the steps that rules chose.

    Runs that recorded the metric keep its values, and a metric that is not computed from predictions
    changes nothing; an environment whose task the metric does not take has no value. Raises UserError
    where no predictions are kept, and for a rule that chooses nothing.
    """
    if metric is None or not rules:
        return frames
    recorded = frames.metrics.loc[frames.metrics["metric"] == metric, "id"].unique()
    if len(recorded) == frames.metrics["id"].nunique():
        return frames
    computed = of_predictions(metric)
    if computed is None:
        return frames
    chosen = pd.concat([choose(frames, rule)[["id", "step"]] for rule in rules]).drop_duplicates()
    frozen = [] if frames.scores is None else frames.scores["id"].unique()
    chosen = chosen[~chosen["id"].isin([*recorded, *frozen])]
    if chosen.empty:
        return frames
    rows = []
    directories = dict(zip(frames.runs["id"], frames.runs["directory"], strict=True))
    for run_id, step in zip(chosen["id"], chosen["step"], strict=True):
        run = Results(Path(directories[run_id])).run(str(run_id))
        for environment, p in read_predictions(run, int(step)).items():
            for split, mask in (("in", ~p.out), ("out", p.out)):
                if mask.any() and p.kind in computed.kinds:
                    subset = replace(
                        p, logits=p.logits[mask], targets=p.targets[mask], out=p.out[mask]
                    )
                    value, count = computed.of_predictions(subset), int(mask.sum())
                    rows.append((str(run_id), int(step), environment, split, metric, value, count))
    values = pd.DataFrame(rows, columns=list(Frames.METRIC_COLUMNS))
    names = dict.fromkeys(("id", "environment", "split", "metric"), "category")
    return replace(frames, metrics=stacked([frames.metrics, values.astype(names)]))


def spare(results: Results) -> list[Path]:
    """The files of predictions that no selection rule chose; none before all runs have ended."""
    files = list(results.path.glob("runs/*/predictions/*.npz"))
    frames = load_frames(results) if files else None
    if frames is None or not frames.runs["state"].isin(COMPLETE).all():
        return []
    chosen: set[tuple[str, str]] = set()
    for rule in served(frames):
        by_rule = choose(frames, rule)
        chosen |= set(zip(by_rule["id"], by_rule["step"].map(str), strict=True))
    keys = [(file.parent.parent.name, file.stem) for file in files]
    chosen_runs = {run_id for run_id, _ in chosen}
    return [
        file
        for file, (run_id, step) in zip(files, keys, strict=True)
        if (run_id, step) not in chosen and not (step == "examples" and run_id in chosen_runs)
    ]
