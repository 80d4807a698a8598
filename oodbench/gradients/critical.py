"""Critical samples and loss sensitivity: two measures of how networks memorize (arXiv:1706.05394).

Near a critical sample the predicted class changes (section 3.4.1). The share of critical samples measures
how densely decision boundaries cross the data, and so how complex the learned hypothesis is. Loss
sensitivity measures how strongly a training example influences the later loss.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from oodbench.errors import UserError
from oodbench.gradients.twice import twice_differentiable

RADIUS, ALPHA, BETA = 0.3, 0.25, 0.2
"""The half-width of the box, the step and the noise of the paper, on pixels from 0 to 255."""


def critical_samples(
    model: nn.Module,
    x: Tensor,
    *,
    radius: float = RADIUS,
    alpha: float = ALPHA,
    beta: float = BETA,
    scale: float | Tensor = 1.0,
    steps: int = 10,
    low: float | Tensor = -math.inf,
    high: float | Tensor = math.inf,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Mask (N,) of the inputs x, (N, ...) floats, near which the predicted class changes.

    Nearby is the box of half-width `radius` in the max norm around the input (equation 3.1), cut to
    `low` and `high`. `langevin_search` has the algorithm. The mask's mean is the critical sample ratio.

    `radius`, `alpha` and `beta` are in the paper's unit, one step of pixels from 0 to 255, and `scale` is
    this unit in x: 1/255 for images in [0, 1], and 1 / (255 std) for images normalised by (image - mean) /
    std, with std (C, 1, 1) if it differs between channels.

    The model maps inputs to logits (N, C), or (N, 1) of two classes. It is evaluated in eval mode, and
    the modes of its modules are restored. `generator` is on the CPU and by default seeded with 0. Raises
    UserError for a model that does not predict classes, or that cannot be differentiated.
    """
    if not isinstance(model, nn.Module):
        raise UserError(f"critical samples need a torch.nn.Module, not {type(model).__name__}")
    task = getattr(getattr(model, "dataset", None), "task", None)
    for name, value in {"radius": radius, "alpha": alpha, "beta": beta, "scale": scale}.items():
        if not torch.all(torch.as_tensor(value) >= 0):
            raise UserError(f"critical samples need {name} from 0 on, not {value}")
    if task is not None and not task.has_classes:
        raise UserError(f"critical samples need a model of classes, and its task is {task.kind}")
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        sizes = (scale * radius, scale * alpha, scale * beta)
        generator = generator or torch.Generator().manual_seed(0)
        found, _ = langevin_search(
            model, x, *sizes, steps=steps, low=low, high=high, generator=generator
        )
        return found
    finally:
        for module, is_training in modes.items():
            module.training = is_training


def langevin_search(
    predict: Callable[[Tensor], Tensor],
    x: Tensor,
    radius: float | Tensor,
    alpha: float | Tensor,
    beta: float | Tensor,
    *,
    steps: int,
    generator: torch.Generator,
    low: float | Tensor = -math.inf,
    high: float | Tensor = math.inf,
) -> tuple[Tensor, Tensor]:
    """Langevin adversarial sample search, LASS (algorithm 1), for all inputs at once.

    A step adds -alpha sign(d log f_k / dx) + beta eta, eta standard normal, and clamps to the box. f_k is
    the probability of the class k that is predicted for x; the printed algorithm increases f_k, and so
    moves away from all boundaries. An input whose class has changed leaves the batch. `radius`, `alpha` and
    `beta` are in units of x. Returns a mask (N,) of the inputs found, and the found neighbours, (N, ...),
    with x itself elsewhere. Raises UserError as `critical_samples` does.
    """
    if not isinstance(x, Tensor) or not x.is_floating_point():
        kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise UserError(f"critical samples need a tensor of floats, not {kind}")
    x, near = x.detach(), x.detach().clone()
    size, low, high = (torch.as_tensor(value).to(x) for value in (radius, low, high))
    k, slope = _class_and_slope(predict, x)
    left = torch.arange(len(x), device=x.device)
    for _ in range(steps):
        if not len(left):
            break
        eta = torch.randn(slope.shape, generator=generator).to(x)
        moved = near[left] - alpha * slope.sign() + beta * eta
        near[left] = (x[left] + (moved - x[left]).clamp(-size, size)).clamp(low, high)
        now, slope = _class_and_slope(predict, near[left], k[left])
        left, slope = left[now == k[left]], slope[now == k[left]]
    found = torch.ones(len(x), dtype=torch.bool, device=x.device)
    found[left] = False
    near[left] = x[left]
    return found, near


def _class_and_slope(
    predict: Callable[[Tensor], Tensor], x: Tensor, k: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Each example's predicted class, and d log f_k / dx for `k`, by default this class."""
    with torch.enable_grad():
        inputs = x.clone().requires_grad_()
        # a view, as hooks of modules on a leaf, such as those of FlopCounterMode, fail in `autograd.grad`
        outputs: object = predict(inputs.view_as(inputs))
        if not isinstance(outputs, Tensor) or outputs.dim() != 2 or len(outputs) != len(x):
            form = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
            raise UserError(f"critical samples need logits ({len(x)}, C) of classes, not {form}")
        single = outputs.shape[1] == 1
        logits = torch.cat([-outputs / 2, outputs / 2], 1) if single else outputs
        if not logits.requires_grad:
            raise UserError("critical samples need predictions that can be differentiated")
        now = logits.argmax(1)
        of_k = logits.log_softmax(1).gather(1, (now if k is None else k).unsqueeze(1)).sum()
    return now, torch.autograd.grad(of_k, inputs)[0]


def loss_sensitivity(
    network: nn.Module,
    losses: Callable[[Tensor, Tensor], Tensor],
    x: Tensor,
    y: Tensor,
    batches: Sequence[Tensor],
    *,
    lr: float,
    every: int = 1,
    parts: Tensor | None = None,
) -> Tensor:
    """|| dL_t / dx_i ||_1 after t updates of SGD, through the updates: (T // every, P, N).

    Each of the T `batches` holds indices (B,) of inputs x (N, ...) and targets y, and makes one update of a
    copy of the network's parameters. L_t, after each `every`-th update, is the mean of `losses`, (N,), over
    all examples, or P sums weighted by the rows of `parts`, (P, N), such as the examples of each class for
    the matrix of figure 3.4. It depends on x_i only through the updates. All T updates are unrolled in
    memory. The paper's measure is the mean over t.
    """
    weights = torch.full((1, len(x)), 1 / len(x)).to(x) if parts is None else parts
    steering = x.detach().clone().requires_grad_()

    def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return losses(functional_call(network, parameters, (x,)), y).mean()

    parameters: dict[str, Tensor] = {n: p.detach() for n, p in network.named_parameters()}
    found = []
    with twice_differentiable():
        for t, batch in enumerate(batches, 1):
            slopes = grad(loss)(parameters, steering[batch], y[batch])
            parameters = {n: p - lr * slopes[n] for n, p in parameters.items()}
            if t % every == 0:
                each = losses(functional_call(network, parameters, (x.detach(),)), y)
                found.append(torch.stack([_size(part, steering) for part in weights @ each]))
    return torch.stack(found)


def _size(loss: Tensor, x: Tensor) -> Tensor:
    (slope,) = torch.autograd.grad(loss, x, retain_graph=True)
    return slope.abs().flatten(1).sum(1)


def gini(values: Tensor) -> Tensor:
    """The Gini coefficient of values (..., N) >= 0: 0 if all are equal, near 1 if all but one are 0.

    It is the mean |a - b| over all pairs, divided by twice the mean.
    """
    n = values.shape[-1]
    ranks = torch.arange(1, n + 1).to(values)
    ordered = values.sort(-1).values
    return ((2 * ranks - n - 1) * ordered).sum(-1) / (n * ordered.sum(-1))
