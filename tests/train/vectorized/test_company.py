"""The same run has the same bits whatever is trained beside it, and however it is asked for."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

import oodbench
from oodbench.registry import load_plugins
from oodbench.results.directory import Directory
from oodbench.results.run_spec import State
from oodbench.sweep.file import validate
from oodbench.sweep.launchers import launchers
from oodbench.sweep.plan import Plan, make_plan
from oodbench.train.vectorized.arithmetic import Remainders
from tests.helpers.results.sweeps import DIGITS, SPIRALS, job, outcome, records_of

MLP = {"name": "MLP", "hparams": {"width": 10, "depth": 1}}
CNN = {"name": "MNISTCNN"}
SWEEPS: dict[str, dict[str, Any]] = {
    "Spirals": {"datasets": [SPIRALS], "network": MLP},
    "Digits": {"datasets": [DIGITS], "network": MLP},
    "SEM": {"datasets": [{"name": "LinearSEM", "num_examples": 40}]},
    "CNN": {"datasets": [DIGITS], "network": CNN, "steps": 2, "evaluate_every": 2},
}
ROWS: dict[str, dict[str, Any]] = {
    "ARM": {"hparams": {"batch_size": 64}},
    "ERM, T3A": {"adapt": "T3A"},
    "ERM, clipped": {"hparams": {"clip_norm": 0.01}},
    "ERM, ema": {"average": "ema"},
    "ERM, swad": {"average": "swad"},
    "ICP": {"hparams": {"batch_size": 0}},
    "LeastSquares": {"hparams": {"batch_size": 0}},
    "URM": {"hparams": {"squash": "relu", "discriminator_layers": 1}},
}
"""The keys of rows beyond their names."""
OF_SWEEP: dict[str, str] = {
    "Spirals": "ANDMask CORAL DANN ERM ERM,_ema ERM,_swad GroupDRO IGA IRM Mixup SAM SelfReg URM",
    "Digits": "ARM EIIL ERM,_T3A ERM,_clipped JTT MTL",
    "SEM": "ICP LeastSquares LinearIRM",
    "CNN": "ANDMask CORAL DANN ERM ERM,_T3A ERM,_ema GroupDRO IRM SAM",
}
"""A method of each mechanism, on networks that are vectorized and on one that is not."""
KINDS = [(s, kind.replace("_", " ")) for s, kinds in OF_SWEEP.items() for kind in kinds.split()]
SIZES = {2: 64, 8: 4, 14: 1, 16: 64, 40: 4}
"""Runs of a sweep, and how many of them are vectorized together at most."""
QUICK = [("Digits", "EIIL"), ("Spirals", "IRM")]
Records = Mapping[str, Any]


def keys_of(sweep: str, kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The row of a method and the keys of its sweep, but for the hyperparameters of its draws."""
    row = {"name": kind.split(",")[0], **ROWS.get(kind, {})}
    row["hparams"] = {"batch_size": 5, **row.get("hparams", {})}
    return row, {"steps": 10, "evaluate_every": 5, **SWEEPS[sweep]}


def plan(sweep: str, kind: str, trials: int, **more: Any) -> Plan:
    row, keys = keys_of(sweep, kind)
    row["hparams"] = {**row["hparams"], "lr": [1e-3, 3e-3]}
    values = {"name": "t", "algorithms": [row], "trials": trials, **keys, **more}
    return make_plan(validate(values, "t"))


@pytest.fixture
def records(tmp_path: Path) -> Callable[..., Records]:
    """Trains the runs of a plan in a new directory; returns their records."""
    numbers: Iterator[int] = count()

    def trained(plan: Plan, ids: Sequence[str] | None = None, **asked: Any) -> Records:
        chosen = list(plan.runs) if ids is None else ids
        launcher = "debug" if asked.get("workers", 1) == 1 else "local"
        part = Plan(plan.sweep, [plan.runs[i] for i in chosen], [])
        what = job(part, tmp_path / str(next(numbers)), **{"workers": 1, **asked})
        assert set(launchers.get(launcher)().launch(what).values()) == {"done"}
        return outcome(what.results)

    return trained


def require_same(found: Records, wanted: Records) -> None:
    assert found
    unlike = [i for i, of_run in found.items() if of_run != wanted[i]]
    assert not unlike, f"{len(unlike)} of {len(found)} runs"


@pytest.mark.slow
@pytest.mark.parametrize(("sweep", "kind"), QUICK)
def test_a_few_runs_in_another_order(
    sweep: str, kind: str, records: Callable[..., Records]
) -> None:
    whole = plan(sweep, kind, 2, test_environments="each")
    ids = list(whole.runs)
    wanted = records(whole)
    require_same(records(whole, ids[1:6], workers=2), wanted)
    require_same(records(whole, ids[::-1], vectorize=1), wanted)


@pytest.mark.parametrize(("name", "warned"), [("KeepsNames", False), ("ReadsNames", True)])
def test_a_method_has_the_environments_of_its_own_run(
    name: str, warned: bool, records: Callable[..., Records]
) -> None:
    keys = SWEEPS["SEM"] | {"steps": 4, "evaluate_every": 4, "test_environments": "each"}
    plugins = ("tests.helpers.algorithms.of_environments",)
    load_plugins(plugins)
    values = {"name": "t", "algorithms": [name], "trials": 2, **keys}
    whole = make_plan(validate(values, "t"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        require_same(records(whole, workers=2, plugins=plugins), records(whole))
    told = [str(w.message) for w in caught if "trained together" in str(w.message)]
    assert bool(told) == warned and all("read them in `__init__`" in text for text in told)


def from_python(sweep: str, kind: str, whole: Plan, folder: Path) -> Records:
    """The first two runs of a plan, trained by `oodbench.run`."""
    found = {}
    for run_id, spec in [*whole.runs.items()][:2]:
        row, keys = keys_of(sweep, kind)
        row["hparams"] = {**row["hparams"], "lr": spec.hparams["lr"]}
        (dataset,) = keys.pop("datasets")
        out = folder / "python" / run_id
        oodbench.run(dataset, row, trial=spec.trial, out=out, **keys)
        found[run_id] = (State.DONE, records_of(Directory(out).run(run_id)))
    return found


@pytest.mark.nightly
@pytest.mark.parametrize(("sweep", "kind"), KINDS)
def test_sweeps_of_many_sizes(
    sweep: str, kind: str, records: Callable[..., Records], tmp_path: Path
) -> None:
    """Beside 1 to 39 others in another order, by one worker and by two, and by itself."""
    whole = plan(sweep, kind, 40)
    ids, wanted = list(whole.runs), records(whole)
    for number, (size, vectorize) in enumerate(SIZES.items()):
        found = records(whole, ids[:size][::-1], vectorize=vectorize, workers=1 + number % 2)
        require_same(found, wanted)
    require_same(from_python(sweep, kind, whole, tmp_path), wanted)


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
