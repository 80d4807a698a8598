"""Small sweeps for the tests."""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from oodbench.results.directory import Directory
from oodbench.results.run_directory import RunDirectory
from oodbench.results.run_spec import Evaluation, RunSpec, State
from oodbench.sweep.file import validate
from oodbench.sweep.launchers import Job, LaunchOptions, states
from oodbench.sweep.plan import Plan, make_plan
from oodbench.train.execute import execute
from oodbench.train.run import Run
from oodbench.train.settings import TrainSettings
from oodbench.train.vectorized.program import VectorizedProgram

TINY: dict[str, Any] = {
    "name": "tiny",
    "datasets": [{"name": "LinearSEM", "num_examples": 40}],
    "algorithms": ["ERM", "IRM"],
    "trials": 2,
    "steps": 120,
    "evaluate_every": 40,
}

SPIRALS: dict[str, Any] = {
    "name": "Spirals",
    "num_environments": 4,
    "num_examples": 40,
    "num_test_examples": 30,
    "shortcut_dims": 2,
}
DIGITS: dict[str, Any] = {"name": "ColoredDigits", "copies": 1}

ODD_METHODS = "tests.helpers.algorithms.odd_methods"
"""The plug-in of the methods that raise, diverge, die or leave."""


def tiny(**changes: Any) -> Plan:
    """The plan of the tiny sweep with some keys changed."""
    return make_plan(validate(TINY | changes, "tiny"))


def specs(**changes: Any) -> list[RunSpec]:
    return list(tiny(**changes).runs.values())


def first(**changes: Any) -> RunSpec:
    return specs(**changes)[0]


def planned(path: Path, plan: Plan) -> Directory:
    """A results directory with a plan, of which nothing is trained."""
    results = Directory(path)
    results.write_plan("tiny", {"plugins": []}, plan.rows)
    return results


def ended(spec: RunSpec, path: Path, **settings: Any) -> RunDirectory:
    """The directory of a run that is trained to its end without a break."""
    directory = RunDirectory(path)
    assert execute(spec, directory, TrainSettings(**settings)) == ("done", ""), directory.failure()
    return directory


def trained(path: Path, plan: Plan, **settings: Any) -> Directory:
    """A results directory with every run of a plan trained to its end."""
    results = planned(path, plan)
    for run_id, spec in plan.runs.items():
        ended(spec, results.run(run_id).path, **settings)
    return results


def require_alike(
    found: Sequence[Evaluation], wanted: Sequence[Evaluation], tolerance: float
) -> None:
    """Evaluations are of the same places, and their values to a tolerance the same."""
    assert [replace(e, value=0.0) for e in found] == [replace(e, value=0.0) for e in wanted]
    for one, other in zip(found, wanted, strict=True):
        assert one.value == pytest.approx(other.value, rel=tolerance, abs=tolerance), one


def require_as_alone(
    blocks: Sequence[int], alike: Sequence[RunSpec], tolerance: float, device: str = "cpu"
) -> None:
    """Runs that are vectorized have the evaluations, after blocks of so many steps, of the runs alone."""
    assert len({spec.bundle_key for spec in alike}) == 1
    alone = [Run(spec, TrainSettings(device=device)) for spec in alike]
    program = VectorizedProgram([Run(spec, TrainSettings(device=device)) for spec in alike])
    for steps in blocks:
        program.run_steps(steps)
        for run, found in zip(alone, program.evaluate(range(len(alike))), strict=True):
            run.run_steps(steps)
            require_alike(found, run.evaluate(), tolerance)


def tiny_file(folder: Path, **changes: Any) -> Path:
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY | changes))
    return path


def job(plan: Plan, out: Path, workers: int = 2, **options: Any) -> Job:
    """What a launcher is asked for: the runs of a plan that have not ended, with the odd methods."""
    results = Directory(out)
    if not (out / "sweep.json").exists():
        results.write_plan(plan.sweep.name, {}, plan.rows)
    ids = [i for i in plan.runs if results.run(i).end() is None]
    given: dict[str, Any] = {
        "out": out,
        "plugins": (ODD_METHODS,),
        "workers": workers,
        "devices": "cpu",
        "resources": {"cpus": 2, "runs_per_job": max(1, len(ids))},
    }
    return Job(
        name=plan.sweep.name,
        results=results,
        specs=plan.runs,
        ids=tuple(ids),
        options=LaunchOptions(**given | options),
    )


def outcome(results: Directory) -> dict[str, tuple[State, list[dict[str, Any]]]]:
    """State and records of every planned run, without what differs from machine to machine."""
    runs = map(results.run, results.specs())
    return {run.id: (run.state(), records_of(run)) for run in runs}


def require_close(found: Sequence[Mapping[Any, Any]], wanted: Sequence[Mapping[Any, Any]]) -> None:
    """Check the evaluations of a model by itself against those of its run, which was vectorized."""
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert {**one, "value": None} == {**other, "value": None}
        assert one["value"] == pytest.approx(other["value"], rel=1e-5, abs=1e-7)


@contextmanager
def edited(file: Path) -> Iterator[dict[str, Any]]:
    """The values of a JSON file of a results directory, which the block may change.

    done.json is made to fit a changed run.json.
    """
    values = json.loads(file.read_text())
    yield values
    file.write_text(json.dumps(values))
    if file.name == "run.json" and (file.parent / "done.json").exists():
        with edited(file.parent / "done.json") as end:
            end["of_run"] = hashlib.sha256(file.read_bytes()).hexdigest()


def records_of(run: RunDirectory) -> list[dict[str, Any]]:
    """A run's evaluations, which stay of it when it has ended."""
    return [{k: r[k] for k in ("step", "evaluations")} for r in run.records()]


def until(condition: Callable[[], object], seconds: float = 60, pause: float = 0.05) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not so after {seconds:.0f} s"
        time.sleep(pause)


def settle(results: Directory, seconds: float = 120) -> dict[str, State]:
    """The states of all runs once a cluster has none of them queued or running any more."""
    now: dict[str, State] = {}

    def over() -> bool:
        now.update({i: s.state for i, s in states(results).items()})
        return not {State.QUEUED, State.RUNNING} & {*now.values()}

    until(over, seconds, pause=0.3)
    return now
