"""Invariant risk minimization as a game between environments, with a fixed representation."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from oodbench.algorithms import Algorithm, Batch, Needs, Problem, register
from oodbench.errors import UserError
from oodbench.networks.base import Network


@register("F_IRM_Game", paper="arXiv:2002.04692")
class F_IRM_Game(Algorithm):
    """Every environment trains its own network, and the mean of their logits predicts.

    In an environment's turn its network w_e minimises R_e of the mean predictor 1/E sum_q w_q(x), with the
    networks of the others held fixed (F-IRM, whose representation is the identity). A step is a round in
    which each environment of the step has one turn and an optimizer of its own.

    Deviations from the authors' code: the order of turns is drawn in each round, there it is fixed; a step
    there is one turn; all networks start from the run's initial weights, there they are initialised
    separately; there a run ends when the accuracy on all training examples falls below a threshold, here
    selection chooses a step.
    """

    changes = "step"
    noise_on_host = True
    needs = Needs(environments=2, outputs=True)

    def __init__(self, network: Network, problem: Problem, hparams: Algorithm.Hparams) -> None:
        super().__init__(network, problem, hparams)
        first = self.first_player()
        self.others = nn.ModuleList(copy.deepcopy(first) for _ in problem.environments[1:])

    def first_player(self) -> nn.Module:
        """The part of the network that the first environment trains; the other players are copies of it."""
        return self.network

    @property
    def players(self) -> Sequence[nn.Module]:
        """The module that each training environment trains, in the problem's order."""
        return [self.first_player(), *self.others]

    def configure(self) -> dict[str, torch.optim.Optimizer]:
        """An optimizer for each player; raises UserError if nothing of a player is trained."""
        players = enumerate(self.players)
        if not any(p.requires_grad for p in self.first_player().parameters()):
            raise UserError(
                f"{type(self).__name__} trains classifiers, and this network keeps its own fixed "
                "(the network Linear trains it with `train_classifier: true`)"
            )
        return {f"player {i}": self.optimizer_of(player.parameters()) for i, player in players}

    def noise(self, batch: Batch, generator: torch.Generator) -> dict[str, Tensor]:
        """The order of the turns, (E,)."""
        return {"order": torch.randperm(len(batch.x), generator=generator)}

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """A turn of each environment; `loss` is the mean of the risks in their turns."""
        environments, risks = list(self.environments_at(step)), []
        for place in batch.noise["order"].tolist():
            player = environments[place]
            risk = self.risk(batch.of([place]), player)
            self.descend(risk, step, f"player {player}")
            risks.append(risk.detach())
        return {"loss": torch.stack(risks).mean()}

    def risk(self, batch: Batch, player: int | None) -> Tensor:
        """The risk of the mean predictor, with a gradient for one player only; None: for all players."""
        with self.precision(batch.x):
            logits = self.mean_logits(self.represented(batch.x.flatten(0, 1), player), player)
        dtype = next(self.network.parameters()).dtype
        logits = torch.unflatten(logits.to(dtype), 0, batch.x.shape[:2])
        return self.problem.task.losses(logits, batch.y).mean()

    def represented(self, x: Tensor, player: int | None) -> Tensor:
        """The players' inputs, computed from inputs (N, ...)."""
        return x

    def mean_logits(self, inputs: Tensor, player: int | None) -> Tensor:
        """The mean of the players' logits, (N, C)."""
        every = []
        for i, module in enumerate(self.players):
            with torch.set_grad_enabled(torch.is_grad_enabled() and player in (None, i)):
                every.append(module(inputs))
        return torch.stack(every).mean(0)

    def predict(self, x: Tensor) -> Tensor:
        """The mean of the players' logits, (N, C)."""
        return self.mean_logits(self.represented(x, None), None)
