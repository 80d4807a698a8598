"""The contract of a learning method, and the registry of the folder algorithms/.

`Algorithm` says what a method is. How a step is done stands in `oodbench.steps`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, TypeAlias, TypeVar

import scipy
import torch
from torch import Tensor, nn

from oodbench.blame import blaming
from oodbench.data.streams import to_device as to_device
from oodbench.errors import UserError, unknown, wrong_result
from oodbench.hparams import choice, defaults, hparam, log_uniform, log_uniform_int, neutral_values
from oodbench.networks.base import Network
from oodbench.optimizers import SCHEDULES
from oodbench.overrides import own_bases, own_functions
from oodbench.registry import CHANGES, Registry, folder
from oodbench.tasks import Task

__path__ = [str(folder("algorithms"))]

algorithms: Registry[type["Algorithm"]] = Registry(
    "algorithm", "oodbench.algorithms", check=lambda cls: _require_a_change(cls)
)
A = TypeVar("A", bound=type["Algorithm"])

BALANCED = {"uniform": "", "rwy": "classes", "rwg": "groups", "subg": "groups"}
"""The values of `sampling`, and what each balances."""

HOOKS = (
    *("configure", "drawing_at", "environments_at", "fit_examples", "reduction", "start_stage"),
    *("trains_head_only", "trains_network", "update", "validated"),
)
"""Hooks that only methods derived from `oodbench.steps.CustomStep` may define."""


def register(name: str, *, paper: str) -> Callable[[A], A]:
    """Register a method under `name`; `paper` is where it was published (arXiv:..., or a title).

    Raises UserError for a method whose hooks are misspelt, do not fit or are none.
    """

    def decorate(cls: A) -> A:
        algorithms.add(name, paper)(cls)
        return cls

    return decorate


def _require_a_change(cls: type["Algorithm"]) -> None:
    """Raise UserError for a method that would train as ERM, unless it derives from a registered one.

    Only a method without hyperparameters of its own is ERM on purpose, if its `neutral` says so.
    """
    if not issubclass(cls.Hparams, CommonHparams):
        raise UserError(f"the algorithm {cls.__name__}: `Hparams` derives from `Algorithm.Hparams`")
    silent = {"skip"} if cls.Hparams is CommonHparams else {"skip", "neutral"}
    overrides = {n for n in own_functions(cls) if hasattr(Algorithm, n) or n in HOOKS} - silent
    if not overrides and not algorithms.registered & {*own_bases(cls)}:
        raise UserError(
            f"the algorithm {cls.__name__} overrides none of `objective`, `combine` and the other hooks: "
            "it would train as ERM; a method with other hyperparameters derives from a registered one"
        )


def first_step(value: Any, steps: int) -> Any:
    """The step at which something starts or switches: below 1 `value` is a share of the run's steps.

    From 1 on it is the step itself. Of tensors, as in a vectorized run, a tensor.
    """
    return (value * (1 + (value < 1) * (steps - 1)) + 0.5) // 1


def beta(alpha: float, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draw from Beta(alpha, alpha), float64: its quantiles at numbers that do not depend on alpha."""
    quantiles = torch.rand(shape, generator=generator, dtype=torch.float64)
    return torch.from_numpy(scipy.special.betaincinv(alpha, alpha, quantiles.numpy()))


@dataclass(frozen=True)
class Problem:
    """The facts about a run that its algorithm is built from."""

    input_shape: tuple[int, ...]
    task: Task
    environments: tuple[str, ...]
    """Names of the training environments, in the order in which batches stack them."""
    steps: int
    attributes: int = 0
    """How many values the examples' attribute has; 0: they have none."""
    discrete: bool = False
    """Whether inputs are numbers of words, which cannot be averaged."""
    sizes: tuple[int, ...] = ()
    """How many examples each training environment has to train on."""
    counts: tuple[tuple[int, ...], ...] = ()
    """How many of these each group has, by environment: groups as `Task.groups` numbers them, where
    examples have no attribute classes. Empty where targets are no classes."""
    pretrained: bool = False
    """Whether the network has weights that were trained on other data."""
    zero_shot: bool = False
    """Whether the network's head predicts classes before any training, as one made of texts does."""
    seed: int = 0
    """Seed of everything that all runs of a trial have in common: data noise, splits, initial
    weights, order of batches."""
    autocast: torch.dtype | None = None
    """The type in which the network runs while it is trained, by autocast; None: its parameters' own.
    Its outputs, losses, gradients and masks have the parameters' precision."""
    hparams: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """The method's hyperparameters, where `skip` is asked about some."""


@dataclass(frozen=True)
class Batch:
    """B examples of each of E training environments."""

    x: Tensor
    """Inputs, (E, B, *input_shape)."""
    y: Tensor
    """Targets, (E, B, ...), see `Task`."""
    environments: Tensor | None = None
    """The indices (E,) of the batch's environments among the training environments; None: all, in order."""
    index: Tensor | None = None
    """Each example's index among those that its environment trains on, (E, B)."""
    attributes: Tensor | None = None
    """Each example's attribute where the dataset has one, (E, B) integers."""
    other_y: Tensor | None = None
    """The second targets of mixed examples, (E, B, ...)."""
    share: Tensor | None = None
    """The share of a mixed example's loss that `y` has, (E, B); `other_y` has the rest."""
    views: Tensor | None = None
    """Further views of the inputs, (E, B, V, *input_shape), of a method that has `views`."""
    noise: Mapping[str, Tensor] = field(default_factory=dict)
    """The random numbers of this step, as the method's `noise` made them."""

    def of(self, places: Sequence[int]) -> "Batch":
        """The batch of some of its environments."""
        every = torch.arange(len(self.x), device=self.x.device)
        chosen = torch.stack([every[place] for place in places])  # nothing comes from the host
        given = ((f.name, getattr(self, f.name)) for f in fields(self))
        picked: dict[str, Any] = {k: v[chosen] for k, v in given if isinstance(v, Tensor)}
        return replace(self, **{"environments": chosen, **picked})

    def micro_batches(self, count: int) -> list["Batch"]:
        """The batch in at most `count` pieces, each with examples of every environment."""
        if count == 1:
            return [self]
        given = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "environments"}
        split = {n: v.chunk(count, 1) for n, v in given.items() if isinstance(v, Tensor)}
        rows = zip(*split.values(), strict=True)
        return [replace(self, **dict(zip(split, row, strict=True))) for row in rows]


@dataclass(frozen=True)
class Outputs:
    """The results of a forward pass, stacked over the E training environments of B examples each."""

    logits: Tensor
    """The logits (E, B, C), or as `Task` says; of a network that works out its own losses (E, B, 0)."""
    features: Tensor
    """The outputs of the network's featurizer, (E, B, F), with tokens one of each; empty where the
    network works out its own losses."""
    targets: Tensor
    """The targets, (E, B, ...)."""
    losses: Tensor
    """The loss of each example, (E, B)."""
    risks: Tensor
    """The mean loss of each environment, (E,)."""
    step: int
    """The number of updates already done."""
    task: Task
    metrics: dict[str, Tensor] = field(default_factory=dict)
    """Scalars that an objective wants to see in the run's records, such as its penalty."""
    batch: Batch | None = None
    """The batch of the forward pass: inputs, attributes, the examples' index, the step's noise."""
    buffers: dict[str, Tensor] = field(default_factory=dict)
    """The buffers that `next_buffers` returned for these outputs, for `objective` to use."""
    view_logits: Tensor | None = None
    """The logits of the batch's further views, (E, B, V, C), if it has some."""
    view_features: Tensor | None = None
    """The features of these views, (E, B, V, F)."""

    def of_step(self, values: Tensor) -> Tensor:
        """The values (E, ...) of the step's environments, in its order, among those of all environments."""
        places = None if self.batch is None else self.batch.environments
        return values if places is None else values[places]

    def over_environments(self, values: Tensor, rest: Tensor) -> Tensor:
        """A copy of `rest`, the values of all environments, with (E, ...) those of the step's replaced."""
        places = None if self.batch is None else self.batch.environments
        return values if places is None else rest.index_copy(0, places, values)


@dataclass(frozen=True, kw_only=True)
class Needs:
    """Requirements of a method beyond the inputs and targets of one training environment."""

    environments: int = 1
    """The least number of training environments."""
    attributes: bool | Mapping[str, object] = False
    """Whether a batch has to hold the examples' attributes, or at which values of hyperparameters."""
    index: bool = False
    """Whether a batch must hold each example's index in its environment."""
    views: int = 0
    """The number of further views of every input that a batch holds. The augmentation that the dataset
    has in training is drawn anew for each; where there is none they are copies, and `prepare` may make
    others. The network sees them in the same pass; losses and risks are those of the first view."""
    pretrained: bool = False
    """Whether the network has to start from pretrained weights."""
    zero_shot: bool = False
    """Whether the network's head has to predict classes before any training."""
    packages: Mapping[str, str] = field(default_factory=dict)
    """The optional packages that it imports, each with the command that installs it."""

    def has_attributes(self, hparams: Mapping[str, Any]) -> bool:
        """Whether a batch has to hold attributes, with these hyperparameters."""
        if isinstance(self.attributes, bool):
            return self.attributes
        return all(hparams[name] == value for name, value in self.attributes.items())


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
    """Added to the gradient as weight_decay * parameter (twice the factor of a penalty ||w||^2),
    but for `adamw`, which takes it, times the learning rate, from the parameter itself."""
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
    """The number of training environments of a step, drawn anew each time; 0: all. A drawn one
    with fewer than `batch_size` examples goes on with its next epoch."""
    optimizer: str = hparam("adam", options=("adam", "adamw", "sgd"))
    momentum: float = hparam(0.9, low=0.0, high=1.0)
    """The momentum of the optimizer `sgd`."""
    lr_schedule: str = hparam(
        "constant",
        options=tuple(SCHEDULES),
        by_family={"synthetic": ("drop", None), "noisy_labels": ("drop", None)},
    )
    sampling: str = hparam("uniform", options=tuple(BALANCED), neutral="uniform")
    """How examples are drawn from an environment (arXiv:2110.14503): `rwy` and `rwg` draw each of
    its classes or groups equally often, with replacement; `subg` keeps as many of each group as
    its smallest has. Groups are pairs of target and attribute."""
    warm_up: int | float = hparam(0.0, low=0, neutral=0.0)
    """Updates in which the learning rate rises linearly to its schedule, below 1 a share of the
    run's steps (arXiv:1706.02677, section 2.2)."""
    clip_norm: float = hparam(0.0, low=0.0, neutral=0.0)
    """The largest norm of an update's whole gradient, which is scaled down to it (arXiv:1211.5063,
    algorithm 1), after masks and before weight decay; 0: any."""
    accumulation: int = hparam(1, low=1, neutral=1)
    """The micro-batches in which a batch goes through the featurizer, so that the activations of one are
    in memory (gradient caching, arXiv:2101.06983). Objectives still see the whole batch, and the
    gradients are those of the whole batch; batch normalisation sees a micro-batch."""
    head_only: int | float = hparam(0.0, low=0, neutral=0.0)
    """Updates at the start that train the classifier alone, below 1 a share of the run's steps
    (arXiv:2202.10054); meanwhile the featurizer is as in evaluation."""


class Algorithm(nn.Module):
    """A learning method. Override the first level that fits:

    1. `objective(out)`: what is minimised, from the stacked outputs of one forward pass;
    2. `combine(gradients)`: how the environments' gradients of one parameter become one;
    3. `update(batch, step)` of `oodbench.steps.CustomStep`: the whole step.

    Around `objective` stand three hooks, for methods that need them: `noise` (the random numbers of a
    step), `prepare` (a batch made of the batch) and `next_buffers` (what is remembered from step to
    step). The order of a step is noise, prepare, the forward pass, next_buffers, objective.

    All but `noise` are pure: they depend on parameters, buffers, batch, step and hyperparameters alone
    and never branch in Python on the value of a hyperparameter, so that many runs can be trained as
    one program. State beyond the parameters lives in buffers, so that every method resumes.
    """

    changes: ClassVar[str] = "risk"
    """The part of training that the method changes, a key of `oodbench.registry.CHANGES`."""
    needs: ClassVar[Needs] = Needs()
    """What the method needs beyond the inputs and targets of one training environment."""
    transductive: ClassVar[bool] = False
    """Whether predictions depend on test inputs beside the one that is predicted, such as those of its
    batch: such methods are ranked apart from the others."""
    _hooks: ClassVar[tuple[str, ...]] = ()

    Hparams: TypeAlias = CommonHparams

    def __init__(self, network: Network, problem: Problem, hparams: Any) -> None:
        super().__init__()
        self.network = network
        self.problem = problem
        self.hparams = hparams
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        # in a program of many runs the parameters are stacked, and nothing tells which are trained
        # weights that layers share count under each of their names
        names = network.named_parameters(remove_duplicate=False)
        self._trained = {n for n, p in names if p.requires_grad}

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Refuse, by a UserError, a hook of `CustomStep` and an unknown `changes` or `needs`."""
        super().__init_subclass__(**keywords)
        for name in HOOKS:
            if hasattr(cls, name) and name not in cls._hooks:
                raise UserError(
                    f"the method {cls.__name__}: `{name}` belongs to `oodbench.steps.CustomStep`: "
                    "derive the method from it"
                )
        if cls.changes not in CHANGES:
            raise unknown("value", cls.changes, CHANGES, f"`changes` of the method {cls.__name__}")
        if not isinstance(cls.needs, Needs):
            raise UserError(
                f"`needs` of the method {cls.__name__} is `Needs(...)`, not {cls.needs}"
            )

    @classmethod
    def skip(cls, problem: Problem) -> str | None:
        """Why `problem` with its `hparams` cannot be run, beyond the method's `needs`, or None.

        `why_skipped` looks at both.
        """
        return None

    @classmethod
    def neutral(cls, problem: Problem) -> dict[str, Any] | None:
        """The hyperparameters at which the method is ERM, or None if there are none."""
        return None

    def noise(self, batch: Batch, generator: torch.Generator) -> dict[str, Tensor]:
        """The random numbers of a step, by name; they stand in `batch.noise` afterwards.

        `generator` is the step's own: all methods of a trial get the same one, and a resumed run gets
        it again. The names and shapes may depend on the shapes of `batch`, not on its values.
        """
        return {}

    def prepare(self, batch: Batch) -> Batch:
        """The batch that is trained on, made of the dataset's; a pure function."""
        return batch

    def next_buffers(self, out: Outputs) -> dict[str, Tensor]:
        """The next values of the method's buffers by their names; a pure function.

        `objective` finds them in `out.buffers`, where gradients flow through them; after the update the
        buffers take them, detached.
        """
        return {}

    def objective(self, out: Outputs) -> Tensor:
        """The scalar to minimise; ERM's mean risk unless a method says otherwise."""
        return out.risks.mean()

    def combine(self, gradients: Tensor) -> Tensor:
        """One gradient (*shape) of a parameter from those of the E environments, (E, *shape)."""
        return gradients.mean(0)

    def predict(self, x: Tensor) -> Tensor:
        """Logits (N, C) of inputs (N, *input_shape)."""
        logits: Tensor = self.network(x)
        return logits


def why_skipped(
    cls: type[Algorithm], problem: Problem, hparams: Mapping[str, Any] | None = None
) -> str | None:
    """Why a method with these hyperparameters cannot be run on `problem`, or None if it can.

    Without `hparams` they are the method's defaults; those that a run's spec leaves out are neutral.
    """
    values = defaults(cls.Hparams)
    if hparams is not None:
        values = {**neutral_values(cls.Hparams), **hparams}
    with blaming(f"`skip` of the algorithm {cls.__name__}"):
        reason: Any = cls.skip(replace(problem, hparams=values))
    if reason is not None and not isinstance(reason, str):
        raise wrong_result("skip", f"the algorithm {cls.__name__}", "a reason or None", reason)
    return reason or _unmet(cls, problem) or _without_balance(cls, problem, values)


def cannot_balance(problem: Problem, hyperparameter: str = "sampling") -> str | None:
    """Explain why this dataset cannot be balanced by `sampling`, or return None."""
    sampling = str(problem.hparams[hyperparameter])
    balanced = BALANCED.get(sampling)
    if balanced == "classes" and not problem.task.has_classes:
        return f"`{hyperparameter}: {sampling}` balances classes, and its targets are none"
    if balanced == "groups" and not problem.attributes:
        return f"`{hyperparameter}: {sampling}` balances groups, and its examples have no attribute"
    return None


def _unmet(cls: type[Algorithm], problem: Problem) -> str | None:
    if cls.needs.pretrained and not problem.pretrained:
        return "it needs a pretrained network"
    if cls.needs.zero_shot and not problem.zero_shot:
        return "it needs a head that is made of texts (`head_init: text` of the network CLIP)"
    if problem.task.kind == "boxes" and cls.combine is not Algorithm.combine:
        return "a detector's losses have no gradient for each environment in one pass"
    if problem.task.kind == "boxes" and cls.needs.views:
        return "a detector gives no features of further views"
    if len(problem.environments) < cls.needs.environments:
        least = {2: "two"}.get(cls.needs.environments, cls.needs.environments)
        return f"it needs at least {least} training environments"
    return None


def _without_balance(
    cls: type[Algorithm], problem: Problem, hparams: Mapping[str, Any]
) -> str | None:
    """Explain why this dataset cannot be balanced by `sampling`, or return None."""
    if reason := cannot_balance(replace(problem, hparams=hparams)):
        return reason
    if cls.needs.has_attributes(hparams) and not problem.attributes:
        return "it needs an attribute of the examples, and they have none"
    return None
