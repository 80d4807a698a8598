"""The interface of a learning method, and the registry of the folder algorithms/."""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar, TypeAlias, TypeVar

import scipy
import torch
from torch import Tensor, nn

from oodbench.common_hparams import BALANCED as BALANCED
from oodbench.common_hparams import CommonHparams
from oodbench.errors import UserError, unknown
from oodbench.gradients.backward import BATCH_NORM, Reduction, Units, combined_backward
from oodbench.method_kinds import KINDS, USUAL
from oodbench.networks.base import Network
from oodbench.networks.parts import in_parts
from oodbench.optimizers import SCHEDULES, Rates, make_optimizer, set_rates
from oodbench.registry import Registry, folder
from oodbench.seeds import derive
from oodbench.step_data import Batch as Batch
from oodbench.step_data import Outputs as Outputs
from oodbench.step_data import Problem as Problem
from oodbench.step_data import joined
from oodbench.step_data import to_device as to_device

__path__ = [str(folder("algorithms"))]

algorithms: Registry[type["Algorithm"]] = Registry("algorithm", "oodbench.algorithms")
A = TypeVar("A", bound=type["Algorithm"])


def register(name: str, *, paper: str) -> Callable[[A], A]:
    """Register a method under `name`; `paper` is where it was published (arXiv:..., or a title)."""

    def decorate(cls: A) -> A:
        if cls.kind not in KINDS:
            raise unknown("kind", cls.kind, KINDS, f"the method {name}")
        cls.name, cls.paper = name, paper
        algorithms.add(name)(cls)
        return cls

    return decorate


def first_step(value: Any, steps: int) -> Any:
    """The step at which something starts or switches: below 1 `value` is a share of the run's steps.

    From 1 on it is the step itself. Of tensors, as in a vectorized run, a tensor.
    """
    return (value * (1 + (value < 1) * (steps - 1)) + 0.5) // 1


def beta(alpha: float, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draws from Beta(alpha, alpha), float64: its quantiles at numbers that do not depend on alpha."""
    quantiles = torch.rand(shape, generator=generator, dtype=torch.float64)
    return torch.from_numpy(scipy.special.betaincinv(alpha, alpha, quantiles.numpy()))


class Algorithm(nn.Module):
    """A learning method. Override the first level that fits:

    1. `objective(out)`: what is minimised, from the stacked outputs of one forward pass;
    2. `combine(gradients)`: how the environments' gradients of one parameter become one;
    3. `update(batch, step)`: the whole step.

    Around `objective` stand three hooks, for methods that need them: `draw` (the random numbers of a
    step), `prepare` (a batch made of the batch) and `next_buffers` (what is remembered from step to
    step). The order of a step is draw, prepare, outputs, next_buffers, objective.

    All but `draw` are pure: they depend on parameters, buffers, batch, step and hyperparameters alone
    and never branch in Python on the value of a hyperparameter, so that many runs can be trained as
    one program. State beyond the parameters lives in buffers, so that every method resumes.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    kind: ClassVar[str] = USUAL
    """What the method changes, by its word in `oodbench.method_kinds`; a subclass has its base's."""
    needs: ClassVar[frozenset[str]] = frozenset()
    """What a batch has to hold beyond inputs and targets: `index`, `attributes`."""
    views: ClassVar[int] = 0
    """The number of further views of every input that a batch holds: each has draws of its own of the
    augmentation that the dataset has in training. Without one they are copies, and `prepare` may make
    others. The network sees them in the same pass; losses and risks are those of the first view."""
    draws_on_host: ClassVar[bool] = False
    """Whether `draws` stay on the CPU, for an `update` of the method's own that reads their values: to read
    a value on a GPU is to wait for it."""
    transductive: ClassVar[bool] = False
    """Whether predictions depend on test inputs beside the one that is predicted, such as those of its
    batch: such methods are ranked apart from the others."""
    trains_network: ClassVar[bool] = True
    """Whether the method trains the run's network; otherwise it fits a predictor of its own."""
    needs_pretrained: ClassVar[bool] = False
    """Whether the method needs a network that starts from pretrained weights."""
    why_two: ClassVar[str | None] = None
    """Why the method needs at least two training environments, a sentence; None if one is enough."""
    packages: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """The optional packages that it imports, each with the command that installs it."""

    Hparams: TypeAlias = CommonHparams

    def __init__(self, network: Network, problem: Problem, hparams: Any) -> None:
        super().__init__()
        self.network = network
        self.problem = problem
        self.hparams = hparams
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        self.autocast: torch.dtype | None = None
        """What the network runs in while it is trained, by autocast; None: in its parameters' own. What
        it gives, losses, gradients and masks have the parameters' precision."""

    @classmethod
    def skip(cls, problem: Problem) -> str | None:
        """Why the method cannot be run on `problem`, or None."""
        if cls.needs_pretrained and not problem.pretrained:
            return "it needs a pretrained network"
        if problem.task.kind == "boxes" and cls.combine is not Algorithm.combine:
            return "a detector's losses have no gradient for each environment in one pass"
        if problem.task.kind == "boxes" and cls.views:
            return "a detector gives no features of further views"
        return cls.why_two if len(problem.environments) < 2 else None

    @classmethod
    def needed(cls, hparams: Mapping[str, Any]) -> frozenset[str]:
        """What `needs` is with these hyperparameters."""
        return cls.needs

    @classmethod
    def lacks(cls, problem: Problem, hparams: Mapping[str, Any]) -> str | None:
        """Why the method with these hyperparameters cannot be run on the data of `problem`, or None."""
        sampling = str(hparams["sampling"])
        balanced = BALANCED.get(sampling)
        if balanced == "classes" and not problem.task.has_classes:
            return f"`sampling: {sampling}` balances classes, and its targets are none"
        if not problem.attributes:
            if balanced == "groups":
                return f"`sampling: {sampling}` balances groups, and its examples have no attribute"
            if "attributes" in cls.needed(hparams):
                return "it needs an attribute of the examples, and they have none"
        return None

    @classmethod
    def neutral(cls, problem: Problem) -> dict[str, Any] | None:
        """The hyperparameters at which the method is ERM, or None if there are none."""
        return None

    def environments_at(self, step: int) -> Sequence[int]:
        """Which training environments the batch of a step holds, by their places."""
        count, wanted = len(self.problem.environments), self.hparams.environments_per_step
        if not 0 < wanted < count:
            return range(count)
        return random.Random(derive(self.problem.seed, step)).sample(range(count), wanted)

    def draw(self, batch: Batch, generator: torch.Generator) -> dict[str, Tensor]:
        """The random numbers of a step, by name; they stand in `batch.draws` afterwards.

        `generator` is the step's own: all methods of a trial get the same one, and a resumed run gets
        it again. The names and shapes may depend on the shapes of `batch`, not on its values.
        """
        return {}

    def prepare(self, batch: Batch) -> Batch:
        """The batch that is trained on, made of the one that was drawn; a pure function."""
        return batch

    def next_buffers(self, out: Outputs) -> dict[str, Tensor]:
        """The next values of the method's buffers by their names; a pure function.

        `objective` finds them in `out.buffers`, with their gradients; the buffers take them after the
        update, without.
        """
        return {}

    def objective(self, out: Outputs) -> Tensor:
        """The scalar to minimise; ERM's mean risk unless a method says otherwise."""
        return out.risks.mean()

    def minimised(self, out: Outputs) -> Tensor:
        """The value of `objective`; raises UserError if it is not one number in a tensor."""
        value: Any = self.objective(out)
        if not isinstance(value, Tensor) or value.numel() != 1:
            shape = getattr(value, "shape", None)
            given = type(value).__name__ if shape is None else f"values of shape {tuple(shape)}"
            raise UserError(
                f"`objective` of {type(self).__name__} gives one number in a tensor, not {given}"
            )
        return value

    def combine(self, gradients: Tensor) -> Tensor:
        """One gradient (*shape) of a parameter from those of the E environments' risks, (E, *shape)."""
        return gradients.mean(0)

    def start_stage(self, step: int) -> None:
        """Change parameters or buffers in place, without gradients, where a stage of the run begins.

        It is called before the update at every step.
        """

    @property
    def reduction(self) -> Reduction | None:
        """How units' gradients become one, or None if one backward pass of `objective` is enough.

        A method that overrides `combine` has this one; another gives units that are examples, or a
        faster way from the units' signs (see `oodbench.gradients`).
        """
        if type(self).combine is Algorithm.combine:
            return None
        return Reduction(combine=self.combine)

    def units(self, batch: Batch, step: int) -> Units:
        """The units of a batch: its environments, or its examples where `reduction` says so."""
        unit, meaning = "environment", None
        if (reduction := self.reduction) is not None:
            unit, meaning = reduction.unit, reduction.batch_norm
        by_environment = unit == "environment"
        x, y = batch.x, batch.y
        if not by_environment:
            x, y = (values.flatten(0, 1).unsqueeze(1) for values in (x, y))

        def forward() -> tuple[Tensor, Outputs]:
            out = self.outputs(batch, step)
            return (out.risks if by_environment else out.losses.flatten()), out

        return Units(
            count=len(x),
            forward=forward,
            x=x,
            y=y,
            losses=self.problem.task.losses,
            batch_norm=meaning or BATCH_NORM[unit],
        )

    def weight_decay(self, step: int) -> float:
        """The coupled weight decay of an update."""
        decay: float = self.hparams.weight_decay
        return decay

    def restarts(self, step: int) -> bool:
        """Whether the optimizers are made anew before the update at `step`."""
        return False

    def configure(self) -> dict[str, torch.optim.Optimizer]:
        """The optimizers by name; called once the parameters are on their device."""
        return {"main": self.optimizer_of(self.parameters())}

    def optimizer_of(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """The run's kind of optimizer for some parameters, with their learning rates' factors."""
        h, found = self.hparams, dict(self.network.named_parameters())
        scales = {found[name]: factor for name, factor in self.network.rate_scales.items()}
        return make_optimizer(h.optimizer, parameters, h.lr, h.momentum, scales)

    def outputs(self, batch: Batch, step: int) -> Outputs:
        """One forward pass over the environments' examples, stacked."""
        shape, x = batch.x.shape[:2], batch.x.flatten(0, 1)
        own = self._own_losses(x, batch.y.flatten(0, 1))
        if own is not None:
            losses, none = own.view(shape), own.new_empty(*shape, 0)
            risks, task = losses.mean(1), self.problem.task
            return Outputs(none, none, batch.y, losses, risks, step, task, batch=batch)
        more = None if batch.views is None else batch.views[:, :, : self.views]
        if self.views and more is not None:
            x = torch.cat([x, more.flatten(0, 2)])
        with self._precision(x):
            features = self._in_parts(self.network.featurizer, x)
            if self.trains_head_only(step):
                features = features.detach()
            logits = self.network.classifier(features)
        if self.autocast is not None:
            features, logits = features.float(), logits.float()
        view_features = view_logits = None
        if self.views and more is not None:
            count, each = shape.numel(), more.shape[:3]
            view_features = torch.unflatten(features[count:], 0, each)
            view_logits = torch.unflatten(logits[count:], 0, each)
            features, logits = features[:count], logits[:count]
        task = self.problem.task
        logits = torch.unflatten(logits, 0, shape)
        losses = task.losses(logits, batch.y)
        if batch.other_y is not None and batch.share is not None:
            losses = batch.share * losses + (1 - batch.share) * task.losses(logits, batch.other_y)
        features = torch.unflatten(features, 0, shape)
        risks = losses.mean(1)
        return Outputs(
            logits,
            features,
            batch.y,
            losses,
            risks,
            step,
            task,
            batch=batch,
            view_logits=view_logits,
            view_features=view_features,
        )

    def _precision(self, x: Tensor) -> AbstractContextManager[object]:
        return (
            nullcontext() if self.autocast is None else torch.autocast(x.device.type, self.autocast)
        )

    def _in_parts(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        parts = self.hparams.accumulation
        if parts == 1 or self.reduction is not None:  # whose batches come in parts already
            return function(*inputs)
        return in_parts(self.network, function, parts, *inputs)

    def _own_losses(self, x: Tensor, y: Tensor) -> Tensor | None:
        """The losses (N,) of a network that works out its own, else None."""
        if type(self.network).losses is Network.losses:
            return None
        own: Any = self.network.losses
        with self._precision(x):
            losses = self._in_parts(own, x, y)
        return losses if self.autocast is None else losses.float()

    def trains_head_only(self, step: int) -> bool:
        """Whether the update at `step` is one that trains the classifier alone."""
        share: float = self.hparams.head_only
        return bool(share != 0 and step < first_step(share, self.problem.steps))

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """Do one update and return detached scalars, `loss` among them."""
        with torch.no_grad():
            self.start_stage(step)
        if self.restarts(step):
            self.optimizers = self.configure()
        batch = self.prepared(batch, step)
        optimizer = self.optimizers["main"]
        optimizer.zero_grad()
        reduction = self.reduction
        if reduction is None:
            out = self.outputs(batch, step)
            out.buffers.update(self.next_buffers(out))
            loss = self.minimised(out)
            loss.backward()  # type: ignore[no-untyped-call]
            metrics = out.metrics
        else:
            parts = [self.units(p, step) for p in batch.parts(self.hparams.accumulation)]
            loss, outputs = combined_backward(self.network, parts, reduction)
            out = joined(outputs, batch)
            with torch.no_grad():
                out.buffers.update(self.next_buffers(out))
            metrics = {**out.metrics, **self._observed(reduction)}
        self.step_optimizer(optimizer, step)
        for name, value in out.buffers.items():
            self.get_buffer(name).copy_(value.detach())
        return {"loss": loss.detach(), **metrics}

    def prepared(self, batch: Batch, step: int) -> Batch:
        """The batch of a step as `outputs` takes it: of the step's environments, drawn and prepared.

        An `update` of a method's own starts with it.
        """
        if self.trains_head_only(step):
            self.network.featurizer.eval()
        elif self.trains_head_only(step - 1):
            self.train()
        there = self.environments_at(step)
        if len(there) < len(batch.x):
            batch = batch.of(there)
        return self.prepare(replace(batch, draws=self.drawn(batch, step)))

    def drawn(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """What `draw` draws at a step, on the batch's device unless it stays on the host."""
        drawn = self.drawn_on_host(batch, step)
        if self.draws_on_host:
            return drawn
        return {name: to_device(value, batch.x.device) for name, value in drawn.items()}

    def drawn_on_host(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """What `draw` draws at a step, on the CPU."""
        if type(self).draw is Algorithm.draw:
            return {}
        seed = derive("draws", self.problem.seed, step)
        return self.draw(batch, torch.Generator().manual_seed(seed))

    @torch.no_grad()
    def _observed(self, reduction: Reduction) -> dict[str, Tensor]:
        if reduction.observe is None:
            return {}
        trained: list[Tensor] = [p for p in self.network.parameters() if p.requires_grad]
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
        counts = torch._foreach_norm(torch._foreach_sign(gradients))
        norms = torch._foreach_norm(trained)
        return reduction.observe(*(torch.stack(n).square_() for n in (norms, counts)))

    def rates(self, step: int) -> Rates:
        """The learning rate and the weight decay of an update."""
        h, steps = self.hparams, self.problem.steps
        factor = SCHEDULES[h.lr_schedule](step / steps)
        if h.warm_up:
            factor *= min(1.0, (step + 1) / max(1.0, first_step(h.warm_up, steps)))
        return Rates(h.lr * factor, self.weight_decay(step))

    def step_optimizer(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        """Let an optimizer use the gradients, at this step's learning rate and weight decay."""
        set_rates(optimizer, self.rates(step))
        if self.trains_head_only(step):
            head = {*self.network.classifier.parameters()}
            for p in self.network.featurizer.parameters():
                if p not in head:
                    p.grad = None
        if self.hparams.clip_norm:
            trained = [p for group in optimizer.param_groups for p in group["params"]]
            nn.utils.clip_grad_norm_(trained, self.hparams.clip_norm)
        optimizer.step()

    def predict(self, x: Tensor) -> Tensor:
        """Logits (N, C) of inputs (N, *input_shape)."""
        logits: Tensor = self.network(x)
        return logits
