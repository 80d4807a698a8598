from dataclasses import replace

import pytest
import torch
from torch import Tensor

from oodbench.datasets import Dataset
from oodbench.train.evaluate import constant_answer
from oodbench.train.loading import load_data
from oodbench.train.run import Run
from oodbench.train.settings import TrainSettings
from tests.helpers.results.sweeps import tiny


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


def test_all_runs_of_a_trial_have_the_same_one_and_it_is_worked_out_once() -> None:
    plan = tiny(trials=1)
    runs = [Run(spec, TrainSettings()) for spec in plan.runs.values()]
    assert {run.spec.algorithm for run in runs} == {"ERM", "IRM"}
    first, second = (constant_answer(run.data, run.names, run.scored) for run in runs)
    assert first is second


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
