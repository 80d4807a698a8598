"""Kill launches, start two at once, and fill disks: each sweep ends as if undisturbed.

    python -m tests.sweep.torture [--kills 60] [--doubles 10] [--disks 5] [--seed 0]

A table that is left must be that of the undisturbed sweep, bit for bit, or name what is lost.
Leaves with 1 if one is not. What goes wrong on a cluster is `tests.slurm.chaos`.
"""

from oodbench.arithmetic import prepare

prepare()  # before numpy and torch are loaded, as commands do

import argparse
import math
import os
import random
import shutil
import tempfile
import time
from collections import Counter
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from oodbench.report.tables import FORMATS
from oodbench.report.tables.sheet import sheet
from oodbench.results.directory import Directory
from oodbench.results.read import read_results
from oodbench.results.run_spec import State
from oodbench.sweep import launch as launches
from oodbench.sweep.file import read_sweep
from oodbench.sweep.launch import LaunchOptions, launch
from oodbench.train import loop
from tests.helpers.disks import mounted, remount
from tests.helpers.results.made import leaderboard
from tests.helpers.results.sweeps import outcome, tiny_file

CHANGES = {"steps": 600, "evaluate_every": 50, "trials": 3}
"""The sweep that is disturbed: six runs of twelve records each."""
PATIENCE = 300.0
"""Seconds after which a launch that has not ended is wrong."""
DISKS = range(60, 104, 4)
"""Sizes of file systems in KiB, on which the sweep finds no room sooner or later: pages are of 4."""


def table(results: Directory) -> str:
    return FORMATS["markdown"](sheet(leaderboard(read_results(results))))


def forked(sweep: Path, out: Path) -> BaseProcess:
    """Launch a sweep in a process forked from one that has imported all that it needs."""
    forkserver.set_forkserver_preload(["tests.sweep.torture"])
    process = ForkServerContext().Process(target=launch_hastily, args=(sweep, out))
    process.start()
    return process


def launch_hastily(sweep: Path, out: Path) -> None:
    """Launch a sweep in this process, in silence, with checkpoints and compactions as often as can be."""
    launches.COMPACT_SECONDS = 0.001
    loop.CHECKPOINT_SECONDS = loop.EVALUATION_CHECKPOINT_SECONDS = -1.0
    loop.CHECKPOINT_SHARE = math.inf
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    launch(read_sweep(sweep), LaunchOptions(out=out, launcher="debug"))


def kills(folder: Path, expected: Directory, rounds: int, seed: int) -> int:
    """Rounds of launches that are killed at random moments until one ends; returns how many ended wrong."""
    sweep, wrong, total = tiny_file(folder, **CHANGES), 0, 0
    for number in range(rounds):
        rng, out, dealt = random.Random(seed + number), folder / f"killed{number}", 0
        process = forked(sweep, out)
        process.join(rng.uniform(0.1, 1.5))
        while process.exitcode is None:
            process.kill()
            process.join()
            dealt += 1
            process = forked(sweep, out)
            process.join(rng.uniform(0.1, 1.5) * (1 + dealt))
        wrong += bool(process.exitcode)
        wrong += differs(Directory(out), expected, f"kill round {number}")
        shutil.rmtree(out)
        total += dealt
    print(f"{rounds} kill rounds, {total} kills: {wrong} wrong", flush=True)
    return wrong


def doubles(folder: Path, expected: Directory, rounds: int, seed: int) -> int:
    """Rounds of two launches of one sweep at once; returns how many ended wrong."""
    sweep, wrong = tiny_file(folder, **CHANGES), 0
    for number in range(rounds):
        rng, out = random.Random(seed + number), folder / f"double{number}"
        first = forked(sweep, out)
        time.sleep(rng.uniform(0, 1))
        codes = [ended(process) for process in (first, forked(sweep, out))]
        wrong += bool(any(codes)) or differs(Directory(out), expected, f"double launch {number}")
        shutil.rmtree(out)
    print(f"{rounds} double launches: {wrong} wrong", flush=True)
    return wrong


def ended(process: BaseProcess) -> int:
    process.join(PATIENCE)
    assert process.exitcode is not None
    return process.exitcode


def disks(folder: Path, expected: Directory, rounds: int) -> int:
    """Rounds on a disk that is full before the sweep is done, and then has room again."""
    sweep, wrong = tiny_file(folder, **CHANGES), 0
    for number in range(rounds):
        size = DISKS[number % len(DISKS)]
        with mounted(folder / f"disk{number}", f"size={size}k") as disk:
            code = ended(forked(sweep, disk / "out"))
            states = Counter(state for state, _ in outcome(Directory(disk / "out")).values())
            print(f"disk of {size} KiB: exit code {code}, {dict(states)}", flush=True)
            remount(disk, "size=60m")
            again = ended(forked(sweep, disk / "out"))
            wrong += not code or bool(again) or State.FAILED in states
            wrong += differs(Directory(disk / "out"), expected, f"full disk {number}")
    print(f"{rounds} full disks: {wrong} wrong", flush=True)
    return wrong


def differs(results: Directory, expected: Directory, case: str) -> bool:
    """Whether a sweep's records or its table are not the undisturbed sweep's; says so."""
    if outcome(results) == outcome(expected) and table(results) == table(expected):
        return False
    print(f"{case}: {results.path} differs from {expected.path}", flush=True)
    return True


def undisturbed(folder: Path) -> Directory:
    out = folder / "undisturbed"
    launch(read_sweep(tiny_file(folder, **CHANGES)), LaunchOptions(out=out, launcher="debug"))
    return Directory(out)


def main() -> int:
    """Run all rounds; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("kills", 60), ("doubles", 10), ("disks", 5), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="torture-") as name:
        folder = Path(name)
        expected = undisturbed(folder)
        wrong = disks(folder, expected, options.disks)
        wrong += doubles(folder, expected, options.doubles, options.seed)
        wrong += kills(folder, expected, options.kills, options.seed)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
