"""Whatever happens to jobs and nodes, a sweep ends as an undisturbed one would have."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from oodbench.registry import load_plugins
from oodbench.results.directory import Directory
from oodbench.sweep.launchers import Job, states
from oodbench.sweep.launchers.local import Debug
from oodbench.sweep.launchers.slurm import Slurm, submissions
from oodbench.sweep.plan import Plan
from tests.helpers.paths import ROOT
from tests.helpers.results.sweeps import ODD_METHODS, job, outcome, settle, tiny, tiny_file, until
from tests.slurm.cluster import Cluster

pytestmark = pytest.mark.nightly  # over a minute


def slow(trials: int) -> Plan:
    load_plugins([ODD_METHODS])
    return tiny(algorithms=["Slow"], trials=trials, steps=800, evaluate_every=200)


def asked_of(plan: Plan, out: Path, **resources: object) -> Job:
    return job(plan, out, workers=1, resources=resources)


def places(results: Directory) -> dict[str, tuple[str, str]]:
    """Job and node of each run that is under way, once it has done some steps."""
    beats = {i: results.run(i).heartbeat() for i in results.specs()}
    return {i: (str(b.job), str(b.node)) for i, b in beats.items() if b and b.step}


def preempt(node: str) -> None:
    """Submit a job of a partition with priority that takes the node's cores."""
    command = ["sbatch", "-p", "main", "-w", node, "-c", "2", "--wrap", "sleep 1"]
    subprocess.run([*command, f"--output={os.devnull}"], check=True, capture_output=True)


def restarts(cluster: Cluster, job_id: str) -> int:
    found = re.search(r"Restarts=(\d+)", cluster.ask("scontrol", "show", "job", job_id))
    assert found is not None
    return int(found[1])


def test_a_sweep_survives_what_happens_on_a_cluster(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = slow(trials=6)
    Debug().launch(asked_of(plan, tmp_path / "undisturbed"))
    monkeypatch.setenv("SLOW_SECONDS", "0.015")
    asked = asked_of(plan, tmp_path / "out", partition="low", time="0:30:00", runs_per_job=1)
    results = asked.results
    Slurm().launch(asked)
    until(lambda: len(places(results)) == 6)
    at = places(results)
    on = {node: [j for j, n in at.values() if n == node] for node in cluster.nodes}
    first, second = on["n1"]
    cluster.ask("scancel", "--signal=USR2", first)
    cluster.ask("scontrol", "requeue", second)
    preempt("n3")
    cluster.kill_slurmd("n2")
    cluster.give_up("n2")
    until(lambda: all(restarts(cluster, j) for j, _ in at.values()))
    waiting = ("squeue", "-h", "--array", "-t", "PD", "-o", "%i")
    until(lambda: not set(on["n2"]) & set(cluster.ask(*waiting).split()))
    cluster.start_node("n2")
    assert set(settle(results).values()) == {"done"}
    assert outcome(results) == outcome(Directory(tmp_path / "undisturbed"))
    logs = "".join(p.read_text() for p in tmp_path.glob("out/jobs/*/*_log.*"))
    assert "Calling checkpoint method" in logs


def test_the_guides_line_brings_back_what_is_cancelled(cluster: Cluster, tmp_path: Path) -> None:
    (line,) = re.findall(r"^ {4}(while .*)$", (ROOT / "docs/guide/slurm.md").read_text(), re.M)
    resources = {"partition": "killed", "cpus": 2, "time": "0:30:00", "runs_per_job": 1}
    keys: dict[str, Any] = {"name": "mine", "algorithms": ["Slow"], "plugins": [ODD_METHODS]}
    keys |= {"trials": 3, "steps": 800, "evaluate_every": 200, "resources": resources}
    file = tiny_file(tmp_path, **keys)
    line = line.replace("mine.yaml", str(file)).replace("python", sys.executable)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "SLOW_SECONDS": "0.05"}
    with subprocess.Popen(["bash", "-c", line], cwd=tmp_path, env=environment) as bash:
        results = Directory(tmp_path / "results" / "mine")
        until(lambda: (results.path / "sweep.json").exists() and len(places(results)) == 3, 150)
        at = places(results)
        preempt("n1")
        on = {node: (run_id, asked) for run_id, (asked, node) in at.items()}
        cluster.ask("scancel", on["n2"][1])  # what preemption without its signal does
        assert bash.wait(240) == 0
    assert {i: s.state for i, s in states(results).items()} == dict.fromkeys(at, "done")
    first, second = submissions(results)
    assert second.packs == ((on["n2"][0],),) and len(first.packs) == 3
    logs = "".join(p.read_text() for p in results.path.glob("jobs/*/*_log.err"))
    assert "DUE TO PREEMPTION" in logs and restarts(cluster, on["n1"][1])


def test_a_double_waits_for_its_twin_and_finishes_what_it_leaves(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = slow(trials=2)
    Debug().launch(asked_of(plan, tmp_path / "undisturbed"))
    monkeypatch.setenv("SLOW_SECONDS", "0.03")
    asked = asked_of(plan, tmp_path / "out", cpus=2, time="0:30:00", runs_per_job=1)
    results = asked.results
    Slurm().launch(asked)
    until(lambda: len(places(results)) == 2)
    (run_id, _), ((split, silent), (dead, crashed)) = zip(*places(results).items(), strict=True)
    beat = results.run(run_id).heartbeat()
    assert beat is not None
    cluster.kill_node(crashed)
    cluster.kill_slurmd(silent)
    for node in (crashed, silent):
        cluster.give_up(node)
    cluster.start_node(crashed)
    until(lambda: restarts(cluster, split) and restarts(cluster, dead))
    logs = tmp_path / "out" / "jobs"

    def starts(job_id: str) -> int:
        return sum(p.read_text().count("Starting with") for p in logs.glob(f"*/{job_id}_*.out"))

    until(lambda: starts(split) == starts(dead) == 2)
    time.sleep(7)  # longer than the patience with strangers
    now = results.run(run_id).heartbeat()
    assert now is not None and now.pid == beat.pid
    assert states(results)[run_id].state == "running"
    for pid in cluster.processes(silent):
        os.kill(pid, 9)
    assert set(settle(results).values()) == {"done"}
    assert outcome(results) == outcome(Directory(tmp_path / "undisturbed"))
