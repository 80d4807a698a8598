"""Whether a dataset is fit for a board: it must measure more than the weakness of ERM.

A dataset ranks methods by chance if an untuned forest beats every row, if most draws tie in validation, or
if a support-vector machine is above the ceiling.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from oodbench.errors import UserError
from oodbench.metrics import is_proportion
from oodbench.report.cells import CEILING, METHOD, REFERENCE, scores
from oodbench.report.numbers import UNDEFINED
from oodbench.report.statistics import mean_and_error, paired_differences
from oodbench.report.tables.leaderboard import is_mean, leaderboard
from oodbench.report.why import Why, why
from oodbench.results.tables import CELL, Tables, only, subset
from oodbench.selection.judge import Chosen, judge

ERM = "ERM"
REFERENCES = ("Forest", "BoostedTrees", "SupportVectors", "Neighbours", "Logistic")
"""The reference rows, fitted by scikit-learn."""
POINTS, SHARE = 0.08, 0.15
"""The least head-room: 8 points of a proportion, or 15 % of ERM's loss."""
BEHIND, BEHIND_SHARE = 0.01, 0.03
"""The most by which ERM may be behind the best reference in distribution: a point, or 3 % of the loss."""
LATE = 0.75
"""The share of ERM's steps after which it may not gain more than its error."""
TIES = 0.2
"""The share of choices by ties in validation that is too large."""
EQUAL = 0.1
"""The largest share of rows with the same values as ERM."""
WIDE, WIDE_SHARE = 0.03, 0.08
"""The largest half-width of a gain's interval: 3 points, or 8 % of the head-room."""
NORMAL = 1.96

Value = tuple[float, float]
"""A mean over trials and its standard error."""


@dataclass(frozen=True)
class Check:
    """A condition of admission to a board."""

    what: str
    found: str
    wanted: str
    holds: bool | None
    """None if it is undefined or cannot be measured."""


@dataclass(frozen=True)
class Figures:
    """The numbers behind the conditions, in the metric's unit."""

    metric: str
    higher_is_better: bool
    outside: Mapping[str, Value]
    """ERM and the references on the test environments."""
    ceilings: Mapping[str, Value]
    """The same rows, trained on data like those of the test environments."""
    inside: Mapping[str, Value] = field(default_factory=dict)
    """ERM and the references in distribution, selected by `train_val`; empty without `out` splits."""
    late_gain: Value | None = None
    """ERM's gain in distribution in the last quarter of the steps; above 0 is better."""
    tied: float = 0.0
    """The share of trials, of ERM or of all rows, in which several draws have the best score."""
    rows: int = 0
    """The number of methods other than ERM."""
    equal: float = 0.0
    """The share of the methods other than ERM that have the same values as ERM."""
    half_width: float = 0.0
    """The median half-width of the 95 % intervals of the methods' gains over ERM."""

    def better(self, a: float, b: float) -> float:
        """By how much `a` is better than `b`."""
        return a - b if self.higher_is_better else b - a

    def best(self, values: Mapping[str, Value]) -> str:
        """The name of the best value; an undefined value is the worst."""
        merits = {name: self.better(value, 0.0) for name, (value, _) in values.items()}
        return max(merits, key=lambda name: (not math.isnan(merits[name]), merits[name]))

    @property
    def ceiling(self) -> Value | None:
        """The best of `ceilings`."""
        return self.ceilings[self.best(self.ceilings)] if self.ceilings else None

    def over_erm(self, value: Value) -> float:
        """By how much a value is better than ERM's."""
        return self.better(value[0], self.outside[ERM][0])

    @property
    def room(self) -> float | None:
        """By how much the ceiling is better than ERM; None without a ceiling, NaN if either diverged."""
        return None if self.ceiling is None else self.over_erm(self.ceiling)

    @property
    def least_room(self) -> float:
        """The least head-room that the dataset needs, given ERM's value."""
        return POINTS if is_proportion(self.metric) else SHARE * abs(self.outside[ERM][0])


def figures(
    frames: Tables, ceilings: Mapping[str, Value], metric: str, higher_is_better: bool
) -> Figures:
    """The figures of ERM and the references, given the values of their ceilings."""
    rows = [name for name in (ERM, *REFERENCES) if name in set(frames.runs["label"])]
    inside, late = dict[str, Value](), None
    if frames.records["split"].eq("out").any():
        inside = {n: value_of(why(frames, label=n, rule="train_val"), "score") for n in rows}
        gain, error = _late_gain(frames)
        late = (gain if higher_is_better else -gain), error
    return Figures(
        metric=metric,
        higher_is_better=higher_is_better,
        inside=inside,
        outside={name: value_of(why(frames, label=name)) for name in rows},
        ceilings=ceilings,
        late_gain=late,
        tied=_tied(judge(frames), [ERM]),
    )


def figures_of_results(frames: Tables, dataset: str) -> Figures:
    """The figures of a dataset, by its label, from results with ERM, other rows and marked ceilings.

    Raises UserError for an unknown dataset, and without an ended run of ERM.
    """
    frames = only(frames, [dataset])
    board = leaderboard(frames)
    means = board.frame[is_mean(board.frame) & (board.frame["n"] > 0)].set_index("label")
    if ERM not in means.index:
        raise UserError(f"there are no runs of {ERM} on {dataset} that have ended")
    outside, ceilings = (
        {
            str(label): (float(mean), float(error))
            for label, mean, error in means.query("kind in @kinds")[["mean", "stderr"]].itertuples()
        }
        for kinds in ((METHOD, REFERENCE), (CEILING,))
    )
    metric = str(means["metric"].iloc[0])
    trained = subset(frames, frames.runs[~frames.runs["ceiling"]])
    found = figures(trained, ceilings, metric, board.higher[metric])
    methods = [str(label) for label in means.index[means["kind"] == METHOD]]
    gains = paired_differences(scores(board.cells), ERM)
    halves = [(d.gain.high - d.gain.low) / 2 for d in gains if not d.equal]
    return replace(
        found,
        outside=outside,
        tied=_tied(board.chosen, methods),
        rows=len(gains),
        equal=float(np.mean([d.equal for d in gains])) if gains else 0.0,
        half_width=float(np.median(halves)) if halves else 0.0,
    )


def value_of(cell: Why, column: str = "value") -> Value:
    """The mean and the error, over trials, of a column of the runs behind a cell."""
    return mean_and_error(cell.of_trials(column))


def _late_gain(frames: Tables) -> Value:
    scores = judge(frames, "train_val").candidates
    scores = scores[scores["label"] == ERM]
    first = scores.drop_duplicates("trial")["id"]
    gains = []
    for run in first:
        of_run = scores[scores["id"] == run].set_index("step")["score"].sort_index()
        before = of_run[of_run.index <= LATE * of_run.index.max()]
        if len(before):
            gains.append(float(of_run.iloc[-1] - before.iloc[-1]))
    return mean_and_error(gains)


def _tied(one: Chosen, rows: list[str]) -> float:
    draws = one.tied[one.tied["label"].isin(rows)].groupby(CELL).size()
    return float((draws > 1).mean())


def checks(f: Figures) -> list[Check]:
    """The conditions of admission."""
    proportion, room = is_proportion(f.metric), f.room
    unit = 100.0 if proportion else 1.0

    def text(value: float, form: str = ".3g") -> str:
        return UNDEFINED if math.isnan(value) else f"{unit * value:{form}}"

    found: list[Check] = []
    if f.inside:
        (own, _), best = f.inside[ERM], f.best(f.inside)
        top = f.inside[best][0]
        slack = BEHIND if proportion else BEHIND_SHARE * abs(own)
        wanted = "1 point behind" if proportion else "3 % behind"
        holds = _at_most(f.better(top, own), slack)
        found.append(
            Check("ERM in distribution", f"{text(own)}, {best} {text(top)}", wanted, holds)
        )
    if f.late_gain is not None:
        gain, error = f.late_gain
        ended = _at_most(gain, np.maximum(NORMAL * error, slack / 2))
        gained = f"{text(gain, '+.3g')} ± {text(error, '.2g')}"
        found.append(Check("its gain at the end", gained, "none", ended))
    left, holds = ("-", None) if room is None else (text(room), _at_most(f.least_room, room))
    found.append(Check("head-room", left, f"at least {text(f.least_room)}", holds))
    if f.ceiling is not None:
        best = f.best(f.outside)
        (value, of_best), (ceiling, of_ceiling) = f.outside[best], f.ceiling
        holds = _at_most(f.better(value, ceiling), NORMAL * float(np.hypot(of_best, of_ceiling)))
        both = f"{best} {text(value)}, ceiling {text(ceiling)}"
        found.append(Check("the best row", both, "not above", holds))
    share, wanted = f"{100 * f.tied:.0f} % of trials", f"under {100 * TIES:.0f} %"
    found.append(Check("choices by ties", share, wanted, f.tied < TIES))
    if f.rows:
        share, wanted = f"{100 * f.equal:.0f} % of {f.rows}", f"at most {100 * EQUAL:.0f} %"
        found.append(Check("rows equal to ERM", share, wanted, f.equal <= EQUAL))
        widest = max(WIDE if proportion else 0.0, WIDE_SHARE * (room or 0.0))
        holds = _at_most(f.half_width, widest) if widest else None
        half, wanted = text(f.half_width, ".2g"), f"at most {text(widest, '.2g')}"
        found.append(Check("half-width of gains", half, wanted, holds))
    return found


def _at_most(value: float, most: float) -> bool | None:
    return None if math.isnan(value) or math.isnan(most) else bool(value <= most)
