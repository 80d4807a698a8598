import pytest
import torch

from oodbench import evaluate as module
from oodbench.datasets import Environment
from oodbench.evaluate import evaluate
from oodbench.tasks import Task


def test_values_are_means_over_each_split(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(50, 3, generator=generator)
    y = (torch.rand(50, generator=generator) > 0.5).float()
    parts = {"in": torch.arange(40), "out": torch.arange(40, 50)}
    task = Task("binary")

    def predict(x: torch.Tensor) -> torch.Tensor:
        return x[:, :1]

    found = evaluate(predict, {"a": Environment(x, y)}, {"a": parts}, task)
    values = {(e.split, e.metric): (e.value, e.count) for e in found}
    for split, index in parts.items():
        right = ((x[index, 0] > 0) == (y[index] > 0.5)).double().mean().item()
        assert values[split, "accuracy"][0] == pytest.approx(right, abs=1e-12)
        assert values[split, "accuracy"][1] == len(index)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(x[index, 0], y[index])
        assert values[split, "loss"][0] == pytest.approx(loss.item(), rel=1e-6)
    monkeypatch.setattr(module, "CHUNK", 7)
    chunked = evaluate(predict, {"a": Environment(x, y)}, {"a": parts}, task)
    assert chunked == found


def test_an_empty_split_gives_no_value() -> None:
    x, y = torch.zeros(4, 2), torch.zeros(4, 1)
    parts = {"in": torch.arange(4), "out": torch.arange(0)}
    found = evaluate(lambda x: x[:, :1], {"a": Environment(x, y)}, {"a": parts}, Task("regression"))
    assert [(e.environment, e.split, e.metric, e.value) for e in found] == [("a", "in", "mse", 0.0)]
