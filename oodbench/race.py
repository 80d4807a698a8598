"""The same small sweep here and in DomainBed (arXiv:2007.01434's code), side by side: make race.

Spirals x ERM, IRM, VREx, ANDMask x 2 draws x 2 trials, the environment `test` held out and the 16
others trained on, an evaluation of everything every 15 steps, the same data, network and batch
sizes. Each side runs as its users start it: ours by `sweep launch` with two workers, theirs by their
sweep script with its launcher `local`. Learning rates and penalties, which cost nothing, are each
side's own. Linux only.
"""

import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from tabulate import tabulate

from oodbench.errors import UserError, reports_mistakes
from oodbench.process_tree import Cost, cost_of
from oodbench.provenance import commit
from oodbench.records import Results

ALGORITHMS = ("ERM", "IRM", "VREx", "ANDMask")
DRAWS, TRIALS, EVALUATE_EVERY, WORKERS = 2, 2, 15, 2
WIDTH, DEPTH = 256, 2
BATCHES = {"256": (256, 256), "12 and 29": (12, 29)}
"""Examples of an environment in a step, of the two draws: DomainBed's last default for this dataset,
and the quartiles of its random ones, int(2^U(3, 5.5))."""
PARTS = ("importing", "setting up", "loading", "stepping", "evaluating", "the rest")


@dataclass(frozen=True)
class Entrant:
    """One way to run the sweep."""

    name: str
    theirs: bool = False
    loader_workers: int | None = None
    """Of each of their loaders; None: as many as they ship, 8."""
    launcher: str = "local"


ENTRANTS = (
    Entrant("oodbench"),
    Entrant("DomainBed as shipped", theirs=True),
    Entrant("DomainBed, no loader workers", theirs=True, loader_workers=0),
    Entrant("DomainBed, no loader workers, two at a time", True, 0, "multi_gpu"),
)


@dataclass(frozen=True)
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
    parts: dict[str, float]
    """Process seconds of all runs by what they went into, see `PARTS`."""
    load: float
    """The machine's load average before it."""


def our_sweep(sizes: Sequence[int], steps: int) -> dict[str, Any]:
    """Our sweep file, with the batch size of each draw."""
    return {
        "name": "race",
        "datasets": ["Spirals"],
        "algorithms": [{"name": a, "hparams": {"batch_size": list(sizes)}} for a in ALGORITHMS],
        "hparam_draws": DRAWS,
        "trials": TRIALS,
        "steps": steps,
        "evaluate_every": EVALUATE_EVERY,
        "network": {"name": "MLP", "hparams": {"width": WIDTH, "depth": DEPTH}},
    }


def ours(
    batch: str, steps: int, folder: Path, launch: Sequence[str]
) -> tuple[Cost, dict[str, float]]:
    """Our sweep; raises UserError if a run has not ended well."""
    sweep, out = folder / "race.yaml", folder / "results"
    sweep.write_text(yaml.safe_dump(our_sweep(BATCHES[batch], steps)))
    command = [sys.executable, "-m", "oodbench.sweep", "launch", str(sweep), "--out", str(out)]
    command += ["--workers", str(WORKERS), "--yes", *launch]
    cost = cost_of(command, folder, environment())
    results = Results(out)
    runs = [results.run(i) for i in (results.plan()["runs"] if cost.code == 0 else ())]
    _check([r.state() for r in runs].count("done"), folder)
    parts: defaultdict[str, float] = defaultdict(float)
    for run in runs:
        costs = [r["cost"] for r in run.records()]
        parts["loading"] += costs[-1]["waiting_seconds"]
        parts["stepping"] += costs[-1]["training_seconds"] - costs[-1]["waiting_seconds"]
        parts["evaluating"] += sum(c["evaluation_seconds"] for c in costs)
    parts["the rest"] = WORKERS * cost.wall_seconds - sum(parts.values())
    return cost, parts


def theirs(
    peer: Peer, entrant: Entrant, batch: str, steps: int, folder: Path
) -> tuple[Cost, dict[str, float]]:
    """Their sweep; raises UserError if a run has not ended well."""
    times, out = folder / "times", folder / "results"
    times.mkdir()
    race = {
        "data": str(_their_data(folder)),
        "times": str(times),
        "loader_workers": entrant.loader_workers,
        "evaluate_every": EVALUATE_EVERY,
        "batch_sizes": BATCHES[batch],
        "network": {"mlp_width": WIDTH, "mlp_depth": DEPTH, "mlp_dropout": 0.0},
    }
    (folder / "race.json").write_text(json.dumps(race))
    hook = Path(__file__).parent / "peer"
    env = environment() | {
        "PATH": f"{peer.python.parent}{os.pathsep}{os.environ['PATH']}",  # it calls `python`
        "PYTHONPATH": f"{hook}{os.pathsep}{peer.path.resolve()}",
        "OODBENCH_RACE": str((folder / "race.json").resolve()),
    }
    at_a_time = 1
    if entrant.launcher == "multi_gpu":  # which takes two names of GPUs for two runs at a time
        env["CUDA_VISIBLE_DEVICES"], at_a_time = "0,1", 2
    command = [str(peer.python), "-m", "domainbed.scripts.sweep", "launch", "--datasets", "Spirals"]
    command += ["--algorithms", *ALGORITHMS, "--n_hparams", str(DRAWS), "--n_trials", str(TRIALS)]
    command += ["--steps", str(steps), "--single_test_envs", "--data_dir", str(folder.resolve())]
    command += ["--output_dir", str(out.resolve()), "--command_launcher", entrant.launcher]
    command.append("--skip_confirmation")
    cost = cost_of(command, folder, env, peer.path)
    _check(len(list(out.glob("*/done"))), folder)
    parts: defaultdict[str, float] = defaultdict(float)
    for path in times.glob("*.json"):
        for part, seconds in json.loads(path.read_text()).items():
            parts[part] += seconds
    parts["the rest"] = at_a_time * cost.wall_seconds - sum(parts.values())
    return cost, parts


def environment() -> dict[str, str]:
    """Our own without what says how many threads a library may use: as users have it."""
    return {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}


def _check(done: int, folder: Path) -> None:
    runs = len(ALGORITHMS) * DRAWS * TRIALS
    if done != runs:
        raise UserError(f"{done} of {runs} runs ended well; {folder / 'log.txt'} says more")


def _their_data(folder: Path) -> Path:
    """The environments of our first trial for DomainBed, `test` first."""
    import numpy as np

    from oodbench.datasets import make

    found = make("Spirals", {}, None).load(0)
    names = ["test", *(name for name in found if name != "test")]
    arrays = {}
    for i, name in enumerate(names):
        arrays[f"x{i}"], arrays[f"y{i}"] = found[name].x.numpy(), found[name].y.numpy()
    path = folder.resolve() / "data.npz"
    np.savez(path, allow_pickle=False, **arrays)
    return path


def machine(peer: Peer | None) -> dict[str, Any]:
    """What the figures were taken on and of."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((x.partition(":")[2].strip() for x in lines if x.startswith("model name")), "")
    found = {
        "processor": model or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "torch": version("torch"),
        "oodbench": commit(),
    }
    if peer is not None:
        git = ["git", "-C", str(peer.path), "rev-parse", "HEAD"]
        found["DomainBed"] = subprocess.run(git, capture_output=True, text=True).stdout.strip()
    return found


def table(laps: Sequence[Lap]) -> str:
    """The medians over the rounds in Markdown: the sweeps' costs, and where the seconds went."""
    groups: dict[tuple[str, str], list[Lap]] = {}
    for lap in laps:
        groups.setdefault((lap.batch, lap.entrant), []).append(lap)
    costs, parts = [], []
    for (batch, entrant), found in groups.items():

        def median(values: Sequence[float]) -> float:
            return statistics.median(values)

        wall = median([lap.cost.wall_seconds for lap in found])
        base = groups.get((batch, ENTRANTS[0].name), found)
        ratio = wall / median([lap.cost.wall_seconds for lap in base])
        cpu, memory = (
            median([getattr(lap.cost, key) for lap in found])
            for key in ("cpu_seconds", "memory_mb")
        )
        runs = len(ALGORITHMS) * DRAWS * TRIALS
        costs.append(
            (
                batch,
                entrant,
                f"{wall:.1f}",
                f"{ratio:.1f}",
                f"{3600 * runs / wall:.0f}",
                f"{cpu:.0f}",
                f"{memory:.0f}",
                max(lap.cost.processes for lap in found),
                f"{max(lap.load for lap in found):.1f}",
            )
        )
        spent = [median([lap.parts.get(part, 0.0) for lap in found]) for part in PARTS]
        parts.append((batch, entrant, *(f"{seconds:.1f}" for seconds in spent)))
    heads = ["batch", "sweep by", "wall s", "x ours", "runs / h", "CPU s", "peak MB"]
    heads += ["processes", "load before"]
    first = tabulate(costs, heads, tablefmt="github", disable_numparse=True)
    second = tabulate(
        parts, ["batch", "seconds of", *PARTS], tablefmt="github", disable_numparse=True
    )
    return f"{first}\n\n{second}"


app = typer.Typer(pretty_exceptions_enable=False, help=__doc__)


@app.command()
@reports_mistakes
def race(
    domainbed: Annotated[
        Path | None, typer.Option(help="A checkout; our side alone without.")
    ] = None,
    python: Annotated[
        Path, typer.Option(help="A `python` that has what DomainBed imports, timm and wilds.")
    ] = Path(sys.executable),
    rounds: Annotated[int, typer.Option(min=1, help="The sides in turn, so often.")] = 1,
    steps: Annotated[int, typer.Option(min=1)] = 300,
    only: Annotated[
        str | None, typer.Option(help=f"One batch setting: {', '.join(BATCHES)}.")
    ] = None,
    launch: Annotated[str, typer.Option(help="More options of our `sweep launch`.")] = "",
    out: Annotated[Path, typer.Option(help="Holds race.json, race.md and what ran.")] = Path(
        "results/race"
    ),
) -> None:
    """Race; afterwards OUT/race.json holds every figure and OUT/race.md the table."""
    if only is not None and only not in BATCHES:
        raise UserError(f"there is no batch setting '{only}' ({', '.join(BATCHES)})")
    peer = None
    if domainbed is not None:
        if not (domainbed / "domainbed" / "scripts" / "sweep.py").is_file():
            raise UserError(f"{domainbed} is no checkout of DomainBed")
        peer = Peer(domainbed, python.absolute())
    entrants = [e for e in ENTRANTS if peer or not e.theirs]
    out.mkdir(parents=True, exist_ok=True)
    laps: list[Lap] = []
    for _ in range(rounds):
        for batch in (only,) if only else BATCHES:
            for entrant in entrants:
                folder = out / "lap"
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                load = os.getloadavg()[0]
                if peer is not None and entrant.theirs:
                    cost, parts = theirs(peer, entrant, batch, steps, folder)
                else:
                    cost, parts = ours(batch, steps, folder, launch.split())
                laps.append(Lap(entrant.name, batch, cost, dict(parts), load))
                print(f"{entrant.name}, batch {batch}: {cost.wall_seconds:.1f} s", flush=True)
                _write(out, laps, steps, peer)
    print((out / "race.md").read_text())


def _write(out: Path, laps: Sequence[Lap], steps: int, peer: Peer | None) -> None:
    found: Mapping[str, Any] = {
        "machine": machine(peer),
        "steps": steps,
        "laps": [asdict(lap) for lap in laps],
    }
    (out / "race.json").write_text(json.dumps(found, indent=1) + "\n")
    (out / "race.md").write_text(table(laps) + "\n")


if __name__ == "__main__":
    app()
