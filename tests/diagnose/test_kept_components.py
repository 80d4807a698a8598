from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from oodbench.algorithms import algorithms
from oodbench.conformance.tiny_problems import TASKS, tiny_algorithm, tiny_batch, tiny_problem
from oodbench.diagnose.kept_components import kept_components, read_curves
from oodbench.results.directory import RunDirectory
from oodbench.sweep.plan import single
from oodbench.train.execute import execute
from oodbench.train.settings import TrainSettings
from tests.diagnose.test_cli import call

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
    risks = algorithm.outputs(batch, 0)
    units = risks.risks if cls.unit == "environment" else risks.losses.flatten()
    shares = {}
    for layer, parameters in layers(algorithm.network).items():
        every = [torch.autograd.grad(u, parameters, retain_graph=True) for u in units]
        gradients = torch.stack([torch.cat([g.flatten() for g in unit]) for unit in every])
        agree = gradients.sign().sum(0).abs() >= 0.6 * len(units) - 1e-4
        kept = agree != (name == "XORMask")
        shares[layer] = (kept & (gradients != 0).any(0)).double().mean()
    metrics = algorithm.update(batch, 0)
    assert len(norms) == len(shares) > 2
    for layer in norms:
        assert metrics[f"weight norm {layer}"].item() == pytest.approx(norms[layer].item())
        assert metrics[f"kept {layer}"].item() == pytest.approx(shares[layer].item())


def test_and_and_xor_share_the_components_between_them() -> None:
    found = []
    for name in ("ANDMask", "XORMask"):
        cls: Any = algorithms.get(name)
        algorithm = tiny_algorithm(cls, tiny_problem(TASKS["regression"]), {"tau": 0.6})
        found.append(algorithm.update(tiny_batch(TASKS["regression"]), 0))
    key = "kept classifier"
    assert 0 < found[0][key] < 1
    assert (found[0][key] + found[1][key]).item() == pytest.approx(1)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run of AND-mask."""
    spec = single(
        {"name": "Spirals", "num_environments": 4, "num_examples": 50},
        {"name": "ANDMask", "hparams": {"tau": 0.5}},
        steps=6,
        evaluate_every=2,
    )
    path = tmp_path_factory.mktemp("results") / "runs" / spec.id
    assert execute(spec, RunDirectory(path), TrainSettings()) == ("done", "")
    return path


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
        f"error: {tmp_path / 'none'}: no AND-mask run has recorded there what it kept\n"
    )
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "none").exists()
