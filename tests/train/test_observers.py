"""Observers: what they are told, that they change no run, and the real trackers."""

import random
import re
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from oodbench.errors import MissingError
from oodbench.results.run_spec import RunSpec, State
from oodbench.train.observers import Observer, curves, observers, register
from tests.helpers.commands import python, run
from tests.helpers.kills import Killed, checkpoint_every, killed_at
from tests.helpers.paths import ROOT
from tests.helpers.results.sweeps import outcome, tiny_file
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
    def evaluated(self, record: Mapping[str, Any]) -> None:
        if TOLD[-1] == (self.id, 20):
            raise OSError("the tracker's host is away")
        TOLD.append((self.id, record["step"]))


class NoAccount(Notes):
    def started(self, spec: RunSpec, step: int) -> None:
        TOLD.append((spec.id, step))
        raise MissingError("nobody: `somebody login`", "somebody login")


class NoPackage(Notes):
    package = "surely_missing"


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    known = dict(observers.items())
    register("notes")(Notes)
    register("fails")(Fails)
    register("nobody")(NoAccount)
    register("packed")(NoPackage)
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
    with pytest.warns(match=r"goes on without fails: OSError: the tracker's host is away"):
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


@pytest.mark.filterwarnings("always")
def test_what_is_missing_is_said_once_and_the_runs_go_on(tmp_path: Path) -> None:
    results, specs = prepared(tmp_path, algorithms=["Mixup"], trials=2)
    with pytest.warns(match="^nobody: `somebody login`; the runs go on without it$") as warned:
        ended = trained(results, specs, replace(TOGETHER, observers=("nobody", "notes")))
    assert set(ended.values()) == {("done", "")}
    assert sum("nobody" in str(warning.message) for warning in warned) == 1
    assert sum(what == 0 for _, what in TOLD) == 3  # of the other observer, two


def test_a_launch_names_the_command_for_a_missing_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("surely_missing").mkdir()  # as wandb's files are in a folder of its name
    file = tiny_file(tmp_path, algorithms=["ERM"], trials=1)
    options = ["--observe", "packed", "--observe", "notes", "--launcher", "debug", "--yes"]
    done = run("launch", file, "--out", tmp_path / "out", *options)
    assert done.exit_code == 0, done.output
    said = "the observer packed needs the package surely_missing: `pip install 'oodbench[packed]'`"
    assert f"{said}; the runs go on without it." in " ".join(done.output.split())
    assert [what for _, what in TOLD][-1] == (State.DONE, "")


def recorded(out: Path) -> pd.DataFrame:
    return pd.concat([pd.read_parquet(part) for part in (out / "ended").glob("records-*.parquet")])


@pytest.mark.slow
def test_tensorboard_reads_the_records_of_a_run_that_went_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.chdir(tmp_path)
    checkpoint_every(20, monkeypatch)
    results, (spec,) = prepared(tmp_path, steps=60, evaluate_every=20, trials=1)
    settings = replace(TOGETHER, observers=("tensorboard",))
    with pytest.raises(Killed):
        trained(results, [spec], settings, progress=killed_at(40))
    trained(results, [spec], settings)
    events = EventAccumulator(str(tmp_path / "events" / spec.label / spec.id)).Reload()
    found = {
        (tag, e.step): e.value for tag in events.Tags()["scalars"] for e in events.Scalars(tag)
    }
    steps = [e.step for e in events.Scalars("train/loss")]
    assert steps == sorted({step for _, step in found if step})
    records = list(results.run(spec.id).records())
    wanted = {(k, r["step"]): v for r in records for k, v in curves(r).items()}
    assert found == pytest.approx(wanted, rel=1e-6)


def test_the_guides_observer_writes_its_diary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (script,) = re.findall(
        r"```python\n(.*?)```", (ROOT / "docs/guide/observers.md").read_text(), re.DOTALL
    )
    exec(script, {"__name__": "diary"})
    monkeypatch.chdir(tmp_path)
    results, (spec,) = prepared(tmp_path / "out", steps=20, evaluate_every=20, trials=1)
    trained(results, [spec], replace(TOGETHER, observers=("diary",)))
    lines = Path(f"{spec.id}.txt").read_text().splitlines()
    assert lines[0] == "IRM starts at step 0" and lines[-1].strip() == "done"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trackers' packages; mlflow-skinny with what its store needs is MLflow without its pages."""
    folder = tmp_path_factory.mktemp("site")
    packages = ["trackio", "wandb", "mlflow-skinny", "sqlalchemy", "alembic"]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder)]
    subprocess.run([*pip, *packages], check=True)
    return folder


def followed(
    folder: Path, site: Path, *names: str, **environment: str
) -> "subprocess.CompletedProcess[str]":
    """A launch in `folder` with these observers and no home."""
    launch = ["-m", "oodbench.sweep", "launch", str(tiny_file(folder)), "--yes", "--workers", "2"]
    observe = [word for name in names for word in ("--observe", name)]
    done = python(
        folder,
        *launch,
        *("--out", str(folder / "out"), *observe),
        **{"PYTHONPATH": f"{ROOT}:{site}", "HOME": str(folder)} | environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.nightly
def test_the_real_trackers_have_the_records(tmp_path: Path, site: Path) -> None:
    done = followed(
        tmp_path,
        site,
        *("trackio", "wandb", "mlflow"),
        WANDB_MODE="offline",
        MLFLOW_TRACKING_URI=f"sqlite:///{tmp_path / 'mlflow.db'}",
        TRACKIO_DIR=str(tmp_path / "trackio"),
    )
    assert "goes on without" not in done.stderr and "without it" not in done.stdout + done.stderr
    records = recorded(tmp_path / "out")
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


class Closed(BaseHTTPRequestHandler):
    """An MLflow server to people without an account."""

    def do_GET(self) -> None:
        self.send_response(401)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.mark.nightly
def test_the_real_trackers_without_an_account_name_the_command(tmp_path: Path, site: Path) -> None:
    with HTTPServer(("127.0.0.1", 0), Closed) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        uri = f"http://127.0.0.1:{server.server_port}"
        done = followed(tmp_path, site, "wandb", "mlflow", MLFLOW_TRACKING_URI=uri)
        server.shutdown()
    said = " ".join(done.stderr.split())
    assert "`wandb login`, or WANDB_MODE=offline without an account); the runs go on" in said
    assert f"{uri} asks for an account: `export MLFLOW_TRACKING_USERNAME=" in said
    assert recorded(tmp_path / "out")["id"].nunique() == 4
