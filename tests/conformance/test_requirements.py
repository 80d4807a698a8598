"""Methods that break one requirement each."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from oodbench.algorithms import Algorithm, Batch, Outputs
from oodbench.conformance import requirements
from oodbench.conformance.checks import DoesNotApply
from oodbench.conformance.tiny_problems import TASKS
from oodbench.gradients.backward import Reduction
from oodbench.hparams import hparam, log_uniform


def method(**hooks: Any) -> type[Algorithm]:
    """A method that overrides these hooks."""
    return type("Mine", (Algorithm,), {"__doc__": "A method of a test.", **hooks})


def worst(self: Algorithm, out: Outputs) -> Tensor:
    return out.risks.max()


def weighted(low: float = 0.0) -> Any:
    """Hyperparameters with a weight, which is drawn from 0.1 on."""

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        weight: float = hparam(1.0, log_uniform(0.1, 10.0), low=low)

    return Hparams


def summed_or_largest(self: Any, values: Any) -> Tensor:
    """A Python branch on a number that is drawn, of risks or gradients."""
    of_all = getattr(values, "risks", values)
    found: Tensor = of_all.amax(0) if self.hparams.weight > 1 else of_all.sum(0)
    return found


class OtherSigns(Algorithm):
    """A sum of gradients, and a mean where signs are to suffice."""

    @property
    def reduction(self) -> Reduction:
        return Reduction(combine=self.combine, combine_signs=lambda net, mean, units: 2 * mean)

    def combine(self, gradients: Tensor) -> Tensor:
        return gradients.sum(0)


class Forgetful(Algorithm):
    """A running mean of the risk in a plain attribute, lost when a run resumes."""

    mean = 1.0

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        loss = self.outputs(batch, step).risks.mean() * (1 + self.mean)
        self.mean = 0.5 * self.mean + loss.item()
        self.descend(loss, step)
        return {"loss": loss.detach()}


class PlainShift(Algorithm):
    """Predictions are shifted by a plain attribute that training moves."""

    shift = torch.tensor(0.0, dtype=torch.float64)

    def objective(self, out: Outputs) -> Tensor:
        self.shift = out.logits.mean().detach()
        return out.risks.mean()

    def predict(self, x: Tensor) -> Tensor:
        return super().predict(x) - self.shift


class OfAllWeights(Algorithm):
    """A gradient with respect to every weight, also those that are frozen."""

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        loss = self.outputs(batch, step).risks.mean()
        self.descend(torch.autograd.grad(loss, [*self.network.parameters()]), step)
        return {"loss": loss.detach()}


class Fused(OfAllWeights):
    """Gradients with the strides of their kernels, for a fused optimizer of torch's own."""

    def configure(self) -> dict[str, torch.optim.Optimizer]:
        return {"main": torch.optim.Adam(self.parameters(), fused=True)}


class Attached(Algorithm):
    """A metric that keeps the graph alive."""

    def objective(self, out: Outputs) -> Tensor:
        out.metrics["worst"] = out.risks.max()
        return out.risks.max()


class Thawing(Algorithm):
    """An update that shrinks every weight, also those that are frozen."""

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        with torch.no_grad():
            for p in self.network.parameters():
                p.mul_(0.9)
        return super().update(batch, step)


@pytest.mark.parametrize(
    ("check", "sentence", "cls"),
    [
        (
            "overrides_one_level",
            "overrides both",
            method(objective=worst, combine=lambda self, gradients: 2 * gradients.mean(0)),
        ),
        (
            "objective_is_pure",
            "it draws random numbers",
            method(objective=lambda self, out: out.risks.mean() * (1 + torch.rand(()))),
        ),
        (
            "trains_many_runs_as_one",
            "write arithmetic or `torch.where`",
            method(Hparams=weighted(), objective=summed_or_largest),
        ),
        (
            "trains_many_runs_as_one",
            "write arithmetic or `torch.where`",
            method(Hparams=weighted(), combine=summed_or_largest),
        ),
        ("combines_signs_as_gradients", "`combine_signs` differs", OtherSigns),
        ("differs_from_erm", "a short run ends with ERM's weights", method()),
        (
            "is_erm_when_neutral",
            "differs from ERM's at step 0",
            method(objective=worst, neutral=classmethod(lambda cls, problem: {"lr": 0.02})),
        ),
        ("resumes_exactly", "differs after resuming", Forgetful),
        ("is_averaged_as_a_whole", "loaded weights .*`self.register_buffer", PlainShift),
        ("ignores_the_layout_in_memory", "weights differ by .*`.*optimizer_of`", Fused),
        ("updates_are_finite", "'worst' is not detached", Attached),
        (
            "updates_are_finite",
            "do not change the network. An `update` calls",
            method(
                update=lambda self, batch, step: {"loss": self.outputs(batch, step).risks.sum()}
            ),
        ),
        (
            "takes_one_example",
            "'loss' is nan",
            method(objective=lambda self, out: out.risks.mean() + out.losses.var(1).mean()),
        ),
        ("leaves_frozen_weights", "`.* if p.requires_grad.`", OfAllWeights),
        ("leaves_frozen_weights", "the frozen '.*weight' changes", Thawing),
        (
            "draws_within_limits",
            "'weight' .* must be at least 0.5",
            method(Hparams=weighted(low=0.5), objective=worst),
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:var..:UserWarning")
def test_a_broken_requirement_is_named(check: str, sentence: str, cls: type[Algorithm]) -> None:
    with pytest.raises(AssertionError, match=sentence):
        getattr(requirements, check)(cls, TASKS["binary"])


class Shuffling(Algorithm):
    """An update that draws from a generator of the process."""

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        first = int(np.random.permutation(batch.x.shape[0])[0])
        loss = self.outputs(batch, step).risks[first]
        self.descend(loss, step)
        return {"loss": loss.detach()}


def test_an_update_that_draws_random_numbers_resumes_and_has_no_order() -> None:
    for check in (requirements.resumes_exactly, requirements.ignores_the_layout_in_memory):
        check(Shuffling, TASKS["binary"])
    with pytest.raises(DoesNotApply, match="draws random numbers"):
        requirements.ignores_the_order_of_environments(Shuffling, TASKS["binary"])
