"""Launching on a real Slurm, seeing what it does, and what users get wrong."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from oodbench.registry import checkout
from oodbench.results.directory import Directory
from oodbench.sweep.launchers.slurm import submissions
from tests.helpers.commands import mistake, run
from tests.helpers.paths import ROOT
from tests.helpers.results.sweeps import ODD_METHODS, settle, tiny_file
from tests.slurm.cluster import Cluster

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("here")]

GOLDEN = ROOT / "tests" / "golden" / "sbatch.sh"
SHORT = {"algorithms": ["ERM"], "steps": 20, "evaluate_every": 10}


def launch(sweep: Path, out: Path, *more: str, **resources: object) -> Result:
    """Launch a sweep of short runs, each of which has a job unless `runs_per_job` is None or a number."""
    resources = {"runs_per_job": 1} | resources
    asked = {key.replace("__", "."): value for key, value in resources.items() if value is not None}
    given = [f"--set=resources.{key}={value}" for key, value in asked.items()]
    return run("launch", sweep, "--out", out, "--launcher", "slurm", "--yes", *more, *given)


def drain(cluster: Cluster, how: str) -> None:
    """`drain` the nodes, so that jobs wait, or `resume` them."""
    for node in cluster.nodes:
        cluster.ask("scontrol", "update", f"nodename={node}", f"state={how}", "reason=test")


def provenance(results: Directory) -> list[dict[str, Any]]:
    infos = [results.run(i).info() for i in results.specs()]
    return [dict(info.provenance) for info in infos if info is not None]


@pytest.mark.nightly
def test_a_dry_run_shows_what_is_then_submitted(cluster: Cluster, tmp_path: Path) -> None:
    sweep, out = tiny_file(tmp_path, **SHORT, resources={"time": "0:10:00"}), tmp_path / "out"
    asked = {"partition": "low", "gpus": 1, "cpus": 2, "memory": "512M", "parallel": 3}
    asked |= {"slurm__comment": "mine", "slurm__setup": "[date]"}
    shown = launch(sweep, out, "--devices", "cpu", "--dry-run", **asked)
    assert shown.exit_code == 0, shown.output
    assert not out.exists()
    assert "2 runs queued" in launch(sweep, out, "--devices", "cpu", **asked).output
    (script,) = out.glob("jobs/*/*_submission.sh")
    text = script.read_text()
    options = [line for line in shown.output.splitlines() if line.startswith(("--", "export"))]
    assert len(options) == 9 and all(option in text for option in options)
    text = text.replace(script.parent.name, "tiny-NAME").replace(str(tmp_path), "/home/me")
    text = text.replace(sys.executable, "python").replace(str(checkout()), "/home/me/oodbench")
    assert text == GOLDEN.read_text()
    again = launch(sweep, out, "--devices", "cpu", **asked)
    assert "2 queued" in again.output or "2 runs queued" in again.output
    assert len(submissions(Directory(out))) == 1
    assert set(settle(Directory(out)).values()) == {"done"}


def test_status_cancel_and_failed_runs_again(cluster: Cluster, tmp_path: Path) -> None:
    stranger = subprocess.run(
        ["sbatch", "--hold", "--output=/dev/null", "--wrap", "true"], capture_output=True, text=True
    ).stdout.split()[-1]
    sweep = tiny_file(tmp_path, algorithms=["ERM", "Raising"], trials=1, steps=20)
    out = tmp_path / "out"
    results = Directory(out)
    drain(cluster, "drain")
    launch(sweep, out, "--plugin", ODD_METHODS, slurm__begin="now+1")
    shown = run("status", out).output
    assert re.search(r"queued: 1 run: job \d+_0: \w+", shown), shown
    assert "2 jobs cancelled" in run("cancel", out).output
    assert set(settle(results).values()) == {"planned"}
    assert stranger in cluster.ask("squeue", "-h", "-o", "%i")
    drain(cluster, "resume")
    launch(sweep, out, "--plugin", ODD_METHODS)
    watched = run("status", out, "--watch")
    assert watched.exit_code == 0
    shown = run("status", out).output
    assert "failed: Raising on LinearSEM" in shown and "the third step is one too many" in shown
    (log,) = re.findall(r"log: (\S+_log\.err)", shown)
    assert Path(log).is_file()
    plugin = ("--plugin", ODD_METHODS, "--failed")
    assert "nvalid partition" in mistake(launch(sweep, out, *plugin, partition="nowhere"))
    assert "nvalid feature" in mistake(launch(sweep, out, *plugin, constraint="fast"))
    assert "the third step is one too many" in run("status", out).output
    done = {i: s for i, s in settle(results).items() if s == "done"}
    before = [results.run(i).made_by() for i in done]
    assert "1 run queued" in launch(sweep, out, *plugin).output
    assert sorted(settle(results).values()) == ["done", "failed"]
    *_, last = submissions(results)
    assert [len(pack) for pack in last.packs] == [1]
    assert [Directory(out).run(i).made_by() for i in done] == before


@pytest.mark.nightly
def test_each_run_sees_the_gpu_that_it_was_given(cluster: Cluster, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    sweep = tiny_file(tmp_path, **SHORT, trials=2)
    launch(sweep, one, "--devices", "cpu", gpus=1, slurm__nodelist="n1")
    launch(sweep, two, "--devices", "cpu", gpus=2, runs_per_job=4, slurm__nodelist="n2")
    assert set(settle(Directory(one)).values()) == set(settle(Directory(two)).values()) == {"done"}
    assert {p["gpus"] for p in provenance(Directory(one))} == {"0", "1"}
    found = provenance(Directory(two))
    assert {p["gpus"] for p in found} == {"0", "1"} and len({p["slurm_job"] for p in found}) == 1


@pytest.mark.nightly
@pytest.mark.parametrize("export", ["NONE", "NIL", "HOME"])
def test_short_runs_share_a_job_that_needs_nothing_of_the_environment(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, export: str
) -> None:
    sweep, out = tiny_file(tmp_path, **SHORT, trials=3), tmp_path / "out"
    monkeypatch.setenv("SBATCH_EXPORT", export)
    launched = launch(sweep, out, runs_per_job=None, cpus=2)
    shared = "3 runs in 1 job: short runs share jobs of about 10 minutes"
    assert shared in " ".join(launched.output.split())
    assert set(settle(Directory(out)).values()) == {"done"}
    assert len({p["slurm_job"] for p in provenance(Directory(out))}) == 1


def test_status_without_an_answer_from_slurm(cluster: Cluster, tmp_path: Path) -> None:
    sweep, out = tiny_file(tmp_path, **SHORT), tmp_path / "out"
    drain(cluster, "drain")
    launch(sweep, out)
    with pytest.MonkeyPatch.context() as away:
        away.setenv("PATH", str(tmp_path))
        shown = run("status", out).output
    drain(cluster, "resume")
    assert "Slurm does not answer: there is no Slurm on this machine" in shown
    assert "queued" in shown


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"partition": "lwo"}, "sbatch: .*nvalid partition.*lwo"),
        ({"gpus": 3}, "Requested node configuration is not available"),
        ({"tme": 3}, "unknown resource 'tme' in the resources of tiny; did you mean time"),
    ],
)
@pytest.mark.usefixtures("cluster")
def test_requests_that_cannot_be_met_are_refused(
    tmp_path: Path, asked: dict[str, object], words: str
) -> None:
    sweep, out = tiny_file(tmp_path, **SHORT), tmp_path / "out"
    assert re.search(words, mistake(launch(sweep, out, **asked)))
    assert not list(out.glob("jobs/*/*"))
