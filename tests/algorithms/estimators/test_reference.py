import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.svm import SVC, SVR

from oodbench.algorithms import Problem, algorithms
from oodbench.networks.base import build
from oodbench.sweep.plan import single
from oodbench.tasks import Task
from oodbench.train.run import Run
from oodbench.train.settings import TrainSettings
from tests.helpers.results.sweeps import ended

CLASSIFIERS: dict[str, Any] = {
    "Forest": RandomForestClassifier,
    "BoostedTrees": HistGradientBoostingClassifier,
    "SupportVectors": SVC,
    "Neighbours": KNeighborsClassifier,
    "Logistic": partial(LogisticRegression, max_iter=300),
}
REGRESSORS: dict[str, Any] = {
    "Forest": partial(RandomForestRegressor, max_features="sqrt"),
    "BoostedTrees": HistGradientBoostingRegressor,
    "SupportVectors": SVR,
    "Neighbours": KNeighborsRegressor,
}
SEEDED = ("Forest", "BoostedTrees")


def run_of(name: str, dataset: dict[str, Any]) -> Run:
    return Run(single(dataset, {"name": name}, steps=2), TrainSettings())


def inputs(run: Run, x: Any) -> Any:
    """What scikit-learn is given for the inputs of a run's examples."""
    return run.data.dataset.transform(x, None).flatten(1).double().numpy()


def pooled(run: Run) -> tuple[Any, Any]:
    """The examples that a run trains on, as arrays."""
    data = run.data
    x = torch.cat([data.environments[n].x[data.splits[n]["in"]] for n in run.names])
    y = torch.cat([data.environments[n].y[data.splits[n]["in"]] for n in run.names])
    return inputs(run, x), y.numpy()


def seeded(name: str, run: Run) -> dict[str, Any]:
    return {"random_state": run.problem.seed % 2**32} if name in SEEDED else {}


@pytest.mark.parametrize("name", CLASSIFIERS)
@pytest.mark.parametrize(
    "dataset",
    [{"name": "DesertRodents", "num_examples": 60}, {"name": "Spirals", "num_examples": 128}],
    ids=lambda d: d["name"],
)
def test_predictions_and_scores_are_those_of_scikit_learn(
    name: str, dataset: dict[str, Any]
) -> None:
    run = run_of(name, dataset)
    x, y = pooled(run)
    direct = CLASSIFIERS[name](**seeded(name, run)).fit(x, y.astype(int))
    run.run_steps(2)
    evaluations = {(e.environment, e.split, e.metric): e.value for e in run.evaluate()}
    for environment, data in run.data.environments.items():
        predicted = direct.predict(inputs(run, data.x))
        logits = run.predict(data.x)
        own = logits > 0 if run.problem.task.kind == "binary" else logits.argmax(1)
        np.testing.assert_array_equal(own.flatten().numpy(), predicted)
        right = predicted == data.y.numpy()
        for split, places in run.data.splits[environment].items():
            found = evaluations[environment, split, "accuracy"]
            assert found == pytest.approx(right[places.numpy()].mean(), abs=1e-12)


@pytest.mark.parametrize("name", REGRESSORS)
def test_numbers_are_predicted_as_by_scikit_learn(name: str) -> None:
    run = run_of(name, {"name": "LinearSEM", "variant": "FOU", "num_examples": 50})
    x, y = pooled(run)
    direct = REGRESSORS[name](**seeded(name, run)).fit(x, y[:, 0])
    for data in run.data.environments.values():
        wanted = direct.predict(inputs(run, data.x))
        np.testing.assert_allclose(run.predict(data.x)[:, 0].numpy(), wanted)


def test_a_run_has_one_record_at_its_end(tmp_path: Path) -> None:
    dataset = {"name": "LinearSEM", "variant": "FOU", "num_examples": 50}
    spec = single(dataset, {"name": "Forest"}, steps=4, evaluate_every=2)
    assert [record["step"] for record in ended(spec, tmp_path / "run").records()] == [4]


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_one_class_alone_and_few_neighbours_are_no_mistake(name: str) -> None:
    cls: Any = algorithms.get(name)
    problem = Problem((2,), Task("multiclass", 3), ("a",), 1)
    method = cls(build("Linear", {}, (2,), 3, 0), problem, cls.Hparams())
    method.fit_examples(torch.randn(3, 2), torch.ones(3))
    logits = method.predict(torch.randn(4, 2))
    assert logits.argmax(1).tolist() == [1] * 4
    assert math.isfinite(float(logits.sum()))
    method.fit_examples(torch.randn(3, 2), torch.tensor([0.0, 2.0, 2.0]))
    assert set(method.predict(torch.randn(40, 2)).argmax(1).tolist()) <= {0, 2}
