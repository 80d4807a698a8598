"""The same small sweep here and in DomainBed (arXiv:2007.01434's code), side by side: `make race`.

Spirals x ERM, IRM, VREx, ANDMask x 2 draws x 2 trials, the environment `test` held out and the 16
others trained on, an evaluation of everything every 15 steps, the same data, network and batch
sizes. Each side runs as its users start it: ours by `sweep launch` with two workers, DomainBed by its
sweep script with the launcher `local`. Learning rates and penalties differ, as they do not change the
cost. Linux only.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
import yaml
from tabulate import tabulate

from oodbench.arithmetic import variables
from oodbench.errors import UserError
from oodbench.identity import commit
from oodbench.results.directory import Directory
from oodbench.results.run_spec import State
from tests.bench import spirals_sweep
from tests.bench.process_tree import Cost, cost_of

ALGORITHMS = ("ERM", "IRM", "VREx", "ANDMask")
DRAWS, TRIALS, EVALUATE_EVERY, WORKERS = 2, 2, 15, 2
RUNS = len(ALGORITHMS) * DRAWS * TRIALS
WIDTH, DEPTH = 256, 2
NETWORK = {"name": "MLP", "hparams": {"width": WIDTH, "depth": DEPTH}}
BATCHES = {"256": [256, 256], "12 and 29": [12, 29]}
"""Examples of an environment in a step, of the two draws: DomainBed's last default for this dataset,
and the quartiles of its random ones, int(2^U(3, 5.5))."""
COSTS = ("wall_seconds", "cpu_seconds", "memory_mb", "processes")
PHASES = ("importing", "setting up", "loading", "stepping", "evaluating", "the rest")


@dataclass(frozen=True, kw_only=True)
class Entrant:
    """One way to run the sweep."""

    name: str
    loader_workers: int | None = None
    """Workers of each of the peer's loaders; None: as many as it ships, 8."""
    launcher: str = "local"
    threads: int | None = None
    """Threads of each of the peer's processes; None: as many as torch takes, the cores."""


OURS = Entrant(name="oodbench")
ENTRANTS = (
    OURS,
    Entrant(name="DomainBed as shipped"),
    Entrant(name="DomainBed, no loader workers", loader_workers=0),
    Entrant(
        name="DomainBed, no loader workers, 2 x 1 thread",
        loader_workers=0,
        launcher="multi_gpu",
        threads=1,
    ),
)


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A checkout of DomainBed and a Python that has what it imports."""

    path: Path
    python: Path


@dataclass(frozen=True)
class Lap:
    """One sweep by one entrant."""

    entrant: str
    batch: str
    cost: Cost
    phases: dict[str, float]
    """Process seconds of all runs by phase, see `PHASES`."""
    load: float
    """The machine's load average before the sweep."""


def launched(
    sweep: Mapping[str, Any], folder: Path, options: Sequence[str]
) -> tuple[Cost, Directory]:
    """A sweep of ours, launched by a process of its own; raises UserError unless all runs ended well."""
    file, out = folder / "sweep.yaml", folder / "results"
    file.write_text(yaml.safe_dump(dict(sweep)))
    command = [sys.executable, "-m", "oodbench.sweep", "launch", str(file), "--out", str(out)]
    cost = cost_of([*command, "--yes", *options], folder, environment())
    results = Directory(out)
    runs = results.specs() if cost.code == 0 else {}
    states = [results.run(i).state() for i in runs]
    _check(states.count(State.DONE), max(1, len(runs)), folder)
    return cost, results


def run_ours(
    batch: str, steps: int, folder: Path, launch: Sequence[str]
) -> tuple[Cost, dict[str, float]]:
    """Our sweep, and where its seconds went."""
    counts = {"hparam_draws": DRAWS, "trials": TRIALS}
    every = {"steps": steps, "evaluate_every": EVALUATE_EVERY}
    sweep = spirals_sweep(ALGORITHMS, BATCHES[batch], **counts, **every, network=NETWORK)
    cost, results = launched(sweep, folder, ["--workers", str(WORKERS), *launch])
    phases: defaultdict[str, float] = defaultdict(float)
    for run_id in results.specs():
        costs = [r["cost"] for r in results.run(run_id).records()]
        phases["loading"] += costs[-1]["waiting_seconds"]
        phases["stepping"] += costs[-1]["training_seconds"] - costs[-1]["waiting_seconds"]
        phases["evaluating"] += sum(c["evaluation_seconds"] for c in costs)
    phases["the rest"] = WORKERS * cost.wall_seconds - sum(phases.values())
    return cost, phases


def run_peer(
    peer: Peer, entrant: Entrant, batch: str, steps: int, folder: Path
) -> tuple[Cost, dict[str, float]]:
    """The peer's sweep; raises UserError if a run has not ended well."""
    folder = folder.resolve()  # its runs have another working directory
    times, out = folder / "times", folder / "results"
    times.mkdir()
    race = {
        "data": str(_data_for_peer(folder)),
        "times": str(times),
        "loader_workers": entrant.loader_workers,
        "evaluate_every": EVALUATE_EVERY,
        "batch_sizes": BATCHES[batch],
        "network": {"mlp_width": WIDTH, "mlp_depth": DEPTH, "mlp_dropout": 0.0},
    }
    (folder / "race.json").write_text(json.dumps(race))
    hook = Path(__file__).parent / "domainbed_probe"
    env = environment() | {
        "PATH": f"{peer.python.parent}{os.pathsep}{os.environ['PATH']}",  # it calls `python`
        "PYTHONPATH": f"{hook}{os.pathsep}{peer.path.resolve()}",
        "OODBENCH_RACE": str(folder / "race.json"),
    }
    if entrant.threads:
        env["OMP_NUM_THREADS"] = str(entrant.threads)
    at_a_time = 1
    if entrant.launcher == "multi_gpu":  # two names, of no GPU, make it run two at a time
        env["CUDA_VISIBLE_DEVICES"], at_a_time = "-1,-2", 2
    command = [str(peer.python), "-m", "domainbed.scripts.sweep", "launch", "--datasets", "Spirals"]
    command += ["--algorithms", *ALGORITHMS, "--n_hparams", str(DRAWS), "--n_trials", str(TRIALS)]
    command += ["--steps", str(steps), "--single_test_envs", "--data_dir", str(folder)]
    command += ["--output_dir", str(out), "--command_launcher", entrant.launcher]
    command.append("--skip_confirmation")
    cost = cost_of(command, folder, env, peer.path)
    _check(len(list(out.glob("*/done"))), RUNS, folder)
    phases: defaultdict[str, float] = defaultdict(float)
    for path in times.glob("*.json"):
        for phase, seconds in json.loads(path.read_text()).items():
            phases[phase] += seconds
    phases["the rest"] = at_a_time * cost.wall_seconds - sum(phases.values())
    return cost, phases


def environment() -> dict[str, str]:
    """The environment variables of this process, less ours, a GPU and the libraries' numbers of threads."""
    ours = variables().items()  # our command sets them itself
    kept = {k: v for k, v in os.environ.items() - ours if not k.endswith("_NUM_THREADS")}
    return kept | {"CUDA_VISIBLE_DEVICES": ""}


def _check(done: int, runs: int, folder: Path) -> None:
    if done != runs:
        raise UserError(f"{done} of {runs} runs ended well; {folder / 'log.txt'} says more")


def _data_for_peer(folder: Path) -> Path:
    """The environments of our first trial for DomainBed, `test` first."""
    import numpy as np

    from oodbench.datasets import make

    environments = make("Spirals", {}, None).load(0)
    names = ["test", *(name for name in environments if name != "test")]
    arrays = {}
    for i, name in enumerate(names):
        environment = environments[name]
        arrays[f"x{i}"], arrays[f"y{i}"] = environment.x.numpy(), environment.y.numpy()
    path = folder / "data.npz"
    np.savez(path, allow_pickle=False, **arrays)
    return path


def machine(peer: Peer | None) -> dict[str, Any]:
    """The machine that was measured, and the versions of the software."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((x.partition(":")[2].strip() for x in lines if x.startswith("model name")), "")
    facts = {
        "processor": model or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "torch": version("torch"),
        "oodbench": commit(),
    }
    if peer is not None:
        git = ["git", "-C", str(peer.path), "rev-parse", "HEAD"]
        facts["DomainBed"] = subprocess.run(git, capture_output=True, text=True).stdout.strip()
    return facts


def table(laps: Sequence[Lap]) -> str:
    """The medians over the rounds in Markdown: the sweeps' costs, and where the seconds went."""
    laps_of: dict[tuple[str, str], list[Lap]] = {}
    for lap in laps:
        laps_of.setdefault((lap.batch, lap.entrant), []).append(lap)
    medians = {
        key: [median(getattr(lap.cost, name) for lap in rounds) for name in COSTS]
        for key, rounds in laps_of.items()
    }
    costs, phases = [], []
    for (batch, entrant), (wall, cpu, memory, processes) in medians.items():
        rounds = laps_of[batch, entrant]
        our_wall, our_cpu, *_ = medians[batch, OURS.name]
        cells = [f"{wall:.1f}", f"{wall / our_wall:.1f}", f"{cpu:.0f}", f"{cpu / our_cpu:.1f}"]
        cells += [f"{3600 * RUNS / wall:.0f}", f"{memory:.0f}", f"{processes:.0f}"]
        costs.append([batch, entrant, *cells, f"{max(lap.load for lap in rounds):.1f}"])
        spent = [[lap.phases[p] for lap in rounds if p in lap.phases] for p in PHASES]
        phases.append([batch, entrant, *(f"{median(s):.1f}" if s else "" for s in spent)])
    heads = ["batch", "sweep by", "wall s", "/ ours", "CPU s", "/ ours"]
    heads += ["runs / h", "peak MB", "processes", "load before"]
    return "\n\n".join(
        tabulate(rows, header, tablefmt="github", disable_numparse=True)
        for rows, header in ((costs, heads), (phases, ["batch", "seconds of", *PHASES]))
    )


def race(
    domainbed: Annotated[
        Path | None, typer.Option(help="A checkout of DomainBed; without it only our side runs.")
    ] = None,
    python: Annotated[
        Path | None,
        typer.Option(
            help="A `python` with DomainBed's packages, timm and wilds; default: this one."
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="How often each side runs, in turns.")] = 1,
    steps: Annotated[int, typer.Option(min=1)] = 300,
    only: Annotated[
        str | None, typer.Option(help=f"One batch setting: {', '.join(BATCHES)}.")
    ] = None,
    launch: Annotated[str, typer.Option(help="Further options of our `sweep launch`.")] = "",
    out: Annotated[
        Path, typer.Option(help="The folder for race.json, race.md and the runs.")
    ] = Path("results/race"),
) -> None:
    """Race; afterwards OUT/race.json holds every figure and OUT/race.md the table."""
    if only is not None and only not in BATCHES:
        raise UserError(f"there is no batch setting '{only}' ({', '.join(BATCHES)})")
    peer = None
    if domainbed is not None:
        if not (domainbed / "domainbed" / "scripts" / "sweep.py").is_file():
            raise UserError(f"{domainbed} is no checkout of DomainBed")
        peer = Peer(path=domainbed, python=(python or Path(sys.executable)).absolute())
    out.mkdir(parents=True, exist_ok=True)
    facts = machine(peer)
    notes = "".join(f"\n{key}: {value}" for key, value in facts.items())
    laps: list[Lap] = []
    for _ in range(rounds):
        for batch in (only,) if only else BATCHES:
            for entrant in ENTRANTS if peer else (OURS,):
                folder = out / "lap"
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                load = os.getloadavg()[0]
                if peer is None or entrant is OURS:
                    cost, phases = run_ours(batch, steps, folder, launch.split())
                else:
                    cost, phases = run_peer(peer, entrant, batch, steps, folder)
                laps.append(Lap(entrant.name, batch, cost, dict(phases), load))
                print(f"{entrant.name}, batch {batch}: {cost.wall_seconds:.1f} s", flush=True)
                figures = {"machine": facts, "steps": steps, "laps": [asdict(lap) for lap in laps]}
                (out / "race.json").write_text(json.dumps(figures, indent=1) + "\n")
                (out / "race.md").write_text(f"{table(laps)}\n{notes}\n")
    print((out / "race.md").read_text())
