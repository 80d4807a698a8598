import math

import pytest
import torch

from oodbench.datasets import make
from oodbench.sweep.plan import single
from oodbench.train.run import Run
from oodbench.train.settings import TrainSettings

P_X = {"1": (0.4, 0.1), "2": (0.1, 0.4), "3": (0.1, 0.4), "test": (0.25, 0.25)}
P_Y = {"1": 0.1, "2": 0.1, "3": 0.2, "test": 0.9}


def test_frequencies_are_the_probabilities() -> None:
    for name, environment in make("ThreeInputs", {}).load(0).items():
        assert len(environment.x) == 80
        shares = environment.x.mean(0).tolist()
        assert shares == pytest.approx([*P_X[name], 0.5])
        labels = [environment.y[environment.x[:, x] == 1].mean().item() for x in range(3)]
        assert labels == pytest.approx([0.5, 0.75, P_Y[name]])


def test_the_metrics_are_the_predictions() -> None:
    logits = torch.tensor([0.0, math.log(3), -math.log(4)])
    found = make("ThreeInputs", {}).predictor_metrics(lambda x: x @ logits[:, None], 0)
    assert found == pytest.approx({"p_0": 0.5, "p_1": 0.75, "p_2": 0.2})


@pytest.mark.parametrize(
    ("algorithm", "wanted", "steps"),
    [
        ("ERM", (0.5, 0.75, 0.4 / 3), 1000),
        pytest.param("IRM", (0.5, 0.75, 0.5), 2000, marks=pytest.mark.slow),
        pytest.param("VREx", (0.5, 0.5, 0.5), 4000, marks=pytest.mark.nightly),
    ],
)
def test_erm_irm_and_rex_differ(algorithm: str, wanted: tuple[float, ...], steps: int) -> None:
    penalty = {"penalty_weight": 1e4, "anneal_steps": 0}
    hparams = {"lr": 0.01} | (penalty if algorithm != "ERM" else {})
    spec = single(
        {"name": "ThreeInputs"},
        {"name": algorithm, "hparams": hparams},
        steps=steps,
        holdout=0,
        network={"name": "Linear", "hparams": {"diagonal": True}},
    )
    run = Run(spec, TrainSettings())
    assert run.run_steps(steps) is None
    found = [e.value for e in run.evaluate() if e.environment is None]
    assert found == pytest.approx(wanted, abs=0.02)
