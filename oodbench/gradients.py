"""The gradients of the environments' risks, stacked, for methods that combine them."""

from typing import TYPE_CHECKING

from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

if TYPE_CHECKING:
    from oodbench.algorithms import Algorithm, Batch


def combined_backward(
    algorithm: "Algorithm", batch: "Batch", step: int
) -> tuple[Tensor, dict[str, Tensor]]:
    """Set each parameter's `.grad` to `algorithm.combine` of the E environments' gradients.

    Returns the mean risk and the metrics. The stacked gradients come from one vectorised backward
    pass over the environments.
    """
    network, task = algorithm.network, algorithm.problem.task
    trained: dict[str, Tensor] = {n: p for n, p in network.named_parameters() if p.requires_grad}
    fixed = {n: p for n, p in network.named_parameters() if not p.requires_grad}

    def risk(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return task.losses(functional_call(network, {**fixed, **parameters}, (x,)), y).mean()

    per_environment = vmap(grad_and_value(risk), in_dims=(None, 0, 0), randomness="different")
    gradients, risks = per_environment(trained, batch.x, batch.y)
    for name, parameter in trained.items():
        parameter.grad = algorithm.combine(gradients[name])
    return risks.mean(), {}
