"""Every method trains a small backbone of timm from scratch, or says why not."""

import itertools
from typing import Any

import pytest
import torch

from oodbench.algorithms import Batch, Problem, algorithms, why_skipped
from oodbench.hparams import defaults
from oodbench.networks.base import build
from oodbench.tasks import Task
from tests.helpers.algorithms.methods import OURS

pytest.importorskip("timm")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:the gradients of the layer:UserWarning"),
    pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning"),  # IGA's, by torch
]
SHAPE, ENVIRONMENTS, EXAMPLES, VIEWS = (3, 32, 32), 3, 4, 3


def image_batch(classes: int) -> Batch:
    """Random images of three environments, with all that a batch can hold."""
    generator = torch.Generator().manual_seed(0)
    shape = (ENVIRONMENTS, EXAMPLES)
    x = torch.rand(*shape, *SHAPE, generator=generator)
    return Batch(
        x,
        torch.arange(EXAMPLES).remainder(classes).expand(shape),
        index=torch.arange(EXAMPLES).expand(shape),
        attributes=torch.randint(2, shape, generator=generator),
        views=x.unsqueeze(2) + 0.1 * torch.rand(*shape, VIEWS, *SHAPE, generator=generator),
    )


MODELS = ("test_resnet", "test_vit", "test_convnext")


@pytest.mark.parametrize(
    ("name", "model"),
    [
        pytest.param(*pair, marks=[pytest.mark.nightly] * (number % 4 > 0))
        for number, pair in enumerate(zip(OURS, itertools.cycle(MODELS), strict=False))
    ],
)
def test_methods_train_backbones(name: str, model: str) -> None:
    cls: Any = algorithms.get(name)
    names = tuple("abc")
    sizes = (EXAMPLES,) * ENVIRONMENTS
    task = Task("multiclass", 3)
    facts: Any = {"attributes": 2, "sizes": sizes, "counts": ((1, 1, 0, 1, 1, 0),) * ENVIRONMENTS}
    problem = Problem(SHAPE, task, names, 20, pretrained=True, **facts)
    # on noise all of GAF's gradients disagree, and it leaves the weights as they are
    values = defaults(cls.Hparams) | ({"threshold": 2.0} if name == "GAF" else {})
    if why_skipped(cls, problem, values) or cls.overrides("fit_examples"):
        return
    network = build("timm", {"model": model}, SHAPE, 3, 0)
    algorithm = cls(network, problem, cls.Hparams(**values))
    algorithm.optimizers = algorithm.configure()
    algorithm.train()
    before = torch.nn.utils.parameters_to_vector(algorithm.network.parameters()).detach().clone()
    for step in (0, 19):
        metrics = algorithm.train_step(image_batch(3), step)
        assert metrics["loss"].isfinite()
    after = torch.nn.utils.parameters_to_vector(algorithm.network.parameters()).detach()
    assert after.isfinite().all()
    assert not cls.trains_network or not torch.equal(before, after)
    algorithm.eval()
    with torch.no_grad():
        assert algorithm.predict(torch.rand(2, *SHAPE)).shape == (2, 3)
