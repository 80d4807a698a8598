"""Methods that break one requirement each."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from oodbench.algorithms import Algorithm, Batch, Outputs
from oodbench.conformance import requirements
from oodbench.conformance.checks import DoesNotApply, Requirement
from oodbench.conformance.tiny_problems import TASKS
from oodbench.gradients.backward import Reduction
from oodbench.hparams import hparam, log_uniform, uniform


class TwoLevels(Algorithm):
    """An objective that nothing ever calls."""

    def objective(self, out: Outputs) -> Tensor:
        return out.risks.max()

    def combine(self, gradients: Tensor) -> Tensor:
        return 2 * gradients.mean(0)


class Noisy(Algorithm):
    """Another random objective at every call."""

    def objective(self, out: Outputs) -> Tensor:
        return out.risks.mean() * (1 + torch.rand(()))


class OtherSigns(Algorithm):
    """A sum of gradients, and a mean where signs are to suffice."""

    @property
    def reduction(self) -> Reduction:
        return Reduction(combine=self.combine, combine_signs=lambda net, mean, units: 2 * mean)

    def combine(self, gradients: Tensor) -> Tensor:
        return gradients.sum(0)


class Branching(Algorithm):
    """A Python branch on a number that is drawn."""

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """With a weight."""

        weight: float = hparam(1.0, uniform(0.5, 2.0))

    def objective(self, out: Outputs) -> Tensor:
        if self.hparams.weight > 1:
            return out.risks.max()
        return out.risks.sum()


class BranchingCombine(Algorithm):
    """The same where gradients are combined."""

    Hparams = Branching.Hparams

    def combine(self, gradients: Tensor) -> Tensor:
        return gradients.amax(0) if self.hparams.weight > 1 else gradients.sum(0)


class JustERM(Algorithm):
    """ERM that says it is something else."""


class NotNeutral(Algorithm):
    """Never ERM, although it says so."""

    @classmethod
    def neutral(cls, problem: Any) -> dict[str, Any]:
        return {"lr": 0.02}

    def objective(self, out: Outputs) -> Tensor:
        return out.risks.max()


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


class Fused(Algorithm):
    """Gradients with the strides of their kernels, for a fused optimizer of torch's own."""

    def configure(self) -> dict[str, torch.optim.Optimizer]:
        return {"main": torch.optim.Adam(self.parameters(), fused=True)}

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        loss = self.outputs(batch, step).risks.mean()
        parameters = list(self.parameters())
        self.descend(torch.autograd.grad(loss, parameters), step)
        return {"loss": loss.detach()}


class Attached(Algorithm):
    """A metric that keeps the graph alive."""

    def objective(self, out: Outputs) -> Tensor:
        out.metrics["worst"] = out.risks.max()
        return out.risks.max()


class Untrained(Algorithm):
    """An update that computes a loss and leaves it at that."""

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        return {"loss": self.outputs(batch, step).risks.mean()}


class NeedsTwoExamples(Algorithm):
    """A sample variance within each environment."""

    def objective(self, out: Outputs) -> Tensor:
        return out.risks.mean() + out.losses.var(1).mean()


class OfAllWeights(Algorithm):
    """A gradient with respect to every weight, also those that are frozen."""

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        loss = self.outputs(batch, step).risks.mean()
        self.descend(torch.autograd.grad(loss, [*self.network.parameters()]), step)
        return {"loss": loss.detach()}


class Thawing(Algorithm):
    """An update that shrinks every weight, also those that are frozen."""

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        with torch.no_grad():
            for p in self.network.parameters():
                p.mul_(0.9)
        return super().update(batch, step)


class OutOfLimits(Algorithm):
    """Draws that a user could not set."""

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """With a weight."""

        weight: float = hparam(1.0, log_uniform(0.1, 10.0), low=0.5)

    def objective(self, out: Outputs) -> Tensor:
        return torch.mul(out.risks.max(), self.hparams.weight)


@pytest.mark.parametrize(
    ("cls", "check", "sentence"),
    [
        (TwoLevels, requirements.overrides_one_level, "overrides both"),
        (Noisy, requirements.objective_is_pure, "it draws random numbers"),
        (Branching, requirements.trains_many_runs_as_one, "write arithmetic or `torch.where`"),
        (
            BranchingCombine,
            requirements.trains_many_runs_as_one,
            "write arithmetic or `torch.where`",
        ),
        (OtherSigns, requirements.combines_signs_as_gradients, "`combine_signs` differs"),
        (JustERM, requirements.differs_from_erm, "a short run ends with ERM's weights"),
        (NotNeutral, requirements.is_erm_when_neutral, "differs from ERM's at step 0"),
        (Forgetful, requirements.resumes_exactly, "differs after resuming"),
        (PlainShift, requirements.is_averaged_as_a_whole, "loaded weights .*`self.register_buffer"),
        (Fused, requirements.ignores_the_layout_in_memory, "weights differ by .*`.*optimizer_of`"),
        (Attached, requirements.updates_are_finite, "'worst' is not detached"),
        (
            Untrained,
            requirements.updates_are_finite,
            "do not change the network. An `update` calls",
        ),
        (NeedsTwoExamples, requirements.takes_one_example, "'loss' is nan"),
        (OfAllWeights, requirements.leaves_frozen_weights, "`.* if p.requires_grad.`"),
        (Thawing, requirements.leaves_frozen_weights, "the frozen '.*weight' changes"),
        (OutOfLimits, requirements.draws_within_limits, "'weight' .* must be at least 0.5"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@pytest.mark.filterwarnings("ignore:var..:UserWarning")
def test_a_broken_requirement_is_named(
    cls: type[Algorithm], check: Requirement, sentence: str
) -> None:
    with pytest.raises(AssertionError, match=sentence):
        check(cls, TASKS["binary"])


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
