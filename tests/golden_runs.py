"""Twenty short runs, and digests of all their numbers to the last bit.

`python -m tests.golden_runs > tests/golden/runs.json` makes them anew; `python -m tests.golden_runs FILE`
says which differ from those of a file, whatever processor made it.
"""

from oodbench.arithmetic import in_force, prepare

prepare()  # before numpy and torch are loaded

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import torch

import oodbench
from oodbench.results.provenance import machine

SPIRALS = {"name": "Spirals", "num_environments": 4, "num_examples": 64, "num_test_examples": 64}
COLORED = {"name": "ColoredDigits", "copies": 1}
SEM = {"name": "LinearSEM", "num_examples": 50}
UNIT = {"name": "LinearUnitTests", "example": 2, "num_examples": 50}
MLP = {"name": "MLP", "hparams": {"width": 32, "depth": 2}}
CNN = {"name": "MNISTCNN"}

ON_SPIRALS = (
    *("GroupDRO", "ANDMask", "SANDMask", "CORAL", "MMD", "CondCAD"),
    *("EQRM", "Fishr", "DANN", "MTL", "SAM", "MLDG"),
)


def row(algorithm: str, average: str = "none", **hparams: Any) -> dict[str, Any]:
    return {"name": algorithm, "average": average, "hparams": hparams}


Entry = str | dict[str, Any]
RUNS: dict[str, tuple[Entry, Entry, dict[str, Any]]] = {
    "ERM": (SPIRALS, "ERM", {}),
    "convolutions": (COLORED, row("ERM", batch_size=16), {"network": CNN, "steps": 4}),
    "AdamW, SWAD": (SPIRALS, row("ERM", average="swad", optimizer="adamw"), {}),
    "SGD, EMA": (SPIRALS, row("ERM", average="ema", optimizer="sgd"), {}),
    "IRM": (COLORED, row("IRM", batch_size=64), {"network": MLP}),
    "VREx": (UNIT, "VREx", {}),
    "LeastSquares": (SEM, "LeastSquares", {}),
    "ICP": (SEM, "ICP", {}),
    **{name: (SPIRALS, name, {}) for name in ON_SPIRALS},
}


def digest(name: str) -> str:
    """SHA-256 of every value of a run, to the last bit."""
    dataset, algorithm, keys = RUNS[name]
    network = {"network": MLP} if dataset is SPIRALS else {}
    short = {"steps": 12, "evaluate_every": 6}
    records = oodbench.run(dataset, algorithm, **short | network | keys)
    rows = records[["step", "environment", "split", "metric"]]
    rows = rows.assign(value=records["value"].map(float.hex))
    return hashlib.sha256(rows.to_csv(index=False).encode()).hexdigest()[:16]


if __name__ == "__main__":
    here: dict[str, Any] = {
        "processor": machine(),
        "arithmetic": in_force(),
        "torch": torch.__version__,
    }
    here["digests"] = {name: digest(name) for name in RUNS}
    if len(sys.argv) == 1:
        json.dump(here, sys.stdout, indent=1)
        print()
        sys.exit()
    there = json.loads(Path(sys.argv[1]).read_text())
    differ = [name for name in RUNS if here["digests"][name] != there["digests"].get(name)]
    for side, made in (("here", here), ("there", there)):
        print(f"{side}: {made['processor']}, {made['arithmetic']}, torch {made['torch']}")
    equal = len(RUNS) - len(differ)
    print(f"{equal} of {len(RUNS)} runs equal; other: {', '.join(differ) or 'none'}")
    sys.exit(bool(differ))
