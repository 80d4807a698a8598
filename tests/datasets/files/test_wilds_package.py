"""What the package makes of a network's outputs is what its paper's metrics are, by their definitions."""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import pearsonr
from sklearn.metrics import average_precision_score

from oodbench.metrics import values_of_examples
from tests.helpers.data.wilds_copies import COPIES, logits, opened, right, rows

ALL = pytest.mark.parametrize("name", COPIES)


@pytest.mark.slow
@ALL
def test_the_official_metric_of_right_predictions_is_the_best(name: str, wilds_dir: Path) -> None:
    dataset = opened(name, wilds_dir)
    y = dataset.load(0)["test"].y
    kept = dataset.task.kept(right(dataset, y))
    found = dataset.split_metrics("test", torch.arange(len(y)), kept)
    assert found[dataset.metric] == pytest.approx(1)
    assert dataset.metric in found and dataset.higher_is_better
    assert not any(":" in metric for metric in found)


@pytest.mark.parametrize(
    ("name", "field", "metric", "percentile"),
    [
        ("Camelyon17", "slide", "acc_wg", 0),
        ("FMoW", "region", "acc_worst_region", 0),
        ("FMoW", "year", "acc_worst_year", 0),
        ("Amazon", "user", "10th_percentile_acc", 10),
    ],
)
def test_accuracies_of_a_fields_values(
    name: str, field: str, metric: str, percentile: int, wilds_dir: Path
) -> None:
    dataset = opened(name, wilds_dir)
    _, y, fields = rows(dataset, "test")
    # of many classes only the first ones are in the copy
    guess = logits(dataset, len(y)) + 4 * (torch.arange(dataset.task.num_outputs) <= y.max())
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    right, of_row = guess.argmax(1).numpy() == y[order], fields[field][order]
    each = [right[of_row == value].mean() for value in set(of_row)]
    found = dataset.split_metrics("test", order, guess)
    assert found[metric] == pytest.approx(np.percentile(each, percentile))
    assert found["acc_avg"] == pytest.approx(right.mean())


def test_worse_correlation_of_poverty(wilds_dir: Path) -> None:
    dataset = opened("PovertyMap", wilds_dir)
    _, y, fields = rows(dataset, "test")
    guess = torch.from_numpy(y) + logits(dataset, len(y))
    found = dataset.split_metrics("test", torch.arange(len(y)), guess)
    split = [fields["urban"] == u for u in (0, 1)]
    r = [pearsonr(guess[s, 0].numpy(), y[s, 0])[0] for s in split]
    assert found["r_wg"] == pytest.approx(min(r), rel=1e-5)
    assert found["mse_avg"] == pytest.approx(((guess.numpy() - y) ** 2).mean())


def test_average_precision_of_molpcba(wilds_dir: Path) -> None:
    dataset = opened("MolPCBA", wilds_dir)
    _, y, _ = rows(dataset, "val")
    guess = logits(dataset, len(y))
    each = []
    for labels, scores in zip(y.T, guess.numpy().T, strict=True):
        known = np.isfinite(labels)
        if 0 < labels[known].sum() < known.sum():
            each.append(average_precision_score(labels[known], scores[known]))
    found = dataset.split_metrics("val", torch.arange(len(y)), guess)
    assert found["ap"] == pytest.approx(np.mean(each))


def test_accuracies_of_py150(wilds_dir: Path) -> None:
    """`acc` is that of classes and methods; a token that is not asked for counts nowhere."""
    dataset = opened("Py150", wilds_dir)
    _, y, fields = rows(dataset, "test")
    kinds = np.stack([fields[f"tok_{k}_type"] for k in range(16)], 1)
    outputs = right(dataset, torch.from_numpy(y))
    outputs[::2] = torch.randn(outputs[::2].shape)
    kept = dataset.task.kept(outputs)
    hit = kept.numpy() == y
    found = dataset.split_metrics("test", torch.arange(len(y)), kept)
    assert found["acc"] == pytest.approx(hit[kinds < 2][kinds[kinds < 2] >= 0].mean())
    assert found["Acc (Overall)"] == pytest.approx(hit[np.isfinite(y)].mean())
    assert 0.4 < found["acc"] < 0.7 and np.isnan(y[:, 0]).all()
    ours = values_of_examples(dataset.task, outputs, torch.from_numpy(y))["accuracy"]
    assert ours.mean() == pytest.approx(found["Acc (Overall)"])


def test_detection_accuracy_of_globalwheat(wilds_dir: Path) -> None:
    """The mean over sessions of that of images, for boxes in pixels of smaller images."""
    dataset = opened("GlobalWheat", wilds_dir, size=64)
    _, y, fields = rows(dataset, "test")
    boxes = right(dataset, torch.from_numpy(y))
    boxes[1, 0, :4] += 3  # overlaps by more than a half
    boxes[2, 0, :4] += 12  # false, and the true one is missed
    boxes[3, 0, 4] = 0.4  # not sure enough
    boxes[5] = boxes[5, :1]  # one thing found thrice
    found = dataset.split_metrics("test", torch.arange(len(y)), boxes)
    ours = values_of_examples(dataset.task, boxes, torch.from_numpy(y))["accuracy"].numpy()
    assert ours == pytest.approx([1, 1, 1 / 3, 2 / 3, 1, 1 / 3])
    sessions = [ours[fields["session"] == s].mean() for s in (30, 31)]
    assert found["detection_acc_avg_dom"] == pytest.approx(np.mean(sessions))
    assert found["detection_acc_avg"] == pytest.approx(ours.mean())


def test_a_part_of_a_split_is_evaluated_alone(wilds_dir: Path) -> None:
    dataset = opened("BDD100K", wilds_dir)
    _, y, _ = rows(dataset, "test")
    part = torch.tensor([3, 1, 7])
    guess = logits(dataset, 3)
    found = dataset.split_metrics("test", part, guess)
    assert found == pytest.approx({"acc_all": ((guess > 0).numpy() == y[part]).mean()})


def test_predictions_that_are_not_finite(wilds_dir: Path) -> None:
    camelyon, poverty = opened("Camelyon17", wilds_dir), opened("PovertyMap", wilds_dir)
    nan = torch.full((12, 2), float("nan"))
    assert camelyon.split_metrics("test", torch.arange(12), nan)["acc_avg"] == 0
    bdd = opened("BDD100K", wilds_dir)
    nan = torch.full((20, 9), float("nan"))
    assert bdd.split_metrics("test", torch.arange(20), nan)["acc_all"] == 0
    count = len(poverty.places["test"])
    for value in (float("inf"), 0.5):  # a constant has no correlation
        found = poverty.split_metrics("test", torch.arange(count), torch.full((count, 1), value))
        assert list(found) == ["r_wg"] and np.isnan(found["r_wg"])
