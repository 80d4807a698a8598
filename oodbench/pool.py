"""The launcher `local`: a pool of warm processes, on this machine or inside a cluster's job."""

import contextlib
import multiprocessing
import os
import signal
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from oodbench.job import Job, Settings
from oodbench.progress import Display
from oodbench.provenance import slurm_job
from oodbench.records import Results, RunDirectory

PATIENCE = 5.0
"""Seconds for which a run that another process holds is asked for again at the end."""
KILL_SECONDS = 2.0
"""A killed worker's run counts as failed only if we live on so long: a machine that goes down or a
cluster that ends the whole job kills the workers first, and then the run is to be resumed."""
RETURNS = 3
"""Times that a run is taken up again after its process was asked to end, or ended, in the midst."""
SIGNALS = {signal.SIGUSR2, signal.SIGTERM}
"""What a cluster sends to every process of a job that has to go."""


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
    pool = _Pool(job)
    try:
        with Display(job, len(pool.workers)) as display:
            return pool.train(display)
    finally:
        for worker in pool.workers:
            worker.process.kill()
        for worker in pool.workers:
            worker.process.join()


class _Pool:
    """The workers of a job, the runs that wait for one and the states of those that had one."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.queue = deque(job.ids)
        self.states: dict[str, str] = {}
        self.held: dict[str, float] = {}
        """When each run that another process holds was first asked for."""
        self.returned: Counter[str] = Counter()
        self.searches = job.searches()
        self.workers = [_start(job, i) for i in range(job.at_once)]

    def train(self, display: Display) -> dict[str, str]:
        """Hand out runs until all have ended; returns their states."""
        while self.queue or any(w.run_id for w in self.workers):
            for worker in self.workers:
                if worker.run_id is None and self.queue:
                    _hand_out(worker, self.queue.popleft(), display)
            for worker in _ready(self.workers):
                self._hear(worker, display)
        return self.states

    def _hear(self, worker: Worker, display: Display) -> None:
        """Take in what a worker says."""
        kind, value, message = _receive(worker)
        run_id = worker.run_id
        if kind == "step":
            display.stepped(worker.index, int(value))
            return
        worker.run_id = None
        if kind == "died":
            self.workers[worker.index] = _start(self.job, worker.index)
        if run_id is None or self._again(run_id, value):
            return
        if kind == "died":
            value = "failed"
            self.job.results.run(run_id).fail(message, "")
        display.ended(worker.index, run_id, value, message)
        self.states[run_id] = value
        self.queue.extend(self.job.add(self.searches.advance(run_id)))

    def _again(self, run_id: str, state: str) -> bool:
        """Whether a run comes back into the queue: it was interrupted, or another process holds it."""
        if state == "interrupted":
            self.returned[run_id] += 1
            again = self.returned[run_id] <= RETURNS
        elif state == "elsewhere":
            waited = time.monotonic() - self.held.setdefault(run_id, time.monotonic())
            patient = waited < PATIENCE
            again = patient or _is_our_double(self.job.results.run(run_id))
            if again and self.held.keys() >= set(self.queue):
                time.sleep(0.2 if patient else 2.0)
        else:
            again = False
        if again:
            self.queue.append(run_id)
        return again


def stop(seconds: float) -> None:
    """Have every worker of this process checkpoint its run and end, at most `seconds` long."""
    workers = multiprocessing.active_children()
    for worker in workers:
        if worker.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGUSR2)
    until = time.monotonic() + seconds
    for worker in workers:
        worker.join(max(0.0, until - time.monotonic()))


def _is_our_double(run: RunDirectory) -> bool:
    """Whether this very cluster job trains the run a second time, on a node given up for dead.

    The double may be killed at any time and nobody but us would know: we wait for its end. Another
    job's runs are left to that job.
    """
    beat = run.heartbeat()
    return beat is not None and beat.get("job") is not None and beat["job"] == slurm_job()


@contextlib.contextmanager
def _blocked() -> Iterator[None]:
    """A process that is started here keeps `SIGNALS` waiting until it can handle them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start(job: Job, index: int) -> Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    gpu = job.gpus[index % len(job.gpus)] if job.gpus else None
    process = context.Process(
        target=_work,
        args=(theirs, job.results.path, job.settings_of(index), gpu),
        name=f"worker-{index}",
        daemon=True,
    )
    resource_tracker.ensure_running()  # it would unblock SIGTERM
    with _blocked():
        process.start()
    theirs.close()
    return Worker(index, process, ours)


def _hand_out(worker: Worker, run_id: str, display: Display) -> None:
    spec = display.specs[run_id]
    worker.run_id = run_id
    display.started(worker.index, run_id)
    with contextlib.suppress(OSError):  # if it has died, the loop will see it
        worker.connection.send((run_id, spec))


def _ready(workers: Sequence[Worker]) -> list[Worker]:
    waiting = {w.connection: w for w in workers} | {w.process.sentinel: w for w in workers}
    found = {waiting[key].index for key in wait(list(waiting))}  # type: ignore[index]
    return [w for w in workers if w.index in found]


def _receive(worker: Worker) -> tuple[str, str, str]:
    """What a worker says: ("step", number, ""), ("end", state, sentence) or ("died", state, why).

    A worker that died is `failed`, or `interrupted` if it was asked to end.
    """
    try:
        kind, value, message = worker.connection.recv()
        return str(kind), str(value), str(message)
    except (EOFError, OSError):
        worker.process.join()
        code = worker.process.exitcode
        if code == -signal.SIGKILL:
            time.sleep(KILL_SECONDS)
        asked = code in (0, -signal.SIGTERM, -signal.SIGUSR2)
        return "died", "interrupted" if asked else "failed", f"its process died (exit code {code})"


def _work(connection: Connection, results: Path, settings: Settings, gpu: str | None) -> None:
    """The life of a worker: train what comes until the launcher closes the connection or dies."""
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the launcher's to handle
    from oodbench.execute import execute
    from oodbench.job import Interrupts
    from oodbench.registry import load_plugins

    interrupts = Interrupts()
    signal.signal(signal.SIGUSR2, lambda *_: interrupts.ask_to_stop())
    if slurm_job() is not None:  # the cluster's warning before a kill
        signal.signal(signal.SIGTERM, lambda *_: interrupts.ask_to_save())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
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

    while not interrupts.stop:
        try:
            if not connection.poll(0.2):
                continue
            run_id, spec = connection.recv()
        except (EOFError, OSError):
            return
        state, message = execute(spec, Results(results).run(run_id), settings, progress, interrupts)
        tell("end", state, message)
