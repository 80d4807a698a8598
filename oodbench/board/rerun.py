"""Frozen runs trained again, and whether they are what is frozen."""

import math
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from oodbench.algorithms import algorithms
from oodbench.board.beside import board_frames
from oodbench.board.freeze import data_digests, frozen_rules
from oodbench.board.parts import Part, read_parts
from oodbench.errors import UserError
from oodbench.report.statistics import BAND
from oodbench.results.directory import Results
from oodbench.results.frames import Frames, load_frames, only_dataset
from oodbench.results.run_spec import RunSpec
from oodbench.selection import candidates
from oodbench.sweep.launch import LaunchOptions, launch_specs
from oodbench.train.settings import MAX_VECTORIZED


class Agreement(StrEnum):
    """How a run that was trained again compares with the frozen one."""

    EQUAL = "equal bit for bit"
    """Every rule chooses the same step, with the same score and values."""
    CLOSE = "equal within round-off"
    """No score or value at the frozen steps is further off than half a point, or half a percent."""
    OFF = "off"
    MISSING = "without a result"


FAILURES = (Agreement.OFF, Agreement.MISSING)


@dataclass(frozen=True)
class Rerun:
    """A run that was trained again."""

    spec: RunSpec
    agreement: Agreement
    furthest: float
    """The largest difference of a score or a value at the frozen steps; NaN without a result."""


Sample = list[tuple[Part, RunSpec, bool]]
"""Runs of a board: the part, the spec, and whether the run was vectorized."""


def sample(parts: Sequence[Part], count: int, seed: int) -> Sample:
    """So many random runs of a board; all if there are no more."""
    runs: Sample = []
    for part in parts:
        vectorized = part.runs().set_index("id")["vectorized"]
        runs += [(part, spec, bool(vectorized[i])) for i, spec in part.specs().items()]
    return random.Random(seed).sample(runs, min(count, len(runs)))


def rerun(board: Path, count: int, seed: int, options: LaunchOptions) -> list[Rerun]:
    """Train random frozen runs again, vectorized or alone as they were, and compare.

    A vectorized run has the same bits in any company, so it is trained with the others of the sample.
    Raises UserError for a method that is not registered, and if the data of a part have changed.
    """
    chosen = sample(read_parts(board), count, seed)
    for _, spec, _ in chosen:
        algorithms.get(spec.algorithm)
    _check_data(chosen, options.data_dir)
    results = Results(options.out)
    specs = {spec.id: spec for _, spec, _ in chosen}
    for vectorize in (MAX_VECTORIZED, 1):
        ids = [s.id for _, s, vectorized in chosen if vectorized == (vectorize > 1)]
        if ids:
            left = [i for i in ids if results.run(i).end() is None]
            launch_specs(board.name, specs, left, replace(options, vectorize=vectorize))
    return _compared(chosen, load_frames(results))


def _check_data(chosen: Sample, data_dir: Path | None) -> None:
    """Raise UserError if the data of a part have other digests than when it was frozen."""
    for part in {id(part): part for part, _, _ in chosen}.values():
        known = part.about.provenance.get("data")
        if not known:
            continue
        trials = sorted({int(t) for t in part.runs()["trial"]})
        spec = part.about.spec
        now = data_digests(spec["dataset"], spec["options"], trials, data_dir)
        changed = [name for name, digest in known.items() if now.get(name) != digest]
        if changed:
            raise UserError(
                f"the data of {part.dataset} are not those that {part.label} was trained on: "
                f"environment {', '.join(changed)} has another digest"
            )


def _compared(chosen: Sample, again: Frames) -> list[Rerun]:
    """The runs beside what `again` has of them."""
    judged = _scored(again)
    key = ["step", "environment", "metric"]
    names = dict.fromkeys(("id", "environment", "split", "metric"), object)
    records = again.metrics.astype(names).fillna({"environment": "", "split": "in"})
    records = records[records["split"] == "in"]
    values = {run_id: group.set_index(key)["value"] for run_id, group in records.groupby("id")}
    frames = {id(part): board_frames([part]) for part, _, _ in chosen}
    reruns = []
    for part, spec, _ in chosen:
        board = frames[id(part)]
        frozen = board.metrics[board.metrics["id"] == spec.id].astype(names)
        frozen = frozen.fillna({"environment": ""}).set_index(key)["value"]
        if spec.id not in values or not values[spec.id].index.isin(frozen.index).any():
            reruns.append(Rerun(spec, Agreement.MISSING, math.nan))
            continue
        pairs = list(zip(frozen, values[spec.id].reindex(frozen.index).astype(float), strict=True))
        same_steps = True
        scores = board.scores[board.scores["id"] == spec.id]
        for rule, step, score in scores[["rule", "step", "score"]].itertuples(index=False):
            steps = judged.get((rule, spec.id), {})
            same_steps &= next(iter(steps), None) == step
            pairs.append((score, steps.get(step, math.nan)))
        reruns.append(Rerun(spec, *_agreement(pairs, same_steps)))
    return reruns


def _scored(frames: Frames) -> dict[tuple[str, str], dict[int, float]]:
    """The scores of a run's steps by a rule, the best step first; by rule and id."""
    scores = {}
    for dataset in frames.runs["dataset_label"].unique():
        for rule in frozen_rules():
            with suppress(UserError):
                table = candidates(only_dataset(frames, str(dataset)), rule)
                for run_id, steps in table.groupby("id", sort=False):
                    ranked = zip(steps["step"].tolist(), steps["score"].tolist(), strict=True)
                    scores[rule, str(run_id)] = dict(ranked)
    return scores


def _agreement(pairs: Sequence[tuple[float, float]], same_steps: bool) -> tuple[Agreement, float]:
    """How pairs of a frozen and a new number agree, and the largest difference."""
    gaps = [0.0 if a == b or (math.isnan(a) and math.isnan(b)) else abs(a - b) for a, b in pairs]
    furthest = math.inf if any(math.isnan(gap) for gap in gaps) else max(gaps, default=0.0)
    if same_steps and furthest == 0:
        return Agreement.EQUAL, 0.0
    close = [gap <= BAND * max(1.0, abs(a)) for gap, (a, _) in zip(gaps, pairs, strict=True)]
    return (Agreement.CLOSE if all(close) else Agreement.OFF), furthest


def sentences(reruns: Sequence[Rerun], board: str) -> list[str]:
    """The runs that are off or missing, and how many agree how."""
    counts = Counter(run.agreement for run in reruns)
    counted = ", ".join(f"{counts[agreement]} {agreement}" for agreement in Agreement)
    wrong = [
        f"{run.agreement}: {run.spec.label} on {run.spec.dataset_name}, trial {run.spec.trial}, draw "
        f"{run.spec.draw} (run {run.spec.id}), by {run.furthest:.3g} at most"
        for run in reruns
        if run.agreement in FAILURES
    ]
    return [*wrong, f"Of {len(reruns)} runs of {board} that were trained again: {counted}."]


def agree(reruns: Sequence[Rerun]) -> bool:
    """Whether every run has a result that is that of the frozen one, but for round-off."""
    return not any(run.agreement in FAILURES for run in reruns)
