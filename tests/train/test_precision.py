"""Precision, channels side by side, and all options of a step together, in whole runs."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from oodbench.results.run_spec import RunSpec
from oodbench.train.run import Run
from oodbench.train.settings import TrainSettings
from oodbench.train.vectorized import why_not
from tests.helpers.algorithms.float64 import in_float64
from tests.helpers.results.sweeps import DIGITS, tiny
from tests.train.test_averages import CONV

pytestmark = pytest.mark.slow

MLP: dict[str, Any] = {"name": "MLP", "hparams": {"width": 8, "depth": 2, "dropout": 0.0}}
STEPS = 12


def specs(algorithm: str = "ERM", hparams: Any = None, **changes: Any) -> list[RunSpec]:
    row = {"name": algorithm, "hparams": {"lr": 0.01, "batch_size": 8, **(hparams or {})}}
    values = {
        "datasets": [DIGITS], "algorithms": [row], "trials": 1, "steps": STEPS,
        "evaluate_every": 4, "network": CONV,
    }  # fmt: skip
    return list(tiny(**values | changes).runs.values())


def after(steps: int, spec: RunSpec) -> dict[str, Tensor]:
    run = Run(spec, TrainSettings())
    run.run_steps(steps)
    return {n: p.detach() for n, p in run.algorithm.named_parameters()}


@pytest.mark.parametrize(
    ("algorithm", "network"),
    [
        *((name, CONV) for name in ("ERM", "ANDMask", "ExampleANDMask", "VREx", "DANN")),
        *((name, MLP) for name in ("ERM", "ExampleANDMask")),
        ("ANDMask", {"name": "MNISTCNN"}),
    ],
)
def test_in_bfloat16_the_network_alone_runs_by_autocast(
    algorithm: str, network: dict[str, Any]
) -> None:
    """Its layers give bfloat16; losses, gradients and the optimizer's state are in float32."""
    (plain,) = specs(algorithm, network=network)
    run = Run(replace(plain, precision="bfloat16"), TrainSettings())
    other = Run(plain, TrainSettings())
    assert run.evaluate() == other.evaluate()  # in float32
    run.algorithm.train()
    other.algorithm.train()
    seen: set[torch.dtype] = set()
    for name, module in run.algorithm.network.named_modules():
        if name == "featurizer.0.0" or name.endswith("featurizer.1"):
            module.register_forward_hook(lambda module, x, y: seen.add(y.dtype))
    batch = run.algorithm.prepared(run.batches_at(0)[0], 0)
    out = run.algorithm.outputs(batch, 0)
    assert out.features.dtype == out.logits.dtype == out.losses.dtype == torch.float32
    reference = other.algorithm.outputs(batch, 0)
    torch.testing.assert_close(out.losses, reference.losses, rtol=0.1, atol=0.1)
    assert not torch.equal(out.logits, reference.logits)
    assert run.run_steps(3) is None
    states = run.algorithm.optimizers["main"].state.values()
    assert {s["exp_avg"].dtype for s in states} == {torch.float32}
    assert why_not(run) is not None
    assert torch.bfloat16 in seen or not seen


@pytest.mark.parametrize("algorithm", ["ERM", "ANDMask", "ExampleANDMask", "VREx"])
def test_channels_side_by_side_change_nothing_but_round_off(
    algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_float64(monkeypatch)
    (spec,) = specs(algorithm)
    found = after(STEPS, replace(spec, channels_last=True))
    kernels = [p for p in found.values() if p.dim() == 4]
    assert kernels and all(k.is_contiguous(memory_format=torch.channels_last) for k in kernels)
    for name, wanted in after(STEPS, spec).items():
        torch.testing.assert_close(found[name], wanted, rtol=1e-6, atol=1e-8)


ALL: dict[str, Any] = {"clip_norm": 0.1, "warm_up": 0.5, "accumulation": 2, "head_only": 0.25}


def test_options_are_in_the_id_where_they_are_not_neutral() -> None:
    (plain,) = specs()
    neutral = {"clip_norm": 0.0, "warm_up": 0, "accumulation": 1, "head_only": 0.0}
    (same,) = specs("ERM", neutral, precision="float32", channels_last=False)
    assert plain == same and not {*ALL} & {*plain.hparams}
    ids = {plain.id}
    for name, value in ALL.items():
        ids.add(specs("ERM", {name: value})[0].id)
    ids |= {specs(precision=p)[0].id for p in ("tf32", "bfloat16")}
    ids.add(specs(channels_last=True)[0].id)
    assert len(ids) == 8
