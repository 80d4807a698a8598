import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oodbench.errors import UserError
from oodbench.results.directory import LOST_AFTER, Results, RunDirectory
from oodbench.results.run_spec import State
from tests.results.test_run_spec import SPEC

CONTEXT = {
    "dataset_label": "D",
    "training_environments": ["u"],
    "metric": "accuracy",
    "higher_is_better": True,
}


def test_records_import_no_torch() -> None:
    code = "import sys, oodbench, oodbench.results.directory, oodbench.sweep; print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"


def directory(tmp_path: Path) -> RunDirectory:
    run = RunDirectory(tmp_path / "run")
    run.path.mkdir()
    return run


def test_the_states_of_a_run(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / SPEC.id)
    assert run.state() == "planned"
    run.path.mkdir()
    run.start(SPEC, CONTEXT, {})
    assert run.state() == "lost"
    run.beat(3)
    assert run.state() == "running"
    run.fail("why", "trace")
    assert run.state() == "failed"
    run.forget()
    run.append({"step": 3, "evaluations": []})
    run.finish(State.DIVERGED, 3, 1.0)
    assert run.state() == "diverged"


def test_a_run_whose_process_is_gone_is_lost(tmp_path: Path) -> None:
    run = directory(tmp_path)
    run.start(SPEC, {}, {})
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    beat = {"step": 1, "time": time.time(), "host": os.uname().nodename, "pid": process.pid}
    (run.path / "heartbeat").write_text(json.dumps(beat))
    assert run.state() == "lost"


@pytest.mark.parametrize(("age", "state"), [(0.0, "running"), (LOST_AFTER + 1, "lost")])
def test_a_run_of_another_machine_is_judged_by_its_heartbeat(
    tmp_path: Path, age: float, state: str
) -> None:
    run = directory(tmp_path)
    run.start(SPEC, {}, {})
    beat = {"step": 1, "time": time.time() - age, "host": "another", "pid": 1}
    (run.path / "heartbeat").write_text(json.dumps(beat))
    assert run.state() == state


@given(cut=st.integers(0, 400))
def test_readers_take_whole_records_only(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    run = directory(tmp_path_factory.mktemp("torn"))
    lines: list[dict[str, Any]] = [{"step": s, "evaluations": []} for s in (5, 10, 15)]
    for line in lines:
        run.append(line)
    text = (run.path / "metrics.jsonl").read_text()
    (run.path / "metrics.jsonl").write_text(text[:cut])
    ends = [i + 1 for i, c in enumerate(text) if c == "\n"]
    whole = sum(cut >= end - 1 for end in ends)
    assert run.records() == lines[:whole]


def test_records_are_kept_up_to_those_of_a_checkpoint_or_not_at_all(tmp_path: Path) -> None:
    run = directory(tmp_path)
    assert run.sync_records()["records"] == 0
    run.append({"step": 5})
    run.append({"step": 10})
    two = run.sync_records()
    run.append({"step": 15})
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2')
    assert run.keep_records(**two)
    assert [r["step"] for r in run.records()] == [5, 10] and run.sync_records() == two
    for damaged in (b"", b'{"step": 5}\n', b'{"step": 5}\n{"step": 11}\n', b"\0" * 26):
        (run.path / "metrics.jsonl").write_bytes(damaged)
        assert not run.keep_records(**two)
        assert (run.path / "metrics.jsonl").read_bytes() == damaged


def test_an_ended_run_says_whose_and_which_its_records_are(tmp_path: Path) -> None:
    run = directory(tmp_path)
    run.append({"step": 5})
    run.finish(State.DONE, 5, 1.0)
    whole = (run.path / "metrics.jsonl").read_bytes()
    end = run.end()
    assert end is not None and end.id == run.id
    assert (end.records, end.sha256) == (1, hashlib.sha256(whole).hexdigest())


def test_values_that_are_not_finite_become_null(tmp_path: Path) -> None:
    run = directory(tmp_path)
    run.append({"step": 1, "evaluations": [{"value": float("nan")}, {"value": float("inf")}]})
    assert [e["value"] for e in run.records()[0]["evaluations"]] == [None, None]


def test_results_of_another_schema_are_refused(tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text('{"schema": 99}')
    with pytest.raises(UserError, match="schema"):
        Results(tmp_path).plan()


def test_a_directory_without_a_sweep_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no sweep"):
        Results(tmp_path).plan()
