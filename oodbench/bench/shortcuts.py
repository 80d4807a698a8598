"""What the shortcuts of a launch save: its CPU time without each, over that with it."""

import os
import statistics
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from oodbench.bench.process_tree import cost_of
from oodbench.bench.rows import Row

ROUNDS = 3
ALGORITHMS = ("ERM", "IRM")


@dataclass(frozen=True, kw_only=True)
class Shortcut:
    """A shortcut of a launch, and the sweep by which its saving is measured."""

    what: str
    """What a launch does with it, in words."""
    without: str
    """The statement in `launchers.local` that takes the shortcut away."""
    batch_size: int
    """Examples of an environment in a step; 0 takes all of them."""
    sweep: Mapping[str, int]
    """Further keys of the sweep."""


SHORTCUTS = (
    Shortcut(
        what="workers forked from a server that has imported torch",
        without="FORKS = False",
        batch_size=256,
        sweep={"trials": 2, "steps": 60},
    ),
    Shortcut(
        what="freed memory kept by the allocator",
        without="MALLOC = {}",
        batch_size=0,
        sweep={"trials": 1, "steps": 25, "evaluate_every": 25},
    ),
)


def cpu_seconds(sweep: Path, statement: str, folder: Path) -> float:
    """The CPU seconds of a launch of two workers, after a statement about `launchers.local` as `local`.

    Raises RuntimeError with the launch's output if it fails.
    """
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
    for number, shortcut in enumerate(SHORTCUTS):
        hparams = {"batch_size": shortcut.batch_size}
        values = {
            "name": "shortcuts",
            "datasets": ["Spirals"],
            "algorithms": [{"name": name, "hparams": hparams} for name in ALGORITHMS],
            **shortcut.sweep,
        }
        sweep = folder / f"{number}.yaml"
        sweep.write_text(yaml.safe_dump(values))
        used: dict[str, list[float]] = {"pass": [], f"local.{shortcut.without}": []}
        for turn in range(rounds):
            for place, (statement, seconds) in enumerate(used.items()):
                target = folder / f"{number}-{turn}-{place}"
                seconds.append(cpu_seconds(sweep, statement, target))
        with_it, without = map(statistics.median, used.values())
        runs = len(ALGORITHMS) * shortcut.sweep["trials"]
        what = f"CPU time of a launch of {runs} runs without / with {shortcut.what}"
        rows.append(Row(what=what, reach=">= 1.1", measured=f"{without / with_it:.2f}"))
    return rows
