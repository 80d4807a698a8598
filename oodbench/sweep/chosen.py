"""Hyperparameters that an earlier sweep has chosen: the key `hparams_from` of a sweep file.

A sweep chooses draw and step in every trial, so that its ± contains the chance of that choice. With this
key the draw is chosen once and trained in new trials: their ± is that of data, splits, weights and batches.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from oodbench.errors import UserError
from oodbench.metrics import known_direction
from oodbench.results.directory import Results
from oodbench.results.frames import Frames, plugins_of
from oodbench.results.load import load_frames
from oodbench.results.run_spec import RunSpec
from oodbench.selection import candidates, find_rule, sees_test, usual

CHOSEN_FOR = ["dataset_label", "label", "test_environments"]
"""The columns of a run that name the place of a choice."""


@dataclass(frozen=True)
class Chosen:
    """The choice of an earlier sweep."""

    about: Mapping[str, Any]
    """Its `results` directory, the selection `rule`, the number of `draws` and the `trials`."""
    specs: Mapping[tuple[str, str, tuple[str, ...]], RunSpec]
    """A run with the chosen hyperparameters for each dataset, row and set of test environments."""

    def spec(self, dataset: str, label: str, tests: tuple[str, ...]) -> RunSpec:
        """Return the run whose hyperparameters are taken; raises UserError."""
        known = self.specs.get((dataset, label, tests))
        if known is None:
            raise UserError(
                f"{self.about['results']} has no choice of hyperparameters for {label} on {dataset} (test "
                f"{'+'.join(tests)}): it plans no such row, or not all runs of it have ended"
            )
        return known


def chosen_in(directory: Path, rule: str | None, trials: Sequence[int]) -> Chosen:
    """Return the hyperparameters that a rule, the directory's usual one by default, chooses for other
    `trials`.

    A draw is judged by the mean over trials of each run's best validation score; where every trial has
    draws of its own, each run is judged alone. Ties go to the lowest draw. Raises UserError for trials that
    took part in the choice, and for a rule that sees the test environments.
    """
    frames = load_frames(Results(directory))
    rule = rule or usual(frames)
    if sees_test(rule):
        raise UserError(
            f"hparams_from: {rule} sees the test environments; name another `selection`"
        )
    runs = frames.runs
    before = sorted(map(int, runs["trial"].unique()))
    if again := sorted({*before} & {*trials}):
        others = list(range(before[-1] + 1, before[-1] + 1 + len(trials)))
        raise UserError(
            f"the hyperparameters in {directory} were chosen in the trials {before}: {again} would be "
            f"trained again; use others, such as `trials: {others}`"
        )
    about = {"results": str(directory), "rule": rule, "draws": int(runs["draw"].nunique())}
    stored = Results(directory).plan()["runs"]
    specs = {p: RunSpec.from_json(stored[i]) for p, i in _best_runs(frames, runs, rule).items()}
    return Chosen(about | {"trials": before}, specs)


def _best_runs(frames: Frames, runs: pd.DataFrame, rule: str) -> dict[Any, str]:
    """Return the id of a run with the best setting for each place whose trials are all complete."""
    table = candidates(frames, rule)
    best_steps = table[table["complete"]].drop_duplicates("id")
    columns = ["hparams", "network_hparams", "adapt"]
    settings = [json.dumps(row, sort_keys=True) for row in runs[columns].to_numpy().tolist()]
    metric = find_rule(rule).metric
    higher = known_direction(metric, plugins_of(frames)) if metric else runs["higher_is_better"]
    known = runs[["id"]].assign(setting=settings, higher=higher)
    planned = runs[~runs["helper"]].groupby(CHOSEN_FOR)["trial"].nunique().rename("planned")
    chosen: dict[Any, str] = {}
    judged = best_steps.merge(known, on="id").join(planned, on=CHOSEN_FOR)
    for place, group in judged.groupby(CHOSEN_FOR, sort=False):
        if group["trial"].nunique() < group["planned"].iloc[0]:
            continue
        sign = -1 if group["higher"].iloc[0] else 1
        by_setting = group.assign(cost=sign * group["score"]).groupby("setting", sort=False)
        costs = by_setting["cost"].agg(lambda cost: cost.mean(skipna=False))
        order = pd.DataFrame({"cost": costs, "draw": by_setting["draw"].min()})
        best = order.sort_values(["cost", "draw"], na_position="last").index[0]
        chosen[place] = str(group.loc[group["setting"] == best, "id"].iloc[0])
    return chosen
