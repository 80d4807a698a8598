"""Results as DomainBed writes them."""

import json
from pathlib import Path
from typing import Any

import numpy as np

STEPS = (0, 300, 600)
Accuracies = dict[int, tuple[float, ...]]
"""By step: env0 in, env0 out, env1 in, ..."""


def record(args: dict[str, Any], step: int, values: tuple[float, ...]) -> str:
    names = [f"env{i}_{s}_acc" for i in range(len(values) // 2) for s in ("in", "out")]
    rest = {"epoch": 0.0, "hparams": {"lr": 0.1}, "loss": 1.5, "step": step, "step_time": 0.5}
    return json.dumps({"args": args, **rest, **dict(zip(names, values, strict=True))}) + "\n"


def write(
    folder: Path,
    test_envs: list[int],
    accuracies: Accuracies,
    trial: int = 0,
    draw: int = 0,
    dataset: str = "VLCS",
    done: bool = True,
) -> Path:
    args = {
        "algorithm": "ERM", "dataset": dataset, "test_envs": test_envs, "trial_seed": trial,
        "hparams_seed": draw, "holdout_fraction": 0.2, "steps": 601, "checkpoint_freq": None,
        "seed": 7, "task": "domain_generalization", "uda_holdout_fraction": 0,
    }  # fmt: skip
    path = folder / f"ERM-{dataset}-{test_envs}-{trial}-{draw}"
    path.mkdir(parents=True)
    text = "".join(record(args, step, values) for step, values in accuracies.items())
    (path / "results.jsonl").write_text(text)
    if done:
        (path / "done").write_text("done")
    return path


def sweep(folder: Path) -> dict[tuple[tuple[int, ...], int, int], Accuracies]:
    """Every environment of three alone and in pairs, two draws, two trials, random accuracies."""
    rng = np.random.default_rng(0)
    made = {}
    for test_envs in ([0], [1], [2], [0, 1], [0, 2], [1, 2]):
        for draw in (0, 1):
            for trial in (0, 1):
                values = {s: tuple(rng.random(6).round(3)) for s in STEPS}
                write(folder, test_envs, values, trial, draw, dataset="Debug28")
                made[tuple(test_envs), trial, draw] = values
    return made
