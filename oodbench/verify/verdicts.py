"""Targets compared with our numbers: differences, z-scores and verdicts, as a table."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import scipy

from oodbench.report.numbers import Cell, printed
from oodbench.report.statistics import mean_and_error
from oodbench.report.tables import Block, Sheet
from oodbench.verify.measured import Measured
from oodbench.verify.targets import Experiment, Target

LIMIT = 3.0
"""The number of standard errors by which our mean may differ from a target."""
HEADER = ["row", "environment", "metric", "paper", "ours", "difference", "z", "trials", "verdict"]


@dataclass(frozen=True)
class Comparison:
    """A printed number compared with ours."""

    target: Target
    values: tuple[float, ...]
    """Our values by trial, in the source's unit."""

    @property
    def mean(self) -> float:
        """The mean of our values; NaN without values."""
        return mean_and_error(self.values)[0]

    @property
    def stderr(self) -> float:
        """The standard error of our mean; NaN for fewer than two trials."""
        return mean_and_error(self.values)[1]

    @property
    def diverged(self) -> int:
        """The number of our trials without a finite value."""
        return sum(not math.isfinite(value) for value in self.values)

    @property
    def difference(self) -> float:
        """Our mean minus the source's value."""
        return self.mean - self.target.value

    @property
    def z(self) -> float:
        """The difference in standard errors; NaN without a standard error.

        If all of the source's repetitions have the same value, z is the normal deviate of Fisher's exact
        test on the number of our trials with another value. A single trial of ours is assumed to vary like
        the source's repetitions.
        """
        target, n = self.target, len(self.values)
        if self.diverged or target.allowed is not None:
            return math.nan
        if target.error_is == "constant":
            different = sum(value != target.value for value in self.values)
            counts = np.array([[different, n - different], [0, target.trials or 0]])
            p = float(scipy.stats.fisher_exact(counts).pvalue)
            return math.copysign(float(scipy.stats.norm.isf(p / 2)), self.difference)
        ours, of_paper = self.stderr, target.stderr
        if n < 2:
            ours = of_paper * math.sqrt(target.trials or math.nan)
        if target.error_is == "one run":
            of_paper = self.stderr * math.sqrt(n)
        error = math.hypot(ours, of_paper)
        return self.difference / error if error > 0 else math.nan

    @property
    def off(self) -> bool | None:
        """Whether our values contradict the target, as a diverged trial does; None if undecided."""
        if not self.values:
            return None
        if self.diverged:
            return True
        if self.target.allowed is None:
            return None if math.isnan(self.z) else abs(self.z) > LIMIT
        if self.target.trials not in (None, len(self.values)):
            return None
        least, greatest = self.target.allowed
        return not least <= self.difference <= greatest

    @property
    def missed(self) -> bool:
        """Whether our values are missing or contradict the target, although it is reproducible."""
        return self.target.reproducible and (self.off is True or not self.values)

    @property
    def verdict(self) -> str:
        """The verdict in words."""
        target = self.target
        words = {None: "no verdict", True: "MISSED", False: "agrees"}[self.off]
        if not self.values:
            words = "not run"
        elif self.off and not target.reproducible:
            words = "off, see the note"
        if self.diverged:
            words += f", {self.diverged} of {len(self.values)} trials diverged"
        return words + (", tuned on test data" if target.tuned_on_test else "")


def compare_targets(experiment: Experiment, measured: Measured) -> list[Comparison]:
    """An experiment's targets with our values, in the order of the experiment's file."""
    return [Comparison(t, tuple(measured.values.get(t.key, ()))) for t in experiment.targets]


def verdict_sheet(experiment: Experiment, measured: Measured) -> Sheet:
    """The table of an experiment's comparisons: a block for each source, notes and provenance."""
    comparisons = compare_targets(experiment, measured)
    by_source: dict[str, list[Comparison]] = {}
    for c in comparisons:
        by_source.setdefault(c.target.source, []).append(c)
    blocks = [_block(experiment, source, of_source) for source, of_source in by_source.items()]
    single = any(len(c.values) == 1 and not math.isnan(c.z) for c in comparisons)
    notes = [
        "Ours: mean ± standard error over the trials. z: the difference over the root of the summed "
        f"squares of the two standard errors; beyond {LIMIT:g}, a target that is marked as reproducible "
        "is MISSED.",
        *(["One trial of ours has no ±; its z takes the source's spread."] if single else []),
        *(_selection(source, of_source) for source, of_source in by_source.items()),
        *[f"Deviation: {' '.join(text.split())}" for text in experiment.deviations],
        *dict.fromkeys(f"{c.target.row}: {c.target.note}" for c in comparisons if c.target.note),
    ]
    remarks = [f"{name}: {', '.join(items)}." for name, items in measured.provenance.items()]
    frame = pd.DataFrame(
        c.target.model_dump()
        | {"ours": c.mean, "ours_stderr": c.stderr, "difference": c.difference, "z": c.z}
        | {"n": len(c.values), "verdict": c.verdict}
        for c in comparisons
    )
    return Sheet(blocks, tuple(notes), tuple(remarks), frame)


def _block(experiment: Experiment, source: str, comparisons: Sequence[Comparison]) -> Block:
    shorts = {name: short for short, name in experiment.datasets.items()}
    rows, header = [_row(c, shorts) for c in comparisons], list(HEADER)
    if len({c.target.sweep for c in comparisons}) > 1:
        header.insert(1, "sweep")
        for row, c in zip(rows, comparisons, strict=True):
            row.insert(1, c.target.sweep)
    return Block(f"{experiment.title} ({source})", header, rows, len(rows))


def _row(c: Comparison, shorts: Mapping[str, str]) -> list[Cell]:
    t = c.target
    where = t.environment or "-"
    if t.test_environments:
        where += f" (test {'+'.join(t.test_environments)})"
    if t.dataset:
        dataset = shorts.get(t.dataset, t.dataset)
        where = f"{dataset}: {where}" if t.environment else dataset
    if t.step is not None:
        where += f", step {t.step}"
    bound = {"at least": "≥ ", "at most": "≤ "}.get(t.error_is, "")
    paper = f"{bound}{t.value:g}"
    if t.error:
        digits = max(len(f"{number:g}".partition(".")[2]) for number in (t.value, t.error))
        paper = f"{bound}{t.value:.{digits}f} ± {t.error:.{digits}f}"
    ours = printed(c.mean, c.stderr) if c.values else "-"
    difference = f"{c.difference:+.3g}" if c.values else "-"
    z = "-" if math.isnan(c.z) else f"{c.z:+.1f}"
    return [t.row, where, t.metric, paper, ours, difference, z, str(len(c.values)), c.verdict]


def _selection(source: str, comparisons: Sequence[Comparison]) -> str:
    targets = [c.target for c in comparisons]
    errors = dict.fromkeys(
        f"{t.error_is} of {t.trials} trials" if t.trials else t.error_is
        for t in targets
        if t.error or t.error_is == "constant"
    )
    of_paper = dict.fromkeys(t.source_selection for t in targets if t.source_selection)
    ours = dict.fromkeys(t.selection if t.step is None else "that step" for t in targets)
    return (
        f"{source}: ± is {' or '.join(errors) or 'not given'}; "
        f"selection: {' or '.join(of_paper) or 'not said'}; ours: {' or '.join(ours)}."
    )
