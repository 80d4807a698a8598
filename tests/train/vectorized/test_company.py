"""The same run has the same bits whatever is trained beside it, and however it is asked for."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest
import torch

import oodbench
from oodbench.results.directory import Results
from oodbench.results.run_spec import State
from oodbench.sweep.file import validate
from oodbench.sweep.launchers import launchers
from oodbench.sweep.plan import Plan, make_plan
from oodbench.train.vectorized.program import Remainders
from tests.helpers.sweeps import DIGITS, SPIRALS, job, outcome, records_of

MLP = {"name": "MLP", "hparams": {"width": 10, "depth": 1}}
CNN = {"name": "MNISTCNN"}
ON_SPIRALS: dict[str, Any] = {"datasets": [SPIRALS], "network": MLP}
ON_DIGITS: dict[str, Any] = {"datasets": [DIGITS], "network": MLP}
ON_SEM: dict[str, Any] = {"datasets": [{"name": "LinearSEM", "num_examples": 40}]}
URM = {"hparams": {"squash": "relu", "discriminator_layers": 1}}
LEAST_SQUARES = {"hparams": {"batch_size": 0, "lr": 1e-3}}
ON_MLP: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "ANDMask": ({}, ON_SPIRALS),
    "ARM": ({}, ON_DIGITS),
    "CORAL": ({}, ON_SPIRALS),
    "DANN": ({}, ON_SPIRALS),
    "EIIL": ({}, ON_DIGITS),
    "ERM": ({}, ON_SPIRALS),
    "ERM, ema": ({"average": "ema"}, ON_SPIRALS),
    "ERM, swad": ({"average": "swad"}, ON_SPIRALS),
    "ERM, T3A": ({"adapt": "T3A"}, ON_DIGITS),
    "GroupDRO": ({}, ON_SPIRALS),
    "ICP": (LEAST_SQUARES, ON_SEM),
    "IGA": ({}, ON_SPIRALS),
    "IRM": ({}, ON_SPIRALS),
    "JTT": ({}, ON_DIGITS),
    "LeastSquares": (LEAST_SQUARES, ON_SEM),
    "LinearIRM": ({}, ON_SEM),
    "MTL": ({}, ON_DIGITS),
    "Mixup": ({}, ON_SPIRALS),
    "SAM": ({}, ON_SPIRALS),
    "SelfReg": ({}, ON_SPIRALS),
    "URM": (URM, ON_SPIRALS),
}
"""A method of each mechanism with the further keys of its row, and what its sweep trains."""
CONVOLUTIONS: dict[str, Any] = {
    "datasets": [DIGITS],
    "network": CNN,
    "steps": 2,
    "evaluate_every": 2,
}
ON_CNN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    name: (ON_MLP[name][0], CONVOLUTIONS)
    for name in (
        "ANDMask",
        "CORAL",
        "DANN",
        "ERM",
        "ERM, ema",
        "ERM, T3A",
        "GroupDRO",
        "IRM",
        "SAM",
    )
}
KINDS = [("MLP", name) for name in ON_MLP] + [("CNN", name) for name in ON_CNN]
SIZES, TOGETHER = (2, 8, 14, 16, 40), (1, 4, 64)
QUICK = ("SelfReg", "GroupDRO", "EIIL", "IRM")
Records = Mapping[str, Any]


def keys_of(network: str, kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The row of a method and the keys of its sweep, but for the hyperparameters of its draws."""
    row, keys = (ON_MLP if network == "MLP" else ON_CNN)[kind]
    return {"name": kind.split(",")[0], **row}, {"steps": 10, "evaluate_every": 5, **keys}


def plan(network: str, kind: str, trials: int) -> Plan:
    row, keys = keys_of(network, kind)
    row["hparams"] = {"batch_size": 5, "lr": [1e-3, 3e-3], **row.get("hparams", {})}
    return make_plan(validate({"name": "t", "algorithms": [row], "trials": trials, **keys}, "t"))


@pytest.fixture
def records(tmp_path: Path) -> Callable[..., Records]:
    """Trains the runs of a plan in a new directory; returns their records."""
    numbers: Iterator[int] = count()

    def trained(plan: Plan, ids: Sequence[str] | None = None, **asked: Any) -> Records:
        chosen = list(plan.runs) if ids is None else ids
        launcher = "debug" if asked.get("workers", 1) == 1 else "local"
        part = Plan(plan.sweep, {i: plan.runs[i] for i in chosen}, [])
        what = job(part, tmp_path / str(next(numbers)), **{"workers": 1, **asked})
        assert set(launchers.get(launcher)().launch(what).values()) == {"done"}
        return outcome(what.results)

    return trained


def require_same(found: Records, wanted: Records) -> None:
    assert found
    unlike = [i for i, of_run in found.items() if of_run != wanted[i]]
    assert not unlike, f"{len(unlike)} of {len(found)} runs"


@pytest.mark.parametrize("algorithm", QUICK)
def test_a_few_runs_in_another_order(algorithm: str, records: Callable[..., Records]) -> None:
    whole = plan("MLP", algorithm, 5)
    ids = list(whole.runs)
    wanted = records(whole)
    require_same(records(whole, ids[1:4]), wanted)
    require_same(records(whole, ids[::-1], vectorize=1), wanted)


def test_a_run_from_python_is_that_of_a_sweep(
    records: Callable[..., Records], tmp_path: Path
) -> None:
    whole = plan("MLP", "SelfReg", 2)
    require_same(from_python("MLP", "SelfReg", whole, tmp_path), records(whole))


def from_python(network: str, kind: str, whole: Plan, folder: Path) -> Records:
    """The first two runs of a plan, trained by `oodbench.run`."""
    found = {}
    for run_id, spec in [*whole.runs.items()][:2]:
        row, keys = keys_of(network, kind)
        row["hparams"] = {**row.get("hparams", {}), "batch_size": 5, "lr": spec.hparams["lr"]}
        (dataset,) = keys.pop("datasets")
        out = folder / "python" / run_id
        oodbench.run(dataset, row, trial=spec.trial, out=out, **keys)
        found[run_id] = (State.DONE, records_of(Results(out).run(run_id)))
    return found


@pytest.mark.nightly
@pytest.mark.parametrize(("network", "kind"), KINDS)
def test_sweeps_of_many_sizes(
    network: str, kind: str, records: Callable[..., Records], tmp_path: Path
) -> None:
    """In company of 1 to 39 runs, forwards and backwards, by one worker and by two, and by itself."""
    whole = plan(network, kind, 40)
    ids, wanted = list(whole.runs), records(whole)
    for number, (size, vectorize) in enumerate(product(SIZES, TOGETHER)):
        some = ids[:size][:: -1 if number % 2 else 1]
        found = records(whole, some, vectorize=vectorize, workers=1 + number % 4 // 2)
        require_same(found, wanted)
    require_same(from_python(network, kind, whole, tmp_path), wanted)


@pytest.mark.parametrize(
    ("function", "multiple"),
    [
        (lambda x: x.sigmoid(), 8),
        (lambda x: x.pow(2), 1),
        (lambda x: x.pow(1.3), 8),
        (lambda x: x.exp(), 1),
        (lambda x: x.sum(1), 1),
        (lambda x: x.transpose(0, 1).contiguous().transpose(0, 1).sum(1), 16),
    ],
    ids=["sigmoid", "square", "power", "exp", "sum of rows", "sum across runs"],
)
def test_remainders_are_those_of_functions_and_sums(function: Any, multiple: int) -> None:
    with Remainders(2) as found:
        function(torch.rand(2, 5, 10))
    assert found.multiple == multiple
