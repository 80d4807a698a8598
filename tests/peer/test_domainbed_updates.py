"""Our updates are those of DomainBed's own classes, from golden numbers (`domainbed_updates`), or the guide
says what differs.
"""

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
from oodbench.tasks import Task
from tests.helpers.paths import GOLDEN, ROOT
from tests.peer import setting
from tests.peer.setting import CASES, CLASSES, INPUTS, WIDTH, fill

GOLDEN_UPDATES = json.loads((GOLDEN / "domainbed_updates.json").read_text())
DOMAINBED = """
    ERM ERMPlusPlus Fish IRM GroupDRO Mixup MLDG CORAL MMD DANN CDANN MTL SagNet ARM VREx RSC SD ANDMask
    SANDMask IGA SelfReg Fishr TRM IB_ERM IB_IRM CAD CondCAD Transfer CausIRL_CORAL CausIRL_MMD
    EQRM RDM ADRMX URM
""".split()
"""The names in `ALGORITHMS` of domainbed/algorithms.py at b93c22a."""
ELSEWHERE = ("ERMPlusPlus", "TRM", "Transfer")
"""Those whose comparison stands in docs/findings/sources.md."""
PLAIN = {"lr_schedule": "constant", "optimizer": "adam"}
STEPS = 1000


class Peer(Network):
    """DomainBed's fully connected network, whose features are the outputs of a linear layer; or the one
    with batch normalisation.
    """

    @dataclass(frozen=True, kw_only=True)
    class Hparams(Network.Hparams):
        """None."""

    def __init__(self, normalised: bool) -> None:
        super().__init__()
        self.hparams, self.num_features = self.Hparams(), WIDTH
        layers = [nn.Linear(INPUTS, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU()]
        plain = nn.Sequential(*layers, nn.Linear(WIDTH, WIDTH))
        self.featurizer = setting.Normalised() if normalised else plain
        self.classifier = nn.Linear(WIDTH, CLASSES)


class EachEnvironment(nn.BatchNorm1d):
    """Batch normalisation of every environment's rows by their own statistics."""

    def forward(self, x: Tensor) -> Tensor:
        forward = super().forward
        return torch.cat([forward(rows) for rows in torch.split(x, setting.EXAMPLES)])


def in_order(step: int, environments: int, examples: int) -> Tensor:
    """The order of the examples by which IRM's halves are the even and the odd ones."""
    return torch.arange(examples).expand(environments, examples)


def parameters_after(method: str, normalised: bool) -> Tensor:
    """The parameters of the network after the updates, (P,)."""
    network: Any = Peer(normalised)
    if normalised and method in setting.BY_ENVIRONMENT:
        network.featurizer[1] = EachEnvironment(WIDTH)
    cls: Any = algorithms.get(method)
    values = {**defaults(cls.Hparams), **setting.ADAM, **PLAIN, **CASES[method].ours}
    names = tuple(f"e{e}" for e in range(setting.ENVIRONMENTS))
    problem = Problem((INPUTS,), Task("multiclass", CLASSES), names, STEPS)
    algorithm = cls(network, problem, checked(cls.Hparams, values, method)).double()
    fill(algorithm.network, "network")
    own = [module for name, module in algorithm.named_children() if name != "network"]
    fill(nn.Sequential(*own), "own")
    algorithm.optimizers = algorithm.configure()
    for step in range(setting.UPDATES):
        noise = setting.draws(method, step)
        algorithm.noise = lambda batch, generator, noise=noise: noise
        algorithm.train_step(Batch(*setting.batch(step)), step)
    found: Tensor = parameters_to_vector(algorithm.network.parameters()).detach()
    return found


@pytest.mark.parametrize("normalised", [False, True], ids=["plain", "batch norm"])
@pytest.mark.parametrize("method", list(CASES))
def test_updates_are_those_of_domainbed(
    method: str, normalised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oodbench.algorithms.irm.orders", in_order)
    theirs = GOLDEN_UPDATES[method]["normalised" if normalised else "parameters"]
    wanted = torch.tensor(theirs, dtype=torch.float64)
    torch.testing.assert_close(parameters_after(method, normalised), wanted, rtol=0, atol=1e-8)


def differences() -> dict[str, str]:
    """What differs, by method, in the guide's table of methods."""
    text = (ROOT / "docs" / "guide" / "from_domainbed.md").read_text()
    table = text.partition("\n## Methods\n")[2].partition("\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")][2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {name: what for names, what in rows for name in names.split(", ")}


def test_every_method_of_theirs_is_here_and_what_is_equal_is_compared() -> None:
    assert len(DOMAINBED) == 34 and set(DOMAINBED) <= set(algorithms)
    named = {name for names in setting.NOT_COMPARED for name in names.split(", ")}
    assert not named & CASES.keys() and named | CASES.keys() == {*DOMAINBED}
    differing = differences()
    assert set(differing) < set(DOMAINBED) and all(differing.values())
    for theirs in DOMAINBED:
        if differing.get(theirs, "equal").startswith("equal"):
            assert theirs in CASES or theirs in ELSEWHERE, theirs
