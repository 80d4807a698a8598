"""Just train twice."""

from dataclasses import dataclass

import torch
from torch import Tensor

from oodbench.algorithms import Algorithm, Needs, Outputs, Problem, first_step, register
from oodbench.hparams import hparam, log_uniform, uniform
from oodbench.networks.base import Network
from oodbench.optimizers import Rates


@register("JTT", paper="arXiv:2107.09044")
class JTT(Algorithm):
    """ERM, then a new network with more weight on the examples that the first one got wrong.

    Until step `first_stage` (below 1: a share of the run's steps) the method is ERM. Then the network
    restarts from its initial weights with a new optimizer, and an example of the error set counts
    `upweight` times (the paper's lambda_up): mean_e sum_i w_ei l_ei / (B wbar_e), w_ei = `upweight` in the
    error set, else 1, wbar_e the mean of w over all examples of environment e. In expectation this is ERM
    on the paper's set, which repeats these examples. `upweight` is also `up` in the code of
    arXiv:2110.14503; the paper's own code adds `up_weight` copies to the example: 1 + `up_weight` here.

    Deviations: both stages together have the run's steps; the paper's second is as long as ERM's run. The
    error set holds the examples predicted wrongly when the first stage last trained on them (in training
    mode, so with any dropout), not by its last network; examples never trained on are not in it.
    Environments count alike. Records of the first stage are ERM's, and a selection rule may choose one of
    its steps.
    """

    changes = "group"
    needs = Needs(index=True, classes=True)
    initial: Tensor
    wrong: Tensor
    sizes: Tensor

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """Defaults and ranges: SubpopBench (arXiv:2302.12254), with first stages as short as the paper's,
        which take 0.02 to 0.4 of both stages.
        """

        first_stage: int | float = hparam(0.5, uniform(0.02, 0.8), low=0)
        upweight: float = hparam(10.0, log_uniform(1.0, 10**2.5), low=0.0)

    def __init__(self, network: Network, problem: Problem, hparams: Hparams) -> None:
        super().__init__(network, problem, hparams)
        self.register_buffer("initial", torch.cat([v.flatten().float() for v in self._state()]))
        largest = max(problem.sizes)
        self.register_buffer("wrong", torch.zeros(len(problem.sizes), largest))
        self.register_buffer("sizes", torch.tensor(problem.sizes), persistent=False)

    @classmethod
    def neutral(cls, problem: Problem) -> dict[str, object]:
        """Leave out the first stage and the extra weight, which is ERM."""
        return {"first_stage": 0, "upweight": 1.0}

    def schedule(self, step: int, rates: Rates) -> Rates:
        """Restart the optimizer when the second stage begins."""
        return rates._replace(restart=self._begins_second(step))

    def _begins_second(self, step: int) -> bool:
        return bool(step == first_step(self.hparams.first_stage, self.problem.steps) > 0)

    def start_stage(self, step: int) -> None:
        """Reset the network to its initial weights when the second stage begins."""
        if self._begins_second(step):
            state = self._state()
            parts = torch.split(self.initial, [value.numel() for value in state])
            for value, part in zip(state, parts, strict=True):
                value.copy_(part.view_as(value))

    def _state(self) -> list[Tensor]:
        return [value.detach() for value in self.network.state_dict().values()]

    def _second(self, out: Outputs) -> Tensor:
        """1 in the second stage, else 0."""
        start = first_step(self.hparams.first_stage, self.problem.steps)
        return out.losses.new_zeros(()) + (out.step >= start)

    def next_buffers(self, out: Outputs) -> dict[str, Tensor]:
        """Mask (E, N) of the examples predicted wrongly when the first stage last trained on them."""
        assert out.batch.index is not None
        logits, second = out.logits.detach(), self._second(out)
        binary = out.task.kind == "binary"
        predicted = logits.squeeze(-1) > 0 if binary else logits.argmax(-1)
        wrong = (predicted != out.targets).to(out.losses.dtype)
        updated = out.of_step(self.wrong).scatter(1, out.batch.index, wrong)
        updated = out.over_environments(updated, self.wrong)
        return {"wrong": torch.lerp(updated, self.wrong, second)}

    def objective(self, out: Outputs) -> Tensor:
        """The mean over environments of the weighted mean losses."""
        assert out.batch.index is not None
        known = out.of_step(out.buffers["wrong"])
        share = known.sum(1) / out.of_step(self.sizes)
        out.metrics["wrong"] = share.mean()
        extra = (self.hparams.upweight - 1) * self._second(out)
        weights = 1 + extra * known.gather(1, out.batch.index)
        risks: Tensor = (weights * out.losses).mean(1) / (1 + extra * share)
        return risks.mean()
