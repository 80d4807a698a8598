"""Loss sensitivity: how strongly a training example steers the loss that follows (arXiv:1706.05394)."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from oodbench.gradients.twice import twice_differentiable


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

    Each of the T `batches` holds positions (B,) in the inputs x (N, ...) and targets y, and makes one
    update of the parameters as they are in `network`, which stays as it was. L_t, after each `every`-th
    of them, is the mean of `losses`, (N,), over all examples, or P sums weighted by the rows of `parts`,
    (P, N). It depends on x_i by the updates alone. All T updates are in memory, unrolled. The paper's
    measure is the mean over t.
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
                found.append([_size(of_part, steering) for of_part in weights @ each])
    return torch.stack([torch.stack(of_step) for of_step in found])


def _size(loss: Tensor, x: Tensor) -> Tensor:
    (slope,) = torch.autograd.grad(loss, x, retain_graph=True)
    return slope.abs().flatten(1).sum(1)


def by_class(sensitivity: Tensor, y: Tensor, classes: int) -> Tensor:
    """The mean sensitivity of the loss of class i to training examples of class j, (classes, classes).

    `sensitivity` is that of `parts` which are the classes' shares of the loss (figure 3.4).
    """
    members = nn.functional.one_hot(y, classes).to(sensitivity)
    return sensitivity.mean(0) @ (members / members.sum(0).clamp(min=1))


def gini(values: Tensor) -> Tensor:
    """The Gini coefficient of values (..., N), at least 0: 0 if all are equal, towards 1 if one has all.

    It is the mean |a - b| over all pairs, divided by twice the mean.
    """
    n = values.shape[-1]
    ranks = torch.arange(1, n + 1).to(values)
    ordered = values.sort(-1).values
    return ((2 * ranks - n - 1) * ordered).sum(-1) / (n * ordered.sum(-1))
