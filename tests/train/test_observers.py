"""Observers: what they are told, that they change no run, and the guide's real trackers."""

import os
import random
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from oodbench.results.run_spec import RunSpec, State
from oodbench.train.observers import Observer, observers, register
from tests.helpers.kills import Killed, checkpoint_every, killed_at
from tests.helpers.paths import ROOT
from tests.helpers.sweeps import outcome, tiny_file
from tests.train.test_execute import TOGETHER, prepared, trained

TOLD: list[tuple[str, Any]] = []


class Notes(Observer):
    """Notes what it is told, and does to the process what a careless tracker does."""

    def started(self, spec: RunSpec, step: int) -> None:
        self.id = spec.id
        TOLD.append((spec.id, step))

    def evaluated(self, record: Mapping[str, Any]) -> None:
        TOLD.append((self.id, record["step"]))
        torch.manual_seed(0)
        np.random.seed(0)
        random.seed(0)
        record["evaluations"].clear()

    def ended(self, state: State, message: str) -> None:
        TOLD.append((self.id, (state, message)))


class Fails(Notes):
    """Raises at its second record."""

    def evaluated(self, record: Mapping[str, Any]) -> None:
        if TOLD[-1] == (self.id, 20):
            raise OSError("the tracker's host is away")
        TOLD.append((self.id, record["step"]))


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    known = dict(observers._classes)
    register("notes")(Notes)
    register("fails")(Fails)
    TOLD.clear()
    yield
    observers._classes.clear()
    observers._classes.update(known)


def told(run_id: str) -> list[Any]:
    return [what for of_run, what in TOLD if of_run == run_id]


@pytest.mark.parametrize("algorithm", ["IRM", "Mixup"])
def test_records_are_the_same_with_an_observer(tmp_path: Path, algorithm: str) -> None:
    changes = {"algorithms": [algorithm], "steps": 40, "evaluate_every": 20}
    alone, specs = prepared(tmp_path / "alone", **changes)
    trained(alone, specs)
    followed, _ = prepared(tmp_path / "followed", **changes)
    trained(followed, specs, replace(TOGETHER, observers=("notes",)))
    assert outcome(followed) == outcome(alone)
    for spec in specs:
        assert told(spec.id) == [0, 20, 40, (State.DONE, "")]


def test_a_failing_observer_is_told_no_more_and_the_run_ends_well(tmp_path: Path) -> None:
    results, specs = prepared(tmp_path, steps=60, evaluate_every=20, trials=1)
    with pytest.warns(match=r"is no longer told to fails: OSError: the tracker's host is away"):
        ended = trained(results, specs, replace(TOGETHER, observers=("fails", "notes")))
    assert set(ended.values()) == {("done", "")}
    assert told(specs[0].id) == [0, 0, 20, 20, 40, 60, (State.DONE, "")]


def test_a_run_that_goes_on_is_started_again_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint_every(20, monkeypatch)
    results, specs = prepared(tmp_path, steps=60, evaluate_every=20, trials=1)
    settings = replace(TOGETHER, observers=("notes",))
    with pytest.raises(Killed):
        trained(results, specs, settings, progress=killed_at(40))
    trained(results, specs, settings)
    assert told(specs[0].id) == [0, 20, 40, 40, 60, (State.DONE, "")]


@pytest.mark.nightly
def test_the_guides_trackers_have_the_records(tmp_path: Path) -> None:
    (script,) = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs/guide/observers.md").read_text(), re.DOTALL
    )
    (tmp_path / "trackers.py").write_text(script)
    packages = ["trackio", "wandb", "mlflow-skinny", "sqlalchemy", "alembic", "tensorboard"]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(tmp_path / "site")]
    subprocess.run([*pip, *packages], check=True)
    names = ("trackio", "wandb", "mlflow", "tensorboard")
    command = [sys.executable, "-m", "oodbench.sweep", "launch", str(tiny_file(tmp_path))]
    command += ["--out", str(tmp_path / "out"), "--yes", "--workers", "1", "--plugin", "trackers"]
    env = os.environ | {
        "PYTHONPATH": f"{ROOT}:{tmp_path}:{tmp_path / 'site'}",
        "WANDB_MODE": "offline",
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path / 'mlflow.db'}",
        "TRACKIO_DIR": str(tmp_path / "trackio"),
    }
    observe = [word for name in names for word in ("--observe", name)]
    done = subprocess.run(
        [*command, *observe], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and "no longer told" not in done.stderr + done.stdout, done.stderr
    parts = (tmp_path / "out" / "ended").glob("records-*.parquet")
    records = pd.concat([pd.read_parquet(part) for part in parts])
    steps = sorted(set(records[["id", "step"]].itertuples(index=False, name=None)))
    trackio = sqlite3.connect(tmp_path / "trackio" / "oodbench.db")
    assert sorted(trackio.execute("select run_name, step from metrics")) == steps
    mlflow = sqlite3.connect(tmp_path / "mlflow.db")
    loss = (
        "select name, step, value from metrics join runs using (run_uuid) where key = 'train/loss'"
    )
    trained = records[(records["split"] == "train") & (records["metric"] == "loss")]
    losses = trained.set_index(["id", "step"])["value"].to_dict()
    assert {(run, step): value for run, step, value in mlflow.execute(loss)} == losses
    assert len(list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))) == records["id"].nunique()
    events = {path.parent.name for path in (tmp_path / "events").rglob("events.*")}
    assert events == set(records["id"])
