"""Vectorized runs against the same runs alone."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from oodbench.algorithms import algorithms
from oodbench.networks.base import Network, networks
from oodbench.results.run_spec import RunSpec
from oodbench.sweep.file import validate
from oodbench.sweep.plan import make_plan
from oodbench.train.run import Run
from oodbench.train.settings import TrainSettings
from oodbench.train.vectorized import program_key, why_not
from oodbench.train.vectorized.program import VectorizedProgram
from tests.helpers.algorithms.float64 import in_float64
from tests.helpers.algorithms.methods import OURS
from tests.helpers.results.sweeps import DIGITS, SPIRALS, require_alike, require_as_alone

pytestmark = pytest.mark.slow

SEM: dict[str, Any] = {"name": "LinearSEM", "num_examples": 40}
STEPS = 30
SMALL = {"name": "MLP", "hparams": {"width": 8, "depth": 1, "dropout": 0.0}}
CLIPPED = {"clip_norm": [0.0, 0.01], "warm_up": [0.0, 0.5], "lr_schedule": "cosine"}
RATES: dict[str, Any] = {"lr": [1e-3, 3e-3], "batch_size": 16}
WORDS: dict[str, dict[str, str]] = {"URM": {"squash": "relu"}}
"""Values of hyperparameters that are drawn but no numbers, in which the runs of a bundle agree."""


def specs(
    algorithm: str, dataset: Any = SEM, network: Any = None, draws: int = 2, trials: int = 2,
    **hparams: Any,
) -> list[RunSpec]:  # fmt: skip
    values = {
        "name": "t", "datasets": [dataset], "hparam_draws": draws, "trials": trials,
        "algorithms": [{"name": algorithm, "hparams": {**WORDS.get(algorithm, {}), **hparams}}],
        "steps": STEPS, "evaluate_every": 15, "network": network or SMALL,
    }  # fmt: skip
    return list(make_plan(validate(values, "t")).runs.values())


ALONE = {"ExampleANDMask", "MIRO", "WiSEFT", "AFR", "CRT", "DFR", "ReWeightCRT"}
"""Methods of single examples, of pretrained weights, and of a stage of the head."""
VECTORIZED = sorted(n for n in OURS if n not in ALONE and not algorithms.get(n).overrides("update"))
"""The registered methods whose runs are vectorized."""


@pytest.mark.nightly
@pytest.mark.parametrize("name", OURS)
def test_which_methods_are_vectorized(name: str) -> None:
    sets = (SEM, SPIRALS, DIGITS)
    possible = (s for each in sets for s in specs(name, each, draws=1, trials=1))
    found = next(possible, None)  # none of a method that needs pretrained weights
    reason = why_not(Run(found, TrainSettings())) if found is not None else "there is no run"
    assert (reason is None) == (name in VECTORIZED)


MECHANISMS = {
    "ANDMask": "masks",
    "DANN": "parameters of its own",
    "ERM": "none",
    "GroupDRO": "buffers",
    "IRM": "a second gradient",
    "Mixup": "noise",
}
"""A method of each mechanism; the others are of the nightly tests."""


def by_mechanism(names: Iterable[str]) -> list[Any]:
    """The methods, all but one of each mechanism marked as nightly."""
    return [pytest.param(n, marks=[pytest.mark.nightly] * (n not in MECHANISMS)) for n in names]


@pytest.mark.parametrize("algorithm", by_mechanism(VECTORIZED))
@pytest.mark.parametrize(
    "dataset", [SEM, pytest.param(SPIRALS, marks=pytest.mark.nightly)], ids=["SEM", "Spirals"]
)
def test_a_bundle_is_its_runs(
    algorithm: str, dataset: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float64, where masks do not flip by round-off: weights, metrics and evaluations."""
    in_float64(monkeypatch)
    alike = specs(algorithm, dataset if algorithm != "CutMix" else DIGITS, **RATES)
    if not alike:
        pytest.skip("the method is none for this kind of task")
    alone = [Run(spec, TrainSettings()) for spec in alike]
    bundle = [Run(spec, TrainSettings()) for spec in alike]
    assert len({(run.spec.bundle_key, program_key(run)) for run in bundle}) == 1
    program = VectorizedProgram(bundle)
    for steps in (12, 18):
        assert program.run_steps(steps) == [run.run_steps(steps) for run in alone] == [None] * 4
        for found, run in zip(program.evaluate(range(4)), alone, strict=True):
            require_alike(found, run.evaluate(), 1e-9)
    for one, other in zip(bundle, alone, strict=True):
        assert one.step == other.step == one.counts["loss"] == STEPS
        assert one.sums == pytest.approx(other.sums, rel=1e-9, abs=1e-9)
        for p, q in zip(one.algorithm.parameters(), other.algorithm.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-10)


def test_no_batch_is_drawn_to_decide_what_is_vectorized(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(specs("VREx", batch_size=16)[0], TrainSettings())
    monkeypatch.delattr("oodbench.train.batches.Batches.__getitem__")
    assert program_key(run) is not None


@pytest.mark.nightly
@pytest.mark.parametrize("algorithm", VECTORIZED)
def test_in_float32_to_round_off(algorithm: str) -> None:
    sets = (specs(algorithm, each, **RATES) for each in (SEM, SPIRALS, DIGITS))
    require_as_alone((STEPS,), next(alike for alike in sets if alike), 2e-3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("algorithm", VECTORIZED)
def test_on_a_gpu_too(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    in_float64(monkeypatch)
    alike = specs(algorithm, SPIRALS, **RATES) or specs(algorithm, DIGITS, **RATES)
    require_as_alone((STEPS,), alike, 1e-9, "cuda:0")


class SharedLayer(Network):
    def __init__(self, input_shape: tuple[int, ...], num_outputs: int, hparams: Any) -> None:
        super().__init__()
        self.num_features = input_shape[0]
        shared = nn.Linear(self.num_features, self.num_features)
        self.featurizer = nn.Sequential(shared, nn.LeakyReLU(), shared)
        self.classifier = nn.Linear(self.num_features, num_outputs)


@pytest.mark.filterwarnings("ignore:the gradients of the network")
def test_a_layer_that_is_used_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    in_float64(monkeypatch)
    monkeypatch.setitem(networks._classes, "SharedLayer", SharedLayer)
    alike = [
        replace(spec, network="SharedLayer", network_hparams={})
        for spec in specs("ANDMask", SPIRALS, tau=0.5, lr=[1e-3, 3e-3])
    ]
    require_as_alone((STEPS,), alike, 1e-9)


OPTIONS: list[tuple[str, Any, dict[str, Any]]] = [
    ("GroupDRO", DIGITS, {**RATES, "over": "groups"}),
    ("LISA", DIGITS, {**RATES, "domains": "attributes", "sampling": "rwg"}),
    ("JTT", DIGITS, {**RATES, "first_stage": 0.3}),
    ("EIIL", DIGITS, {**RATES, "first_stage": 0.3}),
    ("LfF", DIGITS, RATES),
    ("CBLoss", DIGITS, {**RATES, "over": "groups", "volume": 500.0}),
    *(("ERM", DIGITS, {**RATES, "sampling": each}) for each in ("rwy", "rwg", "subg")),
    ("ERM", SPIRALS, {"optimizer": "sgd", "momentum": [0.0, 0.9]}),
    ("ERM", SPIRALS, {"optimizer": "adamw", "weight_decay": [0.1, 0.5]}),
    ("ERM", SPIRALS, {"lr_schedule": "cosine"}),
    ("ERM", SPIRALS, {"weight_decay": [0.0, 0.1]}),
    ("ERM", SPIRALS, {"environments_per_step": 2, "batch_size": 8}),
    ("IRM", SEM, {"anneal_steps": [7, 20], "penalty_weight": [1.0, 50.0]}),
    *((name, SPIRALS, CLIPPED) for name in ("ERM", "ANDMask")),
]


@pytest.mark.parametrize(
    ("algorithm", "dataset", "options"),
    OPTIONS,
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, dict) else None,
)
def test_groups_optimizers_schedules_norms_and_sampling_are_those_of_each_run(
    algorithm: str, dataset: Any, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_float64(monkeypatch)
    alike = specs(algorithm, dataset, **{"lr": 1e-3, **options})
    assert why_not(Run(alike[0], TrainSettings())) is None
    require_as_alone((STEPS,), alike, 1e-9)


def test_a_single_run_begins_its_second_stage_as_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    in_float64(monkeypatch)
    (alone, *_) = specs("JTT", DIGITS, lr=1e-3, batch_size=16, first_stage=0.3)
    require_as_alone((STEPS,), [alone], 1e-9)
