"""The commands as a user types them."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import Result

from oodbench.results.directory import Directory
from tests.helpers.commands import mistake, run
from tests.helpers.results.sweeps import DIGITS, ODD_METHODS, outcome, tiny, tiny_file, trained

TINY = {"trials": 1, "steps": 20, "evaluate_every": 10}
NARROW = """from torch import nn

from oodbench.networks.base import Network, register


@register("Narrow")
class Narrow(Network):
    def __init__(self, input_shape, num_outputs, hparams):
        super().__init__(hparams)
        self.num_features = 1
        self.featurizer, self.classifier = nn.Flatten(), nn.Linear(1, num_outputs)
"""


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def launch(sweep: Path, out: Path, *more: str) -> Result:
    return run("launch", sweep, "--out", out, "--launcher", "debug", "--yes", *more)


@pytest.mark.slow
def test_plan_counts_runs_and_estimates_time(tmp_path: Path) -> None:
    sweep = tiny_file(tmp_path, algorithms=["ERM", "VREx"], test_environments="pairs")
    result = run("plan", sweep)
    assert result.exit_code == 0, result.output
    assert "18 runs in sweep 'tiny'" in result.output
    assert result.output.count("impossible: VREx on LinearSEM") == 1
    assert "at least two training environments" in " ".join(result.output.split())
    assert "of training and evaluation" in result.output
    assert not (tmp_path / "results").exists()
    told = json.loads(run("plan", sweep, "--format", "json").output)
    assert len({each["id"] for each in told["runs"]}) == 18 and len(told["impossible"]) == 3
    first = told["runs"][0]
    assert first.keys() > {"algorithm", "test_environments"} and first["steps"] > 0


def test_plan_forecasts_by_the_speed_of_another_device(tmp_path: Path) -> None:
    sweep = tiny_file(tmp_path, algorithms=["ERM", "VREx"])
    shown = run("plan", sweep, "--steps-per-second", "0.1", "--workers", "2").output
    told = " ".join(shown.split())
    assert "480 steps, 0.1 a second: about 80 min, 40 min with 2 workers; eval" in told
    assert "of training and evaluation" not in told


def test_a_plan_of_steps_that_fail_ends_with_one_sentence_each(tmp_path: Path) -> None:
    sweep = tiny_file(tmp_path, algorithms=["ERM", "Raising"], plugins=[ODD_METHODS])
    told = mistake(run("plan", sweep))
    assert re.search(r"Raising on .* fails at its first steps: .*odd_methods\.py:\d+, in up", told)


def test_a_plan_names_the_users_network_whose_shapes_do_not_fit(tmp_path: Path) -> None:
    Path("narrow_network.py").write_text(NARROW)
    told = mistake(run("plan", tiny_file(tmp_path, network="Narrow", plugins=["narrow_network"])))
    assert re.search(r"RuntimeError: .*with the network Narrow, narrow_network\.py:6\)", told)


def test_a_plan_refuses_a_rule_that_is_not_there(tmp_path: Path) -> None:
    sweep = tiny_file(tmp_path, keep_weights=["last", "val_en"])
    assert "in keep_weights; did you mean val_env" in mistake(run("plan", sweep))


def test_a_broken_run_is_named_and_trained_anew_where_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep, out = tiny_file(tmp_path, **TINY), tmp_path / "out"
    with monkeypatch.context() as patch:  # a launch that was killed before it had moved its runs
        patch.setattr("oodbench.sweep.launch.compact", lambda *_, **__: 0)
        assert launch(sweep, out).exit_code == 0
    results = Directory(out)
    undisturbed = outcome(results)
    broken = results.run(next(iter(undisturbed)))
    metrics = broken.path / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[:-9])
    again = launch(sweep, out)
    assert again.exit_code == 1
    told = f"(test 5, trial 0, draw 0), as {metrics} is not what the run ended with."
    shown = " ".join(again.stdout.split())
    assert f"Broken, counted nowhere: ERM on LinearSEM(num_examples=40) {told}" in shown
    retried = launch(sweep, out, "--failed")
    assert retried.exit_code == 0 and outcome(results) == undisturbed


def test_a_plug_in_that_goes_elsewhere_moves_no_results(tmp_path: Path) -> None:
    (tmp_path / "wanders_off.py").write_text("import os\nos.chdir('/')\n")
    launched = launch(tiny_file(tmp_path, **TINY), Path("out"), "--plugin", "wanders_off")
    assert launched.exit_code == 0, launched.output
    assert {state for state, _ in outcome(Directory(tmp_path / "out")).values()} == {"done"}


def test_launch_status_failed_runs_again_and_clean(tmp_path: Path) -> None:
    sweep = tiny_file(tmp_path, **TINY, algorithms=["ERM", "Raising"], plugins=[ODD_METHODS])
    out = tmp_path / "out"
    launched = launch(sweep, out)
    assert launched.exit_code == 1 and "1 done, 1 failed of 2 runs" in launched.output
    status = run("status", out)
    assert status.exit_code == 0 and "the third step is one too many" in status.output
    assert "failed: Raising on LinearSEM" in status.output
    told = json.loads(run("status", out, "--format", "json").output)
    assert (told["name"], told["counts"]) == ("tiny", {"done": 1, "failed": 1})
    (failed,) = (each for each in told["runs"] if each["state"] == "failed")
    assert failed["algorithm"] == "Raising" and "one too many" in failed["note"]
    again = launch(sweep, out)
    assert again.exit_code == 1 and "third step" not in again.output
    assert "the same launch with --failed trains them again" in " ".join(again.output.split())
    retried = launch(sweep, out, "--failed")
    assert retried.exit_code == 1 and "Raising" in retried.output
    (out / "runs" / "stranger").mkdir()
    assert run("clean", out, "--yes").exit_code == 0
    assert not (out / "runs" / "stranger").exists()
    done = [i for i, (state, _) in outcome(Directory(out)).items() if state == "done"]
    assert len(done) == 1 and not Directory(out).run(done[0]).checkpoint.exists()


def test_a_directory_of_another_sweep_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert launch(tiny_file(tmp_path, **TINY), out).exit_code == 0
    before = outcome(Directory(out))
    other = tiny_file(tmp_path, **TINY | {"name": "other"})
    refused = launch(other, out)
    assert "holds the sweep 'tiny', not 'other'" in mistake(refused)
    assert refused.stdout == "" == launch(other, out, "--dry-run").stdout  # no plan is shown
    longer = tiny_file(tmp_path, **TINY | {"steps": 40})
    assert "steps 20, not 40" in mistake(launch(longer, out))
    assert outcome(Directory(out)) == before
    stranger = tmp_path / "stranger"
    stranger.mkdir()
    (stranger / "thesis.tex").write_text("precious")
    refused = launch(longer, stranger)
    assert "is not empty and holds no sweep" in mistake(refused) and refused.stdout == ""
    assert [p.name for p in stranger.iterdir()] == ["thesis.tex"]
    imported = tmp_path / "imported"
    Directory(imported).write_plan("theirs", {"imported": "DomainBed"}, [])
    assert "holds the sweep 'theirs', not 'tiny'" in mistake(launch(longer, imported))


def test_status_shows_running_and_paused_runs(tmp_path: Path) -> None:
    out = tmp_path / "out"
    results = trained(out, tiny(**TINY))
    first, second = results.specs()
    for run_id in (first, second):
        (results.run(run_id).path / "done.json").unlink()
    results.run(first).beat(7)
    shown = run("status", out)
    assert "step 7" in shown.output
    odd = run("status", "tiny.yaml", "--out", out)
    assert odd.exit_code == 2
    assert "No such option: --out; the results directory is the argument: status DIR" in odd.output
    assert results.run(second).state() == "lost"
    assert "paused at step 20: IRM on LinearSEM" in shown.output
    header = next(line for line in shown.output.splitlines() if line.startswith("algorithm"))
    assert header.split()[-1] == "paused" and "lost" not in header
    assert json.loads((out / "sweep.json").read_text())["name"] == "tiny"


@pytest.mark.slow
def test_rows_of_one_dataset_are_trained_alike(tmp_path: Path) -> None:
    of = {"datasets": [DIGITS | {"label": "digits"}], **TINY}
    sweep, out = tiny_file(tmp_path, algorithms=["ERM"], **of), tmp_path / "out"
    assert launch(sweep, out).exit_code == 0
    settings = {
        "datasets.0.label_noise=0.5": "option label_noise 0.25, and this launch has 0.5",
        "datasets.0.copies=2": "option copies 1, and this launch has 2",
        "datasets.0.training.steps=3": "steps 20, and this launch has 3",
    }
    for setting, what in settings.items():
        others = ("--set", "algorithms=[VREx]", "--set", setting)
        message = mistake(launch(sweep, out, *others))
        assert f"{out} holds ERM on digits with {what}" in message
        assert "use another directory, or give the dataset another `label`" in message
    # all rows of the file may change together, and a row may be added
    assert launch(sweep, out, "--set", "datasets.0.copies=2").exit_code == 0
    assert launch(sweep, out, "--set", "algorithms=[ERM, VREx]").exit_code == 0
