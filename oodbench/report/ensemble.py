"""Ensembles over a row's trials: what the mean of their predicted probabilities reaches.

An ensemble needs runs that predict the same examples. Where trials draw the examples anew, as for made
data, there is none. It is scored on all examples of a test environment, `in` and `out`, as the splits
differ between trials, and so are the runs that stand beside it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd

from oodbench.errors import UserError, unknown
from oodbench.metrics import computed_names, is_proportion, known_direction, of_predictions
from oodbench.metrics.from_predictions import probabilities, right_of
from oodbench.notes import Note
from oodbench.report.formats import Block, Sheet
from oodbench.report.numbers import number
from oodbench.report.statistics import mean_and_error
from oodbench.results.directory import Results
from oodbench.results.frames import CELL, Frames, plugins_of, sweep_runs
from oodbench.results.predictions import Predictions, read_predictions
from oodbench.selection import choose, find_rule, sees_test, usual

KINDS = ("binary", "multiclass", "distribution")
"""The kinds of task whose predictions are probabilities of classes."""
Score = Callable[[Predictions], float]


def _accuracy(p: Predictions) -> float:
    return float(right_of(p).mean())


NAMES = ("dataset", "label", "environment", "metric", "value", "single", "single_stderr", "n")
"""The columns of the numbers behind the tables."""
RECORDED: dict[str, Score] = {"accuracy": _accuracy, "agreement": _accuracy}
"""The recorded metrics that ensembles have, too."""


@dataclass(frozen=True)
class Ensemble:
    """An ensemble over the trials of a row on a test environment."""

    dataset: str
    label: str
    environment: str
    metric: str
    value: float
    singles: list[float]
    """The values of its runs, one a trial."""


def ensembles(frames: Frames, rule: str | None = None, metric: str | None = None) -> Sheet:
    """The ensembles of all rows, of the runs and steps that a rule chose, from kept predictions.

    Raises UserError for a rule that sees the test environments, for a metric without a value here, where no
    predictions are kept, and where no row's trials share their test examples.
    """
    rule = rule or usual(frames)
    if sees_test(rule):
        raise UserError(
            f"{rule} has seen test examples that an ensemble is scored on: name another rule"
        )
    runs = sweep_runs(frames)
    where = dict(zip(runs["id"], runs["directory"], strict=True))
    main = runs.dropna(subset=["metric"]).groupby("dataset_label")["metric"].first()
    known, missing = list[Ensemble](), dict[str, str]()
    rows = choose(frames, rule).groupby(CELL[:-1], sort=False)
    for place, cells in rows:
        dataset, label, tests = cast(tuple[str, str, tuple[str, ...]], place)
        name = metric or str(main[dataset])
        kept = [
            read_predictions(Results(Path(where[run_id])).run(str(run_id)), int(step))
            for run_id, step in zip(cells["id"], cells["step"], strict=True)
        ]
        for test in tests:
            of_runs = [of_run[test] for of_run in kept]
            if reason := _reason_against(of_runs):
                missing[f"{label} on {dataset} (test {test})"] = reason
                continue
            score = _score(name, frames)
            singles = [score(p) for p in of_runs]
            value = score(_together(of_runs))
            environment = test if len(tests) == 1 else f"{test} of {'+'.join(tests)}"
            known.append(Ensemble(dataset, label, environment, name, value, singles))
    if not known:
        row, reason = next(iter(missing.items()), ("all rows", "no trial has ended"))
        raise UserError(f"no row has an ensemble over its trials; {row}: {reason}")
    return _sheet(known, missing, rule, plugins_of(frames))


def _score(metric: str, frames: Frames) -> Score:
    """How a metric is computed from predictions; raises UserError."""
    if metric in RECORDED:
        return RECORDED[metric]
    computed = of_predictions(metric, plugins_of(frames))
    if computed is None:
        raise unknown("metric of ensembles", metric, [*RECORDED, *computed_names()])
    return computed.of_predictions


def _reason_against(of_runs: Sequence[Predictions]) -> str:
    """Why runs of several trials have no ensemble, or nothing."""
    first = of_runs[0]
    if first.kind not in KINDS:
        return f"predictions of a {first.kind} are no probabilities"
    if len(of_runs) < 2:
        return "it has one trial"
    if not all(p.inputs for p in of_runs):
        return "its predictions were kept by an earlier version, which did not say of which inputs"
    if any(
        p.inputs != first.inputs or not np.array_equal(p.targets, first.targets) for p in of_runs
    ):
        return "its trials do not share their test examples"
    return ""


def _together(of_runs: Sequence[Predictions]) -> Predictions:
    """The mean of the probabilities of several runs; a NaN of one is a NaN of all."""
    mean = np.mean([probabilities(p.logits) for p in of_runs], axis=0)
    with np.errstate(divide="ignore"):
        return replace(of_runs[0], logits=np.log(np.maximum(mean, np.finfo(float).tiny)))


def _sheet(
    known: Sequence[Ensemble], missing: Mapping[str, str], rule: str, plugins: Sequence[str]
) -> Sheet:
    """A table for each dataset, the best ensemble first."""
    datasets = dict.fromkeys(e.dataset for e in known)
    blocks = [_block(d, [e for e in known if e.dataset == d], plugins) for d in datasets]
    rows = [
        (
            e.dataset,
            e.label,
            e.environment,
            e.metric,
            e.value,
            *mean_and_error(e.singles),
            len(e.singles),
        )
        for e in known
    ]
    reasons = "; ".join(f"{row}: {reason}" for row, reason in missing.items())
    notes = (
        Note(f"Selection {rule}: {find_rule(rule).description}.", f"Selection {rule}."),
        Note(
            "A number is of one predictor, the mean of the class probabilities of the chosen runs of all n "
            "trials; single: mean ± standard error over these runs alone. Both are on all examples of the "
            "test environments, `in` and `out`; other tables have `in` alone.",
            "single: the runs of an ensemble alone, on the same examples, mean ± standard error.",
        ),
        *[Note(f"No ensemble: {reasons}.", f"No ensemble: {len(missing)} cells.")] * bool(missing),
    )
    frame = pd.DataFrame(rows, columns=NAMES)
    return Sheet(blocks, notes, (), frame.to_dict("list"))


def _block(dataset: str, known: Sequence[Ensemble], plugins: Sequence[str]) -> Block:
    """The table of a dataset."""
    metric, places = known[0].metric, list(dict.fromkeys(e.environment for e in known))
    by_row: dict[str, dict[str, Ensemble]] = {}
    for e in known:
        by_row.setdefault(e.label, {})[e.environment] = e
    sign = -1 if known_direction(metric, plugins) else 1
    whole = {label: of_row for label, of_row in by_row.items() if len(of_row) == len(places)}
    means = {r: float(np.mean([e.value for e in of_row.values()])) for r, of_row in whole.items()}
    order = sorted(means, key=lambda label: sign * means[label])
    rows = []
    for label in [*order, *(label for label in by_row if label not in whole)]:
        of_row = by_row[label]
        values = [of_row[p].value if p in of_row else math.nan for p in places]
        singles = np.mean([e.singles for e in of_row.values()], axis=0)
        texts = [number(v, math.nan, metric) for v in (*values, means.get(label, math.nan))]
        rows.append([label, *texts, number(*mean_and_error(singles), metric), str(len(singles))])
    unit = f"{metric} (%)" if is_proportion(metric) else metric
    header = ["algorithm", *places, "mean", "single", "n"]
    best = {(0, len(places) + 1)} if len(order) > 1 else set()
    return Block(f"{dataset}: {unit}, ensembles over trials", header, rows, len(order), best)
