"""Regressions are trained in standard units and scored in the user's."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from oodbench.algorithms.group_dro import LARGEST, exponentials

from oodbench.algorithms import algorithms, why_skipped
from oodbench.conformance.tiny_problems import TASKS, tiny_problem
from oodbench.results.directory import Directory
from oodbench.results.predictions import read_predictions
from oodbench.results.run_spec import RunSpec
from oodbench.sweep.plan import single
from oodbench.train.models import evaluate, load_model
from oodbench.train.run import Run
from oodbench.train.settings import TrainSettings
from tests.helpers.algorithms.methods import OF_EACH_KIND, OURS
from tests.helpers.commands import type_in

STEPS = 20


def of_each_kind() -> list[Any]:
    """The methods for regressions; all but one of each kind of change are of the nightly tests."""
    plain = tiny_problem(TASKS["regression"])
    problem = replace(plain, attributes=0, pretrained=False, zero_shot=False)
    able = [n for n in OURS if why_skipped(algorithms.get(n), problem) is None]
    return [pytest.param(n, marks=[pytest.mark.nightly] * (n not in OF_EACH_KIND)) for n in able]


def houses(count: int = 240) -> pd.DataFrame:
    """Prices that follow from two inputs, with noise, in four towns of unequal sizes."""
    stream = np.random.default_rng(0)
    found = pd.DataFrame(
        {"area": stream.normal(90, 30, count), "age": stream.normal(40, 20, count)}
    )
    found["environment"] = np.array(["a", "b", "b", "c", "d", "d"])[np.arange(count) % 6]
    found["target"] = 3 * found["area"] - found["age"] + 98 + stream.normal(0, 5, count)
    return found


def spec(
    folder: Path, algorithm: str, scale: float = 1, offset: float = 0, **hparams: Any
) -> RunSpec:
    """The spec of a run on the houses with other units of the prices."""
    data = houses().assign(target=lambda d: scale * d["target"] + offset)
    name = f"houses-{scale}-{offset}.csv"
    data.to_csv(folder / name, index=False)
    dataset = {"name": "Table", "file": name, "kind": "real"}
    network = {"name": "MLP", "hparams": {"width": 16}}
    entry = {"name": algorithm, "hparams": hparams} if hparams else {"name": algorithm}
    return single(dataset, entry, folder, network=network, steps=STEPS)


def predictions(of: RunSpec, folder: Path) -> np.ndarray:
    """The predictions for all examples after a run's steps, in the targets' units."""
    run = Run(of, TrainSettings(data_dir=folder))
    run.run_steps(STEPS)
    run.algorithm.eval()
    with torch.no_grad():
        return np.concatenate([run.predict(e.x).numpy() for e in run.scored.environments.values()])


@pytest.mark.parametrize("name", of_each_kind())
def test_no_result_depends_on_units(tmp_path: Path, name: str) -> None:
    one, other = spec(tmp_path, name), spec(tmp_path, name, 1000, 5000)
    first, second = predictions(one, tmp_path), predictions(other, tmp_path)
    assert np.isfinite(first).all()
    scale = houses()["target"].std()
    assert np.allclose((second - 5000) / 1000, first, rtol=0, atol=1e-4 * scale)


def test_least_squares_has_an_intercept(tmp_path: Path) -> None:
    of = spec(tmp_path, "LeastSquares", 1000, 5000)
    run = Run(of, TrainSettings(data_dir=tmp_path))
    run.run_steps(1)
    batch = run.batches_at(0)[0]
    assert run.data.units is not None
    x, y = batch.x.flatten(0, 1), run.data.units.predictions(batch.y).flatten(0, 1)
    given = np.column_stack([x, np.ones(len(x))])
    weights = np.linalg.lstsq(given, y.numpy(), rcond=None)[0]
    for environment in run.scored.environments.values():
        inputs = np.column_stack([environment.x, np.ones(len(environment.x))])
        assert np.allclose(run.predict(environment.x), inputs @ weights, rtol=1e-5)


@pytest.mark.nightly
def test_records_predictions_and_loaded_models_are_in_the_users_units(tmp_path: Path) -> None:
    far = houses().assign(target=lambda d: 100 * d["target"] + 1e6)
    far.to_csv(tmp_path / "h.csv", index=False)
    sweep = {
        "name": "houses",
        "datasets": [{"name": "Table", "file": "h.csv", "kind": "real"}],
        "algorithms": ["ERM", "IRM", "LeastSquares"],
        **{"hparam_draws": 4, "trials": 1, "steps": STEPS},
    }
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(sweep))
    options = ["--launcher", "debug", "--yes", "--keep-weights", "last", "--keep-predictions"]
    places = ["--out", tmp_path / "out", "--data-dir", tmp_path, "--vectorize", "8"]
    type_in("sweep", "launch", tmp_path / "s.yaml", *places, *options, code=0)
    results = Directory(tmp_path / "out")
    targets = far.query("environment != 'd'")["target"]
    for name in results.specs():
        run = results.run(name)
        last = list(run.records())[-1]
        mse = {
            (e["environment"], e["split"]): e["value"]
            for e in last["evaluations"]
            if e["metric"] == "mse"
        }
        info = run.info()
        assert info is not None
        context: Any = info.context
        assert context["constant"]["mse"]["d"]["in"] == pytest.approx(targets.var(), rel=0.3)
        kept = read_predictions(run, last["step"])
        for place, p in kept.items():
            for half, chosen in {"in": ~p.out, "out": p.out}.items():
                squares = np.square(p.logits - p.targets)[chosen]
                assert squares.mean() == pytest.approx(mse[place, half], rel=1e-5)
        model = load_model(run.path, rule="last", data_dir=tmp_path)
        assert model.spec.options["file"] == "h.csv"
        again = evaluate(model, "Table", model.spec.options, holdout=0.2, data_dir=tmp_path)
        for row in again.query("metric == 'mse'").itertuples():
            assert row.value == pytest.approx(mse[row.environment, row.split], rel=1e-5)


def test_exponentials_of_large_risks_are_finite_and_exact() -> None:
    small = torch.tensor([0.0, 3.0, LARGEST])
    assert torch.equal(exponentials(small), small.exp())
    large = torch.tensor([0.0, 1e9 - 64, 1e9])
    shares = exponentials(large) / exponentials(large).sum()
    assert shares.tolist() == pytest.approx(large.double().softmax(0).tolist(), abs=1e-6)
