"""What the launcher costs, measured on a test cluster: `python -m tests.slurm.reach`."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from oodbench.results.directory import Results
from tests.helpers.sweeps import settle, tiny_file
from tests.slurm.cluster import Cluster, missing

LAUNCH = [sys.executable, "-m", "oodbench.sweep", "launch", "--launcher", "slurm", "--yes"]


def packed(folder: Path, count: int = 200) -> float:
    """Seconds a run beyond the work, of `count` runs of almost no work in one job."""
    sweep = tiny_file(folder, algorithms=["ERM"], trials=count, steps=2, evaluate_every=1)
    out = folder / "packed"
    start = time.monotonic()
    command = [*LAUNCH, str(sweep), "--out", str(out), "--resource", f"runs_per_job={count}"]
    subprocess.run(command, check=True, capture_output=True)
    results = Results(out)
    assert set(settle(results).values()) == {"done"}
    wall = time.monotonic() - start
    work = 0.0
    for run_id in results.plan()["runs"]:
        records = results.run(run_id).records()
        work += records[-1]["cost"]["training_seconds"]
        work += sum(r["cost"]["evaluation_seconds"] for r in records)
    return (wall - work) / count


def submitted(folder: Path, count: int = 10_000) -> float:
    """Seconds of a launch of `count` runs, each a job of its own."""
    sweep = tiny_file(folder, algorithms=["ERM"], trials=count)
    out = folder / "many"
    command = [*LAUNCH, str(sweep), "--out", str(out), "--resource", "slurm.begin=now+1hour"]
    start = time.monotonic()
    subprocess.run(command, check=True, capture_output=True)
    seconds = time.monotonic() - start
    queued = subprocess.run(
        ["squeue", "-h", "--array"], check=True, capture_output=True, text=True
    ).stdout
    assert len(queued.splitlines()) == count
    return seconds


def main() -> None:
    """Print both figures."""
    reason = missing()
    if reason is not None:
        raise SystemExit(reason)
    with tempfile.TemporaryDirectory(prefix="reach-") as folder:
        cluster = Cluster(Path(folder) / "slurm")
        os.environ.update(cluster.environment)
        try:
            cluster.start()
            print(f"200 runs packed into a job: {packed(Path(folder)):.3f} s a run beyond the work")
            print(f"10,000 runs planned and submitted: {submitted(Path(folder)):.1f} s")
        finally:
            cluster.stop()


if __name__ == "__main__":
    main()
