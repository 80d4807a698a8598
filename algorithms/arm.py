"""Adaptive risk minimization."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from oodbench.algorithms import Algorithm, Batch, Needs, Problem, register
from oodbench.hparams import hparam
from oodbench.networks.base import Network


@register("ARM", paper="arXiv:2007.02931")
class ARM(Algorithm):
    """A predictor that sees an input together with a context, a summary of the inputs in its batch.

    ARM-CML (section 4.1): the mean over environments of the mean loss of f(x_ei, c_e), with the context c_e
    = mean_i h(x_ei) of the environment's inputs of the step, and f and h trained together. For an image the
    context is one more channel, which h computes by three 5 x 5 convolutions; for a vector it is one more
    value, computed by three linear layers. In prediction the context is the mean over about as many inputs
    as in training, among those predicted together.

    h has the architecture of arXiv:2007.01434's code, where h stays random because no optimizer trains it;
    here h is trained, as in the paper. The network is rebuilt with one more input, whose pretrained
    first-layer weights are a copy of the first channel's.
    """

    transductive = True
    needs = Needs(outputs=True)

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Algorithm.Hparams):
        """`context_width`: the channels or units of the context network's hidden layers."""

        context_width: int = hparam(64, low=1, neutral=64)

    def __init__(self, network: Network, problem: Problem, hparams: Any) -> None:
        shape = problem.input_shape
        maker: Any = type(network)
        wider = maker((1 + shape[0], *shape[1:]), problem.task.num_outputs, network.hparams)
        super().__init__(wider, problem, hparams)
        self.context = _context_network(shape, hparams.context_width)
        self.together = hparams.batch_size or min(problem.sizes, default=1)
        """How many inputs share a context in a prediction."""

    @classmethod
    def skip(cls, problem: Problem) -> str | None:
        """Refuse inputs that are neither vectors nor images: a context is one more value or channel."""
        if problem.discrete or len(problem.input_shape) not in (1, 3):
            return "its context is one more channel of images, or one more number of vectors"
        return super().skip(problem)

    def prepare(self, batch: Batch) -> Batch:
        """Append the context of its environment to every input."""
        shape = batch.x.shape
        made = torch.unflatten(self.context(batch.x.flatten(0, 1)), 0, shape[:2])
        context = made.mean(1, keepdim=True).expand_as(made)
        return replace(batch, x=torch.cat([batch.x, context], 2))

    def predict(self, x: Tensor) -> Tensor:
        """Logits (N, C) of inputs (N, *input_shape); consecutive inputs share a context."""
        made = self.context(x).tensor_split(max(1, len(x) // self.together))
        context = torch.cat([part.mean(0, keepdim=True).expand_as(part) for part in made])
        logits: Tensor = self.network(torch.cat([x, context], 1))
        return logits


def _context_network(shape: tuple[int, ...], width: int) -> nn.Sequential:
    """A network from inputs (N, *shape) to one channel or value of each."""
    if len(shape) == 1:
        hidden = [nn.Linear(shape[0], width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
        return nn.Sequential(*hidden, nn.Linear(width, 1))
    layers: list[nn.Module] = []
    for channels in (shape[0], width):
        conv = nn.Conv2d(channels, width, 5, padding=2)
        layers += [conv, nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(width, 1, 5, padding=2))
