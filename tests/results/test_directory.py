import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from oodbench.errors import UserError
from oodbench.results.directory import Directory
from oodbench.results.parquet import spec_columns
from oodbench.results.run_directory import LOST_AFTER, RunDirectory
from oodbench.results.run_spec import State
from tests.helpers.results.sweeps import edited
from tests.results.test_run_spec import SPEC

CONTEXT = {
    **{"dataset_label": "D", "training_environments": ["u"]},
    **{"metric": "accuracy", "higher_is_better": True},
}


def record(step: int) -> dict[str, Any]:
    return {"step": step, "train": {"loss": 0.5}, "evaluations": []}


def directory(tmp_path: Path) -> RunDirectory:
    run = RunDirectory(tmp_path / "run")
    run.path.mkdir()
    run.start(SPEC, CONTEXT, {})
    return run


def beating(tmp_path: Path, **beat: Any) -> RunDirectory:
    """A run that has started and has this heartbeat."""
    run = directory(tmp_path)
    run.start(SPEC, {}, {})
    beat = {"step": 1, "time": time.time(), "host": os.uname().nodename} | beat
    (run.path / "heartbeat").write_text(json.dumps(beat))
    return run


def ended(tmp_path: Path, state: State = State.DONE, step: int = SPEC.steps) -> RunDirectory:
    """A run that has ended, with a record at each step due."""
    run = RunDirectory(tmp_path / SPEC.id)
    run.path.mkdir()
    run.start(SPEC, CONTEXT, {})
    for due in sorted({*SPEC.due(step), step}):
        run.append(record(due))
    run.finish(state, step)
    assert run.state() is state
    return run


def lines(change: Callable[[list[bytes]], list[bytes]]) -> Callable[[RunDirectory], object]:
    """Change the records of a run, by their lines."""

    def damage(run: RunDirectory) -> None:
        path = run.path / "metrics.jsonl"
        path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))

    return damage


def keys(name: str, **values: object) -> Callable[[RunDirectory], object]:
    """Give keys of a JSON file other values; None takes one away."""

    def damage(run: RunDirectory) -> None:
        with edited(run.path / name) as content:
            content |= values
            for key in [key for key, value in content.items() if value is None]:
                del content[key]

    return damage


def both(*damages: Callable[[RunDirectory], object]) -> Callable[[RunDirectory], object]:
    return lambda run: [damage(run) for damage in damages]


def without(name: str) -> Callable[[RunDirectory], object]:
    return lambda run: (run.path / name).unlink()


def signed(run: RunDirectory) -> None:
    """Have done.json hash the records that are there."""
    with edited(run.path / "done.json") as end:
        end["sha256"] = run.sync_records()["sha256"]


BROKEN: dict[str, tuple[Callable[[RunDirectory], object], str]] = {
    "no run.json": (without("run.json"), r"run\.json is missing"),
    "a run.json of a later schema": (keys("run.json", schema=3), r"run\.json has schema 3, not 2"),
    "a number for classes": (
        keys("run.json", context={**CONTEXT, "classes": 5}),
        r"run\.json is damaged: context\.classes: Input should be a valid",
    ),
    "a text for digests": (
        keys("run.json", provenance={"digests": "x"}),
        "run.json is damaged: prov",
    ),
    "a run.json of other bytes": (
        lambda run: (run.path / "run.json").write_text(f"{(run.path / 'run.json').read_text()} "),
        r"run\.json is not what the run ended with",
    ),
    "another run's run.json": (
        keys("run.json", spec=asdict(replace(SPEC, trial=SPEC.trial + 1))),
        r"run\.json is of another run",
    ),
    "a done.json that is cut": (
        lambda run: (run.path / "done.json").write_text('{"status": "do'),
        r"done\.json is damaged: Invalid JSON",
    ),
    "a state that is no end": (keys("done.json", status="lost"), r"done\.json is damaged: status"),
    "no records": (without("metrics.jsonl"), r"metrics\.jsonl is not what the run ended with"),
    "records of other bytes": (
        lines(lambda found: [found[0].replace(b":", b": "), *found[1:]]),
        r"metrics\.jsonl is not what the run ended with",
    ),
    "a folder for records": (
        both(without("metrics.jsonl"), lambda run: (run.path / "metrics.jsonl").mkdir()),
        r"metrics\.jsonl is not a regular file",
    ),
    "a torn record that the run ended with": (
        both(lines(lambda found: [*found[:-1], found[-1][:9]]), signed),
        r"metrics\.jsonl has .* planned: 1 up to step 5 instead of 2 up to step 10",
    ),
    "a doubled record that the run ended with": (
        both(lines(lambda found: [found[0], *found]), signed),
        r"metrics\.jsonl has .* planned: 3 up to step 10 instead of 2 up to step 10",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_run_that_ended_and_is_not_as_it_ended_is_broken(tmp_path: Path, kind: str) -> None:
    damage, reason = BROKEN[kind]
    run = ended(tmp_path)
    damage(run)
    state, told = run.state_and_reason()
    assert state is State.BROKEN
    assert re.match(f"{re.escape(str(run.path))}/{reason}", told), told


def test_a_run_that_diverged_between_two_evaluations_has_one_record_more(tmp_path: Path) -> None:
    run = ended(tmp_path, State.DIVERGED, SPEC.evaluate_every + 1)
    assert [r["step"] for r in run.records()] == [SPEC.evaluate_every, SPEC.evaluate_every + 1]
    both(lines(lambda found: found[:-1]), signed)(run)
    assert run.state() is State.BROKEN


def test_a_run_whose_process_is_gone_is_lost(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert beating(tmp_path, pid=process.pid).state() == "lost"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux numbers threads like processes")
def test_a_thread_with_the_number_of_a_process_that_is_gone_does_not_train(tmp_path: Path) -> None:
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    try:
        assert beating(tmp_path, pid=thread.native_id).state() == "lost"
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize(("age", "state"), [(0.0, "running"), (LOST_AFTER + 1, "lost")])
def test_a_run_elsewhere_is_judged_by_its_heartbeat(tmp_path: Path, age: float, state: str) -> None:
    assert beating(tmp_path, time=time.time() - age, host="another", pid=1).state() == state


def test_records_are_kept_up_to_those_of_a_checkpoint_or_not_at_all(tmp_path: Path) -> None:
    run = directory(tmp_path)
    assert run.sync_records()["records"] == 0
    run.append(record(5))
    run.append(record(10))
    two = run.sync_records()
    run.append(record(15))
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2')
    assert run.keep_records(**two)
    assert [r["step"] for r in run.records()] == [5, 10] and run.sync_records() == two
    for damaged in (b"", b'{"step": 5}\n', b'{"step": 5}\n{"step": 11}\n', b"\0" * 26):
        (run.path / "metrics.jsonl").write_bytes(damaged)
        assert not run.keep_records(**two)
        assert (run.path / "metrics.jsonl").read_bytes() == damaged


def test_results_of_another_schema_are_refused(tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text('{"schema": 99}')
    with pytest.raises(UserError, match="schema"):
        Directory(tmp_path).plan()


@pytest.mark.parametrize(
    "settings", [{"plugins": 5}, {"sweep": 5}, {"selection": []}, {"sweep": {"hparams_from": 5}}]
)
def test_a_sweep_json_of_other_types_is_told(tmp_path: Path, settings: dict[str, object]) -> None:
    results = Directory(tmp_path)
    results.store("s", settings, pd.DataFrame(spec_columns([SPEC], [SPEC.id])))
    with pytest.raises(UserError, match=r"^\S+sweep\.json is damaged: settings\.") as told:
        results.plan()
    assert len(str(told.value).splitlines()) == 1
