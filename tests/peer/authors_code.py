"""What the code of methods' authors gives on data of ours: python -m tests.peer.authors_code NAME CHECKOUT.

NAME is that of a sweep of sweeps/authors/ and CHECKOUT a clone of the code at the commit of `COMMITS`. The
mean, the standard deviation and the number of the trials are printed as the targets in
oodbench/verify/papers have them.
"""

from oodbench.arithmetic import prepare

prepare()  # before numpy and torch are loaded

import copy
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oodbench.adaptations import in_batches
from oodbench.results.run_spec import RunSpec
from oodbench.sweep.file import find_sweep, read_sweep
from oodbench.sweep.plan import make_plan
from oodbench.train.process import clean_process
from oodbench.train.run import Run
from oodbench.train.settings import TrainSettings
from tests.peer import commit_of

COMMITS = {
    "authors-isr": ("728487c",),
    "authors-walk": ("c075c0a",),
    "authors-adaptation": ("ff8cde5", "e9e926a"),
    "authors-failure": ("e66796e",),
}
"""The commits of Haoxiang-Wang/ISR; QData/PGrad; matsuolab/T3A or DequanWang/tent; alinlab/LfF."""


def enter(name: str, checkout: str, folder: str = "") -> str:
    """Make a checkout's modules importable; returns its commit."""
    commit = commit_of(checkout, *COMMITS[name])
    sys.path.insert(0, str(Path(checkout) / folder))
    for module in ("timm", "backpack", "backpack.extensions"):  # for other methods of theirs
        sys.modules.setdefault(module, mock.MagicMock())
    return commit


def planned(name: str) -> Iterator[tuple[str, RunSpec]]:
    """The rows and runs of a sweep."""
    for spec in make_plan(read_sweep(find_sweep(name))).runs.values():
        yield spec.label, spec


def tested(run: Run) -> tuple[Tensor, Tensor]:
    """The inputs and targets of the `in` split of the test environment."""
    (name,) = run.spec.test_environments
    environment, places = run.data.environments[name], run.data.splits[name]["in"]
    x = environment.x
    assert isinstance(x, Tensor)
    return run.data.dataset.transform(x[places], None), environment.y[places].long()


def accuracy(logits: Tensor, y: Tensor) -> float:
    return float((logits.argmax(1) == y).double().mean())


def isr(checkout: str) -> dict[str, list[float]]:
    """Its classes on its own draws of the data, with its option of scikit-learn's regression."""
    enter("authors-isr", checkout, "linear_unit_tests")
    data, models, utils = map(importlib.import_module, ("datasets", "isr", "utils"))
    values: dict[str, list[float]] = {}
    for example in ("Example2", "Example2s", "Example3", "Example3s"):
        for seed in range(10):
            utils.set_seed(seed)
            problem = data.DATASETS[example](dim_inv=5, dim_spu=5, n_envs=6)
            splits = {}
            for split in ("train", "test"):
                drawn = (problem.sample(n=10_000, env=env, split=split) for env in problem.envs)
                splits[split] = [(x, y.flatten()) for x, y in drawn]
            for row, method in (("ISR_Mean", "mean"), ("ISR_Cov", "cov-flag")):
                utils.set_seed(1000)
                model = models.ISR(
                    5, fit_method=method, l2_reg=1, logistic_regression=True, num_iterations=10_000
                )
                model.fit(splits["train"])
                errors = [utils.compute_error(model, x, y) for x, y in splits["test"]]
                values.setdefault(f"{row} on {example}", []).append(1 - float(np.mean(errors)))
    return values


def walk(checkout: str) -> dict[str, list[float]]:
    """PGrad's updates of our first weights on our batches."""
    enter("authors-walk", checkout)
    theirs = importlib.import_module("domainbed.algorithms")
    values: dict[str, list[float]] = {}
    for row, spec in planned("authors-walk"):
        run = Run(spec, TrainSettings())

        def whole(*_: Any, weights: Any = None, first: Any = run.algorithm.network) -> nn.Module:
            made: nn.Module = copy.deepcopy(first)
            if weights is not None:
                made.load_state_dict(weights)
            return made

        theirs.networks.WholeFish = whole
        hparams = {"lr": spec.hparams["lr"], "weight_decay": 0.0}
        theirs.random.seed(spec.trial)
        algorithm = theirs.PGrad((1, 8, 8), 10, len(run.names), hparams)
        for step in range(spec.steps):
            batch = run.batches_at(step)[step]
            algorithm.update(list(zip(batch.x, batch.y.long(), strict=True)))
        x, y = tested(run)
        values.setdefault(row, []).append(accuracy(algorithm.predict(x), y))
    return values


def adaptation(checkout: str) -> dict[str, list[float]]:
    """T3A or TENT on the networks that our runs end with."""
    commit = enter("authors-adaptation", checkout)
    wanted = "T3A" if commit == "ff8cde5" else "TENT"
    values: dict[str, list[float]] = {}
    for row, spec in planned("authors-adaptation"):
        assert spec.adapt is not None
        if spec.adapt["name"] != wanted:
            continue
        run = Run(spec, TrainSettings())
        run.run_steps(spec.steps)
        network = copy.deepcopy(run.algorithm.network).eval()
        predict = (_t3a if wanted == "T3A" else _tent)(network, spec.adapt)
        x, y = tested(run)
        parts = in_batches(torch.arange(len(x)), spec.adapt["batch_size"])
        logits = torch.cat([predict(x[part]).detach() for part in parts])
        values.setdefault(row, []).append(accuracy(logits, y))
    return values


def _t3a(network: Any, hparams: Any) -> Callable[[Tensor], Tensor]:
    code = importlib.import_module("domainbed.adapt_algorithms")
    given = {"filter_K": hparams["supports"], "cached_loader": False}
    adapter = code.T3A((1, 8, 8), 10, 5, given, network)
    return torch.no_grad()(lambda x: adapter.predict(x, adapt=True))


def _tent(network: Any, hparams: Any) -> Callable[[Tensor], Tensor]:
    code = importlib.import_module("tent")
    network = code.configure_model(network)
    parameters, _ = code.collect_params(network)
    optimizer = torch.optim.Adam(parameters, lr=hparams["lr"])
    adapter: Callable[[Tensor], Tensor] = code.Tent(network, optimizer, steps=hparams["steps"])
    return adapter


def failure(checkout: str) -> dict[str, list[float]]:
    """LfF's losses and running means on our batches, for both starts of the biased network."""
    enter("authors-failure", checkout)
    module, means = importlib.import_module("module.loss"), importlib.import_module("util")
    values: dict[str, list[float]] = {}
    for row, spec in planned("authors-failure"):
        for start in ("the same start", "another start"):
            run = Run(spec, TrainSettings())
            (name,) = run.names
            labels = run.data.environments[name].y[run.data.splits[name]["in"]].long()
            debiased = _two_logits(run.algorithm.network)
            torch.manual_seed(spec.trial)
            biased = _two_logits(run.algorithm.network, anew=start == "another start")
            running = {n: means.EMA(labels, alpha=0.7) for n in ("b", "d")}
            easy = module.GeneralizedCELoss()
            optimizers = [torch.optim.Adam(n.parameters(), lr=1e-3) for n in (biased, debiased)]
            for step in range(spec.steps):
                batch = run.batches_at(step)[step]
                assert batch.index is not None
                x, y, index = batch.x[0], batch.y[0].long(), batch.index[0]
                logits = {"b": biased(x), "d": debiased(x)}
                hard = {n: F.cross_entropy(z, y, reduction="none") for n, z in logits.items()}
                share = {}
                for n, loss in hard.items():
                    running[n].update(loss.detach(), index)
                    largest = torch.stack([running[n].max_loss(c) for c in (0, 1)])
                    share[n] = running[n].parameter[index] / largest[y]
                weight = share["b"] / (share["b"] + share["d"] + 1e-8)
                total = easy(logits["b"], y).mean() + (weight * hard["d"]).mean()
                for optimizer in optimizers:
                    optimizer.zero_grad()
                total.backward()
                for optimizer in optimizers:
                    optimizer.step()
            x, y = tested(run)
            values.setdefault(f"{row}, {start}", []).append(accuracy(debiased(x), y))
    return values


def _two_logits(network: Any, anew: bool = False) -> Any:
    """A copy of a network with one logit z, with those of both classes, -z / 2 and z / 2."""
    made = copy.deepcopy(network)
    if anew:
        for layer in made.modules():
            if isinstance(layer, nn.Linear):
                layer.reset_parameters()
    return _TwoLogits(made)


class _TwoLogits(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.network(x)
        return torch.cat([-z / 2, z / 2], 1)


SOURCES = {
    "authors-isr": isr,
    "authors-walk": walk,
    "authors-adaptation": adaptation,
    "authors-failure": failure,
}


def main(name: str, checkout: str) -> None:
    with clean_process(1):
        values = SOURCES[name](checkout)
    for row, numbers in values.items():
        mean, spread = 100 * np.mean(numbers), 100 * np.std(numbers, ddof=1)
        print(f"{row}: value: {mean:.4f}, error: {spread:.4f}, trials: {len(numbers)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
