"""The commands, and the diagnostics that train or look at networks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner, Result

from oodbench.algorithms import Batch, algorithms
from oodbench.conformance.tiny_problems import TASKS, tiny_algorithm, tiny_batch, tiny_problem
from oodbench.diagnose.cli import app
from oodbench.diagnose.environment_counts import accuracy, environments, threshold
from oodbench.diagnose.gradient_correlation import (
    PAPER,
    SIGNALS,
    correlation,
    correlations,
    pearson,
    permuted,
)
from oodbench.diagnose.kept_components import kept as diagnose_kept
from oodbench.diagnose.kept_components import read
from oodbench.diagnose.random_gradients import expected
from oodbench.errors import UserError
from oodbench.report.figures import Finding, save
from oodbench.results.directory import RunDirectory
from oodbench.sweep.plan import single
from oodbench.train.execute import execute
from oodbench.train.settings import TrainSettings
from oodbench.verify.computations.gradient_correlation import figure

PNG = b"\x89PNG\r\n"


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})


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
    curves = read(RunDirectory(recorded))
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
    finding = diagnose_kept(steps=2, tau=0.5)
    assert [row[0] for row in finding.rows] == ["1", "2"]


def test_a_run_without_a_mask_is_refused(tmp_path: Path) -> None:
    result = call("kept", "--run", str(tmp_path / "none"), "--out", str(tmp_path / "out"))
    assert result.exit_code == 2
    assert result.stderr == (
        f"error: {tmp_path / 'none'}: no AND-mask run has recorded there what it kept\n"
    )
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "none").exists()


def test_permuting_moves_some_inputs_within_each_environment() -> None:
    x = torch.arange(2 * 20 * 4.0).view(2, 20, 4)
    batch = Batch(x.clone(), torch.zeros(2, 20))
    found = permuted(batch, slice(1, 3), 0).x
    assert torch.equal(batch.x, x)
    assert torch.equal(found[..., [0, 3]], x[..., [0, 3]])
    assert not torch.equal(found, x)
    assert torch.equal(found[..., 1:3].sort(1).values, x[..., 1:3])
    assert torch.equal(found[..., 2] - found[..., 1], torch.ones(2, 20))


def test_pearson_is_numpys() -> None:
    a, b = torch.randn(2, 50, generator=torch.Generator().manual_seed(0))
    assert pearson(a, b) == pytest.approx(np.corrcoef(a, b)[0, 1])
    assert np.isnan(pearson(a[:2], b[:2]))
    assert np.isnan(pearson(a, torch.ones(50)))


def test_agreement_is_where_the_mechanism_is() -> None:
    """The thesis: about .4 without a mask, more with AND-mask, less with XOR-mask."""
    options: dict[str, Any] = {"num_environments": 16, "num_examples": 256, "standardize": False}
    options |= {"shortcut_dims": 32, "shortcut_scale": 0.1}
    found = np.mean([correlations(options, [0.125, 0.75, 1.0], trial) for trial in range(3)], 0)
    (xor_low, _, xor_all), (and_low, and_high, _) = found
    mechanism, shortcut, share = range(3)
    assert list(SIGNALS) == ["mechanism", "shortcut"]
    assert 0.25 < xor_all[mechanism] < 0.6 < xor_all[shortcut]
    assert xor_low[mechanism] < xor_all[mechanism] < and_low[mechanism] < and_high[mechanism]
    assert xor_low[share] + and_low[share] == pytest.approx(1)


def test_without_a_shortcut_all_signal_is_the_mechanisms() -> None:
    options: dict[str, Any] = {
        "num_environments": 4,
        "num_examples": 64,
        "shortcut_dims": 8,
        "shortcut_scale": 0.0,
    }
    found = correlations(options, [0.0], 0)[1, 0]
    assert found[0] == pytest.approx(1)
    assert found[1] < 0.999


def test_correlation_shows_both_masks_at_every_threshold(tmp_path: Path) -> None:
    finding = correlation(environments=5, examples=16, seeds=2)
    assert [row[:2] for row in finding.rows] == [
        [mask, tau] for mask in ("XOR-mask", "AND-mask") for tau in ("0.2", "0.6", "1")
    ]
    assert float(finding.rows[3][4]) == 1
    assert all(path.stat().st_size > 1000 for path in save(finding, "c", tmp_path))


def test_correlations_beside_the_thesis_have_a_value_for_each_trial() -> None:
    measured = figure(1, {})
    first = correlations(PAPER, [0.0, 0.25], 0)
    assert measured.values["AND-mask, mechanism, tau 0"] == [pytest.approx(first[1, 0, 0])]
    assert measured.values["XOR-mask, shortcut, tau 0.25"] == [pytest.approx(first[0, 1, 1])]
    less = first[0, 1, 0] - first[1, 0, 0]
    assert measured.values["XOR-mask less none, mechanism, tau 0.25"] == [pytest.approx(less)]
    assert measured.values["AND-mask less none, shortcut, tau 0"] == [0.0]
    assert "XOR-mask, mechanism, tau 0" not in measured.values  # it keeps nothing
    assert [panel.title for panel in measured.panels] == ["XOR-mask", "AND-mask"]


def test_the_threshold_lets_little_noise_pass() -> None:
    assert [threshold(d) for d in (2, 8)] == [1, 1]
    for environments_ in (16, 33, 64):
        tau = threshold(environments_)
        assert expected(environments_, tau, 1).kept <= 1e-3
        assert expected(environments_, tau - 2 / environments_, 1).kept > 1e-3


def test_and_mask_needs_fewer_environments() -> None:
    assert accuracy("ERM", 8, 300, 1) < 0.6
    assert accuracy("ANDMask", 8, 300, 1) > 0.95


def test_environments_on_the_command_line(tmp_path: Path) -> None:
    result = call(
        *("environments", "--environments", "2,3", "--trials", "1", "--steps", "2"),
        *("--out", str(tmp_path)),
    )
    assert result.exit_code == 0, result.output
    assert {p.name for p in tmp_path.iterdir()} == {"environments.png", "environments.svg"}


def test_a_picture_is_the_same_every_time(tmp_path: Path) -> None:
    def draw(figure: Any) -> None:
        figure.subplots().plot([1, 2], [3, 4])

    finding = Finding("a title", ["a"], [["1"]], [], draw)
    names: dict[str, list[Path]] = {
        folder: list(save(finding, "same", tmp_path / folder)) for folder in ("one", "two")
    }
    for one, two in zip(*names.values(), strict=True):
        assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("environments", "--environments", "2,many"), "takes numbers such as 2,4,8, not '2,many'"),
        (("environments", "--environments", "1"), "at least 2 environments"),
        (("random-gradients", "--tau", "2"), "tau must be in [0, 1], not 2"),
        (("kept", "--tau", "2"), "tau"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    result = call(*arguments, "--out", str(tmp_path / "out"))
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    assert message in result.stderr
    assert not (tmp_path / "out").exists()


def test_an_unknown_name() -> None:
    assert call("keep").exit_code == 2


@pytest.mark.parametrize(("count", "seeds"), [(1, 2), (4, 1)])
def test_too_few_for_a_correlation(count: int, seeds: int) -> None:
    with pytest.raises(UserError, match="at least 2 environments and 2 seeds"):
        correlation(count, 10, seeds)


@pytest.mark.parametrize(("counts", "trials"), [([1, 4], 2), ([4], 0)])
def test_too_few_for_a_curve(counts: list[int], trials: int) -> None:
    with pytest.raises(UserError, match="at least 2 environments and 1 trial"):
        environments(counts, trials)
