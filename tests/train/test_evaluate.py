"""The metrics of predictors, and of constant answers, on every split."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from oodbench.datasets import Dataset, Environment
from oodbench.errors import UserError
from oodbench.metrics.builtin import Loss
from oodbench.tasks import Task
from oodbench.train import evaluate as module
from oodbench.train.evaluate import Scored, constant_answer, evaluate, logits
from oodbench.train.loading import load_data
from oodbench.train.run import Run
from oodbench.train.settings import TrainSettings
from tests.helpers.results.sweeps import tiny


def test_values_are_means_over_each_split(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(50, 3, generator=generator)
    y = (torch.rand(50, generator=generator) > 0.5).float()
    parts = {"in": torch.arange(40), "out": torch.arange(40, 50)}
    task = Task("binary")

    def predict(x: torch.Tensor) -> torch.Tensor:
        return x[:, :1]

    found = evaluate(predict, Scored({"a": Environment(x, y)}, {"a": parts}, task))
    values = {(e.split, e.metric): (e.value, e.count) for e in found}
    for split, index in parts.items():
        right = ((x[index, 0] > 0) == (y[index] > 0.5)).double().mean().item()
        assert values[split, "accuracy"][0] == pytest.approx(right, abs=1e-12)
        assert values[split, "accuracy"][1] == len(index)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(x[index, 0], y[index])
        assert values[split, "loss"][0] == pytest.approx(loss.item(), rel=1e-6)
    monkeypatch.setattr(Loss, "is_proportion", True)
    wide = Environment(100 * x, y)
    with pytest.raises(UserError, match=r"the metric loss is \d+.*, and its `is_proportion` says"):
        evaluate(predict, Scored({"a": wide}, {"a": parts}, task))
    monkeypatch.setattr(Loss, "is_proportion", False)
    monkeypatch.setattr(module, "CHUNK", (7, 7))
    chunked = evaluate(predict, Scored({"a": Environment(x, y)}, {"a": parts}, task))
    assert chunked == found


def test_an_example_of_no_batch_has_no_prediction() -> None:
    x, batches = torch.ones(40, 2), [torch.arange(1, 20), torch.arange(20, 40)]
    data = {"a": Environment(x, torch.ones(40))}
    scored = Scored(
        data, {"a": {"in": torch.arange(1, 40)}}, Task("binary"), batches={"a": batches}
    )
    kept = logits(lambda x: x[:, :1], scored)["a"]
    assert kept[0].isnan() and (kept[1:] == 1).all()


@pytest.mark.parametrize(
    ("shape", "sizes"), [((3,), [8192, 808]), ((2, 14, 14), [334, 266]), ((3, 64, 64), [64, 36])]
)
def test_large_inputs_are_evaluated_in_smaller_pieces(
    shape: tuple[int, ...], sizes: list[int]
) -> None:
    total = sum(sizes)
    data = Environment(torch.zeros(total, *shape), torch.zeros(total, 1))
    seen = []

    def predict(x: torch.Tensor) -> torch.Tensor:
        seen.append(len(x))
        return torch.zeros(len(x), 1)

    places = {"a": {"in": torch.arange(total)}}
    evaluate(predict, Scored({"a": data}, places, Task("regression")))
    assert seen == sizes


def test_metrics_of_a_whole_split_see_its_logits() -> None:
    x, y = torch.arange(6.0).unsqueeze(1), torch.zeros(6, 1)
    parts = {"in": torch.tensor([0, 2, 5]), "out": torch.tensor([4]), "none": torch.arange(0)}
    seen = {}

    def largest(name: str, index: torch.Tensor, logits: torch.Tensor) -> dict[str, float]:
        seen[name, tuple(index.tolist())] = logits[:, 0].tolist()
        return {"largest": float(logits.max())}

    environments, task = {"a": Environment(x, y)}, Task("regression")
    found = evaluate(lambda x: x, Scored(environments, {"a": parts}, task, whole=largest))
    assert seen == {("a", (0, 2, 5)): [0, 2, 5], ("a", (4,)): [4]}
    values = {(e.split, e.metric): (e.value, e.count) for e in found}
    assert values["in", "largest"] == (5.0, 3) and values["out", "largest"] == (4.0, 1)
    assert len(values) == 4


def test_it_is_the_mean_of_the_pooled_training_examples_on_every_split() -> None:
    run = Run(next(iter(tiny().runs.values())), TrainSettings())
    data, found = run.data, run.context["constant"]
    seen = [data.environments[name].y[data.splits[name]["in"]] for name in run.names]
    mean = torch.cat(seen).mean(0)
    assert list(found) == ["mse"] and set(found["mse"]) == set(data.environments)
    for name, environment in data.environments.items():
        for split, index in data.splits[name].items():
            wanted = (environment.y[index] - mean).square().mean().item()
            assert found["mse"][name][split] == pytest.approx(wanted, rel=1e-6)


def test_metrics_of_whole_splits_are_those_of_the_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    def whole(dataset: Dataset, name: str, index: Tensor, logits: Tensor) -> dict[str, float]:
        assert (logits == logits[0]).all() and len(logits) == len(index)
        return {"first": float(logits[0, 0]), "undefined": float("nan")}

    spec = next(iter(tiny().runs.values()))
    data = load_data(spec, TrainSettings())
    monkeypatch.setattr(type(data.dataset), "split_metrics", whole, raising=False)
    fresh = replace(data)
    found = constant_answer(fresh, tuple(data.environments)[:2], data.environments)
    (value,) = {v for splits in found["first"].values() for v in splits.values()}
    assert value is not None
    assert {v for splits in found["undefined"].values() for v in splits.values()} == {None}
