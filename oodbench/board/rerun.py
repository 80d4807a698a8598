"""Frozen runs trained again, and whether they are what is frozen."""

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import pandas as pd

from oodbench.algorithms import algorithms
from oodbench.board.frames import board_frames
from oodbench.board.freeze import data_digests, frozen_rules
from oodbench.board.parts import Part, read_parts
from oodbench.errors import UserError
from oodbench.report.statistics import BAND
from oodbench.results.directory import Results
from oodbench.results.frames import Frames, load_frames
from oodbench.results.join import only_dataset
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


@dataclass(frozen=True)
class Rerun:
    """A run that was trained again."""

    spec: RunSpec
    agreement: Agreement
    furthest: float
    """The largest difference of a score or a value at the frozen steps; NaN without a result."""


def sample(parts: Sequence[Part], count: int, seed: int) -> list[tuple[Part, RunSpec, bool]]:
    """So many random runs of a board, with whether each was vectorized; all if there are no more."""
    found = []
    for part in parts:
        how = part.runs().set_index("id")["vectorized"]
        found += [(part, spec, bool(how[run_id])) for run_id, spec in part.specs().items()]
    order = random.Random(seed)
    return order.sample(found, min(count, len(found)))


def rerun(board: Path, count: int, seed: int, options: LaunchOptions) -> list[Rerun]:
    """Train random frozen runs again, vectorized or alone as they were, and compare.

    A vectorized run has the same bits in any company, so it is trained with those of the sample
    alone. Raises UserError for a method that is not registered, and if the data of a part are no
    longer those that it was made of.
    """
    chosen = sample(read_parts(board), count, seed)
    for _, spec, _ in chosen:
        algorithms.get(spec.algorithm)
    _check_data(chosen, options.data_dir)
    assert options.out is not None
    specs = {spec.id: spec for _, spec, _ in chosen}
    for vectorize in (MAX_VECTORIZED, 1):
        ids = [s.id for _, s, vectorized in chosen if vectorized == (vectorize > 1)]
        if ids:
            left = [i for i in ids if Results(options.out).run(i).end() is None]
            launch_specs(board.name, specs, left, replace(options, vectorize=vectorize))
    own = load_frames(Results(options.out))
    return _compared(chosen, own)


def _check_data(chosen: Sequence[tuple[Part, RunSpec, bool]], data_dir: Path | None) -> None:
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


def _compared(chosen: Sequence[tuple[Part, RunSpec, bool]], own: Frames) -> list[Rerun]:
    scored = _scored(own)
    key = ["step", "environment", "metric"]
    names = dict.fromkeys(("id", "environment", "split", "metric"), object)
    records = own.metrics.astype(names).fillna({"environment": "", "split": "in"})
    records = records[records["split"] == "in"]
    values = {run_id: group.set_index(key)["value"] for run_id, group in records.groupby("id")}
    of_parts = {id(part): board_frames([part]) for part, _, _ in chosen}
    found = []
    for part, spec, _ in chosen:
        theirs = of_parts[id(part)]
        frozen = theirs.metrics[theirs.metrics["id"] == spec.id].astype(names)
        frozen = frozen.fillna({"environment": ""}).set_index(key)["value"]
        scores = theirs.scores[theirs.scores["id"] == spec.id]
        if spec.id not in values or not values[spec.id].index.isin(frozen.index).any():
            found.append(Rerun(spec, Agreement.MISSING, math.nan))
            continue
        pairs = list(zip(frozen, values[spec.id].reindex(frozen.index).astype(float), strict=True))
        same_steps = True
        for rule, step, score in scores[["rule", "step", "score"]].itertuples(index=False):
            mine = scored[rule].get(spec.id, pd.DataFrame(columns=["step", "score"]))
            same_steps &= bool(len(mine)) and int(mine["step"].iloc[0]) == step
            at = mine.loc[mine["step"] == step, "score"]
            pairs.append((score, float(at.iloc[0]) if len(at) else math.nan))
        found.append(Rerun(spec, *_agreement(pairs, same_steps)))
    return found


def _scored(own: Frames) -> Mapping[str, Mapping[str, pd.DataFrame]]:
    """The steps of each run by each rule, the best first: `step` and `score`."""
    found: dict[str, dict[str, pd.DataFrame]] = {rule: {} for rule in frozen_rules()}
    for dataset in own.runs["dataset_label"].unique():
        for rule in frozen_rules():
            with suppress(UserError):
                table = candidates(only_dataset(own, str(dataset)), rule)
                found[rule] |= {str(i): group for i, group in table.groupby("id", sort=False)}
    return found


def _agreement(pairs: Sequence[tuple[float, float]], same_steps: bool) -> tuple[Agreement, float]:
    """How pairs of a frozen and a new number agree, and the largest difference."""
    gaps = [0.0 if a == b or (math.isnan(a) and math.isnan(b)) else abs(a - b) for a, b in pairs]
    furthest = math.inf if any(math.isnan(gap) for gap in gaps) else max(gaps, default=0.0)
    if same_steps and furthest == 0:
        return Agreement.EQUAL, 0.0
    close = [gap <= BAND * max(1.0, abs(a)) for gap, (a, _) in zip(gaps, pairs, strict=True)]
    return (Agreement.CLOSE if all(close) else Agreement.OFF), furthest


def counted(found: Sequence[Rerun]) -> Counter[Agreement]:
    """How many runs agree how."""
    return Counter(run.agreement for run in found)
