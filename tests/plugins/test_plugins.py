"""The methods of the guide, as a user's plug-in: they resume, and are trained as one program."""

import importlib
from typing import Any

import pytest
import torch

from oodbench.algorithms import Algorithm, algorithms
from oodbench.conformance import check_algorithm
from oodbench.conformance.requirements import resumes_exactly
from oodbench.conformance.tiny_problems import TASKS, tiny_algorithm, tiny_batch, tiny_problem
from oodbench.results.run_spec import RunSpec
from oodbench.train.run import Run
from oodbench.train.settings import TrainSettings
from oodbench.train.vectorized import why_not
from oodbench.train.vectorized.program import VectorizedProgram
from tests.helpers.algorithms.float64 import in_float64
from tests.helpers.paths import blocks
from tests.helpers.results.sweeps import tiny

TOGETHER = "RiskSpread MedianGradient RunningRisks NextDoorMixup TwoViews GradientNorm".split()
SETTINGS = TrainSettings()


@pytest.fixture(scope="module", autouse=True)
def guides_methods(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Imports the guide's code from a module of the user's."""
    folder = tmp_path_factory.mktemp("guide")
    code = "\n".join(blocks("docs/guide/add_algorithm.md"))
    (folder / "guides_methods.py").write_text(code)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        importlib.import_module("guides_methods")


def specs(name: str) -> list[RunSpec]:
    spirals = {"name": "Spirals", "num_environments": 3, "num_examples": 40, "shortcut_dims": 2}
    network = {"name": "MLP", "hparams": {"width": 8, "depth": 1, "dropout": 0.0}}
    values: dict[str, Any] = {"datasets": [spirals], "network": network, "hparam_draws": 2}
    values |= {"algorithms": [{"name": name, "hparams": {"batch_size": 16}}]}
    return list(tiny(**values, steps=20, evaluate_every=10).runs.values())


@pytest.mark.parametrize("name", [*TOGETHER, "TwoSteps", "XRM_IRM"])
def test_it_resumes_bit_for_bit(name: str) -> None:
    resumes_exactly(algorithms.get(name), TASKS["binary"])


@pytest.mark.nightly
@pytest.mark.parametrize("name", [*TOGETHER, "TwoSteps", "XRM_IRM"])
def test_it_keeps_all_requirements(name: str) -> None:
    check_algorithm(name, lambda line: None)


@pytest.mark.slow
@pytest.mark.parametrize("name", TOGETHER)
def test_its_runs_together_are_those_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    in_float64(monkeypatch)
    alone, together = ([Run(spec, SETTINGS) for spec in specs(name)] for _ in range(2))
    assert why_not(alone[0]) is None
    program = VectorizedProgram(together)
    program.run_steps(20)
    for run, evaluations in zip(alone, program.evaluate(range(4)), strict=True):
        run.run_steps(20)
        for one, other in zip(evaluations, run.evaluate(), strict=True):
            assert one.value == pytest.approx(other.value, rel=1e-9, abs=1e-9)


def test_views_are_views_of_the_first_input() -> None:
    """The second view's features are those of the network on it, and the risks those of the first."""
    task = TASKS["binary"]
    algorithm = tiny_algorithm(algorithms.get("TwoViews"), tiny_problem(task))
    batch = algorithm.prepared(tiny_batch(task), 3)
    out = algorithm.outputs(batch, 3)
    assert batch.views is not None and out.view_features is not None and out.view_logits is not None
    assert out.view_features.shape == (5, 6, 1, algorithm.network.num_features)
    second = batch.views[:, :, 0].flatten(0, 1)
    torch.testing.assert_close(out.view_logits[:, :, 0].flatten(0, 1), algorithm.network(second))
    erm = tiny_algorithm(Algorithm, tiny_problem(task))
    torch.testing.assert_close(out.risks, erm.outputs(batch, 3).risks)
