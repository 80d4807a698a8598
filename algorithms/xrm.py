"""Cross-risk minimization: two networks infer environments for any method."""

import copy
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oodbench.algorithms import (
    Algorithm,
    Batch,
    Drawing,
    Needs,
    Problem,
    first_step,
    register,
    why_skipped,
)
from oodbench.hparams import hparam
from oodbench.networks.base import Network
from oodbench.seeds import derive

from .group_dro import GroupDRO

INFERRED = ("without mistakes", "cross-mistakes")
"""The two environments."""


@dataclass(frozen=True, kw_only=True)
class InferringHparams:
    """The hyperparameter of the stage before a method."""

    first_stage: int | float = hparam(0.5, low=0)
    """Steps that infer environments, below 1 a share of the run's; in the authors' code both stages are
    equally long. 0: the method alone, on the training environments."""


@register("XRM", paper="arXiv:2309.16748")
class XRM(Algorithm):
    """Two networks that learn from each other's predictions infer environments for GroupDRO.

    Each example is assigned to one of two twin networks at random. The twins minimise sum_c mean_{i: y_i =
    c} l_i over the batch, regardless of environments, with l_i the loss of the example's twin. Then y_i
    becomes the class that the other twin predicts, with the probability (p - 1/C) C / (C - 1), where p is
    its confidence. An example is a cross-mistake if either twin predicts another class than the true one.
    In the second stage `before` trains the network with the cross-mistakes as one environment and all other
    examples as another; these are attributes, too, so that GroupDRO's groups are pairs of class and
    cross-mistake, as in the paper. A subclass with another `before` puts the stage before that method. The
    metric `flipped`, the share of labels that have changed, is what the authors select the first stage by.

    Deviations: an example's cross-mistake is that of the step that last trained on it, as in `JTT`, not of
    the final twins. The environments' examples are drawn with replacement from a step's batch, half a batch
    each; one that is absent from it has all of the batch. Both twins have the run's learning rate and its
    initial featurizer; theirs are initialised and tuned separately. Until the second stage predictions are
    those of the initial weights.
    """

    changes = "group"
    needs = Needs(index=True, classes=True)
    before: ClassVar[type[Algorithm]] = GroupDRO
    """The method of the second stage."""
    assigned: Tensor
    label: Tensor
    mistaken: Tensor

    @dataclass(frozen=True, kw_only=True)
    class Hparams(GroupDRO.Hparams, InferringHparams):
        """GroupDRO's, over the groups that were inferred."""

        over: str = hparam("groups", options=("environments", "groups"), neutral="groups")

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Take over what the second stage's method needs."""
        cls.needs = replace(
            cls.before.needs, environments=1, attributes=False, index=True, classes=True
        )
        cls.transductive = cls.before.transductive
        super().__init_subclass__(**keywords)

    def __init__(self, network: Network, problem: Problem, hparams: Any) -> None:
        super().__init__(network, problem, hparams)
        self.second = int(first_step(hparams.first_stage, problem.steps))
        self.method: Any = self.before(network, *_of_second(problem, hparams, self.second))
        self.twins = nn.ModuleList(copy.deepcopy(network) for _ in INFERRED)
        for twin in self.twins:
            for p in twin.get_submodule("classifier").parameters():
                nn.init.zeros_(p)  # at first no twin is confident of a class, so no label changes
        shape = len(problem.sizes), max(problem.sizes)
        stream = torch.Generator().manual_seed(derive("halves", problem.seed))
        halves = torch.rand(shape, generator=stream) < 0.5
        self.register_buffer("assigned", halves, persistent=False)
        self.register_buffer("label", torch.full(shape, -1))
        self.register_buffer("mistaken", torch.zeros(shape, dtype=torch.long))

    @classmethod
    def skip(cls, problem: Problem) -> str | None:
        """Require classes with two examples each, as every example is left to one of the twins."""
        second = first_step(problem.hparams["first_stage"], problem.steps)
        if not second and cls.before.needs.has_attributes(problem.hparams):
            return "the groups of its second stage are inferred, and `first_stage` is 0"
        values = max(1, problem.attributes)
        sizes = [sum(column) for column in zip(*problem.counts, strict=True)]
        rows = [sum(sizes[i : i + values]) for i in range(0, len(sizes), values)]
        if 1 in rows:
            return (
                f"each twin needs examples of every class, and class {rows.index(1)} has only one"
            )
        inner, _ = _of_second(problem, None, int(second))
        return why_skipped(cls.before, inner, problem.hparams)

    @classmethod
    def neutral(cls, problem: Problem) -> dict[str, Any] | None:
        """No first stage, and the neutral values of the second stage's method."""
        values = cls.before.neutral(problem)
        return values if values is None else {**values, "first_stage": 0}

    def configure(self) -> dict[str, torch.optim.Optimizer]:
        """The second stage's optimizers, and one of the twins."""
        twins = self.optimizer_of(self.twins.parameters())
        return {**self.method.configure(), "twins": twins}

    def drawing_at(self, step: int) -> Drawing:
        """As the second stage's method draws; the first stage as its first step."""
        drawing: Drawing = self.method.drawing_at(max(0, step - self.second))
        return drawing

    def trains_head_only(self, step: int) -> bool:
        """Never, as the second stage's method decides this for its steps."""
        return False

    def noise(self, batch: Batch, generator: torch.Generator) -> dict[str, Tensor]:
        """Uniform numbers that flip labels, (E, B), and that draw both environments, (2, E B / 2)."""
        size = batch.x.shape[:2]
        half = max(1, size.numel() // 2)
        flips, draws = (torch.rand(s, generator=generator) for s in (size, (2, half)))
        return {"flips": flips, "draws": draws}

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """A step of the twins, or of the second stage's method."""
        assert batch.index is not None
        every = torch.arange(len(batch.x), device=batch.x.device)
        rows = every if batch.environments is None else batch.environments
        places = rows.unsqueeze(1), batch.index
        if step < self.second:
            loss = self._infer(batch, step, places)
        else:
            own = {name: o for name, o in self.optimizers.items() if name != "twins"}
            self.method.optimizers = own
            inner = self._inferred(batch, places) if self.second else batch
            loss = self.method.train_step(inner, step - self.second)["loss"]
            self.optimizers = {**self.optimizers, **self.method.optimizers}
        changed, wrong = self.label[places], self.mistaken[places].to(loss.dtype)
        flipped = ((changed >= 0) & (changed != batch.y.long())).to(loss.dtype)
        return {"loss": loss, "flipped": flipped.mean(), "mistaken": wrong.mean()}

    def _infer(self, batch: Batch, step: int, places: tuple[Tensor, Tensor]) -> Tensor:
        y, known = batch.y.long(), self.label[places]
        label = torch.where(known < 0, y, known)
        a, b = (self._classes(twin, batch) for twin in self.twins)
        of_a = self.assigned[places].unsqueeze(-1)
        within, without = torch.where(of_a, a, b), torch.where(of_a, b, a).detach()
        losses = F.cross_entropy(within.flatten(0, 1), label.flatten(), reduction="none")
        member = F.one_hot(label.flatten(), within.shape[-1]).to(losses.dtype)
        loss = (losses @ member / member.sum(0).clamp(min=1)).sum()
        self.descend(loss, step, "twins")
        sure, guess = without.softmax(-1).max(-1)
        chance = (sure * within.shape[-1] - 1) / (within.shape[-1] - 1)
        self.label[places] = torch.where(batch.noise["flips"] < chance, guess, label)
        self.mistaken[places] = ((a.argmax(-1) != y) | (b.argmax(-1) != y)).long()
        return loss.detach()

    def _classes(self, twin: nn.Module, batch: Batch) -> Tensor:
        """A twin's logits of all classes, (E, B, C)."""
        with self.precision(batch.x):
            logits = twin(batch.x.flatten(0, 1))
        logits = logits.to(next(twin.parameters()).dtype)
        if logits.shape[-1] == 1:
            logits = torch.cat([torch.zeros_like(logits), logits], -1)
        return torch.unflatten(logits, 0, batch.x.shape[:2])

    def _inferred(self, batch: Batch, places: tuple[Tensor, Tensor]) -> Batch:
        """The batch as the two inferred environments, which are also its attributes."""
        member = self.mistaken[places].flatten() == torch.arange(2, device=batch.x.device)[:, None]
        ranks = (member | ~member.any(1, keepdim=True)).long().cumsum(1)
        wanted = (batch.noise["draws"] * ranks[:, -1:]).long() + 1
        chosen = torch.searchsorted(ranks, wanted)
        index = places[0] * self.label.shape[1] + places[1]
        flat = replace(batch, environments=None, attributes=self.mistaken[places], index=index)
        given = ((f.name, getattr(flat, f.name)) for f in fields(flat))
        tensors = {name: v.flatten(0, 1)[chosen] for name, v in given if isinstance(v, Tensor)}
        return replace(flat, noise={}, **tensors)

    def fit_examples(self, x: Tensor, y: Tensor) -> None:
        """As the second stage's method."""
        self.method.fit_examples(x, y)

    def validated(self, loss: float, step: int) -> None:
        """As the second stage's method."""
        if step > self.second:
            self.method.validated(loss, step - self.second)

    def predict(self, x: Tensor) -> Tensor:
        """Logits (N, C) of the second stage's method."""
        logits: Tensor = self.method.predict(x)
        return logits


def _of_second(problem: Problem, hparams: Any, second: int) -> tuple[Problem, Any]:
    """The problem and the hyperparameters of the second stage; unchanged if there is no first."""
    if not second:
        return problem, hparams
    total = len(problem.sizes) * max(problem.sizes, default=0)
    inner = replace(
        problem,
        environments=INFERRED,
        steps=max(1, problem.steps - second),
        attributes=len(INFERRED),
        sizes=(total,) * len(INFERRED),
        counts=(),
    )
    return inner, hparams and replace(hparams, environments_per_step=0)
