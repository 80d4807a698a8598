"""Evaluated weights, against averages of all weights that a run has been through."""

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from oodbench.algorithms import Algorithm, Outputs, algorithms
from oodbench.results.run_spec import RunSpec
from oodbench.train.averages import AVERAGES, valley
from oodbench.train.evaluate import evaluate, mean_loss
from oodbench.train.run import Run
from oodbench.train.settings import TrainSettings
from oodbench.train.vectorized import why_not
from tests.helpers.algorithms.float64 import in_float64
from tests.helpers.results.sweeps import DIGITS, SPIRALS, require_as_alone, tiny

THREE = SPIRALS | {"num_environments": 3}
MLP: dict[str, Any] = {"name": "MLP", "hparams": {"width": 8, "depth": 1, "dropout": 0.0}}
CONV: dict[str, Any] = {"name": "ConvNet", "hparams": {"width": 2, "depth": 1}}
GROUPS: dict[str, dict[str, Any]] = {
    "GroupDRO": {"over": "groups"},
    "JTT": {},
    "LISA": {"domains": "attributes", "sampling": "rwg"},
}
"""Methods that know the groups of examples, with their hyperparameters."""
EVERY, STEPS = 6, 57
"""The last window is half as long as the others."""


def specs(average: Any, algorithm: str = "ERM", **changes: Any) -> list[RunSpec]:
    hparams = {"lr": 0.05, "batch_size": 8} | GROUPS.get(algorithm, {})
    hparams |= {"context_width": 4} if algorithm == "ARM" else {}
    row = {"name": algorithm, "average": average, "hparams": hparams}
    values = {
        "datasets": [DIGITS if algorithm in GROUPS else THREE], "algorithms": [row],
        "trials": 1, "steps": STEPS, "evaluate_every": EVERY, "network": MLP,
    }  # fmt: skip
    return list(tiny(**values | changes).runs.values())


def weights(run: Run) -> dict[str, Tensor]:
    names = dict(run.algorithm.named_parameters()) | dict(run.algorithm.named_buffers())
    return {
        n: w.detach().clone()
        for n, w in names.items()
        if w.is_floating_point() and not n.startswith("plateau.")  # which begins at infinity
    }


class Shifted(Algorithm):
    """ERM whose predictions are shifted by a buffer that training moves."""

    shift: Tensor

    def __init__(self, network: Any, problem: Any, hparams: Any) -> None:
        super().__init__(network, problem, hparams)
        self.register_buffer("shift", torch.zeros(problem.task.num_outputs))

    def next_buffers(self, out: Outputs) -> dict[str, Tensor]:
        return {"shift": 0.5 * self.shift + out.logits.mean((0, 1))}

    def predict(self, x: Tensor) -> Tensor:
        return super().predict(x) - self.shift


def mean(of: list[dict[str, Tensor]], decay: float = 1.0) -> dict[str, Tensor]:
    shares = decay ** torch.arange(len(of) - 1, -1, -1, dtype=torch.float64)
    shares /= shares.sum()
    return {n: torch.tensordot(shares, torch.stack([w[n] for w in of]), 1) for n in of[0]}


BY_DECAY = ({"name": "ema", "decay": 0.9, "start": 0.2}, 11, 0.9)
SWA = ({"name": "swa"}, 43, 1.0)
ON_DIGITS = {"datasets": [DIGITS], "network": CONV}


@pytest.mark.parametrize(
    ("method", "data", "average"),
    [
        ("ERM", {}, BY_DECAY),
        ("ERM", {}, ({"name": "ema"}, 0, 1 - 1 / 6)),  # a tenth of 57 steps
        ("ERM", {}, ({"name": "ema", "horizon": 12}, 0, 1 - 1 / 12)),
        ("ERM", {}, ({"name": "ema", "horizon": 0}, 0, 0.0)),
        ("ERM", {}, SWA),
        *itertools.product(("ERM", "ARM", "ERMPlusPlus"), (ON_DIGITS,), (BY_DECAY, SWA)),
    ],
)
def test_what_is_evaluated_is_the_average_of_all_weights_so_far(
    method: str, data: Any, average: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an MLP, and with batch normalisation, a context network, a mean of its own."""
    in_float64(monkeypatch)
    named, start, decay = average
    (spec,) = specs(named, method, **data)
    run, history = Run(spec, TrainSettings()), []
    for _ in range(STEPS):
        run.run_steps(1)
        history.append(weights(run))
        if run.step % 4 and run.step < STEPS:
            continue
        with run.evaluated_weights():
            found = weights(run)
        wanted = mean(history[start:] or history[-1:], decay)
        for name, value in wanted.items():
            torch.testing.assert_close(found[name], value, rtol=1e-10, atol=1e-12)
        assert all(torch.equal(w, history[-1][n]) for n, w in weights(run).items())
    other = Run(replace(spec, average=None), TrainSettings())
    with torch.no_grad():
        for name, value in wanted.items():
            dict(other.algorithm.state_dict(keep_vars=True))[name].copy_(value)
    for mine, theirs in zip(run.evaluate(), other.evaluate(), strict=True):
        assert mine.value == pytest.approx(theirs.value, rel=1e-9)


def authors_windows(losses: list[float], patience: int, overfit: int, ratio: float) -> list[int]:
    """The windows in SWAD's average by the queues of arXiv:2102.08604's code, replayed on indices."""
    converge: list[int] = []
    smooth: list[int] = []
    final: list[int] | None = None
    bottom, threshold, dead = -1, math.inf, False
    for place in range(len(losses)):
        if dead:
            break
        converge, smooth = ([*converge, place])[-patience:], ([*smooth, place])[-overfit:]
        if final is None:
            values = [losses[i] for i in converge]
            if len(converge) == patience and values.index(min(values)) == 0:
                final, bottom = [], converge[0]
                threshold = sum(values) / patience * (1 + ratio)
                if overfit < patience:
                    final += [converge[1 + i] for i in range(patience - overfit)]
                elif overfit > patience:
                    head, start = smooth[: overfit - patience + 1], 0
                    for i in reversed(range(len(head))):
                        if losses[head[i]] > threshold:
                            start = i + 1
                            break
                    final += head[start + 1 :]
        elif smooth[0] >= bottom:
            if min(losses[i] for i in smooth) > threshold:
                dead = True
            else:
                final.append(smooth[0])
    if final is None:
        return [len(losses) - 1]
    if not dead:
        smooth.pop(0)
        while smooth and min(losses[i] for i in smooth) <= threshold:
            final.append(smooth.pop(0))
    return final or [bottom]


def test_the_valley_is_that_of_the_authors_code() -> None:
    joined, ending = valley([3, 2, 1, 2, 3, 4, 5, 6, 7, 8], 3, 6, 0.3)
    assert (joined, ending) == ([2, 3, 2, 3], [])
    assert valley([5, 4, 3, 2, 1], 3, 6, 0.3) == ([], [4])
    assert valley([], 3, 6, 0.3) == ([], [])
    generator = torch.Generator().manual_seed(0)
    kinds = set()
    for seed in range(60):
        slope = torch.linspace(3, 0, 24).square() * (seed % 3) / 3
        rise = torch.linspace(0, 1, 24) * (seed % 5)
        losses = (torch.rand(24, generator=generator) + slope + rise).tolist()
        for patience, overfit in ((3, 6), (3, 3), (4, 2), (1, 4)):
            for ratio in (0.0, 0.3):
                for count in range(1, 25):
                    wanted = authors_windows(losses[:count], patience, overfit, ratio)
                    joined, ending = valley(losses[:count], patience, overfit, ratio)
                    assert joined + ending == wanted
                    kinds.add((bool(joined), bool(ending)))
    assert len(kinds) == 3


@pytest.mark.parametrize(
    ("dataset", "network"), [(THREE, MLP), (DIGITS, CONV)], ids=["MLP", "batch norm"]
)
@pytest.mark.parametrize("held_out", ["out splits", "validation environments"])
def test_swad_averages_the_windows_of_the_valley(
    dataset: dict[str, Any], network: dict[str, Any], held_out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_float64(monkeypatch)
    changes: dict[str, Any] = {"datasets": [dataset], "network": network}
    if held_out != "out splits":
        changes |= {"holdout": 0.0, "validation_environments": 1}
    optimum = 2 if held_out == "out splits" else 1
    numbers = {"optimum_patience": optimum, "overfit_patience": 3, "tolerance": 0.01}
    (spec,) = specs({"name": "swad", **numbers}, **changes)
    run = Run(spec, TrainSettings())
    history: list[dict[str, Tensor]] = []
    losses: list[float] = []
    sizes = set()
    while run.step < STEPS:
        for _ in range(min(EVERY, STEPS - run.step)):
            run.run_steps(1)
            history.append(weights(run))
        losses.append(raw_loss(run))
        run.evaluate()
        starts = range(0, len(history), EVERY)
        windows = [mean(history[i : i + EVERY]) for i in starts]
        chosen = authors_windows(losses, optimum, 3, 0.01)
        sizes.add(len(chosen))
        wanted = mean([windows[i] for i in chosen])
        with run.evaluated_weights():
            found = weights(run)
        for name, value in wanted.items():
            torch.testing.assert_close(found[name], value, rtol=1e-10, atol=1e-12)
    assert len(sizes) > 1


def raw_loss(run: Run) -> float:
    """The mean loss of the last weights over what SWAD validates on, from evaluations of everything."""
    validation = run.spec.validation_environments
    run.algorithm.eval()
    with torch.no_grad():
        found = evaluate(run.predict, run.scored)
    run.algorithm.train()
    if validation:
        return mean_loss([e for e in found if e.environment in validation], run.problem.task)
    chosen = [e for e in found if e.environment in run.names and e.split == "out"]
    return mean_loss(chosen, run.problem.task)


@pytest.mark.parametrize(
    ("algorithm", "average"),
    [
        *(("ERM", average) for average in AVERAGES),
        *(
            pytest.param(*pair, marks=pytest.mark.nightly)
            for pair in (
                *itertools.product(("Shifted",), AVERAGES),
                *zip(("ANDMask", "DANN", "IRM", *GROUPS), [*AVERAGES] * 2, strict=True),
            )
        ),
    ],
)
def test_a_vectorized_run_has_the_averages_of_a_run_alone(
    average: str, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_float64(monkeypatch)
    monkeypatch.setattr(algorithms, "_classes", {**dict(algorithms.items()), "Shifted": Shifted})
    alike = specs(average, algorithm, trials=3)
    assert why_not(Run(alike[0], TrainSettings())) is None
    require_as_alone((EVERY,) * (STEPS // EVERY), alike, 1e-7)


def test_the_id_holds_an_average_and_all_of_its_numbers() -> None:
    (plain,), (none,), (named,) = specs("none"), specs({"name": "none"}), specs("swad")
    (full,) = specs({"name": "swad", "tolerance": 0.3})
    (other,) = specs({"name": "swad", "tolerance": 0.2})
    assert plain == none and plain.average is None and plain.label == "ERM"
    assert named == full and named.average == {
        "name": "swad", "optimum_patience": 3, "overfit_patience": 6, "tolerance": 0.3
    }  # fmt: skip
    assert len({s.id for s in (plain, named, other)}) == 3
    assert specs("ema")[0].average == {"name": "ema", "horizon": 0.1, "start": 0.0}
    by_decay = specs({"name": "ema", "decay": 0.999})[0].average
    assert by_decay == {"name": "ema", "decay": 0.999, "start": 0.0}, "the default of 0.2.0"
    labels = {a: specs(a)[0].label for a in AVERAGES}
    assert labels == {"ema": "ERM + EMA", "swa": "ERM + SWA", "swad": "ERM + SWAD"}
    assert named.bundle_key != plain.bundle_key
