"""Run ids do not move; `python -m tests.sweep.test_ids DATA_DIR` writes the golden file anew.

Those of protocols, one of which `domainbed-mnist` has, are frozen whole: see `test_protocols`.
"""

import json
import sys
from pathlib import Path

import pytest

from oodbench.registry import folder
from oodbench.sweep.file import read_sweep
from oodbench.sweep.plan import make_plan
from tests.helpers.paths import ROOT
from tests.sweep.test_protocols import measured_once, protocols

GOLDEN = ROOT / "tests" / "golden" / "ids.json"
ELSEWHERE = {
    "coinrun",
    "coinrun-small",
    "control-rewards",
    "financial-indicators",
    "label-noise",
    "memorization",
    "pretrained-digits",
    "wilds",
}
"""Sweeps on data or weights that have to be made or downloaded first."""
LARGE = {"ilc-spirals-environments", "irm-example-exact", "linear-sem-exact", "shift-dial"}
"""Sweeps that take seconds to plan, on datasets that others have in smaller sizes."""
EACH = 8


def ids(sweep: str, data_dir: Path) -> list[str]:
    """Some of the ids of a sweep's first trial, evenly spread over its runs in their order."""
    (path,) = folder("sweeps").rglob(f"{sweep}.yaml")
    runs = list(make_plan(read_sweep(path, ["trials=1"]), data_dir).runs)
    return runs[:: max(1, len(runs) // EACH)][:EACH]


def names() -> list[str]:
    known = {p.stem for p in folder("sweeps").rglob("*.yaml")}
    return sorted(known - ELSEWHERE - {"domainbed-mnist", *protocols()})


@pytest.mark.slow
@pytest.mark.parametrize(
    "large", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["small", "large"]
)
def test_the_ids_of_released_sweeps_do_not_move(
    large: bool, mnist_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A field or hyperparameter that is added enters an id only where it is not neutral."""
    monkeypatch.setattr("oodbench.sweep.plan.measured", measured_once)
    golden = json.loads(GOLDEN.read_text())
    assert sum(map(len, golden.values())) >= 150
    asked = {name: wanted for name, wanted in golden.items() if (name in LARGE) == large}
    moved = {name for name, wanted in asked.items() if ids(name, mnist_dir) != wanted}
    assert not moved, "their results would be trained again"


if __name__ == "__main__":
    found = {name: ids(name, Path(sys.argv[1])) for name in names()}
    rows = (f" {json.dumps(name)}: {json.dumps(values)}" for name, values in found.items())
    GOLDEN.write_text("{\n" + ",\n".join(rows) + "\n}\n")
