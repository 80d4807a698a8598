import numpy as np
import pytest
import torch

from oodbench.datasets import make
from oodbench.sweep.plan import single
from oodbench.train.run import Run
from oodbench.train.settings import TrainSettings

pytestmark = pytest.mark.slow

HPARAMS = {"lr": 0.15, "weight_decay": 0.02, "optimizer": "sgd", "momentum": 0.0}
HPARAMS |= {"lr_schedule": "exponential"}
START = {"name": "Linear", "hparams": {"diagonal": True, "start": 0.0, "start_std": 0.1}}


def trained(algorithm: str, tests: list[str], trial: int, **hparams: object) -> list[float]:
    spec = single(
        {"name": "FourPoints"},
        {"name": algorithm, "hparams": HPARAMS | hparams},
        test_environments=[tests],
        trials=[trial],
        holdout=0,
        network=START,
    )
    run = Run(spec, TrainSettings())
    start = run.algorithm.predict(torch.eye(5)).flatten().tolist()
    assert run.run_steps(1000) is None
    return [*start, *(e.value for e in run.evaluate() if e.environment is None)]


def test_the_points() -> None:
    data = make("FourPoints", {}).load(0)
    assert data["3"].x.tolist() == [[0, 0, 3, 0, pytest.approx(0.3)]]
    assert data["test"].x.tolist() == [[0, 0, 0, 0, pytest.approx(0.3)]]
    assert all(e.y.tolist() == [[1]] for e in data.values())


@pytest.mark.parametrize("trained_on", [[0, 1, 2, 3], [0, 1]])
def test_the_mean_gradient_follows_the_notebooks_descent(trained_on: list[int]) -> None:
    """theta -= lr g, then theta -= 0.01 lr theta, with lr = 0.3 * 0.9995^k and half our loss."""
    tests = [str(i + 1) for i in range(4) if i not in trained_on] + ["test"]
    *values, w1, w2, w3, w4, w5 = trained("ERM", tests, 0)
    theta = np.array(values)
    x = np.concatenate([3 * np.eye(4), np.full((4, 1), 0.3)], 1)[trained_on]
    for k in range(1, 1001):
        lr = 0.3 * 0.9995**k
        theta = theta - lr * x.T @ (x @ theta - 1) / len(x)
        theta = theta - 0.01 * lr * theta
    assert [w1, w2, w3, w4, w5] == pytest.approx(theta.tolist(), abs=1e-3)


@pytest.mark.parametrize("geometric", [False, True])
def test_and_mask_finds_what_the_points_share(geometric: bool) -> None:
    weights = trained("ANDMask", ["test"], 0, rescale=False, geometric_mean=geometric)[5:]
    assert weights[:4] == pytest.approx([0] * 4, abs=0.05)
    assert weights[4] == pytest.approx(3.0, abs=0.2)  # where the decay of 0.01 leaves it
