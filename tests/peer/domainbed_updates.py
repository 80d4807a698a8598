"""Write tests/golden/domainbed_updates.json: python -m tests.peer.domainbed_updates CHECKOUT.

CHECKOUT is a clone of facebookresearch/DomainBed at b93c22a. Its own classes do the updates of
`setting`; the golden file holds the network's parameters after them, which
`test_domainbed_updates` compares with ours.
"""

import importlib
import json
import sys
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

from tests.helpers.paths import GOLDEN
from tests.peer import commit_of, setting
from tests.peer.setting import ADAM, CASES, CLASSES, INPUTS, WIDTH, draws, fill

COMMIT = "b93c22a"
DIGITS = 13
HPARAMS = {
    **ADAM,
    **{"mlp_width": WIDTH, "mlp_depth": 3, "mlp_dropout": 0.0, "nonlinear_classifier": False},
    **{"is_flipped": True, "is_normalized": False, "is_project": False},
}


def imported(checkout: str) -> Any:
    """The module domainbed.algorithms of a checkout, without what it needs for images alone."""
    commit_of(checkout, COMMIT)
    sys.path.insert(0, checkout)
    sys.modules["timm"] = ModuleType("timm")
    return importlib.import_module("domainbed.algorithms")


@contextmanager
def handed(method: str, step: int, y: Tensor) -> Iterator[None]:
    """Random functions that hand out a step's draws in the order in which the method asks for them."""
    drawn, queues = draws(method, step), dict[str, list[Any]]()
    if method in ("Mixup", "MLDG"):
        queues["randperm"] = [drawn["order"]]
    if method == "Mixup":
        queues["beta"] = drawn["share"].tolist()
    if method.startswith("CausIRL"):
        queues["randint"] = drawn["cut"].tolist()
    if method == "SagNet":
        queues["rand"], queues["randperm"] = [drawn["share"]] * 3, list(drawn["orders"])
    if method == "URM":
        queues["rand"] = [(drawn["u"].flatten(0, 1) + 1) / 2]
    if method == "SelfReg":
        of_class = [(y.flatten() == c).nonzero().squeeze(1) for c in range(CLASSES)]
        each = [noise.flatten()[members] for members in of_class for noise in drawn["noise"]]
        queues["beta"], queues["randperm"] = [float(drawn["share"])], [n.argsort() for n in each]
    with (
        mock.patch.object(torch, "randperm", lambda n: queues["randperm"].pop(0)),
        mock.patch.object(torch, "rand", lambda *shape, **of: queues["rand"].pop(0)),
        mock.patch.object(np.random, "beta", lambda a, b: queues["beta"].pop(0)),
        mock.patch.object(np.random, "randint", lambda low, high: queues["randint"].pop(0)),
    ):
        yield
    assert not any(queues.values()), f"{method} has draws left"


def normalised(peer: Any) -> Any:
    """Within it methods are built on a network with batch normalisation."""
    made: dict[str, Any] = {"Featurizer": lambda shape, hparams: setting.Normalised()}
    made["ResNet"] = setting.Normalised  # URM asks for a known one
    return mock.patch.multiple(peer.networks, **made)


@contextmanager
def altered(peer: Any, method: str) -> Iterator[None]:
    """What `CASES` says of a method's update is altered; sorting keeps the order of equal classes."""
    misc, sort = importlib.import_module("domainbed.lib.misc"), torch.sort
    changes: list[tuple[Any, str, Any]] = [(torch, "sort", lambda x: sort(x, stable=True))]
    if method == "MLDG":
        ring = misc.random_pairs_of_minibatches
        changes.append((peer, "split_meta_train_test", lambda xy, _: ring(xy)))
    if method in ("RDM", "MTL"):
        name = {"RDM": "cuda", "MTL": "normal_"}[method]
        changes.append((Tensor, name, lambda self: self))
    if method == "Fishr":
        changes += [(peer, "backpack", object()), (peer, "extend", lambda module: module)]
    with ExitStack() as stack:
        for change in changes:
            stack.enter_context(mock.patch.object(*change, create=True))
        yield


def gradients_of_examples(self: Any, logits: Tensor, y: Tensor) -> Any:
    """Fishr's gradients of every example's loss, by autograd."""
    self.optimizer.zero_grad()
    losses = self.bce_extended(logits, y)
    names, parameters = zip(*self.classifier.named_parameters(), strict=True)
    each = [torch.autograd.grad(loss, parameters, create_graph=True) for loss in losses]
    stacks = [torch.stack(stack).flatten(1) for stack in zip(*each, strict=True)]
    return OrderedDict(zip(names, stacks, strict=True))


def network(algorithm: Any, method: str) -> nn.Module:
    """Featurizer and classifier."""
    if method == "SagNet":
        return nn.Sequential(algorithm.network_f, algorithm.network_c)
    if method == "Fish":
        whole: nn.Module = algorithm.network
        return whole
    return nn.Sequential(algorithm.featurizer, algorithm.classifier)


def built(peer: Any, method: str) -> Any:
    """A method of DomainBed with our weights."""
    values = {**HPARAMS, **CASES[method].theirs}
    algorithm = getattr(peer, method)((INPUTS,), CLASSES, setting.ENVIRONMENTS, values)
    if method == "MTL":
        of_features = nn.Linear(WIDTH, CLASSES)
        of_embedding = nn.Linear(WIDTH, CLASSES, bias=False)
        fill(nn.Sequential(algorithm.featurizer, of_features), "network")
        fill(of_embedding, "own")
        with torch.no_grad():
            both = torch.cat([of_features.weight, of_embedding.weight], 1)
            algorithm.classifier.weight.copy_(both)
            algorithm.classifier.bias.copy_(of_features.bias)
        lr, decay = ADAM["lr"] / setting.ENVIRONMENTS, ADAM["weight_decay"] * setting.ENVIRONMENTS
        parameters = [*algorithm.featurizer.parameters(), *algorithm.classifier.parameters()]
        algorithm.optimizer = torch.optim.SGD(parameters, lr=lr, weight_decay=decay)
        return algorithm
    fill(network(algorithm, method), "network")
    if method == "SagNet":
        fill(algorithm.network_s, "own")
    if method == "URM":
        fill(algorithm.discriminator, "own")
    if method == "SelfReg":
        fill(algorithm.cdpl, "own")
        algorithm.optimizer.add_param_group({"params": algorithm.cdpl.parameters()})
    if method == "Fishr":
        algorithm._get_grads = gradients_of_examples.__get__(algorithm)
    return algorithm


def parameters_after(peer: Any, method: str) -> list[float]:
    """The network's parameters after the updates; of MTL without the embedding's weights."""
    algorithm = built(peer, method)
    for step in range(setting.UPDATES):
        x, y = setting.batch(step)
        pairs = list(zip(x, y, strict=True))
        if method == "Fish":
            pairs = [pairs[e] for e in draws(method, step)["order"].tolist()]
        with handed(method, step, y):
            algorithm.update(pairs)
    parameters: list[Tensor] = [*network(algorithm, method).parameters()]
    if method == "MTL":
        parameters[-2] = parameters[-2][:, :WIDTH]
    values = torch.cat([p.detach().flatten() for p in parameters]).tolist()
    return [float(f"{value:.{DIGITS}g}") for value in values]


def main(checkout: str) -> None:
    """Write the golden file."""
    torch.set_default_dtype(torch.float64)
    peer = imported(checkout)
    found: dict[str, dict[str, Any]] = {}
    for method in CASES:
        with altered(peer, method):
            found[method] = {"parameters": parameters_after(peer, method)}
        with altered(peer, method), normalised(peer):
            found[method]["normalised"] = parameters_after(peer, method)
    head = {"DomainBed": COMMIT, "torch": torch.__version__}
    lines = [f" {json.dumps(k)}: {json.dumps(v)}" for k, v in {**head, **found}.items()]
    (GOLDEN / "domainbed_updates.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
