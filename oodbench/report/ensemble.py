"""Ensembles of a row's runs: what the mean of their predicted probabilities reaches.

Over trials, the members are the runs that a rule chose in each, and there is one ensemble. They have to
predict the same examples, which rules out data that are made anew in each trial. As splits differ between
trials, it is scored on all examples of a test environment. Over draws, the members are all runs of a trial,
each at the step that the rule chose: each trial has an ensemble, scored on the `in` splits as in tables.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
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
from oodbench.selection import candidates, choose, find_rule, sees_test, usual

KINDS = ("binary", "multiclass", "distribution")
"""The kinds of task whose predictions are probabilities of classes."""
NAMES = (
    *(
        "dataset",
        "label",
        "environment",
        "metric",
        "mean",
        "stderr",
        "n",
        "single",
        "single_stderr",
    ),
    "members",
)
"""The columns of the numbers behind the tables."""
TRIALS, DRAWS = "trials", "draws"
"""The values of `over`: an ensemble joins the runs of all trials, or of all draws of a trial."""
Score = Callable[[Predictions], float]


def _accuracy(p: Predictions) -> float:
    return float(right_of(p).mean())


RECORDED: dict[str, Score] = {"accuracy": _accuracy, "agreement": _accuracy}
"""The recorded metrics that ensembles have, too."""


@dataclass(frozen=True)
class Ensemble:
    """The ensembles of a row on a test environment."""

    dataset: str
    label: str
    environment: str
    metric: str
    values: list[float]
    """The values of the ensembles: of one over trials, or of one a trial."""
    singles: list[float]
    """The values of the runs that the rule chose, one a trial."""
    members: int
    """The number of runs of an ensemble."""


def ensembles(
    frames: Frames, rule: str | None = None, metric: str | None = None, over: str = TRIALS
) -> Sheet:
    """The ensembles of all rows over their trials or draws, by a rule, from kept predictions.

    Raises UserError for a rule that sees the test environments, for a metric without a value here, where
    no predictions are kept, and where no row has an ensemble.
    """
    rule = rule or usual(frames)
    if over not in (TRIALS, DRAWS):
        raise unknown("kind of ensemble", over, [TRIALS, DRAWS])
    if sees_test(rule):
        raise UserError(
            f"{rule} sees test examples that an ensemble is scored on: name another rule"
        )
    runs = sweep_runs(frames)
    main = runs.dropna(subset=["metric"]).groupby("dataset_label")["metric"].first()
    sets = runs[~runs["helper"]].groupby("dataset_label")["test_environments"].agg(set)
    known, missing = list[Ensemble](), dict[str, str]()
    for (dataset, label, tests), groups in _groups(frames, runs, rule, over):
        name = metric or str(main[dataset])
        for test in tests:
            of_test = [[_of_split(of_run[test], over) for of_run in group] for group in groups]
            if reason := next(
                filter(None, (_reason_against(group, over) for group in of_test)), ""
            ):
                missing[f"{label} on {dataset} (test {test})"] = reason
                continue
            score = _score(name, frames)
            values = [score(_together(group)) for group in of_test]
            chosen = of_test[0] if over == TRIALS else [group[0] for group in of_test]
            alone = sum(test in other for other in sets[dataset]) == 1
            place = test if alone else f"{test} of {'+'.join(tests)}"
            singles, members = [score(p) for p in chosen], len(of_test[0])
            known.append(Ensemble(dataset, label, place, name, values, singles, members))
    if not known:
        row, reason = next(iter(missing.items()), ("all rows", "no trial has ended"))
        raise UserError(f"no row has an ensemble over its {over}; {row}: {reason}")
    return _sheet(known, missing, rule, over, plugins_of(frames))


Row = tuple[str, str, tuple[str, ...]]
"""A dataset, a label and a set of test environments."""


def _groups(
    frames: Frames, runs: pd.DataFrame, rule: str, over: str
) -> Iterator[tuple[Row, list[list[dict[str, Predictions]]]]]:
    """The predictions of the members of each row's ensembles, by environment; the chosen run first."""
    where = dict(zip(runs["id"], runs["directory"], strict=True))
    if over == TRIALS:
        table = choose(frames, rule)
    else:
        best = candidates(frames, rule)
        table = best[best["complete"]].drop_duplicates("id").sort_values(CELL, kind="stable")
    for row, of_row in table.groupby(CELL[:-1], sort=False):
        parts = [of_row] if over == TRIALS else [part for _, part in of_row.groupby("trial")]
        groups = [
            [
                read_predictions(Results(Path(where[run_id])).run(str(run_id)), int(step))
                for run_id, step in zip(part["id"], part["step"], strict=True)
            ]
            for part in parts
        ]
        yield cast(Row, row), groups


def _of_split(p: Predictions, over: str) -> Predictions:
    """The predictions that are scored: on all examples over trials, else on the `in` split."""
    if over == TRIALS:
        return p
    is_in = ~p.out
    return replace(p, logits=p.logits[is_in], targets=p.targets[is_in], out=p.out[is_in])


def _score(metric: str, frames: Frames) -> Score:
    """The function that computes a metric from predictions; raises UserError if there is none."""
    if metric in RECORDED:
        return RECORDED[metric]
    computed = of_predictions(metric, plugins_of(frames))
    if computed is None:
        raise unknown("metric of ensembles", metric, [*RECORDED, *computed_names()])
    return computed.of_predictions


def _reason_against(members: Sequence[Predictions], over: str) -> str:
    """The reason why these runs make no ensemble; empty if they make one."""
    first = members[0]
    if first.kind not in KINDS:
        return f"predictions of a {first.kind} are no probabilities"
    if len(members) < 2:
        return f"it has one {over.removesuffix('s')}"
    if over == TRIALS and not all(p.inputs for p in members):
        return "its predictions were kept by an earlier version, which did not say of which inputs"
    same = (p.inputs == first.inputs and np.array_equal(p.targets, first.targets) for p in members)
    if not all(same):
        other = ": `--over draws` has an ensemble in each" if over == TRIALS else ""
        return f"its {over} do not share their test examples{other}"
    return ""


def _together(members: Sequence[Predictions]) -> Predictions:
    """Predictions by the mean of several runs' probabilities; NaN where one of them is NaN."""
    mean = np.mean([probabilities(p.logits) for p in members], axis=0)
    return replace(members[0], logits=np.log(np.maximum(mean, np.finfo(float).tiny)))


def _sheet(
    known: Sequence[Ensemble],
    missing: Mapping[str, str],
    rule: str,
    over: str,
    plugins: Sequence[str],
) -> Sheet:
    """A table for each dataset, the best ensemble first."""
    datasets = dict.fromkeys(e.dataset for e in known)
    blocks = [_block(d, [e for e in known if e.dataset == d], over, plugins) for d in datasets]
    rows = [
        (
            *(e.dataset, e.label, e.environment, e.metric),
            *(*mean_and_error(e.values), len(e.values), *mean_and_error(e.singles), e.members),
        )
        for e in known
    ]
    reasons = "; ".join(f"{row}: {reason}" for row, reason in missing.items())
    members, scored = {
        TRIALS: (
            "the runs that the rule chose in each trial",
            "all examples of the test environments, as splits differ between trials; "
            "there is one ensemble, hence no ±",
        ),
        DRAWS: (
            "the runs of all draws of a trial, each at the step that the rule chose",
            "the in split of the test environments; mean ± standard error over trials",
        ),
    }[over]
    notes = (
        Note(f"Selection {rule}: {find_rule(rule).description}.", f"Selection {rule}."),
        Note(
            f"An ensemble predicts by the mean of the class probabilities of {members}; single: the runs "
            f"that the rule chose alone. Both on {scored}.",
            f"An ensemble is of all {over}; single: the chosen runs alone, on the same examples.",
        ),
        *[Note(f"No ensemble: {reasons}.", f"No ensemble: {len(missing)} cells.")] * bool(missing),
    )
    frame = pd.DataFrame(rows, columns=list(NAMES))
    return Sheet(blocks, notes, (), frame.to_dict("list"))


def _block(dataset: str, known: Sequence[Ensemble], over: str, plugins: Sequence[str]) -> Block:
    """The table of a dataset; rows that lack an environment come last."""
    metric, places = known[0].metric, list(dict.fromkeys(e.environment for e in known))
    by_row: dict[str, dict[str, Ensemble]] = {}
    for e in known:
        by_row.setdefault(e.label, {})[e.environment] = e
    sign = -1 if known_direction(metric, plugins) else 1
    whole = {label: list(of.values()) for label, of in by_row.items() if len(of) == len(places)}
    means = {label: mean_and_error(_mean([e.values for e in of])) for label, of in whole.items()}
    order = sorted(means, key=lambda label: sign * means[label][0])
    several, rows = len(places) > 1, []
    for label in [*order, *(label for label in by_row if label not in whole)]:
        of_row = by_row[label]
        values = [mean_and_error(of_row[p].values) if p in of_row else None for p in places]
        singles = mean_and_error(_mean([e.singles for e in of_row.values()]))
        values += [means.get(label)] * several
        texts = [number(*v, metric) if v else "-" for v in (*values, singles)]
        rows.append([label, *texts, str(next(iter(of_row.values())).members)])
    unit = f"{metric} (%)" if is_proportion(metric) else metric
    header = ["algorithm", *places, *["mean"] * several, "single", "members"]
    best = {(0, len(places) + several)} if len(order) > 1 else set()
    return Block(f"{dataset}: {unit}, ensembles over {over}", header, rows, len(order), best)


def _mean(values: Sequence[Sequence[float]]) -> list[float]:
    """The mean over environments."""
    return [float(v) for v in np.mean(values, axis=0)]
