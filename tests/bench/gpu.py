"""All measurements and tests that need a GPU, in one command of under ten minutes: `make gpu`.

It runs the tests that need a GPU, measures the page's rows, launches a quick sweep, kills it and launches
it again, and writes one JSON file and one page. The page names the rows for which there was no time.
"""

import itertools
import json
import math
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer
from tabulate import tabulate

from oodbench.errors import UserError
from oodbench.results.directory import Directory
from oodbench.terminal import commands
from tests.bench import Row, paired

app = commands(__doc__)

TESTS = Path(__file__).parents[1]
NETWORKS = ("ResNet18", "ResNet50")
MASKS = ("ANDMask", "ExampleANDMask")
PRECISIONS = ("float32", "tf32", "bfloat16")
QUICK = {
    "name": "gpu",
    "datasets": [{"name": "ColoredDigits", "copies": 1}],
    "algorithms": ["ERM", "ANDMask", "Mixup"],
    "hparam_draws": 1,
    "trials": 1,
}
"""The sweep that is killed and launched again."""
OF_METHOD = re.compile(r"update step, (?P<method>\w+) / ERM, (?P<network>\w+), (?P<data>\d.*)")
"""The name of a row that has the step of a method."""


@dataclass(frozen=True)
class Size:
    """How large the measured work is: an image's side, examples of each of three environments, ..."""

    image: int = 224
    examples: int = 32
    rounds: int = 5
    steps: int = 300
    """Steps per run of the sweep; a third of them measure loading."""
    program_steps: int = 60
    """Steps per run of runs as one program; eight are trained one at a time for each row."""
    images: int = 100
    """Image files a class and environment."""
    no_row_after: float = 420.0
    """Seconds after which no further row is measured."""
    timeout: float | None = 90.0
    """The most seconds that the tests, and each of the two launches of the sweep, may take."""


SMALL = Size(32, 2, 1, 3, 3, 12, math.inf, None)
"""Small enough for a CPU, to try the program itself."""


@dataclass
class Findings:
    device: str
    torch: str
    seconds: float = 0.0
    rows: list[Row] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """Measurements that failed or for which there was no time, each with the reason."""


def on_images(name: str, network: str, device: str, size: Size) -> tuple[Any, Any]:
    """A method and a batch of random images of three environments."""
    from tests.bench.steps import on_random_data

    shape = (3, size.image, size.image)
    return on_random_data(name, network, shape, (3, size.examples), device)


def step_seconds(algorithm: Any, batch: Any, rounds: int) -> float:
    from tests.bench.steps import random_updates

    (seconds,) = paired([random_updates(algorithm, batch)], 1, time.perf_counter, rounds=rounds)
    return seconds


def methods(names: Sequence[str], network: str, device: str, size: Size) -> Iterator[Row]:
    from oodbench.algorithms import algorithms

    erm = step_seconds(*on_images("ERM", network, device, size), size.rounds)
    what = f"{network}, 3 x {size.examples} images of {size.image} x {size.image}, {device}"
    yield Row(f"update step, ERM, ms, {what}", "-", f"{1e3 * erm:.1f}")
    for name in names:
        cls = algorithms.get(name)
        if name != "ERM" and cls.trains_network and not cls.needs.pretrained:
            seconds = step_seconds(*on_images(name, network, device, size), size.rounds)
            reach = {"ANDMask": "<= 1.5", "ExampleANDMask": "<= 4"}.get(name, "-")
            yield Row(f"update step, {name} / ERM, {what}", reach, f"{seconds / erm:.2f}")


def precisions(device: str, size: Size) -> Iterator[Row]:
    """ERM's update step on ResNet-50 in each precision, over that in float32."""
    import torch

    from oodbench.train.process import AUTOCAST, clean_process

    base = None
    for precision, channels_last in itertools.product(PRECISIONS, (False, True)):
        if precision == "tf32" and device == "cpu":
            continue
        algorithm, batch = on_images("ERM", "ResNet50", device, size)
        algorithm.problem = replace(algorithm.problem, autocast=AUTOCAST.get(precision))
        if channels_last:
            algorithm.network.to(memory_format=torch.channels_last)
        with clean_process(torch.get_num_threads(), precision):
            seconds = step_seconds(algorithm, batch, size.rounds)
        base = base or seconds
        how = f"{precision}{', channels_last' if channels_last else ''}"
        what = f"update step, ERM, ResNet50, {how} / float32, {device}"
        yield Row(what, "-", f"{seconds / base:.2f}")


def loading(folder: Path, device: str, size: Size) -> Iterator[Row]:
    """The share of a run's time that waits for image files, decoded while it trains."""
    from oodbench.train.run import Run
    from oodbench.train.settings import TrainSettings
    from tests.bench.data import erm, waiting_row, waiting_share, write_images

    write_images(folder / "images", size.images)
    workers = min(8, os.cpu_count() or 1)
    settings = TrainSettings(device=device, loader_workers=workers)
    for network in ("ConvNet", "ResNet18"):
        run = Run(erm(folder / "images", network, 0), settings)
        share = waiting_share(run, size.steps // 3 + 1)
        yield waiting_row(f"{network}, {workers} workers, {device}", share)


def gpu_tests(size: Size) -> Iterator[Row]:
    """The last line of pytest, and the failures, of the tests that need a GPU."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-p", "no:cacheprovider"]
    files = [str(f) for f in TESTS.rglob("test_*.py") if "pytest.mark.gpu" in f.read_text()]
    options: dict[str, Any] = {"cwd": TESTS.parent, "timeout": size.timeout}
    done = subprocess.run([*command, *files], capture_output=True, text=True, **options)
    lines = [line.strip("= ") for line in done.stdout.splitlines() if line.strip()]
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    said = "; ".join([*failed, *lines[-1:]]) or f"pytest said nothing (exit code {done.returncode})"
    yield Row("tests marked `gpu`", "-", said)


def _done(out: Path) -> tuple[int, int]:
    """How many of the runs of a results directory are done, and how many it has."""
    results = Directory(out)
    states = [results.run(run_id).state() for run_id in results.specs()]
    return sum(state.complete for state in states), len(states)


def killed_and_resumed(folder: Path, device: str, size: Size) -> Iterator[Row]:
    """Launch a sweep, kill all of it once the first record is there, and launch it again."""
    sweep, out = folder / "gpu.yaml", folder / "results"
    steps = {"steps": size.steps, "evaluate_every": max(1, size.steps // 3)}
    sweep.write_text(json.dumps({**QUICK, **steps}))
    command = [sys.executable, "-m", "oodbench.sweep", "launch", str(sweep), "--out", str(out)]
    command += ["--yes", "--devices", device, "--workers", "2"]
    none = subprocess.DEVNULL
    first = subprocess.Popen(command, start_new_session=True, stdout=none, stderr=none)
    end = time.monotonic() + (size.timeout or math.inf)
    while first.poll() is None and not any(out.glob("runs/*/metrics.jsonl")):
        time.sleep(0.02)
        if time.monotonic() > end:
            break
    killed = first.poll() is None
    if killed:
        os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    before, _ = _done(out)
    again = subprocess.run(command, capture_output=True, text=True, timeout=size.timeout)
    if again.returncode:
        raise RuntimeError(again.stderr.strip().splitlines()[-1])
    ended, total = _done(out)
    how = f"killed with {before} of {total} runs done" if killed else "ended before it was killed"
    said = f"{how}; after the same launch again {ended} of {total} are done"
    yield Row("a sweep that is killed and launched again", "-", said)


def measured(device: str, size: Size, names: Sequence[str], say: Callable[[str], None]) -> Findings:
    """All measurements in turn, each in its own folder, as long as there is time."""
    import torch

    from tests.bench.vectorized import case_rows

    on_cpu = device == "cpu"
    name = platform.processor() if on_cpu else torch.cuda.get_device_name(device)
    findings = Findings(name, str(torch.__version__))

    def on(network: str, *, masks: bool) -> Callable[[Path], Iterator[Row]]:
        some = [name for name in names if (name in MASKS) is masks]
        return lambda folder: methods(some, network, device, size)

    works: dict[str, Callable[[Path], Iterable[Row]]] = {
        "the tests marked gpu": lambda folder: gpu_tests(size),
        "the sweep": lambda folder: killed_and_resumed(folder, device, size),
        **{f"masks, {network}": on(network, masks=True) for network in NETWORKS},
        "precisions": lambda folder: precisions(device, size),
        "loading": lambda folder: loading(folder, device, size),
        "runs as one program": lambda folder: case_rows(folder, device, 1, size.program_steps),
        **{f"methods, {network}": on(network, masks=False) for network in NETWORKS},
    }
    start = time.monotonic()
    for name, work in works.items():
        say(f"{time.monotonic() - start:.0f} s: {name}")
        try:
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                if time.monotonic() - start > size.no_row_after:
                    raise TimeoutError("no time was left")
                for row in work(Path(folder)):
                    findings.rows.append(row)
                    if time.monotonic() - start > size.no_row_after:
                        raise TimeoutError(f"no time was left after {row.what}")
        except Exception as error:  # the others go on, and the page says what failed
            first = next(iter(str(error).splitlines()), "")
            findings.left_out.append(f"{name}: {type(error).__name__}: {first}")
    findings.seconds = time.monotonic() - start
    return findings


def page(findings: Findings) -> str:
    head = """# On a GPU

`make gpu` runs the tests that need a GPU, measures update steps, loading, precisions and runs trained
as one program, kills a sweep and launches it again, and writes this page and `gpu.json` beside it, in
under ten minutes on one GPU. What is proved without one, in `tests/device/`: no step of a method mixes
devices, waits for the device or copies to it more than what was drawn for it; of the networks, GIN and
FasterRCNN wait in their own passes."""
    rows = pd.DataFrame(findings.rows, columns=["what", "reach", "measured"]).replace("-", "")
    rows = rows.join(rows["what"].str.extract(OF_METHOD))
    others = rows.loc[rows["method"].isna(), ["what", "reach", "measured"]]
    of_methods = rows.sort_values("method", key=lambda names: names.str.casefold(), kind="stable")
    tables = [_table(others)]
    for data, of_data in of_methods.groupby("data", sort=False):
        places: Any = {"values": "measured", "index": ["method", "reach"], "columns": "network"}
        steps = of_data.pivot_table(**places, aggfunc="first", fill_value="", sort=False)
        tables.append(_table(steps.reset_index(names=[f"update step / ERM's, {data}", "reach"])))
    facts = [f"{findings.device}, torch {findings.torch}, {findings.seconds:.0f} seconds."]
    if findings.left_out:
        facts.append("Left out: " + "; ".join(findings.left_out) + ".")
    return "\n\n".join([head, *facts, *tables]) + "\n"


def _table(rows: pd.DataFrame) -> str:
    cells, header = rows.to_numpy().tolist(), [*map(str, rows)]
    return tabulate(cells, header, tablefmt="github", disable_numparse=True)


@app.command()
def gpu(
    algorithm: Annotated[list[str] | None, typer.Argument()] = None,
    device: str = "cuda:0",
    out: Path = Path("docs/findings"),
) -> None:
    """Measure everything, or these methods alone, and write OUT/gpu.md and gpu.json.

    DEVICE is cuda:N, or cpu to try it at small sizes.
    """
    import torch

    from oodbench.algorithms import algorithms

    if not re.fullmatch(r"cpu|cuda:\d+", device):
        raise UserError(f"--device is cpu or cuda:N, not '{device}'")
    if device != "cpu" and not torch.cuda.is_available():
        raise UserError("there is no CUDA device here: nothing is measured, and no page is written")
    for name in algorithm or ():
        algorithms.get(name)
    names = algorithm or list(algorithms)
    findings = measured(device, SMALL if device == "cpu" else Size(), names, print)
    out.mkdir(parents=True, exist_ok=True)
    (out / "gpu.json").write_text(json.dumps(asdict(findings), indent=1) + "\n")
    (out / "gpu.md").write_text(page(findings))
    print(f"{out / 'gpu.md'} and gpu.json are written.")


if __name__ == "__main__":
    app()
