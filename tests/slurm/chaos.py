"""Kill jobs, nodes and daemons at random during sweeps; each must end as if nothing had happened.

    python -m tests.slurm.chaos [--rounds 10] [--runs 60] [--blows 8] [--seed 0]

A round is one sweep, bounded in blows and time. Leaves with 1 if a run is missing or differs.
"""

import argparse
import os
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from oodbench.registry import load_plugins
from oodbench.results.directory import Directory
from oodbench.results.read import read_results
from oodbench.sweep.launchers import Job
from oodbench.sweep.launchers.local import Debug
from oodbench.sweep.launchers.slurm import Slurm
from oodbench.sweep.plan import Plan
from tests.helpers.results.sweeps import ODD_METHODS, job, outcome, settle, tiny
from tests.slurm.cluster import Cluster, missing

SECONDS = 300.0
"""The longest that a round may take after its last blow."""
LAUNCHES = 3
"""Launches that a sweep may need: jobs that Slurm itself has given up are launched again."""


def asked_of(plan: Plan, out: Path) -> Job:
    return job(plan, out, 1, resources={"partition": "low", "runs_per_job": 10, "time": "0:30:00"})


def blows(cluster: Cluster, rng: random.Random) -> dict[str, Callable[[], object]]:
    jobs = cluster.ask("squeue", "-h", "--array", "-t", "R", "-o", "%i").split()
    nodes = [n for n in cluster.nodes if cluster.daemons[n].poll() is None]

    def crash(node: str) -> None:
        cluster.kill_node(node)
        cluster.give_up(node)

    def split(node: str) -> None:
        cluster.kill_slurmd(node)
        cluster.give_up(node)

    found: dict[str, Callable[[], object]] = {}
    if jobs:
        chosen = rng.choice(jobs)
        found["signal"] = lambda: cluster.ask("scancel", "--signal=USR2", chosen)
        found["requeue"] = lambda: cluster.ask("scontrol", "requeue", chosen)
    if len(nodes) > 1:
        node = rng.choice(nodes)
        found |= {"crash": lambda: crash(node), "split": lambda: split(node)}
    return found


def disturb(cluster: Cluster, rng: random.Random, count: int, results: Directory) -> Counter[str]:
    """Deal `count` blows, each some seconds after the last; nodes come back in between."""
    dealt: Counter[str] = Counter()
    for _ in range(count):
        time.sleep(rng.uniform(1, 5))
        for node in cluster.nodes:
            if cluster.daemons[node].poll() is not None and rng.random() < 0.6:
                cluster.start_node(node)
        if all(results.run(i).end() for i in results.specs()):
            break
        possible = blows(cluster, rng)
        if possible:
            name = rng.choice(sorted(possible))
            possible[name]()
            dealt[name] += 1
    for node in cluster.nodes:
        if cluster.daemons[node].poll() is not None:
            cluster.start_node(node)
    return dealt


def round_(
    cluster: Cluster, plan: Plan, out: Path, rng: random.Random, count: int
) -> tuple[Directory, Counter[str], int]:
    """One disturbed sweep; its results, what happened and how many launches it took."""
    asked = asked_of(plan, out)
    Slurm().launch(asked)
    dealt = disturb(cluster, rng, count, asked.results)
    for launches in range(1, LAUNCHES + 1):
        states = settle(asked.results, SECONDS)
        left = tuple(i for i, state in states.items() if state in ("planned", "lost"))
        if not left or launches == LAUNCHES:
            break
        Slurm().launch(replace(asked, ids=left))
    return asked.results, dealt, launches


def supervise(cluster: Cluster) -> None:
    """Start the controller again whenever it has died, as a machine's init would."""
    while cluster.running:
        if cluster.daemons["slurmctld"].poll() is not None:
            print("slurmctld has died by itself; started again", flush=True)
            cluster.start_controller()
        time.sleep(1)


def main() -> int:
    """Run the rounds; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("rounds", 10), ("runs", 60), ("blows", 8), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    reason = missing()
    if reason is not None:
        raise SystemExit(reason)
    load_plugins([ODD_METHODS])
    plan = tiny(algorithms=["Slow"], trials=options.runs, steps=200, evaluate_every=50)
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        Debug().launch(asked_of(plan, Path(folder) / "undisturbed"))
        expected = outcome(Directory(Path(folder) / "undisturbed"))
        cluster = Cluster(Path(folder) / "slurm")
        os.environ.update(cluster.environment, SLOW_SECONDS="0.01")
        done = equal = 0
        try:
            cluster.start()
            threading.Thread(target=supervise, args=(cluster,), daemon=True).start()
            for number in range(options.rounds):
                rng = random.Random(options.seed + number)
                start = time.monotonic()
                results, dealt, launches = round_(
                    cluster, plan, Path(folder) / f"round{number}", rng, options.blows
                )
                found = outcome(results)
                table = read_results(results).runs
                assert len(table) == table["id"].nunique() == options.runs
                ended = sum(state == "done" for state, _ in found.values())
                same = sum(found[i] == expected[i] for i in expected)
                done, equal = done + ended, equal + same
                print(
                    f"round {number}: {ended} done, {same} equal, {launches} launches, "
                    f"{time.monotonic() - start:.0f} s, {dict(dealt)}",
                    flush=True,
                )
                cluster.empty()
        finally:
            cluster.stop()
    total = options.rounds * options.runs
    print(f"{done} of {total} runs done, {equal} with the records of the undisturbed sweep")
    return 0 if done == equal == total else 1


if __name__ == "__main__":
    raise SystemExit(main())
