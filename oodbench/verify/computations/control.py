"""Control with spurious features (arXiv:2003.00688; section 11.1.9.3 of the thesis): errors and rewards.

As in the paper, hyperparameters are tuned on the test environment of `cartpole_swingup` and used for all
other tasks. Instead of the paper's Soft Actor-Critic, a planner acts in the test environment by the best of
random plans, as judged by the predictor.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from oodbench.report.statistics import plain_mean
from oodbench.results.directory import Directory
from oodbench.results.tables import Tables
from oodbench.train.models import load_model
from oodbench.verify.measured import last_values
from oodbench.verify.targets import LAST, Values

TUNED_ON = "cartpole_swingup"
METHOD = "VREx"
"""The paper's method, with which other methods are compared."""
POLICIES = ("random", "true")
"""The policies that bound the planners: random acts, and plans by the true rewards."""
EPISODES = 5
"""The number of episodes of a planner in a trial; all planners have the same starts."""


def control_rewards(trials: int, frames: Mapping[str, Tables]) -> Values:
    """The error and the mean reward of each row and task, and V-REx's advantage in each trial."""
    values: Values = {}
    for sweep in frames.values():
        runs = tuned(last_values("test", sweep, "mse"))
        models: list[Any] = [
            load_model(Directory(Path(str(run.directory))).run(str(run.id)).path, rule=LAST)
            for run in runs.itertuples()
        ]
        runs["reward"] = [_reward(m.dataset, m, m.spec.trial) for m in models]
        for task, of_task in runs.groupby("dataset_label"):
            tables = {c: of_task.pivot(index="trial", columns="label", values=c) for c in MEASURES}
            played = {m.spec.trial: m.dataset for m in models if m.spec.dataset_name == task}
            for policy in POLICIES:
                reward = {trial: _reward(played[trial], policy, trial) for trial in played}
                tables["reward"][policy] = pd.Series(reward)
            values |= _values(str(task), tables)
    return values


MEASURES = {"value": ("error", -1), "reward": ("reward", 1)}
"""The names of the measured columns, and whether more (1) or less (-1) is better."""


def tuned(runs: pd.DataFrame) -> pd.DataFrame:
    """The runs on other tasks with the draws that have the lowest `value`, an error, on TUNED_ON."""
    tried = runs["dataset_label"] == TUNED_ON
    mean = runs[tried].groupby(["label", "draw"])["value"].agg(plain_mean)
    best = mean.groupby("label").idxmin()
    chosen = pd.MultiIndex.from_frame(runs[["label", "draw"]]).isin(best.tolist())
    return pd.DataFrame(runs[chosen & ~tried]).reset_index(drop=True)


def _reward(dataset: Any, policy: Any, trial: int) -> float:
    return float(np.mean([dataset.mean_reward(policy, trial, i) for i in range(EPISODES)]))


def _values(task: str, tables: Mapping[str, pd.DataFrame]) -> Values:
    values: Values = {}
    for column, (name, sign) in MEASURES.items():
        table = tables[column]
        for row in table:
            values[f"{row}, {task}: {name}"] = table[row].dropna().tolist()
            advantage = sign * (table[METHOD] - table[row])
            values[f"{METHOD} before {row}, {task}: {name}"] = advantage.dropna().tolist()
    return values
