"""The weights that selection rules would choose, kept while runs are trained."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from oodbench.results.directory import Directory
from oodbench.results.read import read_results
from oodbench.results.run_directory import RunDirectory, kept_weights, weights_path
from oodbench.results.run_spec import RunSpec
from oodbench.selection.judge import choose
from oodbench.sweep.plan import Plan
from oodbench.train import loop
from oodbench.train.evaluate import evaluate
from oodbench.train.execute import execute, execute_bundle
from oodbench.train.process import clean_process
from oodbench.train.run import Run
from oodbench.train.settings import Interrupts, TrainSettings
from tests.helpers.algorithms.plugins import rules_of_the_guide
from tests.helpers.kills import Killed
from tests.helpers.results.sweeps import outcome, require_close, tiny, trained

pytestmark = pytest.mark.slow

RULES = (
    *("train_val", "val_env", "oracle", "train_val:loss", "worst_val", "worst_val:loss"),
    *("smooth_val", "last"),
)
SETTINGS = TrainSettings(keep_weights=RULES)


def noisy(**changes: Any) -> Plan:
    """Runs whose best steps differ by rule, evaluated often."""
    sizes = dict.fromkeys(("num_examples", "num_test_examples"), 60)
    data = {"name": "Spirals", "num_environments": 3, "num_validation": 1, **sizes}
    hparams = {"lr": [0.03, 0.1, 0.3], "batch_size": 8}
    keys = {
        "datasets": [data],
        "algorithms": [{"name": "ERM", "hparams": hparams}],
        "network": {"name": "MLP", "hparams": {"width": 8}},
        **{"hparam_draws": 3, "trials": 1, "steps": 60, "evaluate_every": 4},
    }
    return tiny(**keys | changes)


def chosen_alone(results: Directory, spec: RunSpec) -> set[tuple[str, int]]:
    """Each rule with the step that it chooses of a run by itself."""
    frames = read_results(results, {spec.id: spec})
    return {("last", 60)} | {(r, int(choose(frames, r)["step"].iloc[0])) for r in RULES[:-1]}


def with_weights(spec: RunSpec, path: Path) -> Run:
    run = Run(spec, TrainSettings())
    run.algorithm.load_state_dict(load_file(path))
    return run


def contents(directory: RunDirectory) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.weights.iterdir()}


@pytest.fixture(scope="module", autouse=True)
def rules() -> Iterator[None]:
    with rules_of_the_guide():
        yield


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Directory:
    return trained(tmp_path_factory.mktemp("kept"), noisy(), keep_weights=RULES)


def test_each_rule_has_the_weights_of_the_step_that_it_chooses(kept: Directory) -> None:
    frames, seen = read_results(kept), set()
    for spec in noisy().runs.values():
        wanted = chosen_alone(kept, spec)
        assert set(kept_weights(kept.run(spec.id))) == wanted
        seen |= {step for _, step in wanted}
    assert len(seen) > 3  # the test would see steps that are taken for others
    for rule in RULES[:-1]:
        for chosen in choose(frames, rule).itertuples():
            assert weights_path(kept.run(str(chosen.id)), rule, int(str(chosen.step))).is_file()


def test_they_are_the_weights_that_the_record_is_of(kept: Directory) -> None:
    for run_id, spec in noisy().runs.items():
        for (rule, step), path in kept_weights(kept.run(run_id)).items():
            run = with_weights(spec, path)
            (record,) = (r for r in kept.run(run_id).records() if r["step"] == step)
            with clean_process(1):
                require_close([vars(e) for e in run.evaluate()], record["evaluations"])
            with safe_open(path, "pt") as file:
                about = json.loads(file.metadata()["oodbench"])
                assert about.pop("sizes") == list(run.problem.sizes)
                assert about == {"id": run_id, "rule": rule, "step": step}
                assert {file.get_tensor(k).dtype for k in file.keys()} == {torch.float32}


def test_none_are_kept_unless_asked_and_none_changes_a_record(
    kept: Directory, tmp_path: Path
) -> None:
    plain = trained(tmp_path, noisy())
    for run_id in kept.specs():
        assert not plain.run(run_id).weights.exists()
    assert outcome(plain) == outcome(kept)


@pytest.mark.parametrize(("checkpoint", "later"), [(4, 4), (8, 24), (12, 12), (28, 4)])
def test_a_killed_run_ends_with_the_same_files(
    kept: Directory, tmp_path: Path, checkpoint: int, later: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after improvements that the last checkpoint does not know of."""
    for name in ("CHECKPOINT_SECONDS", "EVALUATION_CHECKPOINT_SECONDS"):
        monkeypatch.setattr(loop, name, math.inf)
    (spec,) = (s for s in noisy().runs.values() if s.draw == 1)
    run, interrupts = RunDirectory(tmp_path / spec.id), Interrupts()

    def progress(step: int) -> None:
        if step == checkpoint - 4:
            interrupts.save = True
        if step == checkpoint + later:
            raise Killed

    if checkpoint == 4:
        interrupts.save = True
    with pytest.raises(Killed):
        execute(spec, run, SETTINGS, progress, interrupts)
    assert run.checkpoint.exists()
    rules = [rule for rule, _ in kept_weights(run)]
    assert max(map(rules.count, rules)) <= 2  # of the checkpoint, and the best since
    assert execute(spec, run, SETTINGS) == ("done", "")
    assert contents(run) == contents(kept.run(spec.id))


def test_a_run_that_starts_anew_forgets_the_weights_of_another_time(
    kept: Directory, tmp_path: Path
) -> None:
    spec = next(iter(noisy().runs.values()))
    run = RunDirectory(tmp_path / spec.id)
    run.weights.mkdir(parents=True)
    weights_path(run, "train_val", 59).write_bytes(b"of another time")
    assert execute(spec, run, SETTINGS) == ("done", "")
    assert contents(run) == contents(kept.run(spec.id))


@pytest.mark.nightly
def test_vectorized_runs_keep_theirs(tmp_path: Path) -> None:
    results = Directory(tmp_path)
    runs = [(spec, results.run(spec.id)) for spec in noisy().runs.values()]
    settings = TrainSettings(keep_weights=RULES, vectorize=3)
    execute_bundle(runs, settings, lambda *_: None)
    for spec, directory in runs:
        info = json.loads((directory.path / "run.json").read_text())
        assert info["provenance"]["vectorized"] is True
        assert set(kept_weights(directory)) == chosen_alone(results, spec)
        for (_, step), path in kept_weights(directory).items():
            (record,) = (r for r in directory.records() if r["step"] == step)
            found = [e.value for e in with_weights(spec, path).evaluate()]
            assert found == pytest.approx([e["value"] for e in record["evaluations"]], rel=1e-4)


def test_averages_are_what_is_kept(tmp_path: Path) -> None:
    row = [{"name": "ERM", "average": "ema", "hparams": {"lr": 0.1, "batch_size": 8}}]
    plan = noisy(algorithms=row, hparam_draws=1)
    (directory,) = map(trained(tmp_path, plan, keep_weights=RULES).run, plan.runs)
    run = with_weights(plan.runs[directory.id], weights_path(directory, "last", 60))
    recorded = directory.records()[-1]["evaluations"]
    again = evaluate(run.predict, run.scored)
    require_close([vars(e) for e in again], recorded)
