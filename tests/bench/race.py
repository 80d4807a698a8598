"""The same small sweep here and in DomainBed (arXiv:2007.01434's code), side by side: `make race`.

Spirals x ERM, IRM, VREx, ANDMask x 2 draws x 2 trials, the environment `test` held out and the 16
others trained on, an evaluation of everything every 15 steps, the same data, network and batch
sizes. Each side runs as its users start it: ours by `sweep launch` with two workers, DomainBed by its
sweep script with the launcher `local`. Learning rates and penalties differ, as they do not change the
cost. Linux only.
"""

import itertools
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import yaml
from tabulate import tabulate

from oodbench.arithmetic import variables
from oodbench.errors import UserError
from oodbench.identity import commit
from oodbench.results import provenance
from oodbench.results.directory import Directory
from oodbench.results.run_spec import State
from oodbench.terminal import commands

app = commands(__doc__)

ALGORITHMS = ("ERM", "IRM", "VREx", "ANDMask")
DRAWS, TRIALS, EVALUATE_EVERY, WORKERS = 2, 2, 15, 2
RUNS = len(ALGORITHMS) * DRAWS * TRIALS
WIDTH, DEPTH = 256, 2
NETWORK = {"name": "MLP", "hparams": {"width": WIDTH, "depth": DEPTH}}
BATCHES = {"256": [256, 256], "12 and 29": [12, 29]}
"""Examples of an environment in a step, of the two draws: DomainBed's last default for this dataset,
and the quartiles of its random ones, int(2^U(3, 5.5))."""


OURS = "oodbench"
PEERS = {"DomainBed as shipped": None, "DomainBed, no loader workers": 0}
"""Workers of each of the peer's loaders, by entrant; None: as many as it ships, 8."""


@dataclass(frozen=True)
class Cost:
    wall_seconds: float
    cpu_seconds: float
    """User and system time of all processes, as it was seen last."""
    memory_mb: float
    """The largest sum of their proportional set sizes that was seen: a shared page counts once."""


@dataclass(frozen=True)
class Lap:
    entrant: str
    batch: str
    cost: Cost
    load: float
    """The machine's load average before the sweep."""


def cost_of(
    command: Sequence[str], folder: Path, env: Mapping[str, str], cwd: Path | None = None
) -> Cost:
    """Run a command, whose output goes to `folder`/log.txt, and watch it and its descendants."""
    start, memory, cpu = time.perf_counter(), 0.0, dict[int, float]()
    with (folder / "log.txt").open("w") as log:
        process = psutil.Popen(command, stdout=log, stderr=log, env=env, cwd=cwd)
        while process.poll() is None:
            sizes = []
            with suppress(psutil.Error):  # one has ended
                for each in (process, *process.children(recursive=True)):
                    cpu[each.pid] = sum(each.cpu_times()[:2])
                    sizes.append(each.memory_full_info().pss / 2**20)
            memory = max(memory, sum(sizes))
            time.sleep(0.2)
    return Cost(time.perf_counter() - start, sum(cpu.values()), memory)


def run_ours(batch: str, steps: int, folder: Path) -> Cost:
    """Our sweep; raises UserError if a run has not ended well."""
    counts = {"hparam_draws": DRAWS, "trials": TRIALS}
    every = {"steps": steps, "evaluate_every": EVALUATE_EVERY}
    rows = [{"name": name, "hparams": {"batch_size": BATCHES[batch]}} for name in ALGORITHMS]
    keys = {"name": "bench", "datasets": ["Spirals"], "algorithms": rows, "network": NETWORK}
    sweep = {**keys, **counts, **every}
    file, out = folder / "sweep.yaml", folder / "results"
    file.write_text(yaml.safe_dump(sweep))
    command = [sys.executable, "-m", "oodbench.sweep", "launch", str(file), "--out", str(out)]
    cost = cost_of([*command, "--yes", "--workers", str(WORKERS)], folder, environment())
    results = Directory(out)
    _check(sum(results.run(run_id).state() == State.DONE for run_id in results.specs()), folder)
    return cost


def run_peer(peer: Path, python: Path, name: str, batch: str, steps: int, folder: Path) -> Cost:
    """The sweep of a checkout of DomainBed; raises UserError if a run has not ended well."""
    folder = folder.resolve()  # its runs have another working directory
    out = folder / "results"
    race = {
        "data": str(_data_for_peer(folder)),
        "loader_workers": PEERS[name],
        "evaluate_every": EVALUATE_EVERY,
        "batch_sizes": BATCHES[batch],
        "network": {"mlp_width": WIDTH, "mlp_depth": DEPTH, "mlp_dropout": 0.0},
    }
    (folder / "race.json").write_text(json.dumps(race))
    hook = Path(__file__).parent / "domainbed_probe"
    env = environment() | {
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",  # it calls `python`
        "PYTHONPATH": f"{hook}{os.pathsep}{peer.resolve()}",
        "OODBENCH_RACE": str(folder / "race.json"),
    }
    command = [str(python), "-m", "domainbed.scripts.sweep", "launch", "--datasets", "Spirals"]
    command += ["--algorithms", *ALGORITHMS, "--n_hparams", str(DRAWS), "--n_trials", str(TRIALS)]
    command += ["--steps", str(steps), "--single_test_envs", "--data_dir", str(folder)]
    command += ["--output_dir", str(out), "--command_launcher", "local", "--skip_confirmation"]
    cost = cost_of(command, folder, env, peer)
    _check(len(list(out.glob("*/done"))), folder)
    return cost


def environment() -> dict[str, str]:
    """The environment variables of this process, less ours, a GPU and the libraries' numbers of threads."""
    ours = variables().items()  # our command sets them itself
    kept = {k: v for k, v in os.environ.items() - ours if not k.endswith("_NUM_THREADS")}
    return kept | {"CUDA_VISIBLE_DEVICES": ""}


def _check(done: int, folder: Path) -> None:
    if done != RUNS:
        raise UserError(f"{done} of {RUNS} runs ended well; {folder / 'log.txt'} says more")


def _data_for_peer(folder: Path) -> Path:
    """The environments of our first trial for DomainBed, `test` first."""
    import numpy as np

    from oodbench.datasets import make

    environments = make("Spirals", {}, None).load(0)
    arrays = {}
    for i, name in enumerate(sorted(environments, key=lambda name: name != "test")):
        environment = environments[name]
        arrays[f"x{i}"], arrays[f"y{i}"] = environment.x.numpy(), environment.y.numpy()
    path = folder / "data.npz"
    np.savez(path, allow_pickle=False, **arrays)
    return path


def machine(peer: Path | None) -> dict[str, Any]:
    facts = {
        "processor": provenance.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "torch": version("torch"),
        "oodbench": commit(),
    }
    if peer is not None:
        git = ["git", "-C", str(peer), "rev-parse", "HEAD"]
        facts["DomainBed"] = subprocess.run(git, capture_output=True, text=True).stdout.strip()
    return facts


def table(laps: Sequence[Lap]) -> str:
    laps_of: dict[tuple[str, str], list[Lap]] = {}
    for lap in laps:
        laps_of.setdefault((lap.batch, lap.entrant), []).append(lap)
    rows = []
    for (batch, entrant), rounds in laps_of.items():
        ours = _medians(laps_of[batch, OURS])
        wall, cpu, memory = _medians(rounds)
        cells = [f"{wall:.1f}", f"{wall / ours[0]:.1f}", f"{cpu:.0f}", f"{cpu / ours[1]:.1f}"]
        cells += [f"{3600 * RUNS / wall:.0f}", f"{memory:.0f}"]
        rows.append([batch, entrant, *cells, f"{max(lap.load for lap in rounds):.1f}"])
    heads = ["batch", "sweep by", "wall s", "/ ours", "CPU s", "/ ours"]
    heads += ["runs / h", "peak MB", "load before"]
    return tabulate(rows, heads, tablefmt="github", disable_numparse=True)


def _medians(laps: Sequence[Lap]) -> list[float]:
    costs = zip(*(astuple(lap.cost) for lap in laps), strict=True)
    return [median(values) for values in costs]


@app.command()
def race(
    domainbed: Path | None = None,
    python: Path = Path(sys.executable),
    rounds: int = 1,
    steps: int = 300,
    out: Path = Path("results/race"),
) -> None:
    """Race; afterwards OUT/race.json holds every figure and OUT/race.md the table.

    DOMAINBED is a checkout, without which only our side runs, and PYTHON one that has its packages, timm
    and wilds. Each side runs ROUNDS times, in turns.
    """
    if domainbed and not (domainbed / "domainbed" / "scripts" / "sweep.py").is_file():
        raise UserError(f"{domainbed} is not a checkout of DomainBed")
    out.mkdir(parents=True, exist_ok=True)
    facts = machine(domainbed)
    notes = "".join(f"\n{key}: {value}" for key, value in facts.items())
    laps: list[Lap] = []
    entrants = (OURS, *PEERS) if domainbed else (OURS,)
    for _, batch, entrant in itertools.product(range(rounds), BATCHES, entrants):
        folder = out / "lap"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        load = os.getloadavg()[0]
        if domainbed is None or entrant == OURS:
            cost = run_ours(batch, steps, folder)
        else:
            cost = run_peer(domainbed, python.absolute(), entrant, batch, steps, folder)
        laps.append(Lap(entrant, batch, cost, load))
        print(f"{entrant}, batch {batch}: {cost.wall_seconds:.1f} s", flush=True)
        figures = {"machine": facts, "steps": steps, "laps": [asdict(lap) for lap in laps]}
        (out / "race.json").write_text(json.dumps(figures, indent=1) + "\n")
        (out / "race.md").write_text(f"{table(laps)}\n{notes}\n")
    print((out / "race.md").read_text())


if __name__ == "__main__":
    app()
