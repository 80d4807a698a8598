"""The parts of a training step: batch and noise, forward pass, gradients, optimizer.

The engine calls `update`. A method with a step of its own is a `CustomStep`, and takes from here what it
needs: `prepared`, `outputs`, `descend`.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from oodbench.algorithms import HOOKS, Algorithm, Batch, Outputs, first_step
from oodbench.data.streams import to_device
from oodbench.errors import UserError
from oodbench.gradients.backward import BATCH_NORM, Reduction, Units, combined_backward
from oodbench.gradients.twice import twice_differentiable
from oodbench.networks.base import Network
from oodbench.optimizers import SCHEDULES, Rates, make_optimizer, set_rates
from oodbench.seeds import derive


class Drawing(NamedTuple):
    """The drawing of the examples of a step's batch."""

    sampling: str
    """A value of the hyperparameter `sampling`."""
    held_out: float = 0.0
    """The share of every environment's training examples, in whole clusters, that the trial sets aside."""
    of_held_out: bool = False
    """Whether the batch is drawn from that share, or else from the others; from all without a share."""


class CustomStep(Algorithm):
    """A method that also changes how its steps are done, by one or more of these hooks."""

    _hooks = HOOKS
    trains_network: ClassVar[bool] = True
    """Whether the method trains the run's network; otherwise it fits a predictor of its own."""

    def update(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """Do one update and return detached scalars, `loss` among them: the third level of a method.

        It starts with `prepared`, which gives the batch of the step's environments with its noise.
        """
        return usual_update(self, batch, step)

    def configure(self) -> dict[str, torch.optim.Optimizer]:
        """The optimizers by name; called once the parameters are on their device."""
        return {"main": optimizer_of(self, self.parameters())}

    def fit_examples(self, x: Tensor, y: Tensor) -> None:
        """Fit a predictor to all examples that the run trains on, pooled, before the first step.

        Inputs are (N, *input_shape) as networks get them, targets (N, ...). A predictor that is no tensor
        is fitted again where the run resumes and where its weights are loaded.
        """

    def schedule(self, step: int, rates: Rates) -> Rates:
        """Learning rate, weight decay and whether optimizers start anew, from the usual ones."""
        return rates

    def start_stage(self, step: int) -> None:
        """Change parameters or buffers in place, without gradients, where a stage of the run begins.

        It is called before the update at every step.
        """

    def environments_at(self, step: int) -> Sequence[int]:
        """Which training environments the batch of a step holds, by their places."""
        return usual_environments(self, step)

    def drawing_at(self, step: int) -> Drawing:
        """The drawing of a step's examples, which may differ between the stages of a run."""
        return Drawing(self.hparams.sampling)

    def trains_head_only(self, step: int) -> bool:
        """Whether the update at a step trains the classifier alone, by default as `head_only`."""
        return usual_head_only(self, step)

    def validated(self, loss: float, step: int) -> None:
        """Take note of the mean loss on the training examples that `drawing_at` holds out.

        It is called at the evaluations of the run, after `step` updates, if the last one's drawing, and
        the first one's, held examples out. It may change buffers in place.
        """

    @property
    def reduction(self) -> Reduction | None:
        """How the gradients of the batch's units become one (see `oodbench.gradients`).

        None if one backward pass of `objective` is enough. It may make examples the units, or combine
        them faster, from their signs.
        """
        return usual_reduction(self)


def update(algorithm: Algorithm, batch: Batch, step: int) -> dict[str, Tensor]:
    """Do one update of a method and return detached scalars, `loss` among them."""
    if isinstance(algorithm, CustomStep):
        return algorithm.update(batch, step)
    return usual_update(algorithm, batch, step)


def trains_network(cls: type[Algorithm]) -> bool:
    """Whether a method trains the run's network; otherwise it fits a predictor of its own."""
    return not issubclass(cls, CustomStep) or cls.trains_network


def fits_examples(cls: type[Algorithm]) -> bool:
    """Whether a method is fitted to all examples at once."""
    return issubclass(cls, CustomStep) and cls.fit_examples is not CustomStep.fit_examples


def has_stages(cls: type[Algorithm]) -> bool:
    """Return whether a method says itself when it draws otherwise or trains the classifier alone."""
    hooks = ("drawing_at", "trains_head_only")
    own = issubclass(cls, CustomStep)
    return own and any(getattr(cls, hook) is not getattr(CustomStep, hook) for hook in hooks)


def has_own_update(cls: type[Algorithm]) -> bool:
    """Whether a method does the whole step itself."""
    return issubclass(cls, CustomStep) and cls.update is not CustomStep.update


def usual_update(algorithm: Algorithm, batch: Batch, step: int) -> dict[str, Tensor]:
    """The update of a method that has none of its own: by `objective` or `combine`."""
    if isinstance(algorithm, CustomStep):
        with torch.no_grad():
            algorithm.start_stage(step)
        if rates(algorithm, step).restart:
            algorithm.optimizers = algorithm.configure()
    batch = prepared(algorithm, batch, step)
    algorithm.optimizers["main"].zero_grad()
    reduction = reduction_of(algorithm)
    if reduction is None:
        out = outputs(algorithm, batch, step)
        out.buffers.update(algorithm.next_buffers(out))
        loss = minimised(algorithm, out)
        loss.backward()  # type: ignore[no-untyped-call]
        metrics = out.metrics
    else:
        pieces = batch.micro_batches(algorithm.hparams.accumulation)
        loss, made = combined_backward(
            algorithm.network, [units(algorithm, piece, step) for piece in pieces], reduction
        )
        out = _concatenated(made, batch)
        with torch.no_grad():
            out.buffers.update(algorithm.next_buffers(out))
        metrics = {**out.metrics, **_observed(algorithm, reduction)}
    descend(algorithm, step)
    for name, value in out.buffers.items():
        algorithm.get_buffer(name).copy_(value.detach())
    return {"loss": loss.detach(), **metrics}


def prepared(algorithm: Algorithm, batch: Batch, step: int, *, on_host: bool = False) -> Batch:
    """The batch of a step as `outputs` takes it: of the step's environments, with noise, prepared.

    With `on_host` the noise stays on the CPU, for an update that reads its values: to read a value on
    a GPU is to wait for it.
    """
    if trains_head_only(algorithm, step):
        algorithm.network.featurizer.eval()
    elif trains_head_only(algorithm, step - 1):
        algorithm.train()
    places = environments_at(algorithm, step)
    if len(places) < len(batch.x):
        batch = batch.of(places)
    noise = (noise_on_host if on_host else noise_at)(algorithm, batch, step)
    return algorithm.prepare(replace(batch, noise=noise))


def noise_at(algorithm: Algorithm, batch: Batch, step: int) -> dict[str, Tensor]:
    """The method's noise of a step, on the batch's device."""
    noise = noise_on_host(algorithm, batch, step)
    return {name: to_device(value, batch.x.device) for name, value in noise.items()}


def noise_on_host(algorithm: Algorithm, batch: Batch, step: int) -> dict[str, Tensor]:
    """The method's noise of a step, on the CPU."""
    if type(algorithm).noise is Algorithm.noise:
        return {}
    seed = derive("draws", algorithm.problem.seed, step)
    return algorithm.noise(batch, torch.Generator().manual_seed(seed))


def environments_at(algorithm: Algorithm, step: int) -> Sequence[int]:
    """Which training environments the batch of a step holds, by their places."""
    if isinstance(algorithm, CustomStep):
        return algorithm.environments_at(step)
    return usual_environments(algorithm, step)


def usual_environments(algorithm: Algorithm, step: int) -> Sequence[int]:
    """All training environments, or `environments_per_step` of them, drawn anew for each step."""
    problem, wanted = algorithm.problem, algorithm.hparams.environments_per_step
    count = len(problem.environments)
    if not 0 < wanted < count:
        return range(count)
    return random.Random(derive(problem.seed, step)).sample(range(count), wanted)


def outputs(algorithm: Algorithm, batch: Batch, step: int) -> Outputs:
    """One forward pass over the environments' examples, stacked."""
    shape, x, task = batch.x.shape[:2], batch.x.flatten(0, 1), algorithm.problem.task
    own_losses = _losses_of_network(algorithm, x, batch.y.flatten(0, 1))
    if own_losses is not None:
        losses, none = own_losses.view(shape), own_losses.new_empty(*shape, 0)
        return Outputs(none, none, batch.y, losses, losses.mean(1), step, task, batch=batch)
    count = algorithm.needs.views
    views = None if batch.views is None or not count else batch.views[:, :, :count]
    if views is not None:
        x = torch.cat([x, views.flatten(0, 2)])
    features, logits = _features_and_logits(algorithm, x, step)
    first = shape.numel()
    view_features, view_logits = (
        None if views is None else torch.unflatten(values[first:], 0, views.shape[:3])
        for values in (features, logits)
    )
    if views is not None:
        features, logits = features[:first], logits[:first]
    logits = torch.unflatten(logits, 0, shape)
    losses = task.losses(logits, batch.y)
    if batch.other_y is not None and batch.share is not None:
        losses = batch.share * losses + (1 - batch.share) * task.losses(logits, batch.other_y)
    return Outputs(
        logits,
        torch.unflatten(features, 0, shape),
        batch.y,
        losses,
        losses.mean(1),
        step,
        task,
        batch=batch,
        view_logits=view_logits,
        view_features=view_features,
    )


def _features_and_logits(algorithm: Algorithm, x: Tensor, step: int) -> tuple[Tensor, Tensor]:
    network = algorithm.network
    with precision(algorithm, x):
        features = _in_micro_batches(algorithm, network.featurizer, x)
        if trains_head_only(algorithm, step):
            features = features.detach()
        logits = network.classifier(features)
    if algorithm.problem.autocast is None:
        return features, logits
    return features.float(), logits.float()


def featurized(algorithm: Algorithm, x: Tensor) -> Tensor:
    """The features of inputs (N, ...) as `Outputs` has them, in the run's precision."""
    with precision(algorithm, x):
        features = _in_micro_batches(algorithm, algorithm.network.featurizer, x)
    return features if algorithm.problem.autocast is None else features.float()


def precision(algorithm: Algorithm, x: Tensor) -> AbstractContextManager[object]:
    """Run the network, within it, on `x` in the run's precision."""
    dtype = algorithm.problem.autocast
    return nullcontext() if dtype is None else torch.autocast(x.device.type, dtype)


def _in_micro_batches(
    algorithm: Algorithm, function: Callable[..., Tensor], *inputs: Tensor
) -> Tensor:
    """Outputs (N, ...) of `function`, which runs the network on inputs (N, ...).

    It is called on one micro-batch after the other, so that only one's activations are in memory. The
    backward pass recomputes them, so that it is exact, at the price of a second forward pass. Batch
    normalisation takes the statistics of a micro-batch, and counts it once.
    """
    count = algorithm.hparams.accumulation
    if count == 1 or reduction_of(algorithm) is not None:  # whose batches are micro-batches already
        return function(*inputs)

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _statistics_kept(algorithm.network)

    outputs = [
        checkpoint(function, *each, use_reentrant=False, context_fn=contexts)
        for each in zip(*(x.chunk(count) for x in inputs), strict=True)
    ]
    return torch.cat(outputs)


@contextmanager
def _statistics_kept(network: nn.Module) -> Iterator[None]:
    layers = [m for m in network.modules() if isinstance(m, _BatchNorm)]
    before = [(m, m.momentum, m.num_batches_tracked) for m in layers]
    try:
        for m in layers:
            m.momentum, m.num_batches_tracked = 0.0, None
        yield
    finally:
        for m, momentum, tracked in before:
            m.momentum, m.num_batches_tracked = momentum, tracked


def _losses_of_network(algorithm: Algorithm, x: Tensor, y: Tensor) -> Tensor | None:
    if type(algorithm.network).losses is Network.losses:
        return None
    function: Any = algorithm.network.losses
    with precision(algorithm, x):
        losses = _in_micro_batches(algorithm, function, x, y)
    return losses if algorithm.problem.autocast is None else losses.float()


def risk_gradients(algorithm: Algorithm, out: Outputs) -> dict[str, Tensor]:
    """The gradient of each environment's risk in each trained parameter of the network, by its name.

    They are (E, *shape), and themselves differentiable. An `objective` may call this, which takes a
    forward and a backward pass of its own, in which batch normalisation takes each environment by its own
    statistics; the update then differentiates through both. Raises UserError for a network that works
    out its own losses, which are no function of its outputs.
    """
    network, task = algorithm.network, out.task
    if out.batch is None or type(network).losses is not Network.losses:
        raise UserError(
            f"{type(algorithm).__name__} takes gradients of risks, which a network with losses of its own "
            "does not have: let `skip` give that as a reason"
        )
    parameters = {n: p for n, p in network.named_parameters() if n in algorithm._trained}
    count = len(out.batch.x)
    buffers = {n: b.expand(count, *b.shape).clone() for n, b in network.named_buffers()}

    def risk(parameters: Any, buffers: Any, x: Tensor, y: Tensor) -> Tensor:
        return task.losses(functional_call(network, {**parameters, **buffers}, (x,)), y).mean()

    each = vmap(grad(risk), in_dims=(None, 0, 0, 0), randomness="different")
    with twice_differentiable():
        gradients: dict[str, Tensor] = each(parameters, buffers, out.batch.x, out.batch.y)
    return gradients


def minimised(algorithm: Algorithm, out: Outputs) -> Tensor:
    """The value of `objective`; raises UserError if it is not one number in a tensor."""
    value: Any = algorithm.objective(out)
    if not isinstance(value, Tensor) or value.numel() != 1:
        shape = getattr(value, "shape", None)
        given = type(value).__name__ if shape is None else f"values of shape {tuple(shape)}"
        name = type(algorithm).__name__
        raise UserError(f"`objective` of {name} must return one number in a tensor, not {given}")
    return value


def reduction_of(algorithm: Algorithm) -> Reduction | None:
    """How the gradients of the units become one, or None if one backward pass is enough."""
    if isinstance(algorithm, CustomStep):
        return algorithm.reduction
    return usual_reduction(algorithm)


def usual_reduction(algorithm: Algorithm) -> Reduction | None:
    """The method's `combine`, if it defines one."""
    if type(algorithm).combine is Algorithm.combine:
        return None
    return Reduction(combine=algorithm.combine)


def units(algorithm: Algorithm, batch: Batch, step: int) -> Units:
    """The units of a batch: its environments, or its examples where the reduction says so."""
    unit, batch_norm = "environment", None
    if (reduction := reduction_of(algorithm)) is not None:
        unit, batch_norm = reduction.unit, reduction.batch_norm
    by_environment = unit == "environment"
    x, y = batch.x, batch.y
    if not by_environment:
        x, y = (values.flatten(0, 1).unsqueeze(1) for values in (x, y))

    def forward() -> tuple[Tensor, Outputs]:
        out = outputs(algorithm, batch, step)
        return (out.risks if by_environment else out.losses.flatten()), out

    return Units(
        count=len(x),
        forward=forward,
        x=x,
        y=y,
        losses=algorithm.problem.task.losses,
        batch_norm=batch_norm or BATCH_NORM[unit],
    )


def _concatenated(pieces: Sequence[Outputs], batch: Batch) -> Outputs:
    if len(pieces) == 1:
        return pieces[0]
    names = ["logits", "features", "targets", "losses"]
    names += ["view_logits", "view_features"] if pieces[0].view_logits is not None else []
    whole: dict[str, Any] = {n: torch.cat([getattr(p, n) for p in pieces], 1) for n in names}
    return replace(pieces[-1], **whole, risks=whole["losses"].mean(1), batch=batch)


@torch.no_grad()
def _observed(algorithm: Algorithm, reduction: Reduction) -> dict[str, Tensor]:
    if reduction.observe is None:
        return {}
    trained: list[Tensor] = [p for p in algorithm.network.parameters() if p.requires_grad]
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
    counts = torch._foreach_norm(torch._foreach_sign(gradients))
    norms = torch._foreach_norm(trained)
    return reduction.observe(*(torch.stack(n).square_() for n in (norms, counts)))


def configure(algorithm: Algorithm) -> None:
    """Make the method's optimizers, once its parameters are on their device."""
    if isinstance(algorithm, CustomStep):
        algorithm.optimizers = algorithm.configure()
    else:
        algorithm.optimizers = {"main": optimizer_of(algorithm, algorithm.parameters())}


def optimizer_of(
    algorithm: Algorithm,
    parameters: Iterable[nn.Parameter],
    scales: Mapping[nn.Parameter, float] = MappingProxyType({}),
) -> torch.optim.Optimizer:
    """The run's optimizer for some parameters, with the factors of their learning rates.

    The factors are those of the network, and `scales`.
    """
    h, network = algorithm.hparams, algorithm.network
    by_name = dict(network.named_parameters())
    factors = {by_name[name]: factor for name, factor in network.rate_scales.items()}
    return make_optimizer(h.optimizer, parameters, h.lr, h.momentum, {**factors, **scales})


def rates(algorithm: Algorithm, step: int) -> Rates:
    """The learning rate and the weight decay of an update, and whether the optimizers start anew."""
    h, steps = algorithm.hparams, algorithm.problem.steps
    factor = SCHEDULES[h.lr_schedule](step / steps)
    if h.warm_up:
        factor *= min(1.0, (step + 1) / max(1.0, first_step(h.warm_up, steps)))
    usual = Rates(h.lr * factor, h.weight_decay)
    return algorithm.schedule(step, usual) if isinstance(algorithm, CustomStep) else usual


def trains_head_only(algorithm: Algorithm, step: int) -> bool:
    """Whether the update at `step` is one that trains the classifier alone."""
    if isinstance(algorithm, CustomStep):
        return algorithm.trains_head_only(step)
    return usual_head_only(algorithm, step)


def usual_head_only(algorithm: Algorithm, step: int) -> bool:
    """Whether `step` is one of those at the start that `head_only` gives to the classifier."""
    share: float = algorithm.hparams.head_only
    return bool(share != 0 and step < first_step(share, algorithm.problem.steps))


def descend(algorithm: Algorithm, step: int, name: str = "main") -> None:
    """Let an optimizer use the gradients, at this step's learning rate and weight decay."""
    optimizer = algorithm.optimizers[name]
    set_rates(optimizer, rates(algorithm, step))
    network = algorithm.network
    if trains_head_only(algorithm, step):
        head = {*network.classifier.parameters()}
        for p in network.featurizer.parameters():
            if p not in head:
                p.grad = None
    if algorithm.hparams.clip_norm:
        trained = [p for group in optimizer.param_groups for p in group["params"]]
        nn.utils.clip_grad_norm_(trained, algorithm.hparams.clip_norm)
    optimizer.step()
