"""Launchers: where the runs of a sweep are trained, behind one contract.

A launcher is called with the results directory, the specs by id, the ids to train and the
settings. It trains each run unless another process does, never stops for a failed one, and returns
the final state of each id.
"""

import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING

from oodbench.errors import UserError
from oodbench.progress import Display
from oodbench.records import Results, RunSpec

if TYPE_CHECKING:
    from oodbench.train import Settings

Specs = dict[str, RunSpec]
PATIENCE = 5.0
"""Seconds for which a run that another process holds is asked for again at the end."""


@dataclass(frozen=True)
class Job:
    """What a launcher is asked to do."""

    results: Results
    specs: Specs
    """All runs of the sweep."""
    ids: tuple[str, ...]
    """Those to train."""
    settings: "Settings"
    workers: int
    devices: tuple[str, ...] = ("cpu",)


def debug(job: Job) -> dict[str, str]:
    """Train the runs one after the other in this process."""
    from oodbench.train import execute

    states: dict[str, str] = {}
    settings = replace(job.settings, device=job.devices[0])
    with Display(job.specs, len(job.specs) - len(job.ids), 1) as display:
        for run_id in job.ids:
            display.started(0, run_id)
            state, message = execute(
                job.specs[run_id],
                job.results.run(run_id),
                settings,
                lambda step: display.stepped(0, step),
            )
            display.ended(0, run_id, state, message)
            states[run_id] = state
    return states


@dataclass
class Worker:
    """A process that trains one run after the other, with torch imported once."""

    index: int
    process: BaseProcess
    connection: Connection
    run_id: str | None = None


def local(job: Job) -> dict[str, str]:
    """Train the runs in a pool of warm processes, devices assigned round-robin.

    A process that dies takes one run with it, which counts as failed; a new process takes its
    place. Processes whose launcher has died end by themselves.
    """
    queue = deque(job.ids)
    states: dict[str, str] = {}
    held: dict[str, float] = {}
    workers = [_start(job, i) for i in range(min(job.workers, len(job.ids)))]
    try:
        with Display(job.specs, len(job.specs) - len(job.ids), len(workers)) as display:
            while queue or any(w.run_id for w in workers):
                for worker in workers:
                    if worker.run_id is None and queue:
                        _hand_out(worker, queue.popleft(), display)
                for worker in _ready(workers):
                    kind, value, message = _receive(worker)
                    run_id = worker.run_id
                    if kind == "step":
                        display.stepped(worker.index, int(value))
                        continue
                    worker.run_id = None
                    if kind == "died":
                        workers[worker.index] = _start(job, worker.index)
                    if run_id is None:
                        continue
                    if kind == "died":
                        job.results.run(run_id).fail(message, "")
                    display.ended(worker.index, run_id, value, message)
                    states[run_id] = value
                    waited = time.monotonic() - held.setdefault(run_id, time.monotonic())
                    if value == "elsewhere" and waited < PATIENCE:
                        if not queue:
                            time.sleep(0.2)
                        queue.append(run_id)
    finally:
        for worker in workers:
            worker.process.kill()
        for worker in workers:
            worker.process.join()
    return states


def _start(job: Job, index: int) -> Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    settings = replace(job.settings, device=job.devices[index % len(job.devices)])
    process = context.Process(
        target=_work, args=(theirs, job.results.path, settings), name=f"worker-{index}", daemon=True
    )
    process.start()
    theirs.close()
    return Worker(index, process, ours)


def _hand_out(worker: Worker, run_id: str, display: Display) -> None:
    spec = display.specs[run_id]
    worker.run_id = run_id
    display.started(worker.index, run_id)
    try:
        worker.connection.send((run_id, spec))
    except OSError:
        pass  # it has died; the loop will see it


def _ready(workers: Sequence[Worker]) -> list[Worker]:
    waiting = {w.connection: w for w in workers} | {w.process.sentinel: w for w in workers}
    found = {waiting[key].index for key in wait(list(waiting))}  # type: ignore[index]
    return [w for w in workers if w.index in found]


def _receive(worker: Worker) -> tuple[str, str, str]:
    """What a worker says: ("step", number, ""), ("end", state, sentence) or ("died", "failed", why)."""
    try:
        kind, value, message = worker.connection.recv()
        return str(kind), str(value), str(message)
    except (EOFError, OSError):
        worker.process.join()
        return "died", "failed", f"its process died (exit code {worker.process.exitcode})"


def _work(connection: Connection, results: Path, settings: "Settings") -> None:
    """The life of a worker: train what comes until the launcher closes the connection or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the launcher's to handle
    from oodbench.registry import load_plugins
    from oodbench.train import execute

    load_plugins(settings.plugins)
    last = 0.0

    def progress(step: int) -> None:
        nonlocal last
        if time.monotonic() - last > 0.2:
            last = time.monotonic()
            tell("step", step)

    def tell(kind: str, value: object, message: str = "") -> None:
        try:
            connection.send((kind, value, message))
        except OSError:
            os._exit(1)  # the launcher is gone: leave the run as it is, for the next launch

    while True:
        try:
            run_id, spec = connection.recv()
        except (EOFError, OSError):
            return
        state, message = execute(spec, Results(results).run(run_id), settings, progress)
        tell("end", state, message)


LAUNCHERS: dict[str, Callable[[Job], dict[str, str]]] = {"local": local, "debug": debug}


def devices(wanted: str) -> tuple[str, ...]:
    """`auto` (every CUDA device, else the CPU) or a list such as `cuda:0,cuda:1`, checked."""
    import torch

    count = torch.cuda.device_count()
    if wanted == "auto":
        return tuple(f"cuda:{i}" for i in range(count)) or ("cpu",)
    names = tuple(name.strip() for name in wanted.split(","))
    for name in names:
        if name != "cpu" and name not in [f"cuda:{i}" for i in range(count)]:
            raise UserError(f"there is no device '{name}' here (cpu and {count} CUDA devices)")
    return names
