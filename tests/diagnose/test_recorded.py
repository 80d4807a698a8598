"""Pictures of what runs have recorded, from runs really trained."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from oodbench.algorithms import algorithms
from oodbench.conformance.tiny_problems import TASKS, tiny_algorithm, tiny_batch, tiny_problem
from oodbench.diagnose.recorded import kept_components, memorization, read_curves, trials
from oodbench.errors import UserError
from oodbench.report.leaderboard import scores
from oodbench.results.directory import Results, RunDirectory
from oodbench.results.frames import load_frames
from oodbench.steps import outputs, update
from oodbench.sweep.file import validate
from oodbench.sweep.plan import make_plan, single
from tests.diagnose.test_cli import call
from tests.helpers.commands import run
from tests.helpers.sweeps import ended, tiny_file, trained

PNG = b"\x89PNG\r\n"


def layers(network: nn.Module) -> dict[str, list[nn.Parameter]]:
    found: dict[str, list[nn.Parameter]] = {}
    for name, parameter in network.named_parameters():
        found.setdefault(name.rpartition(".")[0], []).append(parameter)
    return found


@pytest.mark.parametrize("name", ["ANDMask", "ExampleANDMask", "XORMask"])
def test_every_update_says_what_it_kept_of_each_layer(name: str) -> None:
    values = {"tau": 0.6, "weight_decay": 0.1}
    cls: Any = algorithms.get(name)
    algorithm = tiny_algorithm(cls, tiny_problem(TASKS["multiclass"]), values)
    batch = tiny_batch(TASKS["multiclass"])
    norms = {
        layer: torch.cat([p.detach().flatten() for p in parameters]).norm()
        for layer, parameters in layers(algorithm.network).items()
    }
    risks = outputs(algorithm, batch, 0)
    units = risks.risks if cls.unit == "environment" else risks.losses.flatten()
    shares = {}
    for layer, parameters in layers(algorithm.network).items():
        every = [torch.autograd.grad(u, parameters, retain_graph=True) for u in units]
        gradients = torch.stack([torch.cat([g.flatten() for g in unit]) for unit in every])
        agree = gradients.sign().sum(0).abs() >= 0.6 * len(units) - 1e-4
        kept = agree != (name == "XORMask")
        shares[layer] = (kept & (gradients != 0).any(0)).double().mean()
    metrics = update(algorithm, batch, 0)
    assert len(norms) == len(shares) > 2
    for layer in norms:
        assert metrics[f"weight norm {layer}"].item() == pytest.approx(norms[layer].item())
        assert metrics[f"kept {layer}"].item() == pytest.approx(shares[layer].item())


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run of AND-mask."""
    spec = single(
        {"name": "Spirals", "num_environments": 4, "num_examples": 50},
        {"name": "ANDMask", "hparams": {"tau": 0.5}},
        steps=6,
        evaluate_every=2,
    )
    return ended(spec, tmp_path_factory.mktemp("results") / "runs" / spec.id).path


def test_the_curves_of_a_recorded_run(recorded: Path) -> None:
    curves = read_curves(RunDirectory(recorded))
    assert curves.steps == [2, 4, 6]
    assert curves.layers == ["featurizer.1", "featurizer.3", "featurizer.5", "classifier"]
    assert curves.kept.shape == curves.norms.shape == (3, 4)
    assert ((curves.kept > 0) & (curves.kept < 1)).all()
    assert (curves.norms > 0).all()
    first = RunDirectory(recorded).records()[0]
    assert curves.kept[0, 1] == first["train"]["kept featurizer.3"]
    assert curves.norms[0, 1] == first["train"]["weight norm featurizer.3"]
    values = {(e["environment"], e["split"], e["metric"]): e["value"] for e in first["evaluations"]}
    training = [values[str(e), "in", "accuracy"] for e in range(4)]
    assert curves.accuracy["training environments"][0] == pytest.approx(np.mean(training))
    assert curves.accuracy["test environment"][0] == values["test", "in", "accuracy"]


def test_kept_on_the_command_line(recorded: Path, tmp_path: Path) -> None:
    result = call("kept", "--run", str(recorded), "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert "featurizer.3" in result.stdout
    assert (tmp_path / "kept.png").read_bytes().startswith(PNG)
    svg = (tmp_path / "kept.svg").read_text()
    assert "fraction kept" in svg and "weight norm" in svg


def test_kept_trains_a_run_of_its_own() -> None:
    finding = kept_components(steps=2, tau=0.5)
    assert [row[0] for row in finding.rows] == ["1", "2"]


def test_a_run_without_a_mask_is_refused(tmp_path: Path) -> None:
    result = call("kept", "--run", str(tmp_path / "none"), "--out", str(tmp_path / "out"))
    assert result.exit_code == 2
    assert result.stderr == (
        f"error: {tmp_path / 'none'} has no records of the components that AND-mask kept\n"
    )
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "none").exists()


def sweep_of(path: Path, dataset: dict[str, object], methods: list[object], trials: int) -> Results:
    """A sweep on disk, all its runs ended."""
    sweep = {"name": "m", "datasets": [dataset], "algorithms": methods, "trials": trials}
    sweep |= {"steps": 6, "evaluate_every": 2, "holdout": 0, "network": "MLP"}
    plan = make_plan(validate(sweep, "test"))
    return trained(path, plan)


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Results:
    data = {"name": "NoisyLabels", "base": "digits", "num_examples": 300}
    path = tmp_path_factory.mktemp("memorization") / "mine"
    return sweep_of(path, data, ["ERM", {"name": "ExampleANDMask", "label": "mask"}], 2)


def test_it_shows_the_accuracies_at_the_end(noisy: Results) -> None:
    finding = memorization(noisy.path)
    assert finding.header[2:6] == [
        "training labels (%)", "wrong labels (%)", "test (%)", "best test (%)",
    ]  # fmt: skip
    assert [row[:2] for row in finding.rows] == [["ERM", "25% redrawn"], ["mask", "25% redrawn"]]
    frames = load_frames(noisy)
    metrics = frames.metrics[frames.metrics["metric"] == "accuracy"].astype({"id": str})
    for row in finding.rows:
        ids = list(frames.runs[frames.runs["label"] == row[0]]["id"])
        accuracies = metrics[metrics["id"].isin(ids)]
        wanted = [
            accuracies[(accuracies["environment"] == e) & (accuracies["step"] == 6)]["value"]
            for e in ("train", "mislabeled", "test")
        ]
        wanted.append(accuracies[accuracies["environment"] == "test"].groupby("id")["value"].max())
        for cell, values in zip(row[2:6], wanted, strict=True):
            first, second = 100 * values
            error = abs(first - second) / 2  # of two values, by ddof=1
            assert cell == f"{(first + second) / 2:.1f} ± {error:.1f}"
        assert row[7] == "2"


def test_it_shows_what_the_masks_kept(noisy: Results) -> None:
    erm, mask = memorization(noisy.path).rows
    shares = []
    for run_id, spec in noisy.plan()["runs"].items():
        for record in noisy.run(run_id).records():
            shares_of = [v for k, v in record["train"].items() if k.startswith("kept ")]
            assert bool(shares_of) == (spec["label"] == "mask")
            shares += [sum(shares_of) / len(shares_of)] if shares_of else []
    assert len(shares) == 6
    assert erm[6] == ""
    assert mask[6] == f"{math.fsum(shares) / 6:.2g}"


def test_the_command_plots_it(noisy: Results, tmp_path: Path) -> None:
    result = call("memorization", str(noisy.path), "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    assert "25% redrawn" in result.output
    svg = (tmp_path / "mine.svg").read_text()
    assert ">wrong labels, 25% redrawn<" in svg and ">mask<" in svg
    assert (tmp_path / "mine.png").stat().st_size > 10_000


def test_other_sweeps_have_nothing_to_show(noisy: Results, tmp_path: Path) -> None:
    other = sweep_of(tmp_path / "other", {"name": "LinearSEM", "num_examples": 20}, ["ERM"], 1)
    with pytest.raises(UserError, match="holds no ended run on NoisyLabels or CIFARNoise"):
        memorization(other.path)
    with pytest.raises(UserError, match="holds no sweep"):
        memorization(tmp_path)


@pytest.fixture(scope="module")
def spirals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trials")
    data = [{"name": "Spirals", "num_environments": 4, "num_examples": 40, "num_validation": 2}]
    algorithms = ["ERM", "ANDMask"]
    file = tiny_file(folder, datasets=data, algorithms=algorithms, trials=3, steps=20)
    launched = run("launch", file, "--yes", "--launcher", "debug", "--out", folder / "out")
    assert launched.exit_code == 0, launched.output
    return folder / "out"


@pytest.mark.parametrize("threshold", [0.0, 0.5, 1.1])
def test_each_trial_is_what_the_rule_chose(spirals: Path, threshold: float) -> None:
    finding = trials(spirals, ("train_val", "val_env"), threshold)
    names = [(row[0], row[1]) for row in finding.rows]
    assert names == [(m, r) for m in ("ERM", "ANDMask") for r in ("train_val", "val_env")]
    for label, rule, median, count, each in finding.rows:
        table = scores(load_frames(Results(spirals)), rule)
        values = sorted(table[table["label"] == label]["value"])
        assert each == " ".join(f"{v:.3f}" for v in values)
        assert median == f"{values[1]:.3f}"
        assert count == f"{sum(v >= threshold for v in values)}/3"


def test_on_the_command_line(spirals: Path, tmp_path: Path) -> None:
    called = call("trials", str(spirals), "--out", str(tmp_path))
    assert called.exit_code == 0, called.output
    assert "≥ 0.9" in called.output
    assert (tmp_path / "out-trials.svg").read_text().count("<use") >= 12


def test_a_rule_that_is_none(spirals: Path) -> None:
    with pytest.raises(UserError, match="val_env"):
        trials(spirals, ("val_envs",), 0.9)
