"""Runs in float64, where round-off hides nothing."""

from dataclasses import replace
from typing import Any

import pytest

from oodbench.results.run_spec import RunSpec
from oodbench.train import run as run_module
from oodbench.train.loading import Data, load_data
from oodbench.train.run import Run, build_algorithm
from oodbench.train.settings import TrainSettings


def in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every run of a test have its data and its weights in float64."""
    known: dict[int, Data] = {}

    def double(spec: RunSpec, settings: TrainSettings) -> Data:
        data = load_data(spec, settings)
        environments = {
            name: replace(e, x=e.x.double(), y=e.y.double() if e.y.is_floating_point() else e.y)
            for name, e in data.environments.items()
        }
        return known.setdefault(id(data), Data(data.dataset, environments, data.splits))

    def build(*arguments: Any) -> Any:
        algorithm = build_algorithm(*arguments).double()
        algorithm.optimizers = algorithm.configure()
        return algorithm

    monkeypatch.setattr(Run, "own_metrics", lambda self: [])  # of inputs in float32
    monkeypatch.setattr(run_module, "load_data", double)
    monkeypatch.setattr(run_module, "build_algorithm", build)
