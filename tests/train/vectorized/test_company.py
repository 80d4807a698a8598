"""The same run has the same bits whatever is trained beside it, and however it is asked for."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

import oodbench
from oodbench.results.directory import Results
from oodbench.sweep.file import validate
from oodbench.sweep.launchers import launchers
from oodbench.sweep.plan import Plan, make_plan
from oodbench.train.vectorized.program import Remainders
from tests.helpers.sweeps import DIGITS, SPIRALS, job, outcome, records_of

MLP = {"name": "MLP", "hparams": {"width": 10, "depth": 1}}
CNN = {"name": "MNISTCNN"}
ON_MLP = {
    "ANDMask": "masks",
    "DANN": "parameters of its own",
    "EIIL": "a sigmoid, stages",
    "ERM": "none",
    "GroupDRO": "buffers",
    "IRM": "a second gradient",
    "JTT": "stages",
    "Mixup": "noise",
    "SAM": "an update of its own",
    "SelfReg": "sums over rows of other runs",
    "URM": "a softplus",
}
ON_CNN = ("ERM", "ANDMask", "IRM", "SAM")
"""Methods of each mechanism, on a network that is vectorized and on one that is not."""
KINDS: list[Any] = [("MLP", name) for name in ON_MLP] + [("CNN", name) for name in ON_CNN]
QUICK = ("SelfReg", "GroupDRO", "EIIL", "IRM")
Records = Mapping[str, Any]


def plan(network: str, algorithm: str, trials: int) -> Plan:
    words = {"squash": "relu", "discriminator_layers": 1} if algorithm == "URM" else {}
    hparams = {"batch_size": 5, "lr": [1e-3, 3e-3], **words}
    entry = {"name": algorithm, "hparams": hparams}
    keys = (
        {"datasets": [SPIRALS], "network": MLP, "steps": 10, "evaluate_every": 5}
        if network == "MLP"
        else {"datasets": [DIGITS], "network": CNN, "steps": 3, "evaluate_every": 3}
    )
    if algorithm in ("EIIL", "JTT"):
        keys["datasets"] = [DIGITS]
    values = {"name": "t", "algorithms": [entry], "trials": trials}
    return make_plan(validate({**values, **keys}, "t"))


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
    wanted = records(whole)
    for run_id, spec in whole.runs.items():
        entry = {"name": "SelfReg", "hparams": {"batch_size": 5, "lr": spec.hparams["lr"]}}
        keys: dict[str, Any] = {"network": MLP, "steps": 10, "evaluate_every": 5}
        out = tmp_path / "python" / run_id
        oodbench.run(SPIRALS, entry, trial=spec.trial, out=out, **keys)
        directory = Results(out).run(run_id)
        assert records_of(directory) == wanted[run_id][1]


@pytest.mark.nightly
@pytest.mark.parametrize(("network", "algorithm"), KINDS)
def test_sweeps_of_many_sizes(
    network: str, algorithm: str, records: Callable[..., Records]
) -> None:
    whole = plan(network, algorithm, 40)
    ids, wanted = list(whole.runs), records(whole)
    assert len(ids) == 40
    for size in (2, 8, 14, 16):
        for vectorize in (1, 4, 64):
            require_same(records(whole, ids[:size][::-1], vectorize=vectorize), wanted)
    for workers in (2, 3):
        require_same(records(whole, ids[:16], workers=workers), wanted)


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
