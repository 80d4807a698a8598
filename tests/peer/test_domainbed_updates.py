"""Our updates are those of DomainBed's own classes, from golden numbers (`domainbed_updates`)."""

import json
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from oodbench.algorithms import Batch, Problem, algorithms
from oodbench.hparams import checked, defaults
from oodbench.networks.base import Network
from oodbench.steps import configure, update
from oodbench.tasks import Task
from tests.helpers.paths import GOLDEN
from tests.peer.setting import (
    ADAM,
    CASES,
    CLASSES,
    ENVIRONMENTS,
    INPUTS,
    NOT_COMPARED,
    UPDATES,
    WIDTH,
    batch,
    draws,
    fill,
)

GOLDEN_UPDATES = json.loads((GOLDEN / "domainbed_updates.json").read_text())
PLAIN = {"lr_schedule": "constant", "optimizer": "adam"}
STEPS = 1000


class Peer(Network):
    """DomainBed's fully connected network, whose features are the outputs of a linear layer."""

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Network.Hparams):
        """None."""

    def __init__(self) -> None:
        super().__init__()
        self.hparams, self.num_features = self.Hparams(), WIDTH
        layers = [nn.Linear(INPUTS, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU()]
        self.featurizer = nn.Sequential(*layers, nn.Linear(WIDTH, WIDTH))
        self.classifier = nn.Linear(WIDTH, CLASSES)


def in_order(step: int, environments: int, examples: int) -> Tensor:
    """The order of the examples by which IRM's halves are the even and the odd ones."""
    return torch.arange(examples).expand(environments, examples)


def parameters_after(method: str) -> Tensor:
    """The parameters of the network after the updates, (P,)."""
    cls: Any = algorithms.get(method)
    values = {**defaults(cls.Hparams), **ADAM, **PLAIN, **CASES[method].ours}
    names = tuple(f"e{e}" for e in range(ENVIRONMENTS))
    problem = Problem((INPUTS,), Task("multiclass", CLASSES), names, STEPS)
    algorithm = cls(Peer(), problem, checked(cls.Hparams, values, method)).double()
    fill(algorithm.network, "network")
    own = [module for name, module in algorithm.named_children() if name != "network"]
    fill(nn.Sequential(*own), "own")
    configure(algorithm)
    for step in range(UPDATES):
        noise = draws(method, step)
        algorithm.noise = lambda batch, generator, noise=noise: noise
        update(algorithm, Batch(*batch(step)), step)
    found: Tensor = parameters_to_vector(algorithm.network.parameters()).detach()
    return found


@pytest.mark.parametrize("method", list(CASES))
def test_updates_are_those_of_domainbed(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oodbench.algorithms.irm.orders", in_order)
    wanted = torch.tensor(GOLDEN_UPDATES[method]["parameters"], dtype=torch.float64)
    torch.testing.assert_close(parameters_after(method), wanted, rtol=0, atol=1e-8)


def test_every_method_that_both_have_is_compared_or_named_with_a_reason() -> None:
    assert {"DomainBed", "torch", "not compared", *CASES} == GOLDEN_UPDATES.keys()
    named = {name for names in NOT_COMPARED for name in names.split(", ")}
    assert GOLDEN_UPDATES["not compared"] == NOT_COMPARED
    assert not named & CASES.keys()
    for method, case in CASES.items():
        assert GOLDEN_UPDATES[method].get("altered", "") == case.altered
