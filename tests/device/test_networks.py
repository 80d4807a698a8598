"""No network's pass forwards or backwards waits for the device, alone or below a mask."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from oodbench.algorithms import Algorithm, Batch, Problem, algorithms
from oodbench.data.encodings import ROW
from oodbench.hparams import checked, defaults
from oodbench.networks.base import build, networks
from oodbench.tasks import Task
from tests.device.pretend import DEVICE, move_algorithm, on_device
from tests.helpers.algorithms.ours import ours

WORDS = 9
SMALL: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "MLP": ({"width": 8}, (5,)),
    "Linear": ({}, (5,)),
    "Head": ({}, (5,)),
    "TextCNN": ({"width": 4, "filters": 2}, (WORDS,)),
    "DistilBERT": ({"weights": "none"}, (WORDS,)),
    "CodeGPT": ({"weights": "none", "layers": 1, "width": 8, "heads": 2}, (WORDS,)),
    "ResNet18": ({"weights": "none"}, (3, 32, 32)),
    "ResNet50": ({"weights": "none"}, (3, 32, 32)),
    "DenseNet121": ({"weights": "none"}, (3, 32, 32)),
    "MNISTCNN": ({}, (2, 28, 28)),
    "ConvNet": ({}, (3, 32, 32)),
    "FastResNet": ({}, (3, 32, 32)),
    "CLIP": ({"weights": "none"}, (3, 32, 32)),
    "timm": ({"model": "vit_tiny_patch16_224", "weights": "none"}, (3, 32, 32)),
    "GIN": ({"width": 8, "depth": 2}, (6, ROW)),
    "FasterRCNN": ({"weights": "none", "body": "resnet18"}, (3, 64, 64)),
}
"""Hyperparameters and an input shape of every network, small where it can be."""
WAITS = {
    "GIN": "how many atoms a batch has is asked of the device",
    "FasterRCNN": "torchvision's detector chooses boxes by their scores, one image after the other",
}
"""The networks whose passes wait, and why."""


def problem_and_batch(name: str) -> tuple[Problem, Batch]:
    """Two environments of three random inputs for a network."""
    shape = SMALL[name][1]
    tasks = {"CodeGPT": Task("tokens", 11, length=WORDS), "FasterRCNN": Task("boxes", 5)}
    task = tasks.get(name, Task("multiclass", 3))
    targets = {"tokens": (2, 3, WORDS), "boxes": (2, 3, 5, 4)}.get(task.kind, (2, 3))
    whole = name in ("TextCNN", "DistilBERT", "CodeGPT", "GIN")
    x = torch.empty(2, 3, *shape, dtype=torch.long if whole else torch.float32, device=DEVICE)
    dtype = torch.float32 if task.kind == "boxes" else torch.long
    y = torch.empty(targets, dtype=dtype, device=DEVICE)
    return Problem(shape, task, ("a", "b"), 100), Batch(x, y)


def updated(name: str, method: str) -> tuple[Algorithm, Tensor]:
    """A method after two updates of a network on the device, and the inputs of an environment."""
    problem, batch = problem_and_batch(name)
    values, shape = SMALL[name]
    cls: Any = algorithms.get(method)
    network = build(name, values, shape, problem.task.num_outputs, seed=0)
    algorithm = cls(network, problem, checked(cls.Hparams, defaults(cls.Hparams), method))
    move_algorithm(algorithm)
    for step in range(2):
        algorithm.train_step(replace(batch), step)
    return algorithm, batch.x[0]


def seen_by_transformers(name: str) -> AbstractContextManager[Any]:
    """Within it transformers takes fake tensors for real ones, of which it reads more."""
    if name not in ("DistilBERT", "CodeGPT"):
        return nullcontext()
    return mock.patch("transformers.utils.import_utils.is_fake_tensor", lambda tensor: False)


def marked(names: list[str], waits: dict[str, str]) -> list[Any]:
    """Each network as a parameter, expected to wait where it does."""
    found = []
    for name in names:
        marks = [] if name in ("MLP", "ConvNet", "TextCNN") else [pytest.mark.nightly]
        if name in waits:
            marks.append(pytest.mark.xfail(strict=True, reason=waits[name]))
        found.append(pytest.param(name, marks=marks))
    return found


OURS = [*ours(networks)]
OURS.remove("TextModel")  # DistilBERT stands for the package's models, which need files
MASKED = [n for n in OURS if n not in ("FasterRCNN", "timm", "DenseNet121", "ResNet50", "GIN")]
"""The first two have no gradients of units, or those of a tower; of the others the layers are known."""


@pytest.mark.parametrize("name", marked(OURS, WAITS))
def test_a_step_and_a_prediction_stay_on_the_device(name: str) -> None:
    with on_device() as watch, seen_by_transformers(name):
        algorithm, x = updated(name, "ERM")
        algorithm.eval()
        algorithm.predict(x)
    assert not watch.crossings


@pytest.mark.filterwarnings("ignore:the gradients of")
@pytest.mark.parametrize("method", ["ANDMask", "ExampleANDMask"])
@pytest.mark.parametrize("name", marked(MASKED, WAITS))
def test_a_step_of_a_mask_stays_on_the_device(name: str, method: str) -> None:
    with on_device() as watch, seen_by_transformers(name):
        updated(name, method)
    assert not [crossing for crossing in watch.crossings if "and_mask.py" not in crossing]
