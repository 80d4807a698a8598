"""Sets of `ControlRewards` in the form of the real ones: walks that nobody took."""

from pathlib import Path

import numpy as np
from oodbench.datasets.control_rewards import STEPS, TASKS, Settings, file_of
from oodbench.datasets.made import write_manifest


def write(data_dir: Path, task: str, episodes: int) -> None:
    folder, draw = data_dir / "ControlRewards" / task, np.random.default_rng(0)
    folder.mkdir(parents=True)
    states, actions = len(TASKS[task].names), TASKS[task].actions
    for episode in range(episodes):
        state = draw.normal(size=(STEPS, states)).cumsum(0)
        action = draw.uniform(-1, 1, (STEPS, actions))
        reward = draw.random((STEPS, 1))
        np.save(folder / file_of(episode), np.hstack([state, action, reward]).astype(np.float32))
    write_manifest(folder, Settings(task, episodes), [*map(file_of, range(episodes))])
