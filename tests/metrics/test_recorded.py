import importlib

import pytest
import torch
from oodbench.datasets.wilds_package import package
from sklearn.metrics import brier_score_loss, log_loss

from oodbench.conformance.tiny_problems import TASKS, tiny_batch
from oodbench.metrics import is_higher_better, values_of_examples
from oodbench.tasks import Task


def test_what_counts_as_right() -> None:
    nan, inf = float("nan"), float("inf")
    logits = torch.tensor([[1.0], [-1.0], [-1.0], [0.0], [nan], [inf]])
    y = torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0, 1.0])
    metrics = values_of_examples(TASKS["binary"], logits, y)
    assert metrics["accuracy"].tolist() == [1, 0, 1, 0, 0, 0]

    logits = torch.tensor([[0.0, 2.0, 1.0], [0.0, 2.0, 1.0], [nan, 0.0, 0.0]])
    metrics = values_of_examples(TASKS["multiclass"], logits, torch.tensor([1, 2, 0]))
    assert metrics["accuracy"].tolist() == [1, 0, 0]
    torch.testing.assert_close(metrics["loss"][0], -logits[0].log_softmax(0)[1])

    logits = torch.tensor([[1.0, -1.0, 1.0], [nan, 1.0, 1.0], [1.0, 1.0, 1.0]])
    y = torch.tensor([[1.0, 1.0, nan], [0.0, 1.0, 1.0], [nan, nan, nan]])
    metrics = values_of_examples(TASKS["multilabel"], logits, y)
    assert metrics["accuracy"].tolist() == pytest.approx([1 / 2, 2 / 3, 0])  # nothing known: 0
    assert metrics["loss"][2] == 0

    y = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.7, 0.1, 0.1, 0.1]])
    metrics = values_of_examples(TASKS["distribution"], y.log(), y.flip(0))
    assert metrics["agreement"].tolist() == [0, 0]
    same = values_of_examples(TASKS["distribution"], y.log(), y)
    assert same["agreement"].tolist() == [1, 1]
    assert same["kl"].tolist() == pytest.approx([0, 0], abs=1e-6)

    outputs, y = torch.tensor([[1.0, 3.0]]), torch.tensor([[0.0, 1.0]])
    assert values_of_examples(TASKS["regression"], outputs, y)["mse"].tolist() == [2.5]


@pytest.mark.parametrize("classes", [2, 5])
def test_log_likelihood_and_brier_score_are_scikit_learns(classes: int) -> None:
    generator = torch.Generator().manual_seed(classes)
    logits = 3 * torch.randn(300, classes, generator=generator, dtype=torch.double)
    targets = torch.randint(classes, (300,), generator=generator)
    found = values_of_examples(Task("multiclass", classes), logits, targets)
    share, labels = logits.softmax(1).numpy(), list(range(classes))
    wanted = log_loss(targets.numpy(), share, labels=labels)
    assert found["loss"].mean().item() == pytest.approx(wanted, rel=1e-12)
    assert found["loss"].equal(Task("multiclass", classes).losses(logits, targets))
    whole = sum(brier_score_loss(targets.numpy() == c, share[:, c]) for c in labels)
    assert found["brier"].mean().item() == pytest.approx(whole, rel=1e-9)
    if classes == 2:
        binary = values_of_examples(Task("binary"), logits[:, 1:] - logits[:, :1], targets.double())
        half = brier_score_loss(targets.numpy(), share[:, 1])
        assert binary["brier"].mean().item() == pytest.approx(half, rel=1e-9)
        assert binary["loss"].mean().item() == pytest.approx(wanted, rel=1e-9)


def test_a_brier_score_is_never_negative() -> None:
    logits = torch.tensor([[40.0, 0.0, 0.0], [0.1, 0.0, 60.0]])
    found = values_of_examples(Task("multiclass", 3), logits, torch.tensor([0, 2]))["brier"]
    assert (found >= 0).all() and found.max() < 1e-6


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
    found = values_of_examples(Task("boxes", 6), boxes, y)["accuracy"]
    torch.testing.assert_close(found, wanted)
    assert len(set(found.tolist())) > 5


@pytest.mark.parametrize("task", list(TASKS.values()), ids=list(TASKS))
def test_the_default_metric_is_among_the_metrics(task: Task) -> None:
    metrics = values_of_examples(task, torch.zeros(5, 6, task.num_outputs), tiny_batch(task).y)
    assert task.metric in metrics
    assert all(value.shape == (5, 6) for value in metrics.values())
    assert is_higher_better(task.metric) == (task.kind in ("binary", "multiclass", "multilabel"))
