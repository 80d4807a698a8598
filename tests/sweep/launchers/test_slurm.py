"""What the launcher `slurm` would submit, without a cluster."""

import sys
from pathlib import Path
from typing import Any

import pytest

from oodbench.errors import UserError
from oodbench.registry import checkout
from oodbench.results.directory import Results
from oodbench.results.run_spec import State
from oodbench.sweep.file import read_sweep
from oodbench.sweep.launchers.job import Job
from oodbench.sweep.launchers.slurm import Array, planned_arrays
from oodbench.sweep.launchers.slurm_resources import Resources, minutes, resources
from oodbench.sweep.launchers.snapshot import fingerprint, freeze
from oodbench.train.settings import TrainSettings
from oodbench.yaml_values import parse_yaml
from tests.helpers.paths import ROOT
from tests.helpers.sweeps import tiny, tiny_file

GOLDEN = ROOT / "tests" / "golden" / "sbatch.sh"
FULL: dict[str, Any] = {
    "partition": "gpu",
    "account": "mine",
    "qos": "high",
    "gpus": "a100:2",
    "cpus": 4,
    "memory": "16G",
    "time": "4:00:00",
    "constraint": "nvlink",
    "parallel": 3,
    "runs_per_job": 2,
    "runs_per_gpu": 2,
    "slurm": {"exclude": "n1", "reservation": "thesis", "setup": ["module load cuda"]},
}


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No Slurm and no file of the user's."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def arrays(out: Path, asked: dict[str, Any], **changes: Any) -> list[Array]:
    plan = tiny(**changes)
    job = Job(
        name="tiny",
        results=Results(out),
        specs=plan.runs,
        ids=tuple(plan.runs),
        settings=TrainSettings(),
        workers=1,
        resources=Resources.model_validate(asked),
    )
    return planned_arrays(job)


def test_the_text_for_sbatch_is_the_frozen_one(tmp_path: Path) -> None:
    (array,) = arrays(tmp_path / "out", FULL, trials=4)
    text = array.text.replace(array.name, "tiny-NAME").replace(str(tmp_path), "/home/me")
    text = text.replace(sys.executable, "python").replace(str(checkout()), "/home/me/oodbench")
    text = text.replace(f":{Path.cwd()}", "")
    assert text == GOLDEN.read_text()


def test_runs_are_packed_into_jobs_and_these_into_arrays(tmp_path: Path) -> None:
    (array,) = arrays(tmp_path, {"runs_per_job": 3, "gpus": "2", "runs_per_gpu": 2}, trials=4)
    assert [len(p.ids) for p in array.packs] == [3, 3, 2]
    assert {p.workers for p in array.packs} == {4}
    ids = [i for p in array.packs for i in p.ids]
    assert len(ids) == len(set(ids)) == 8
    many = arrays(tmp_path, {"cpus": 2}, trials=1002, algorithms=["ERM"])
    assert [len(a.packs) for a in many] == [1001, 1]
    assert many[0].name != many[1].name and "--array" not in many[1].text
    assert {p.workers for a in many for p in a.packs} == {2}


def test_a_dry_run_off_the_cluster_has_no_jobs_queued_and_no_runs_that_have_ended(
    tmp_path: Path,
) -> None:
    (array,) = arrays(tmp_path, {"max_jobs": 2}, trials=4)
    assert [len(p.ids) for p in array.packs] == [4, 4]
    first = array.packs[0].ids[0]
    ended = Results(tmp_path).run(first)
    ended.path.mkdir(parents=True)
    ended.finish(State.DONE, 120, 1.0)
    (array,) = arrays(tmp_path, {"max_jobs": 2}, trials=4)
    assert [len(p.ids) for p in array.packs] == [4, 3]
    assert first not in [i for p in array.packs for i in p.ids]


def test_a_later_layer_goes_over_an_earlier_one(tmp_path: Path) -> None:
    file = tmp_path / "config" / "oodbench" / "resources.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("account: mine\ntime: 1:30:00\nslurm: {exclude: n1, nice: 5}\n")
    sweep = read_sweep(tiny_file(tmp_path, resources={"time": 20, "slurm": {"nice": 6}})).resources
    merged = resources(("sweep", sweep), ("flags", {"gpus": 1}))
    assert (merged.account, merged.time, merged.gpus) == ("mine", "20", "1")
    assert merged.slurm == {"exclude": "n1", "nice": 6}
    assert resources().time == "1:30:00"
    file.write_text("acount: mine")
    with pytest.raises(UserError, match=r"unknown resource 'acount' in .*yaml; did you mean acc"):
        resources()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90", 90),
        ("30:00", 30),
        ("1:30:00", 90),
        ("2-12", 3600),
        ("2-12:30:00", 3630),
        ("infinite", None),
        ("UNLIMITED", None),
        ("soon", None),
    ],
)
def test_times_are_read_as_slurm_reads_them(text: str, expected: float | None) -> None:
    assert minutes(text) == expected


def test_yaml_leaves_times_alone() -> None:
    text = "{time: 1:30:00, steps: 1_000, holdout: 0.2, trials: [7, 0, -1]}"
    expected = {"time": "1:30:00", "steps": 1000, "holdout": 0.2, "trials": [7, 0, -1]}
    assert parse_yaml(text, "here") == expected


@pytest.mark.slow
def test_a_frozen_copy_has_the_code_and_its_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = tmp_path / "plug" / "my_plugin.py"
    plugin.parent.mkdir()
    plugin.write_text("x = 1\n")
    monkeypatch.syspath_prepend(plugin.parent)
    copy = freeze(tmp_path / "code", ["my_plugin"])
    before = fingerprint(["my_plugin"])
    assert copy.name == before
    for name in (
        "oodbench/sweep/launchers/slurm.py",
        "algorithms/erm.py",
        "sweeps/quickstart.yaml",
    ):
        assert (copy / name).read_bytes() == (checkout() / name).read_bytes()
    assert (copy / "my_plugin.py").read_text() == "x = 1\n"
    plugin.write_text("x = 2\n")
    assert fingerprint(["my_plugin"]) != before
    assert (copy / "my_plugin.py").read_text() == "x = 1\n"


def test_a_percent_sign_in_the_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="folder with a % in its name"):
        arrays(tmp_path / "50%", {})
