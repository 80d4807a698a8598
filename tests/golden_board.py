"""Forty runs of the board small.v3, and digests of all their numbers to the last bit.

`python -m tests.golden_board DIR ... > tests/golden/board_runs.json` takes them from results directories,
a run of each row first; `python -m tests.golden_board` trains them again and says which differ, whatever
processor made them.
"""

from oodbench.arithmetic import prepare

prepare()  # before numpy and torch are loaded

import hashlib
import json
import random
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from oodbench.board.protocol import protocol_of, restricted
from oodbench.board.rerun import train_frozen
from oodbench.results.boards import find_board
from oodbench.results.directory import Directory
from oodbench.results.provenance import machine
from oodbench.results.read import read_results
from oodbench.results.run_spec import COMPLETE
from oodbench.sweep.launch import LaunchOptions
from oodbench.sweep.plan import make_plan

BOARD, COUNT = "small.v3", 40
GOLDEN = Path(__file__).parent / "golden" / "board_runs.json"


def digest(records: Iterable[Mapping[str, Any]]) -> str:
    """SHA-256 of every value of a run, to the last bit."""
    values = [
        [r["step"], str(e["environment"]), str(e["split"]), e["metric"], float(e["value"]).hex()]
        for r in records
        for e in r["evaluations"]
    ]
    return hashlib.sha256(json.dumps(sorted(values)).encode()).hexdigest()[:16]


def taken(directories: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """Runs of the directories by id, in a random order, a run of each row before the second one of any."""
    stream = random.Random(0)
    chosen: list[tuple[int, float, str, dict[str, Any]]] = []
    for directory in directories:
        runs = read_results(Directory(directory)).runs
        runs = runs[runs["state"].isin(COMPLETE)]
        for label, row in runs.groupby("label"):
            for place, run in enumerate(
                stream.sample(row.to_dict("records"), min(COUNT, len(row)))
            ):
                records = Directory(directory).run(run["id"]).records()
                about = {"row": label, "dataset": run["dataset_label"], "digest": digest(records)}
                chosen.append((place, stream.random(), run["id"], about))
    return {run_id: about for *_, run_id, about in sorted(chosen, key=lambda c: c[:2])[:COUNT]}


def differing(golden: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The runs that have other numbers when they are trained here."""
    datasets = list(dict.fromkeys(about["dataset"] for about in golden.values()))
    rows = list(dict.fromkeys(about["row"] for about in golden.values()))
    board = find_board(BOARD)
    planned = make_plan(restricted(protocol_of(board), rows, datasets=datasets)).runs
    with tempfile.TemporaryDirectory() as out:
        again = train_frozen(
            board, [planned[i] for i in golden], LaunchOptions(out=Path(out) / "again")
        )
        unlike = [i for i, a in golden.items() if digest(again.run(i).records()) != a["digest"]]
    return [f"{golden[i]['row']} on {golden[i]['dataset']} ({i})" for i in unlike]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        made = {"processor": machine(), "torch": torch.__version__}
        json.dump(made | {"runs": taken(map(Path, sys.argv[1:]))}, sys.stdout, indent=1)
        print()
        sys.exit()
    golden = json.loads(GOLDEN.read_text())
    other = differing(golden["runs"])
    print(f"here: {machine()}, torch {torch.__version__}")
    print(f"there: {golden['processor']}, torch {golden['torch']}")
    equal = len(golden["runs"]) - len(other)
    print(f"{equal} of {len(golden['runs'])} runs equal; other: {', '.join(other) or 'none'}")
    sys.exit(bool(other))
