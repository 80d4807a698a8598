"""What the shortcuts of a launch save: its CPU time without each, over that with it."""

import os
import statistics
import sys
from pathlib import Path

import yaml

from oodbench.bench.process_tree import cost_of
from oodbench.bench.rows import Row

ROUNDS = 3
SHORT = {"trials": 2, "steps": 60}
FULL_BATCH = {"trials": 1, "steps": 25, "evaluate_every": 25}
CASES = (
    ("workers forked from a server that has imported torch", "FORKS = False", 256, SHORT),
    ("freed memory kept by the allocator", "MALLOC = {}", 0, FULL_BATCH),
)
"""The shortcut, the statement in `launchers.local` that takes it away, batch size and other keys."""


def cpu_seconds(sweep: Path, statement: str, folder: Path) -> float:
    """The CPU seconds of a launch of two workers, after a statement about `launchers.local`."""
    folder.mkdir(parents=True)
    code = (
        f"import oodbench.sweep.launchers.local as local; {statement};"
        "from oodbench.sweep.cli import app; app()"
    )
    options = ["--out", str(folder / "results"), "--workers", "2", "--devices", "cpu", "--yes"]
    command = [sys.executable, "-c", code, "launch", str(sweep), *options]
    cost = cost_of(command, folder, os.environ)
    if cost.code != 0:
        raise RuntimeError((folder / "log.txt").read_text())
    return cost.cpu_seconds


def shortcuts(folder: Path, rounds: int = ROUNDS) -> list[Row]:
    """A row for each shortcut that is kept because it saves at least a tenth."""
    rows = []
    for number, (what, statement, batch_size, keys) in enumerate(CASES):
        algorithms = [
            {"name": name, "hparams": {"batch_size": batch_size}} for name in ("ERM", "IRM")
        ]
        values = {"name": "shortcuts", "datasets": ["Spirals"], "algorithms": algorithms, **keys}
        sweep = folder / f"{number}.yaml"
        sweep.write_text(yaml.safe_dump(values))
        used: dict[str, list[float]] = {"pass": [], f"local.{statement}": []}
        for turn in range(rounds):
            for place, (change, seconds) in enumerate(used.items()):
                target = folder / f"{number}-{turn}-{place}"
                seconds.append(cpu_seconds(sweep, change, target))
        with_it, without = map(statistics.median, used.values())
        runs = len(algorithms) * keys["trials"]
        full = f"CPU time of a launch of {runs} runs without / with {what}"
        rows.append(Row(what=full, reach=">= 1.1", measured=f"{without / with_it:.2f}"))
    return rows
