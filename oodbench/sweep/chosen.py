"""The hyperparameters that an earlier sweep has chosen, for the key `hparams_from`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from oodbench.errors import UserError
from oodbench.metrics import known_direction
from oodbench.results.directory import Directory
from oodbench.results.read import read_results
from oodbench.results.run_spec import RunSpec
from oodbench.results.tables import Tables, plugins_of
from oodbench.selection import find_rule, sees_test, usual
from oodbench.selection.judge import judge
from oodbench.sweep.file import Row, Sweep
from oodbench.sweep.resolve import DRAWN, Draws, Source
from oodbench.validation import short

CHOSEN_FOR = ["dataset_label", "label", "test_environments"]
"""The columns of runs among which hyperparameters are chosen."""


def chosen_in(
    directory: Path, rule: str | None, trials: Sequence[int]
) -> tuple[dict[str, Any], dict[Any, RunSpec]]:
    """The hyperparameters that a rule, by default the directory's usual rule, chooses for other `trials`.

    Returns facts about the choice (the `results` directory, selection `rule`, number of `draws`, and
    `trials`), and the chosen run for each dataset, row and set of test environments (CHOSEN_FOR).

    A draw is judged by the mean over trials of each run's best validation score, or by its single run if
    each trial has separate draws. Ties go to the lowest draw. Raises UserError for trials that took part
    in the choice, and for a rule that sees the test environments.
    """
    frames = read_results(Directory(directory))
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
            f"trained again; use other trials, such as `trials: {others}`"
        )
    about = {
        "results": str(directory),
        "rule": rule,
        "draws": int(runs["draw"].nunique()),
        "trials": before,
    }
    stored = Directory(directory).specs()
    return about, {place: stored[i] for place, i in _best_runs(frames, rule).items()}


def _best_runs(frames: Tables, rule: str) -> dict[Any, str]:
    runs, table = frames.runs, judge(frames, rule).candidates
    best_steps = table[table["complete"]].drop_duplicates("run")
    drawn = runs[[*DRAWN]].to_numpy().tolist()
    settings = [json.dumps(values, sort_keys=True) for values in drawn]
    metric = find_rule(rule).metric
    higher = known_direction(metric, plugins_of(frames)) if metric else runs["higher_is_better"]
    known = pd.DataFrame({"setting": settings, "higher": higher}, runs.index)
    planned = runs[~runs["helper"]].groupby(CHOSEN_FOR)["trial"].nunique().rename("planned")
    places = best_steps.join(known, on="run").join(planned, on=CHOSEN_FOR)
    trials = places.groupby(CHOSEN_FOR)["trial"].transform("nunique")
    places = places[~(trials < places["planned"])]
    sign = np.where(places["higher"], -1, 1)
    by_setting = (
        places.assign(cost=sign * places["score"])
        .groupby([*CHOSEN_FOR, "setting"], sort=False)
        .agg(
            cost=("cost", lambda cost: cost.mean(skipna=False)),
            draw=("draw", "min"),
            id=("id", "first"),
        )
    )
    order = by_setting.sort_values(["cost", "draw"], na_position="last")
    chosen: dict[Any, str] = order.groupby(CHOSEN_FOR, sort=False)["id"].first().to_dict()
    return chosen


def chosen_draws(
    sweep: Sweep, source: Source, row: Row, tests: tuple[str, ...], chosen: Mapping[Any, RunSpec]
) -> Draws:
    """The hyperparameters that an earlier sweep has chosen for a cell; raises UserError if it has not."""
    earlier, spec = Path(str(sweep.hparams_from)), chosen.get((source.label, row.title, tests))
    if spec is None:
        raise UserError(
            f"{earlier} has no choice of hyperparameters for {row.title} on {source.label} (test "
            f"{'+'.join(tests)}): it does not plan this row, or runs of the row have not ended"
        )
    here = [row.name, source.network.name, *map(_name, (row.average, row.adapt))]
    there = [spec.algorithm, spec.network, *map(_name, (spec.average, spec.adapt))]
    if here != there:
        raise UserError(
            f"{earlier} has chosen hyperparameters for {' '.join(there)} in the row "
            f"{short(row.title)} on {source.label}, which is {' '.join(here)} here"
        )
    values = {name: vars(spec)[name] for name in DRAWN}
    return {(spec.draw, trial): values for trial in source.trials}


def _name(values: Mapping[str, Any] | None) -> str:
    return "none" if values is None else str(values["name"])
