"""What the launcher `slurm` would submit, without a cluster."""

import sys
from pathlib import Path
from typing import Any

import pytest

from oodbench.errors import UserError
from oodbench.results.directory import Directory
from oodbench.results.run_spec import State
from oodbench.sweep.estimate import Forecast
from oodbench.sweep.file import read_sweep
from oodbench.sweep.launchers import check_resources
from oodbench.sweep.launchers.slurm import Request, Slurm, SlurmResources, ask, minutes, packed
from oodbench.terminal import terminal
from tests.helpers.results.sweeps import job, tiny, tiny_file


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


def request(out: Path, asked: dict[str, Any], **changes: Any) -> Request:
    return Request(job(tiny(**changes), out, resources=asked))


def sizes(request: Request) -> list[list[int]]:
    """The numbers of runs of the jobs of each array."""
    arrays = request.arrays(dict.fromkeys(request.job.ids, State.PLANNED))
    ids = [i for packs in arrays.values() for pack in packs for i in pack]
    assert sorted(ids) == sorted(request.job.ids)
    return [[len(pack) for pack in packs] for packs in arrays.values()]


def test_runs_are_packed_into_jobs_and_these_into_arrays(tmp_path: Path) -> None:
    few = request(tmp_path, {"runs_per_job": 3, "gpus": "2", "runs_per_gpu": 2}, trials=4)
    assert sizes(few) == [[3, 3, 2]] and few.job.workers == 4
    one_each = {"cpus": 2, "runs_per_job": 1}
    many = request(tmp_path / "many", one_each, trials=1002, algorithms=["ERM"])
    assert sizes(many) == [[1] * 1001, [1]] and many.job.workers == 2


def test_short_runs_share_jobs_of_ten_minutes(tmp_path: Path) -> None:
    assert sizes(request(tmp_path, {}, trials=4)) == [[8]]
    job_ = job(tiny(trials=4), tmp_path)
    rows = {spec.algorithm: spec.row for spec in job_.specs.values()}
    expected = Forecast(of_run={rows["ERM"]: 250.0, rows["IRM"]: 700.0})

    def packs(**asked: Any) -> list[int]:
        asked_for = SlurmResources.of(asked)
        return [len(pack) for pack in packed(job_.specs, asked_for, job_.options, expected)]

    assert packs() == [2, 2, 1, 1, 1, 1]
    assert packs(cpus=2) == [4, 1, 1, 1, 1]
    assert packs(time=10) == [1] * 8
    assert packs(runs_per_job=3) == [3, 3, 2]
    expected = Forecast(of_run={rows["ERM"]: 100.0})
    assert packs() == [6, 2]


def test_a_dry_run_off_the_cluster_shows_the_jobs_of_the_runs_that_are_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tiny(trials=4)
    ended = Directory(tmp_path).run(next(iter(plan.runs)))
    ended.path.mkdir(parents=True)
    ended.finish(State.DONE, 120)
    resources = {"runs_per_job": 4, "gpus": "a100:1", "time": 20, "parallel": 3}
    Slurm().preview(job(plan, tmp_path, resources=resources), terminal())
    shown = capsys.readouterr().out
    assert ": 2 jobs" in shown
    assert "--array=0-1%2\n" in shown
    assert all(line in shown for line in ("--time=20", "--gpus-per-node=a100:1", "--requeue\n"))
    assert "Slurm: 7 runs in 2 jobs.\n" in shown
    Slurm().preview(job(plan, tmp_path, resources={}), terminal())
    shared = "Slurm: 7 runs in 1 job: short runs share jobs of about 10 minutes, or runs_per_job of them."
    assert shared in " ".join(capsys.readouterr().out.split())


def test_flags_go_over_the_file(tmp_path: Path) -> None:
    file = tiny_file(tmp_path, resources={"time": 20, "slurm": {"exclude": "n1", "nice": 5}})
    sweep = read_sweep(file, ["resources.slurm.nice=6", "resources.gpus=1"])
    asked = SlurmResources.of(sweep.resources)
    assert (asked.time, asked.gpus, asked.slurm) == ("20", "1", {"exclude": "n1", "nice": 6})
    with pytest.raises(UserError, match="unknown resource 'acount' in the resources of sweep"):
        check_resources("sweep", {"acount": "mine"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(("90", 90), ("30:00", 30), ("1:30:00", 90), ("2-12", 3600), ("2-12:30:00", 3630)),
        *((wrong, None) for wrong in ("infinite", "0:00", "soon")),
    ],
)
def test_times_are_read_as_slurm_reads_them(text: str, expected: int | None) -> None:
    if expected is None:
        with pytest.raises(UserError, match="time must be minutes, H:M:S or D-H:M:S, not"):
            check_resources("tiny", {"time": text})
    else:
        check_resources("tiny", {"time": text})
        assert minutes(text) == expected


@pytest.mark.parametrize("text", ["8000", "8G", "1.5T", "lots", "8 G"])
def test_memory_is_a_number_with_a_unit(text: str) -> None:
    if text in ("8000", "8G"):
        return check_resources("tiny", {"memory": text})
    with pytest.raises(UserError, match="memory must be a number with K, M, G or T, not"):
        check_resources("tiny", {"memory": text})


def test_a_client_that_reaches_no_controller_asks_for_a_login_node() -> None:
    said = "import sys; sys.exit('error: res_nsearch error: Unknown host')"
    with pytest.raises(UserError, match=r"Unknown host .*is this a login node of the cluster"):
        ask(sys.executable, "-c", said)


def test_a_closed_folder_on_the_path_has_no_slurm(tmp_path: Path) -> None:
    (tmp_path / "sbatch").write_text("not a program")
    with pytest.raises(UserError, match="'sbatch' is not on the PATH"):
        ask("sbatch", "--version")
