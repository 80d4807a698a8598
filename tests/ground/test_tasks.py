import importlib
import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from oodbench.datasets.wilds_package import package
from torch import Tensor, nn

from oodbench.conformance.tiny_problems import TASKS, tiny_batch
from oodbench.errors import UserError
from oodbench.metrics import is_higher_better, values_of_examples
from oodbench.tasks import Task

ALL = pytest.mark.parametrize("task", list(TASKS.values()), ids=list(TASKS))


def tiny_logits(task: Task, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(5, 6, task.num_outputs, generator=generator, dtype=torch.float64)


def written_out(task: Task, logits: Tensor, y: Tensor) -> Tensor:
    """The loss of one example (C,) by its definition; of labels the mean of the known ones."""
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


@pytest.mark.parametrize(
    ("kind", "outputs", "sentence"),
    [
        ("bynary", 1, r"^unknown kind of task 'bynary'; did you mean binary\?$"),
        ("multiclass", 0, "^`num_outputs` must be a whole number from 1 on, not 0$"),
    ],
)
def test_a_task_that_cannot_be_is_refused(kind: Any, outputs: int, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Task(kind, outputs)


@pytest.mark.parametrize(
    ("task", "shape", "values"),
    [
        (Task("binary"), (7, 1), 1),
        (Task("multiclass", 3), (7, 3), 3),
        (Task("tokens", 3, 4), (7, 4, 3), 12),
        (Task("boxes", 2), (7, 2, 5), 10),
    ],
)
def test_the_shape_of_logits(task: Task, shape: tuple[int, ...], values: int) -> None:
    assert (task.shape(7), task.values) == (shape, values)


@ALL
def test_losses_are_those_of_the_definitions(task: Task) -> None:
    logits, y = tiny_logits(task), tiny_batch(task).y
    losses = task.losses(logits, y)
    assert losses.shape == (5, 6)
    share = torch.ones(5, 6, dtype=torch.float64)
    if task.kind == "multilabel":
        counts = y.isfinite().sum(-1).double()
        share = counts / counts.mean(1, keepdim=True)
    for e in range(5):
        for b in range(6):
            wanted = written_out(task, logits[e, b], y[e, b])
            torch.testing.assert_close(losses[e, b], share[e, b] * wanted)


def assert_gradients(task: Task, logits: Tensor, y: Tensor) -> None:
    """The gradients of the scale and of the logits are those of autograd."""
    scale = torch.ones(5, 6, 1, dtype=torch.float64, requires_grad=True)
    scaled = scale * logits
    losses = task.losses(scaled, y)
    of_scale, of_logits = torch.autograd.grad(losses.sum(), (scale, scaled))
    found = task.scale_gradients(logits, y).unsqueeze(-1)
    torch.testing.assert_close(found, of_scale, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(task.logit_gradients(logits, y), of_logits)


@ALL
@given(seed=st.integers(0, 10**6))
def test_gradients_of_scale_and_logits_are_those_of_autograd(task: Task, seed: int) -> None:
    assert_gradients(task, tiny_logits(task, seed), tiny_batch(task, seed).y)


def test_gradients_of_weights_that_do_not_add_up_to_one_are_those_of_autograd() -> None:
    task = TASKS["distribution"]
    assert_gradients(task, tiny_logits(task), 3 * tiny_batch(task).y)


@ALL
@pytest.mark.parametrize("of", ["scale_gradients", "logit_gradients"])
def test_gradients_of_scale_and_logits_can_be_differentiated(task: Task, of: str) -> None:
    y, function = tiny_batch(task).y, getattr(task, of)
    assert torch.autograd.gradcheck(lambda z: function(z, y), (tiny_logits(task).requires_grad_(),))


def test_a_distribution_at_a_corner_is_a_class() -> None:
    logits = tiny_logits(TASKS["distribution"])
    classes = torch.arange(30).view(5, 6) % 4
    corners = F.one_hot(classes, 4).double()
    of_classes = Task("multiclass", 4).losses(logits, classes)
    of_corners = TASKS["distribution"].losses(logits, corners)
    torch.testing.assert_close(of_corners, of_classes)


def test_groups_are_pairs_of_target_and_attribute_those_of_a_class_side_by_side() -> None:
    targets, attributes = torch.tensor([0, 1, 2, 2]), torch.tensor([1, 0, 0, 1])
    assert Task("multiclass", 3).groups(targets, attributes, 2).tolist() == [1, 2, 4, 5]
    binary = Task("binary").groups(torch.tensor([0.0, 1.0]), torch.tensor([2, 1]), 3)
    assert binary.tolist() == [2, 4] and not binary.is_floating_point()
    assert Task("regression").groups(targets.double(), attributes, 2).tolist() == [1, 0, 0, 1]


def test_labels_weigh_alike_as_in_the_package_wilds() -> None:
    package()
    loss = importlib.import_module("wilds.common.metrics.loss").MultiTaskLoss
    package_loss = loss(loss_fn=nn.BCEWithLogitsLoss(reduction="none"))
    task, batch = TASKS["multilabel"], tiny_batch(TASKS["multilabel"])
    logits, y = tiny_logits(task), batch.y.clone()
    y[1, :3] = y[2, 0, 1] = torch.nan
    risks = task.losses(logits, y).mean(1)
    for e in range(5):
        wanted = package_loss.compute(logits[e], y[e], return_dict=False)
        torch.testing.assert_close(risks[e].float(), wanted)


@pytest.mark.parametrize(
    ("task", "good", "bad", "message"),
    [
        (Task("binary"), [0.0, 1.0], [0.0, 2.0], "the target of example 1 is 2, and it must be 0"),
        (Task("binary"), [0.0, 1.0], [0, 1], "targets of the task binary are torch.float32, not"),
        (Task("multiclass", 3), [0, 2], [0, 3], "is 3, and classes are numbered from 0 to 2"),
        (Task("multiclass", 3), [0, 2], [0.0, 2.0], "are torch.int64, not torch.float32"),
        (Task("multilabel", 2), [[0.0, torch.nan]], [[1.0, 0.5]], "is 0.5, and a label must be"),
        (Task("distribution", 2), [[0.3, 0.7]], [[0.3, 0.8]], "is 0.3, 0.8, and probabilities"),
        (Task("regression"), [[0.3]], [[torch.inf]], "is inf, and it must be finite"),
        (Task("tokens", 3, 2), [[0.0, torch.nan]], [[0.5, 1.0]], "is 0.5, and tokens are"),
        (Task("tokens", 3, 2), [[0.0, 2.0]], [[1.0, 3.0]], "is 3, .* from 0 to 2, or NaN"),
        (Task("boxes", 2), [[[0.0, 0, 1, 1]]], [[[2.0, 0, 1, 1]]], "a box is x1, y1, x2, y2"),
    ],
)
def test_targets_of_another_kind_are_told(task: Task, good: Any, bad: Any, message: str) -> None:
    assert task.mistake(torch.tensor(good)) is None
    assert re.search(message, task.mistake(torch.tensor(bad)) or "")


@pytest.mark.parametrize("kind", ["multilabel", "tokens"])
def test_an_example_without_any_known_label_is_told(kind: Any) -> None:
    y = torch.tensor([[1.0, torch.nan], [torch.nan, torch.nan]])
    assert Task(kind, 2, 2).known(y).tolist() == [True, False]
    assert Task("multiclass", 2).known(torch.tensor([0, 1, 1])).all()


def test_tokens_are_classes_at_each_place_that_is_asked_for() -> None:
    task, each = Task("tokens", 5, length=4), Task("multiclass", 5)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 2, 4, 5, generator=generator, dtype=torch.float64)
    y = torch.randint(5, (3, 2, 4), generator=generator).double()
    y[0, 0, :2] = y[1, 1] = torch.nan
    known = y.isfinite()
    for name in ("losses", "scale_gradients"):
        of_task, of_each = getattr(task, name), getattr(each, name)
        found, places = of_task(logits, y), of_each(logits, y.nan_to_num().long())
        for e in range(3):  # the mean over an environment's examples is that over its known tokens
            torch.testing.assert_close(found[e].mean(), places[e][known[e]].mean())
        assert found[1, 1] == 0
    logits[0, 1, 3] = torch.inf
    right = (logits.argmax(-1) == y) & logits.isfinite().all(-1)
    accuracy = values_of_examples(task, logits, y)["accuracy"]
    torch.testing.assert_close(accuracy[0, 0], right[0, 0, 2:].double().mean())
    assert task.kept(logits)[0, 1, 3] == -1 and task.kept(logits).shape == (3, 2, 4)


@ALL
@settings(max_examples=20)
@given(seed=st.integers(0, 10**6))
def test_no_constant_output_is_better_than_the_best_one(task: Task, seed: int) -> None:
    y = tiny_batch(task, seed).y.flatten(0, 1)
    generator = torch.Generator().manual_seed(seed)
    for metrics, best in task.constants(y).items():
        noise = torch.randn(20, *best.shape, generator=generator)
        sides = 9 * torch.eye(best.numel()).view(-1, *best.shape)
        others = torch.cat([noise, -sides, sides, best + 0.1 * noise])
        values = values_of_examples(task, best.expand(len(y), *best.shape), y)
        for other in others:
            found = values_of_examples(task, other.expand(len(y), *best.shape), y)
            for metric in metrics:
                sign = 1 if is_higher_better(metric) else -1
                gain = sign * (values[metric].mean() - found[metric].mean())
                assert gain >= -1e-5, (metric, other)


def test_the_constant_answer_of_classes_is_the_majority_and_the_frequencies() -> None:
    task = Task("multiclass", 4)
    (output,) = task.constants(torch.tensor([2, 0, 2, 2, 1])).values()
    torch.testing.assert_close(output.softmax(-1), torch.tensor([0.2, 0.2, 0.6, 0.0]))
    unseen = values_of_examples(task, output.expand(1, 4), torch.tensor([3]))["loss"]
    assert 16 < unseen.item() < 17  # finite, though training had no such class
    (logit,) = Task("binary").constants(torch.tensor([1.0, 0.0, 1.0, 1.0])).values()
    assert logit.sigmoid().tolist() == pytest.approx([0.75])


def test_a_constant_token_is_the_most_frequent_one_of_its_place() -> None:
    y = torch.tensor([[0.0, 2.0], [0.0, torch.nan], [1.0, 2.0]])
    (output,) = Task("tokens", 3, 2).constants(y).values()
    assert output.shape == (2, 3) and output.argmax(-1).tolist() == [0, 2]
    # of the second example one token is known, so that it counts twice
    assert output[0].softmax(-1).tolist() == pytest.approx([0.75, 0.25, 0.0], abs=1e-6)
    # boxes have no constant answer
    assert Task("boxes", 3).constants(torch.zeros(2, 1, 4)) == {}
