"""The contract of a learning method, and the registry of the folder algorithms/."""

import inspect
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from types import FunctionType, MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Protocol, TypeAlias, TypeVar, final

import scipy
import torch
from torch import Tensor, nn

from oodbench.data.streams import to_device
from oodbench.errors import UserError, blaming, unknown, wrong_result
from oodbench.gradients.backward import Reduction, Units, combined_backward, micro_batched, observed
from oodbench.gradients.twice import risk_gradients
from oodbench.hparams import choice, defaults, hparam, log_uniform, log_uniform_int, neutral_values
from oodbench.networks.base import Network
from oodbench.optimizers import SCHEDULES, Rates, make_optimizer, set_rates
from oodbench.registry import CHANGES, FUNCTIONS, Registry, folder, own_bases, own_members
from oodbench.seeds import derive
from oodbench.steps import Batch, Drawing, Needs, Outputs, Problem, concatenated, scalars

# `help` shows these
__all__ = ["Algorithm", "Batch", "CommonHparams", "Drawing", "Needs", "Outputs", "Problem"]
__all__ += ["BALANCED", "algorithms", "beta", "cannot_balance", "first_step", "register"]
__all__ += ["to_device", "why_skipped"]

__path__ = [str(folder("algorithms"))]

algorithms: Registry[type["Algorithm"]] = Registry(
    "algorithm", "oodbench.algorithms.Algorithm", check=lambda cls: _check(cls)
)
A = TypeVar("A", bound=type["Algorithm"])
H = TypeVar("H", bound="CommonHparams", covariant=True)

BALANCED = {"uniform": "", "rwy": "classes", "rwg": "groups", "subg": "groups"}
"""The values of `sampling`, and what each balances."""


def register(name: str, *, paper: str) -> Callable[[A], A]:
    """Register a method under `name`; `paper` is where it was published (arXiv:..., or a title).

    Raises UserError if hooks are misspelt, have wrong parameters, or no hook is overridden.
    """
    add: Any = algorithms.add(name, paper)
    return add  # type: ignore[no-any-return]


def _check(cls: type["Algorithm"]) -> None:
    """Raise UserError for a method that would train as ERM.

    A method may derive from a registered one and change nothing else than hyperparameters. Overriding
    `neutral` alone marks a method as ERM on purpose, if it adds no hyperparameters.
    """
    who = f"the algorithm {cls.__name__}"
    if not issubclass(cls.Hparams, CommonHparams):
        raise UserError(f"{who}: `Hparams` must derive from `Algorithm.Hparams`")
    silent = {"skip"} if cls.Hparams is Algorithm.Hparams else {"skip", "neutral"}
    own = (name for name, member in own_members(cls).items() if isinstance(member, FUNCTIONS))
    overrides = {name for name in own if hasattr(Algorithm, name)} - silent
    if not overrides and not algorithms.registered & {*own_bases(cls)}:
        raise UserError(
            f"{who} does not override `objective`, `combine` or another hook: "
            "it would train as ERM; to change only hyperparameters, derive from a registered method"
        )


def first_step(value: float, steps: int) -> float:
    """The rounded step at which something starts: `value`, or if below 1 this share of the steps.

    It only uses arithmetic, as `value` may be a tensor (see `oodbench.train.vectorized`).
    """
    return (value * (1 + (value < 1) * (steps - 1)) + 0.5) // 1


def beta(alpha: float, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draw from Beta(alpha, alpha) in float64, by inverting uniform numbers that do not depend on alpha."""
    quantiles = torch.rand(shape, generator=generator, dtype=torch.float64)
    return torch.from_numpy(scipy.special.betaincinv(alpha, alpha, quantiles.numpy()))


@dataclass(frozen=True, kw_only=True)
class CommonHparams:
    """Every method's hyperparameters. Sources of ranges: arXiv:2007.01434, D.2; arXiv:2009.00329, A.6."""

    lr: float = hparam(
        1e-3,
        log_uniform(10**-4.5, 10**-2.5),
        low=0.0,
        by_family={
            "synthetic": (1e-2, choice(1e-3, 1e-2, 1e-1)),
            "linear": (1e-2, log_uniform(1e-3, 1e-1)),
            "small_images": (1e-3, log_uniform(10**-3.5, 10**-2.5)),
            "noisy_labels": (5e-4, choice(5e-4, 1e-3, 5e-3)),
            "images": (5e-5, log_uniform(1e-5, 10**-3.5)),
            "text": (1e-5, log_uniform(1e-6, 1e-4)),
        },
    )
    """The learning rate."""
    weight_decay: float = hparam(
        0.0,
        log_uniform(1e-6, 1e-2),
        low=0.0,
        by_family={
            "synthetic": (1e-3, choice(0.0, 1e-5, 1e-4, 1e-3)),
            "linear": (0.0, None),
            "small_images": (2e-3, log_uniform(2e-5, 2e-2)),
            "noisy_labels": (1e-6, None),
            "digits": (0.0, None),
        },
    )
    """Added to the gradient as weight_decay * parameter (twice the factor of a penalty ||w||^2), except for
    `adamw`, which subtracts lr * weight_decay * parameter from the parameter."""
    batch_size: int = hparam(
        32,
        log_uniform_int(2**3, 2**5.5),
        low=0,
        by_family={
            "synthetic": (256, choice(64, 128, 256)),
            "linear": (0, None),
            "small_images": (0, None),
            "noisy_labels": (80, None),
            "digits": (64, log_uniform_int(2**3, 2**9)),
        },
    )
    """Examples per environment and step; 0: as many as the smallest environment has."""
    environments_per_step: int = hparam(0, low=0)
    """The number of training environments drawn at each step; 0: all. An environment with fewer
    examples than `batch_size` continues with its next epoch."""
    optimizer: str = hparam("adam", options=("adam", "adamw", "sgd"))
    momentum: float = hparam(0.9, low=0.0, high=1.0)
    """The momentum of the optimizer `sgd`."""
    lr_schedule: str = hparam(
        "constant",
        options=tuple(SCHEDULES),
        by_family={"synthetic": ("drop", None), "noisy_labels": ("drop", None)},
    )
    sampling: str = hparam("uniform", options=tuple(BALANCED), neutral="uniform")
    """How examples are drawn from an environment (arXiv:2110.14503): `rwy` draws classes and `rwg` groups
    equally often, with replacement; `subg` subsamples each group to the size of the smallest group. Groups
    are pairs of target and attribute."""
    warm_up: int | float = hparam(0.0, low=0, neutral=0.0)
    """Updates in which the learning rate rises linearly to its schedule; a value below 1 is a share of
    the run's steps (arXiv:1706.02677, section 2.2)."""
    clip_norm: float = hparam(0.0, low=0.0, neutral=0.0)
    """A gradient with a larger norm is scaled down to this norm (arXiv:1211.5063, algorithm 1), after masks
    and before weight decay; 0: never."""
    accumulation: int = hparam(1, low=1, neutral=1)
    """The number of micro-batches in which a batch passes through the featurizer; memory holds the
    activations of one (gradient caching, arXiv:2101.06983). Objectives and gradients are those of the whole
    batch; batch normalisation sees single micro-batches."""
    head_only: int | float = hparam(0.0, low=0, neutral=0.0)
    """Updates at the start that train the classifier alone, with the featurizer in evaluation mode; a value
    below 1 is a share of the run's steps (arXiv:2202.10054)."""

    def __getitem__(self, name: object) -> NoReturn:
        """Raise TypeError for DomainBed's `hparams["lr"]`."""
        example = name if isinstance(name, str) else "lr"  # Python iterates by 0, 1, ...
        raise TypeError(f"write `hparams.{example}`: hyperparameters are attributes")


class _Method(Protocol[H]):
    """For typing: the hyperparameters of an instance have the type of the class's `Hparams`."""

    @property
    def Hparams(self) -> type[H]: ...


class Algorithm(nn.Module):
    """A learning method. Override the first level that fits:

    1. `objective(out)`: what is minimised, from the stacked outputs of one forward pass;
    2. `combine(gradients)`: how the environments' gradients of one parameter become one;
    3. `update(batch, step)`: the whole step.

    `self.network` has a `featurizer`, a `classifier` and `num_features`; `self.problem` has facts about the
    run (`environments`, `task`, `steps`, `input_shape`, ...); `self.hparams` has the hyperparameters.

    The other hooks change the rest of a step. In the order of a step, the hooks are `start_stage`,
    `environments_at`, `noise`, `prepare`, (the forward pass), `next_buffers`, `objective`, `schedule`.

    `noise`, `prepare`, `next_buffers`, `objective` and `combine` must depend only on parameters, buffers,
    batch, step and hyperparameters, and must not branch in Python on the value of a hyperparameter, so that
    `oodbench.train.vectorized` can train many runs as one program. All other state is in registered
    buffers, so that every method resumes.

    - `changes`: what it changes in training, as `oodbench.registry.CHANGES` explains: `risk`, `penalty`,
      `gradient`, `batch`, `adversarial`, `step`, `group`, `estimator` or `reference`.
    - `needs`: what it needs beyond the inputs and targets of one training environment.
    - `transductive`: whether predictions depend on other test inputs, such as those of the same batch. Such
      methods are ranked separately.
    - `trains_network`: whether it trains the run's network; otherwise it fits another predictor.
    - `noise_on_host`: whether noise stays on the CPU, where an `update` reads it without waiting for a GPU.
    """

    changes: ClassVar[str] = "risk"
    needs: ClassVar[Needs] = Needs()
    transductive: ClassVar[bool] = False
    trains_network: ClassVar[bool] = True
    noise_on_host: ClassVar[bool] = False
    Hparams: TypeAlias = CommonHparams

    if TYPE_CHECKING:  # the type of `hparams` is the class's `Hparams`

        @property
        def hparams(self: _Method[H]) -> H:
            """The hyperparameters, of the class's type."""

        @hparams.setter
        def hparams(self, values: Any) -> None: ...

    def __init__(self, network: Network, problem: Problem, hparams: Any) -> None:
        super().__init__()
        self.network = network
        self.problem = problem
        self.hparams = hparams
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        # kept, as the stacked parameters of a vectorized program do not show which are trained;
        # weights that layers share are listed under each of their names
        names = network.named_parameters(remove_duplicate=False)
        self._trained = {n for n, p in names if p.requires_grad}

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Raise UserError for invalid `changes` or `needs`, and for DomainBed's `update`."""
        super().__init_subclass__(**keywords)
        update = vars(cls).get("update")
        if isinstance(update, FunctionType):
            if {"minibatches", "unlabeled"} & {*inspect.signature(update).parameters}:
                raise UserError(
                    f"the algorithm {cls.__name__}: DomainBed's `update(self, minibatches, unlabeled)` is "
                    "`update(self, batch, step)` here: `batch.minibatches()` gives the minibatches, and "
                    "`self.descend(loss, step)` does the backward pass and the optimizer's step"
                )
        if cls.changes not in CHANGES:
            raise unknown("value", cls.changes, CHANGES, f"`changes` of the method {cls.__name__}")
        if not isinstance(cls.needs, Needs):
            raise UserError(
                f"`needs` of the method {cls.__name__} must be `Needs(...)`, not {cls.needs}"
            )

    @classmethod
    def skip(cls, problem: Problem) -> str | None:
        """Why the method cannot run on `problem` with its `hparams`, beyond `needs`; None if it can."""
        return None

    @classmethod
    def neutral(cls, problem: Problem) -> dict[str, Any] | None:
        """The hyperparameters at which the method is ERM, or None if there are none."""
        return None

    def fit_examples(self, x: Tensor, y: Tensor) -> None:
        """Fit a predictor to all training examples, pooled over environments, before the first step.

        Inputs are (N, *input_shape) as networks get them, targets (N, ...). A predictor that is not a
        tensor is fitted again when the run resumes and when its weights are loaded.
        """

    def configure(self) -> dict[str, torch.optim.Optimizer]:
        """Make the optimizers, by name; called once the parameters are on their device.

        By default there is one optimizer of all parameters, `main`, if the method trains the network.
        """
        return {"main": self.optimizer_of(self.parameters())} if self.trains_network else {}

    def schedule(self, step: int, rates: Rates) -> Rates:
        """The rates of an update, given the usual ones, and whether optimizers restart before it."""
        return rates

    def start_stage(self, step: int) -> None:
        """Change parameters or buffers in place, without gradients, when a stage of the run begins.

        Called before the update at every step.
        """

    def environments_at(self, step: int) -> Sequence[int]:
        """Indices of a step's training environments; by default as `environments_per_step` says."""
        wanted, count = self.hparams.environments_per_step, len(self.problem.environments)
        if not 0 < wanted < count:
            return range(count)
        return random.Random(derive(self.problem.seed, step)).sample(range(count), wanted)

    def drawing_at(self, step: int) -> Drawing:
        """How the examples of a step are drawn, which may differ between the stages of a run."""
        return Drawing(self.hparams.sampling)

    def trains_head_only(self, step: int) -> bool:
        """Whether the update at a step trains the classifier alone; by default as `head_only` says."""
        share = self.hparams.head_only
        return bool(share != 0 and step < first_step(share, self.problem.steps))

    def noise(self, batch: Batch, generator: torch.Generator) -> dict[str, Tensor]:
        """Draw the random numbers of a step, by name, for `batch.noise`.

        `generator` is seeded by trial and step, equally for all methods and for a resumed run. The names
        and shapes may depend on the shapes of `batch`, not on its values.
        """
        return {}

    def prepare(self, batch: Batch) -> Batch:
        """The batch to train on, given a batch of the dataset; a pure function."""
        return batch

    def next_buffers(self, out: Outputs) -> dict[str, Tensor]:
        """The next values of the method's buffers by their names; a pure function.

        `objective` finds these values in `out.buffers`, with gradients. After the update they are stored in
        the buffers, detached.
        """
        return {}

    def objective(self, out: Outputs) -> Tensor:
        """The scalar to minimise; by default ERM's mean risk."""
        return out.risks.mean()

    def combine(self, gradients: Tensor) -> Tensor:
        """Combine a parameter's gradients in the E environments, (E, *shape), into one, (*shape)."""
        return gradients.mean(0)

    @property
    def reduction(self) -> Reduction | None:
        """How the gradients of the batch's units become one, or None to descend `objective`.

        By default the units are environments, if the method overrides `combine`. Another `Reduction` may
        take examples as units, or combine gradients faster, from their signs.
        """
        return Reduction(combine=self.combine) if self.overrides("combine") else None

    def update(self, batch: Batch, step: int) -> dict[str, Any]:
        """Do one update and return detached scalars or numbers, `loss` among them.

        `batch` is ready for the forward pass: it has the step's environments and noise, after `prepare`. An
        override calls `self.outputs(batch, step)` and `self.descend(loss, step)`.
        """
        reduction = self.reduction
        if reduction is None:
            out = self.outputs(batch, step)
            out.buffers.update(self.next_buffers(out))
            loss = self.minimised(out)
            self.descend(loss, step)
        else:
            pieces = batch.micro_batches(self.hparams.accumulation)
            units = [self.units(piece, step) for piece in pieces]
            loss, made = combined_backward(self.network, units, reduction)
            out = concatenated(made, batch)
            with torch.no_grad():
                out.buffers.update(self.next_buffers(out))
            out.metrics.update(observed(self.network, reduction))
            self.descend([p.grad for p in self.network.parameters() if p.requires_grad], step)
        for name, value in out.buffers.items():
            self.get_buffer(name).copy_(value.detach())
        return {"loss": loss.detach(), **out.metrics}

    def validated(self, loss: float, step: int) -> None:
        """Receive the mean loss on the training examples that `drawing_at` holds out.

        Called at the evaluations of the run, after `step` updates, if `drawing_at` holds examples out at
        both the first and the last update. It may change buffers in place.
        """

    def predict(self, x: Tensor) -> Tensor:
        """Logits (N, C) of inputs (N, *input_shape)."""
        logits: Tensor = self.network(x)
        return logits

    # Methods and the engine call these; methods must not override them.

    @final
    @classmethod
    def overrides(cls, *hooks: str) -> bool:
        """Whether the method overrides one of these hooks."""
        return any(getattr(cls, hook) is not getattr(Algorithm, hook) for hook in hooks)

    @final
    def train_step(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """Do a step of the run on a drawn batch: start a stage, prepare the batch, update."""
        with torch.no_grad():
            self.start_stage(step)
        if self.rates(step).restart:
            self.optimizers = self.configure()
        return scalars(self.update(self.prepared(batch, step), step), type(self), batch.x.device)

    @final
    def prepared(self, batch: Batch, step: int) -> Batch:
        """The batch for `update`: the step's environments, with noise, after `prepare`."""
        if self.trains_head_only(step):
            self.network.featurizer.eval()
        elif self.trains_head_only(step - 1):
            self.train()
        environments = self.environments_at(step)
        if len(environments) < len(batch.x):
            batch = batch.of(environments)
        if noise := self.noise_at(batch, step):
            if not self.noise_on_host:
                noise = {name: to_device(value, batch.x.device) for name, value in noise.items()}
            batch = replace(batch, noise=noise)
        return self.prepare(batch)

    @final
    def noise_at(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """The method's `noise` of a step, on the CPU; empty by default."""
        if not self.overrides("noise"):
            return {}
        seed = derive("draws", self.problem.seed, step)
        return self.noise(batch, torch.Generator().manual_seed(seed))

    @final
    def outputs(self, batch: Batch, step: int) -> Outputs:
        """One forward pass over the batch of an `update`, or a part of that batch."""
        shape, x, task = batch.x.shape[:2], batch.x.flatten(0, 1), self.problem.task
        if type(self.network).losses is not Network.losses:
            function: Any = self.network.losses
            losses = self._through(function, x, batch.y.flatten(0, 1)).view(shape)
            none = losses.new_empty(*shape, 0)
            return Outputs(none, none, batch.y, losses, losses.mean(1), step, task, batch)
        count, of_views, every = self.needs.views, dict[str, Any](), x
        if batch.views is not None and count:
            views = batch.views[:, :, :count]
            every = torch.cat([x, views.flatten(0, 2)])
        features, logits = self._features_and_logits(every, step)
        if len(every) > len(x):
            for name, values in (("view_features", features), ("view_logits", logits)):
                of_views[name] = torch.unflatten(values[len(x) :], 0, views.shape[:3])
        features, logits = (torch.unflatten(v[: len(x)], 0, shape) for v in (features, logits))
        losses = task.losses(logits, batch.y)
        if batch.other_y is not None and batch.share is not None:
            losses = batch.share * losses + (1 - batch.share) * task.losses(logits, batch.other_y)
        risks = losses.mean(1)
        return Outputs(logits, features, batch.y, losses, risks, step, task, batch, **of_views)

    def _features_and_logits(self, x: Tensor, step: int) -> tuple[Tensor, Tensor]:
        with self.precision(x):
            features = self._in_micro_batches(self.network.featurizer, x)
            if self.trains_head_only(step):
                features = features.detach()
            logits = self.network.classifier(features)
        if self.problem.autocast is None:
            return features, logits
        return features.float(), logits.float()

    @final
    def featurized(self, x: Tensor) -> Tensor:
        """The features of inputs (N, ...), in the run's precision."""
        return self._through(self.network.featurizer, x)

    def _through(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        with self.precision(inputs[0]):
            values = self._in_micro_batches(function, *inputs)
        return values if self.problem.autocast is None else values.float()

    def _in_micro_batches(self, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        count = self.hparams.accumulation
        if count > 1 and self.reduction is not None:  # `update` has split these batches already
            count = 1
        return micro_batched(self.network, function, count, *inputs)

    @final
    def precision(self, x: Tensor) -> AbstractContextManager[object]:
        """A context in which a network runs on `x` in the run's precision."""
        dtype = self.problem.autocast
        return nullcontext() if dtype is None else torch.autocast(x.device.type, dtype)

    @final
    def minimised(self, out: Outputs) -> Tensor:
        """The value of `objective`; raises UserError if it is not one number in a tensor."""
        value: Any = self.objective(out)
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise wrong_result("objective", type(self).__name__, "one number in a tensor", value)
        return value

    @final
    def risk_gradients(self, out: Outputs) -> dict[str, Tensor]:
        """The gradients (E, *shape) of each environment's risk in each trained parameter, by its name.

        They are differentiable, so that an `objective` may use them. They cost an extra forward and
        backward pass, with statistics of batch normalisation per environment, through which the update
        differentiates. Raises UserError for a network that computes its own losses, such as a detector.
        """
        if type(self.network).losses is not Network.losses:
            raise UserError(
                f"{type(self).__name__} needs gradients of risks, which a network that computes its own "
                "losses does not give: return this reason from `skip`"
            )
        return risk_gradients(
            self.network, self._trained, out.task.losses, out.batch.x, out.batch.y
        )

    @final
    def optimizer_of(
        self,
        parameters: Iterable[nn.Parameter],
        scales: Mapping[nn.Parameter, float] = MappingProxyType({}),
    ) -> torch.optim.Optimizer:
        """The run's optimizer for some parameters.

        Learning rates are multiplied by `scales`, or by default by the network's `rate_scales`.
        """
        h, by_name = self.hparams, dict(self.network.named_parameters())
        factors = {by_name[name]: factor for name, factor in self.network.rate_scales.items()}
        return make_optimizer(h.optimizer, parameters, h.lr, h.momentum, {**factors, **scales})

    @final
    def rates(self, step: int) -> Rates:
        """The learning rate and weight decay of an update, and whether the optimizers are reset."""
        h, steps = self.hparams, self.problem.steps
        factor = SCHEDULES[h.lr_schedule](step / steps)
        if h.warm_up:
            factor *= min(1.0, (step + 1) / max(1.0, first_step(h.warm_up, steps)))
        return self.schedule(step, Rates(h.lr * factor, h.weight_decay))

    @final
    def descend(
        self, loss: Tensor | Sequence[Tensor | None], step: int, optimizer_name: str = "main"
    ) -> None:
        """Take an optimizer's step on a loss, or with given gradients of the network's trained parameters.

        Uses the step's learning rate and weight decay, clips gradients at `clip_norm`, and in head-only
        steps leaves the featurizer unchanged. Gradients are cleared afterwards. Raises UserError for an
        optimizer that `configure` does not return.
        """
        if isinstance(loss, Tensor):
            if loss.numel() != 1:
                given = f"{type(self).__name__} gives {loss.numel()}"
                raise UserError(f"`descend` takes one number as the loss, and {given}")
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            trained = (p for p in self.network.parameters() if p.requires_grad)
            for p, gradient in zip(trained, loss, strict=True):
                p.grad = gradient
        if optimizer_name not in self.optimizers:
            place = f"`configure` of {type(self).__name__}"
            raise unknown("optimizer", optimizer_name, self.optimizers, place)
        optimizer = self.optimizers[optimizer_name]
        set_rates(optimizer, self.rates(step))
        if self.trains_head_only(step):
            head = {*self.network.classifier.parameters()}
            for p in self.network.featurizer.parameters():
                if p not in head:
                    p.grad = None
        if self.hparams.clip_norm:
            clipped = [p for group in optimizer.param_groups for p in group["params"]]
            nn.utils.clip_grad_norm_(clipped, self.hparams.clip_norm)
        optimizer.step()
        self.zero_grad()

    @final
    def units(self, batch: Batch, step: int) -> Units:
        """The units of a batch: environments, or examples if the reduction says so."""
        reduction = self.reduction or Reduction(combine=self.combine)
        x, y, of_examples = batch.x, batch.y, reduction.unit == "example"
        if of_examples:
            x, y = (values.flatten(0, 1).unsqueeze(1) for values in (x, y))

        def forward() -> tuple[Tensor, Outputs]:
            out = self.outputs(batch, step)
            return (out.losses.flatten() if of_examples else out.risks), out

        return Units(
            forward=forward,
            x=x,
            y=y,
            losses=self.problem.task.losses,
            batch_norm=reduction.meaning,
        )


def why_skipped(
    cls: type[Algorithm], problem: Problem, hparams: Mapping[str, Any] | None = None
) -> str | None:
    """Why a method with these hyperparameters cannot run on `problem`, or None if it can.

    `hparams` are the method's defaults if None; otherwise missing ones take their neutral values.
    """
    values = defaults(cls.Hparams)
    if hparams is not None:
        values = {**neutral_values(cls.Hparams), **hparams}
    problem = replace(problem, hparams=values)
    if (unmet := _unmet(cls, problem)) is not None:
        return unmet
    with blaming(f"`skip` of the algorithm {cls.__name__}"):
        reason: Any = cls.skip(problem)
    if reason is not None and not isinstance(reason, str):
        raise wrong_result("skip", f"the algorithm {cls.__name__}", "a reason or None", reason)
    return reason


def cannot_balance(problem: Problem, hyperparameter: str = "sampling") -> str | None:
    """Explain why this dataset cannot be balanced by `sampling`, or return None."""
    sampling = str(problem.hparams[hyperparameter])
    balanced, lacks = BALANCED.get(sampling), None
    if balanced == "classes" and not problem.task.has_classes:
        lacks = "its targets are none"
    if balanced == "groups" and not problem.attributes:
        lacks = "its examples have no attribute"
    return lacks and f"`{hyperparameter}: {sampling}` balances {balanced}, and {lacks}"


def _unmet(cls: type[Algorithm], problem: Problem) -> str | None:
    if cls.needs.pretrained and not problem.pretrained:
        return "it needs a pretrained network"
    if cls.needs.zero_shot and not problem.zero_shot:
        return "it needs a head that is made of texts (`head_init: text` of the network CLIP)"
    kind = problem.task.kind
    if cls.needs.classes and not problem.task.has_classes:
        return f"it needs a class as each target, and this task is {kind}"
    if cls.needs.real_inputs and problem.discrete:
        return "it needs numbers as inputs, and these are ids of words"
    if cls.needs.feature_vector and kind in ("tokens", "boxes"):
        return f"it needs one feature vector and one target of each example, unlike {kind}"
    if cls.needs.outputs and kind == "boxes":
        return "a detector's losses are not a function of its outputs"
    if kind == "boxes" and cls.overrides("combine"):
        return "a detector's losses have no gradient for each environment in one pass"
    if kind == "boxes" and cls.needs.views:
        return "a detector gives no features of further views"
    if len(problem.environments) < cls.needs.environments:
        least = {2: "two"}.get(cls.needs.environments, cls.needs.environments)
        return f"it needs at least {least} training environments"
    if reason := cannot_balance(problem):
        return reason
    if cls.needs.has_attributes(problem.hparams) and not problem.attributes:
        return "it needs an attribute of the examples, and they have none"
    return None
