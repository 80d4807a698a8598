import importlib

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from oodbench.conformance.tiny_problems import TASKS, tiny_batch
from oodbench.data.wilds import package
from oodbench.tasks import Task

ALL = pytest.mark.parametrize("task", list(TASKS.values()), ids=list(TASKS))


def tiny_logits(task: Task, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(5, 6, task.num_outputs, generator=generator, dtype=torch.float64)


def written_out(task: Task, logits: Tensor, y: Tensor) -> Tensor:
    """The loss of one example (C,) by its definition."""
    if task.kind == "binary":
        p = 1 / (1 + (-logits[0]).exp())
        return -(y * p.log() + (1 - y) * (1 - p).log())
    if task.kind == "multilabel":
        p = 1 / (1 + (-logits).exp())
        each = -(y * p.log() + (1 - y) * (1 - p).log())
        return torch.stack([loss for loss in each if not loss.isnan()]).mean()
    if task.kind == "regression":
        return torch.stack([(f - t) ** 2 for f, t in zip(logits, y, strict=True)]).mean()
    log_p = (logits.exp() / logits.exp().sum()).log()
    if task.kind == "multiclass":
        return -log_p[int(y)]
    return (y * (y.log() - log_p)).sum()


@ALL
def test_losses_are_those_of_the_definitions(task: Task) -> None:
    logits, y = tiny_logits(task), tiny_batch(task).y
    losses = task.losses(logits, y)
    assert losses.shape == (5, 6)
    for e in range(5):
        for b in range(6):
            torch.testing.assert_close(losses[e, b], written_out(task, logits[e, b], y[e, b]))


@ALL
@given(seed=st.integers(0, 10**6))
def test_scale_gradients_are_those_of_autograd(task: Task, seed: int) -> None:
    logits, y = tiny_logits(task, seed), tiny_batch(task, seed).y
    scale = torch.ones(5, 6, dtype=torch.float64, requires_grad=True)
    losses = task.losses(scale.unsqueeze(-1) * logits, y)
    (wanted,) = torch.autograd.grad(losses.sum(), scale)
    torch.testing.assert_close(task.scale_gradients(logits, y), wanted, rtol=1e-10, atol=1e-12)


@ALL
def test_scale_gradients_can_be_differentiated(task: Task) -> None:
    y = tiny_batch(task).y
    logits = tiny_logits(task).requires_grad_()

    def function(z: Tensor) -> Tensor:
        return task.scale_gradients(z, y)

    assert torch.autograd.gradcheck(function, (logits,))


def test_a_distribution_at_a_corner_is_a_class() -> None:
    logits = tiny_logits(TASKS["distribution"])
    classes = torch.arange(30).view(5, 6) % 4
    corners = F.one_hot(classes, 4).double()
    of_classes = Task("multiclass", 4).losses(logits, classes)
    of_corners = TASKS["distribution"].losses(logits, corners)
    torch.testing.assert_close(of_corners, of_classes)


@ALL
def test_the_default_metric_is_among_the_metrics(task: Task) -> None:
    metrics = task.metrics(tiny_logits(task), tiny_batch(task).y)
    assert task.metric in metrics
    assert all(value.shape == (5, 6) for value in metrics.values())
    assert task.higher_is_better == (task.kind in ("binary", "multiclass", "multilabel"))


def test_what_counts_as_right() -> None:
    nan, inf = float("nan"), float("inf")
    logits = torch.tensor([[1.0], [-1.0], [-1.0], [0.0], [nan], [inf]])
    metrics = TASKS["binary"].metrics(logits, torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0, 1.0]))
    assert metrics["accuracy"].tolist() == [1, 0, 1, 0, 0, 0]

    logits = torch.tensor([[0.0, 2.0, 1.0], [0.0, 2.0, 1.0], [nan, 0.0, 0.0]])
    metrics = TASKS["multiclass"].metrics(logits, torch.tensor([1, 2, 0]))
    assert metrics["accuracy"].tolist() == [1, 0, 0]
    torch.testing.assert_close(metrics["loss"][0], -logits[0].log_softmax(0)[1])

    logits = torch.tensor([[1.0, -1.0, 1.0], [nan, 1.0, 1.0], [1.0, 1.0, 1.0]])
    y = torch.tensor([[1.0, 1.0, nan], [0.0, 1.0, 1.0], [nan, nan, nan]])
    metrics = TASKS["multilabel"].metrics(logits, y)
    assert metrics["accuracy"].tolist() == pytest.approx([1 / 2, 2 / 3, 0])  # nothing known: 0
    assert metrics["loss"][2] == 0

    y = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.7, 0.1, 0.1, 0.1]])
    metrics = TASKS["distribution"].metrics(y.log(), y.flip(0))
    assert metrics["agreement"].tolist() == [0, 0]
    assert TASKS["distribution"].metrics(y.log(), y)["agreement"].tolist() == [1, 1]
    torch.testing.assert_close(
        TASKS["distribution"].metrics(y.log(), y)["kl"], torch.zeros(2), atol=1e-6, rtol=0
    )

    metrics = TASKS["regression"].metrics(torch.tensor([[1.0, 3.0]]), torch.tensor([[0.0, 1.0]]))
    assert metrics["mse"].tolist() == [2.5]


def test_tokens_are_classes_at_each_place_that_is_asked_for() -> None:
    task, each = Task("tokens", 5, length=4), Task("multiclass", 5)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 2, 4, 5, generator=generator, dtype=torch.float64)
    y = torch.randint(5, (3, 2, 4), generator=generator).double()
    y[0, 0, :2] = y[1, 1] = torch.nan
    known = y.isfinite()
    assert task.values == 20
    for name in ("losses", "scale_gradients"):
        of_task, of_each = getattr(task, name), getattr(each, name)
        found, places = of_task(logits, y), of_each(logits, y.nan_to_num().long())
        for e, b in ((0, 0), (0, 1), (2, 1)):
            torch.testing.assert_close(found[e, b], places[e, b][known[e, b]].mean())
        assert found[1, 1] == 0
    logits[0, 1, 3] = torch.inf
    right = (logits.argmax(-1) == y) & logits.isfinite().all(-1)
    accuracy = task.metrics(logits, y)["accuracy"]
    torch.testing.assert_close(accuracy[0, 0], right[0, 0, 2:].double().mean())
    assert task.kept(logits)[0, 1, 3] == -1 and task.kept(logits).shape == (3, 2, 4)


def test_box_accuracy_is_the_packages() -> None:
    package()
    metrics = importlib.import_module("wilds.common.metrics.all_metrics")
    generator = torch.Generator().manual_seed(0)
    boxes, y = torch.full((40, 6, 5), torch.nan), torch.full((40, 5, 4), torch.nan)
    guesses, truths = [], []
    for i in range(40):
        true = 100 * torch.rand(i % 6, 2, generator=generator)
        true = torch.cat([true, true + 30], 1)
        y[i, : len(true)] = true
        near = torch.cat([true, true])[: i % 7]
        near = near + 16 * torch.rand(near.shape, generator=generator) - 8
        scores = torch.rand(len(near), generator=generator)
        boxes[i, : len(near)] = torch.cat([near, scores[:, None]], 1)
        guesses.append({"boxes": near, "scores": scores})
        truths.append({"boxes": true})
    wanted = metrics.DetectionAccuracy()._compute_element_wise(guesses, truths)
    found = Task("boxes", 6).metrics(boxes, y)["accuracy"]
    torch.testing.assert_close(found, wanted)
    assert len(set(found.tolist())) > 5
