from pathlib import Path

import pandas as pd
import pytest

from oodbench.results.directory import Directory
from oodbench.results.read import read_results
from oodbench.sweep.file import Entry, find_sweep, read_sweep
from oodbench.sweep.launch import LaunchOptions, launch
from oodbench.verify.computations import control
from oodbench.verify.computations.control import TUNED_ON, control_rewards, tuned
from oodbench.verify.targets import load_experiment
from tests.helpers.data import control_episodes


def test_hyperparameters_are_those_that_are_best_on_the_task_for_tuning() -> None:
    errors = {  # by row and draw: on the task for tuning, in two trials, and on another
        ("A", 0): ([1.0, 1.0], 0.1),
        ("A", 1): ([0.0, 1.5], 0.9),
        ("B", 0): ([0.0, 0.5], 0.8),
        ("B", 1): ([0.4, 0.5], 0.2),
    }
    rows = [
        (task, label, draw, trial, value)
        for (label, draw), (on_tuning, elsewhere) in errors.items()
        for task, values in ((TUNED_ON, on_tuning), ("finger_spin", [elsewhere] * 2))
        for trial, value in enumerate(values)
    ]
    runs = pd.DataFrame(rows, columns=["dataset_label", "label", "draw", "trial", "value"])
    chosen = tuned(runs)
    assert dict(zip(chosen["label"], chosen["value"], strict=True)) == {"A": 0.9, "B": 0.8}
    assert chosen["dataset_label"].tolist() == ["finger_spin"] * 4


@pytest.mark.slow
def test_rewards_of_a_small_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "EPISODES", 1)
    for task in (TUNED_ON, "finger_spin"):
        control_episodes.write(tmp_path, task, 6)
    short = ["trials=1", "steps=2", "evaluate_every=2", "hparam_draws=2"]
    sweep = read_sweep(find_sweep("control-rewards"), short)
    of_two = [Entry(**{**dict(entry), "episodes": 6}) for entry in sweep.datasets[:2]]
    small = sweep.model_copy(update={"datasets": of_two, "algorithms": sweep.algorithms[:3]})
    out = tmp_path / "out"
    launch(small, LaunchOptions(out=out, data_dir=tmp_path, launcher="debug"))
    values = control_rewards(1, {"control-rewards": read_results(Directory(out))})
    rows = ("ERM", "IRM", "VREx", "random", "true")
    assert {f"{row}, finger_spin: reward" for row in rows} < values.keys()
    for name, of_trials in values.items():
        assert len(of_trials) == 1 and "cartpole" not in name
        if "before" not in name:
            assert min(of_trials) >= 0
    errors = [values[f"{row}, finger_spin: error"][0] for row in ("ERM", "VREx")]
    advantage = values["VREx before ERM, finger_spin: error"][0]
    assert advantage == pytest.approx(errors[0] - errors[1])
    known = {t.row for t in load_experiment("control-rewards").targets if "finger" in t.row}
    assert known <= values.keys()
