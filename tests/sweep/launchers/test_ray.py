"""The guide's launcher on a Ray node of this machine."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from oodbench.registry import load_plugins
from oodbench.results.directory import Directory
from oodbench.sweep.launchers.local import Local
from tests.helpers.paths import ROOT
from tests.helpers.results.sweeps import ODD_METHODS, job, outcome, tiny, tiny_file

CHANGES = {"algorithms": ["Slow", "ERM"], "steps": 300, "evaluate_every": 50}
KILLS = 3


@pytest.mark.nightly
def test_killed_tasks_of_ray_go_on_to_the_bits_of_the_launcher_local(tmp_path: Path) -> None:
    guide = (ROOT / "docs/guide/launchers.md").read_text()
    (script,) = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    assert len(script.splitlines()) <= 80
    (tmp_path / "ray_launcher.py").write_text(script)
    out = tmp_path / "out"
    sweep = tiny_file(tmp_path, **CHANGES)
    command = [sys.executable, "-m", "oodbench.sweep", "launch", str(sweep)]
    command += ["--out", str(out), "--yes", "--launcher", "ray", "--plugin", "ray_launcher"]
    command += ["--plugin", ODD_METHODS, "--set", "resources.ray_cpus=0.5"]
    path = {"PYTHONPATH": f"{ROOT}:{tmp_path}", "SLOW_SECONDS": "0.01"}
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=tmp_path, env=os.environ | path, stdout=log, stderr=log
        )
        killed = kill_workers(out, process)
    assert process.wait(300) == 0, (tmp_path / "log").read_text()
    assert len(killed) == KILLS
    load_plugins([ODD_METHODS])
    Local().launch(job(tiny(**CHANGES), tmp_path / "local"))
    assert outcome(Directory(out)) == outcome(Directory(tmp_path / "local"))
    assert {state for state, _ in outcome(Directory(out)).values()} == {"done"}


def kill_workers(out: Path, launch: "subprocess.Popen[bytes]") -> set[int]:
    """Kill the processes of runs that have records, until there were enough; returns their ids."""
    killed: set[int] = set()
    while launch.poll() is None and len(killed) < KILLS:
        for metrics in out.glob("runs/*/metrics.jsonl"):
            beat = Directory(out).run(metrics.parent.name).heartbeat()
            if beat is not None and beat.pid not in killed and len(killed) < KILLS:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(beat.pid, signal.SIGKILL)
                    killed.add(beat.pid)
                break
        time.sleep(1.0)
    return killed
