"""Both trainings of ERMPlusPlus beside DomainBed's: python -m tests.peer.erm_plus_plus CHECKOUT.

CHECKOUT is a clone of facebookresearch/DomainBed at b93c22a. The loops of its `train_autolr` are written
anew around its class, from the same weights and batches, in float64. Its head is trained one step longer.
"""

import copy
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector

from oodbench.algorithms import Batch, Problem, algorithms
from oodbench.networks.base import Network
from oodbench.tasks import Task
from tests.peer.domainbed_updates import imported

ENVIRONMENTS, INPUTS, CLASSES, EXAMPLES, HELD_OUT = 3, 6, 4, 8, 64
SEED, STEPS, EVERY, HEAD, START = 2, 200, 7, 9, 12
RATES = {"lr": 0.2, "linear_lr": 0.01, "weight_decay": 1e-3}
MLP = {"mlp_width": 8, "mlp_depth": 3, "mlp_dropout": 0.0, "nonlinear_classifier": False}
THEIRS = {**RATES, **MLP, "lars": False, "linear_steps": HEAD, "freeze_bn": True}


def drawn(examples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Inputs (E, B, INPUTS) and noisy classes (E, B)."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(ENVIRONMENTS, examples, INPUTS, generator=generator)
    noise = torch.randn(ENVIRONMENTS, examples, CLASSES, generator=generator)
    weights = torch.randn(INPUTS, CLASSES, generator=torch.Generator().manual_seed(0))
    return x, (x @ weights + noise).argmax(-1)


def both(network: nn.Module, mean: nn.Module) -> Tensor:
    """The weights of the network and of the mean, in one vector."""
    return parameters_to_vector([*network.parameters(), *mean.parameters()]).detach()


def training(algorithm: Any, first: int, schedule: Any = None) -> Iterator[tuple[Tensor, Any]]:
    """The weights after each update of a training of DomainBed's, with its schedule so far."""
    held_out = [[pair] for pair in zip(*drawn(HELD_OUT, -1), strict=True)]
    repeats = schedule is not None
    for step in range(STEPS):
        algorithm.update([*zip(*drawn(EXAMPLES, first + step), strict=True)])
        if step % EVERY == 0 or step == STEPS - 1:
            schedule = (
                algorithm.set_lr(schedule=schedule) if repeats else algorithm.set_lr(held_out)
            )
        yield both(algorithm.network, algorithm.network_sma), schedule
        if schedule and schedule[0 if repeats else -1] == [0.0]:
            return


class Theirs(Network):
    """DomainBed's network in two parts."""

    def __init__(self, algorithm: Any) -> None:
        super().__init__()
        self.featurizer = copy.deepcopy(algorithm.featurizer)
        self.classifier = copy.deepcopy(algorithm.classifier)
        self.num_features = algorithm.featurizer.n_outputs


def ours(algorithm: Any) -> Any:
    """Our method with the weights of DomainBed's."""
    values = {"lr": RATES["lr"], "head_lr": RATES["linear_lr"], "head_only": HEAD + 1}
    values |= {"weight_decay": RATES["weight_decay"], "average_start": START}
    problem = Problem((INPUTS,), Task("multiclass", CLASSES), ("a", "b", "c"), 2 * STEPS)
    cls: Any = algorithms.get("ERMPlusPlus")
    method = cls(Theirs(algorithm), problem, cls.Hparams(**values, first_stage=STEPS))
    method.optimizers = method.configure()
    return method


def differences(peer: Any) -> Iterator[tuple[int, float]]:
    """For each training, the number of updates that DomainBed's has and the largest difference."""
    torch.manual_seed(SEED)
    made = peer.ERMPlusPlus((INPUTS,), CLASSES, ENVIRONMENTS, THEIRS)
    made.sma_start_iter = START
    method, schedule = ours(made), None
    for first in (0, STEPS):
        theirs, path = list(training(copy.deepcopy(made), first, schedule)), []
        schedule = theirs[-1][1]
        for step in range(STEPS):
            method.train_step(Batch(*drawn(EXAMPLES, first + step)), first + step)
            path.append(both(method.network, method.mean))
            if step % EVERY == 0 and not first:
                pairs = zip(*drawn(HELD_OUT, -1), strict=True)
                losses = [cross_entropy(method.predict(x), y) for x, y in pairs]
                method.validated(float(torch.stack(losses).mean()), step + 1)
        gaps = [(mine - its).abs().max() for mine, (its, _) in zip(path, theirs, strict=False)]
        yield len(theirs), float(max(gaps))
    print("the rate falls after", method.plateau.at.tolist())


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    for updates, difference in differences(imported(sys.argv[1])):
        print(f"{updates} updates, largest difference {difference:.0e}")
