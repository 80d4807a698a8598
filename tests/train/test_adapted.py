"""Runs whose trained predictor adapts to what it predicts, against the same runs without."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import oodbench
from oodbench.adaptations import adaptations
from oodbench.results.predictions import read_predictions
from oodbench.results.read import read_results
from oodbench.results.run_spec import BEFORE, RunSpec
from oodbench.seeds import derive
from oodbench.train import evaluate
from oodbench.train.adapted import stream_of
from oodbench.train.models import load_model
from oodbench.train.run import Run
from oodbench.train.settings import TrainSettings
from tests.helpers.algorithms.float64 import in_float64
from tests.helpers.results.made import leaderboard
from tests.helpers.results.sweeps import DIGITS, SPIRALS, ended, require_as_alone, tiny, trained
from tests.train.test_averages import CONV, MLP

pytestmark = pytest.mark.slow

EVERY, STEPS = 6, 20
QUICK: dict[str, dict[str, Any]] = {"SHOT": {"epochs": 1}}


def specs(adapt: Any, **changes: Any) -> list[RunSpec]:
    average = changes.pop("average", "none")
    hparams = {"lr": 0.05, "batch_size": 8}
    row = {"name": "ERM", "adapt": adapt, "average": average, "hparams": hparams}
    values = {"datasets": [DIGITS], "algorithms": [row], "trials": 1, "steps": STEPS}
    values |= {"evaluate_every": EVERY, "network": CONV}
    return list(tiny(**values | changes).runs.values())


def weights(run: Run) -> list[Tensor]:
    return [w.detach().clone() for w in (*run.algorithm.parameters(), *run.algorithm.buffers())]


@pytest.mark.parametrize("average", ["none", "ema"])
@pytest.mark.parametrize("name", [*adaptations])
def test_a_run_trains_as_without_and_keeps_its_numbers_before(name: str, average: str) -> None:
    adapt = {"name": name, **QUICK.get(name, {})}
    (plain,), (adapting,) = specs("none", average=average), specs(adapt, average=average)
    runs = [Run(spec, TrainSettings()) for spec in (plain, adapting)]
    splits = {(place, half) for place in runs[0].scored.environments for half in ("in", "out")}
    unseen = splits - {(place, "in") for place in runs[0].names}
    moved = False
    for _ in range(3):
        for run in runs:
            run.run_steps(EVERY)
        before, both = (run.evaluate() for run in runs)
        assert {(e.environment, e.split) for e in both if e.metric.endswith(BEFORE)} == unseen
        known = {(e.environment, e.split, e.metric): e.value for e in both}
        for e in before:
            after = known.pop((e.environment, e.split, e.metric))
            was = known.pop((e.environment, e.split, e.metric + BEFORE), after)
            assert repr(was) == repr(e.value)
            moved |= after != was
        assert not known
        for ours, theirs in zip(*map(weights, runs), strict=True):
            assert torch.equal(ours, theirs)
    assert moved


@pytest.mark.parametrize("average", ["none", "swad"])
def test_a_vectorized_run_adapts_as_one_alone_and_beside_others(average: str) -> None:
    changes = {"network": MLP, "datasets": [SPIRALS], "trials": 2, "average": average}
    alike = specs("T3A", **changes)
    assert {s.bundle_key for s in (*alike, *specs("none", **changes))} == {alike[0].bundle_key}
    require_as_alone((EVERY,), alike, 1e-4)


@pytest.mark.parametrize("name", ["T3A", "TENT"])
def test_kept_predictions_and_weights_are_those_after_and_before(tmp_path: Path, name: str) -> None:
    """Each split is adapted to anew, as to any inputs."""
    (spec,) = specs({"name": name, "order": "stored", "batch_size": 50})
    path = tmp_path / "runs" / spec.id
    directory = ended(spec, path, keep_predictions=True, keep_weights=("last",))
    records = {
        (e["environment"], e["split"], e["metric"]): e["value"]
        for e in [*directory.records()][-1]["evaluations"]
    }
    model = load_model(directory.path)
    run = Run(spec, TrainSettings())
    for environment, data in run.data.environments.items():
        kept = read_predictions(directory, STEPS)[environment]
        right = (kept.logits.squeeze(1) > 0) == (kept.targets > 0.5)
        for split, mask in (("in", ~kept.out), ("out", kept.out)):
            assert records[environment, split, "accuracy"] == pytest.approx(right[mask].mean())
        with torch.no_grad():
            before = (model(data.x).squeeze(1) > 0) == (data.y > 0.5)
        wanted = records[environment, "out", "accuracy" + BEFORE]
        assert float(before[torch.from_numpy(kept.out)].double().mean()) == pytest.approx(wanted)
        index = run.data.splits[environment]["out"]
        assert spec.adapt is not None
        found = oodbench.adapt(model, data.x[index], spec.adapt)
        np.testing.assert_allclose(
            found.numpy(), kept.logits[kept.out], rtol=2e-3, atol=1e-3
        )  # float16


@pytest.mark.parametrize(
    ("method", "dataset", "network"), [("MTL", SPIRALS, MLP), ("ARM", DIGITS, CONV)]
)
def test_a_transductive_method_sees_batches_of_a_split_in_an_order_of_the_trial(
    method: str, dataset: Any, network: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_float64(monkeypatch)
    narrow = {"context_width": 4} if method == "ARM" else {}
    rows = [{"name": method, "hparams": {"batch_size": 8, **narrow}}]
    alike = specs("none", algorithms=rows, datasets=[dataset], network=network, trials=2)
    runs = [Run(spec, TrainSettings()) for spec in alike]
    for run in runs:
        run.run_steps(EVERY)
        found = {(e.environment, e.split, e.metric): e.value for e in run.evaluate()}
        task, spec = run.problem.task, run.spec
        for name, data in run.scored.environments.items():
            for half, index in run.data.splits[name].items():
                seed = derive("stream", spec.dataset, name, half, spec.trial)
                order = torch.randperm(len(index), generator=torch.Generator().manual_seed(seed))
                losses: list[float] = []
                for places in torch.tensor_split(index[order], math.ceil(len(index) / 8)):
                    logits = run.predict(data.x[places]).detach()
                    losses += task.losses(logits, data.y[places]).tolist()
                wanted = sum(losses) / len(losses)
                assert found[name, half, task.loss_metric] == pytest.approx(wanted, rel=1e-10)
    if method == "MTL":  # which is vectorized
        require_as_alone((EVERY,), alike, 1e-8)
    before = runs[0].evaluate()
    monkeypatch.setattr(evaluate, "CHUNK", (3, 5))
    assert runs[0].evaluate() == before
    stored = replace(alike[0], test_order=specs("none")[0].test_order)
    run = Run(stored, TrainSettings())
    run.run_steps(EVERY)
    assert run.evaluate() != before and stored.id != alike[0].id


@pytest.mark.parametrize(
    ("order", "size", "sizes"), [("random", 16, {15}), ("stored", 7, {6, 7}), ("by_class", 0, {60})]
)
def test_a_stream_holds_every_input_once_in_an_order_of_the_trial(
    order: str, size: int, sizes: set[int]
) -> None:
    (spec,) = specs("none")
    data = Run(spec, TrainSettings()).data
    environment = next(iter(data.environments.values()))
    index = torch.arange(100, 160)
    streams = [
        stream_of(environment, index, {"order": order, "batch_size": size}, seed, 0)
        for seed in (1, 1, 2)
    ]
    one, again, other = ([x for _, x in stream] for stream in streams)
    assert all(torch.equal(x, y) for x, y in zip(one, again, strict=True))
    assert order == "stored" or any(not torch.equal(x, y) for x, y in zip(one, other, strict=True))
    places = torch.cat([*streams[0].batches])
    assert sorted(places.tolist()) == [*range(60)] and {len(x) for x in one} == sizes
    assert torch.equal(torch.cat(one), environment.x[index[places]])
    if order == "by_class":
        targets = environment.y[index[places]]
        assert int((targets[1:] != targets[:-1]).sum()) == 1


def test_the_id_holds_an_adaptation_and_its_draw_and_is_that_of_before_without_one() -> None:
    (plain,), (none,) = specs("none"), specs({"name": "none"})
    (named,), (full,), (other,) = (
        specs(adapt)
        for adapt in ("T3A", {"name": "T3A", "supports": 20}, {"name": "T3A", "supports": 5})
    )
    assert plain == none and plain.adapt is None
    assert named == full and len({s.id for s in (plain, named, other)}) == 3
    assert named.adapt == {"name": "T3A", "batch_size": 64, "order": "random", "supports": 20}
    assert (named.label, specs("T3A", average="ema")[0].label) == ("ERM + T3A", "ERM + EMA + T3A")
    assert named.transductive and not plain.transductive
    drawn = specs("TENT", hparam_draws=5)
    rates = [spec.adapt["lr"] for spec in drawn if spec.adapt is not None]
    assert rates[0] == 1e-3 and len(set(rates)) == 5
    assert [s.hparams for s in drawn] == [s.hparams for s in specs("none", hparam_draws=5)]


@pytest.mark.parametrize(
    ("row", "changes", "reason"),
    [
        ({"adapt": "BatchNorm"}, {"network": MLP}, "BatchNorm needs batch normalisation with"),
        ({"name": "MTL", "adapt": "T3A"}, {}, "it does not predict by its network alone"),
    ],
)
def test_a_cell_that_cannot_adapt_says_why(
    row: dict[str, Any], changes: dict[str, Any], reason: str
) -> None:
    rows = ["ERM", {"name": "ERM", **row, "label": "adapting"}]
    values = {"datasets": [DIGITS], "network": CONV, "algorithms": rows, "trials": 1}
    (impossible,) = tiny(**values | changes).impossible
    assert impossible.algorithm == "adapting" and reason in impossible.reason


def test_a_table_shows_the_same_runs_before_adaptation_and_ranks_them_apart(tmp_path: Path) -> None:
    rows = [
        {"name": "ERM", "adapt": adapt, "hparams": {"lr": 0.05, "batch_size": 8}}
        for adapt in ("none", "BatchNorm")
    ]
    values = {"datasets": [DIGITS], "network": CONV, "steps": STEPS, "evaluate_every": STEPS}
    results = trained(tmp_path, tiny(**values, algorithms=rows, trials=3))
    frame = leaderboard(read_results(results), metric="loss").frame
    means: Any = frame[frame["environment"] == "mean"].set_index("label")
    assert means["kind"].to_dict() == {
        "ERM": "method", "ERM + BatchNorm": "transductive", "constant": "constant"
    }  # fmt: skip
    assert means.loc["ERM + BatchNorm", "before"] == pytest.approx(means.loc["ERM", "mean"])
    assert means.loc["ERM + BatchNorm", "before_stderr"] == pytest.approx(
        means.loc["ERM", "stderr"]
    )
    assert math.isnan(means.loc["ERM", "before"])
    assert means.loc["ERM + BatchNorm", "mean"] != means.loc["ERM", "mean"]
