"""The launchers of this machine: `local`, a pool of warm processes, and `debug`, the calling process.

The pool is also what a job of a cluster trains its runs with.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext
from multiprocessing.process import BaseProcess
from typing import Any

from oodbench.arithmetic import NATIVE, PORTABLE, environment
from oodbench.errors import UserError
from oodbench.results.directory import RunDirectory
from oodbench.results.provenance import slurm_job
from oodbench.results.run_spec import State
from oodbench.sweep.launchers import Job, Launcher, register
from oodbench.sweep.launchers.devices import (
    available_devices,
    check_precision,
    placed,
)
from oodbench.sweep.launchers.progress import Display
from oodbench.sweep.launchers.worker import SIGNALS, STOP, work
from oodbench.terminal import counted, terminal
from oodbench.train.settings import MAX_VECTORIZED

LOCK_RETRY_SECONDS = 5.0
"""Seconds for which the pool tries again to train a run that another process holds."""
KILL_SECONDS = 2.0
"""A killed worker's run counts as failed only if this process lives on so long: a machine that goes down
or a cluster that ends the whole job kills the workers first, and then the run is to be resumed."""
LOST_EXIT_CODE = 255
"""The exit code that multiprocessing reports for a worker whose fork server has died as well."""
MAX_REQUEUES = 3
"""How often a run is queued again after its process was asked to end or ended before it."""
MAX_SERVERS = 3
"""Times that a server to fork workers from is started for one worker."""
SERVER_SECONDS = 0.5
"""Seconds after which the system knows that a server that no longer answers has ended."""
MALLOC = {"MALLOC_TRIM_THRESHOLD_": str(2**31 - 1), "MALLOC_MMAP_THRESHOLD_": str(2**30)}
"""Settings of workers, unless the user has set them: glibc reuses the pages of freed tensors. By
default each tensor above a few hundred kilobytes is mapped and unmapped anew, and every page of it
faults again."""
FORKS = sys.platform == "linux" and "forkserver" in multiprocessing.get_all_start_methods()
"""Whether workers are forked, which libraries survive on Linux only."""
KILL = 9
"""The number of SIGKILL, which not every system names."""


@dataclass
class Worker:
    """A process that trains one run after the other, with torch imported once."""

    index: int
    process: BaseProcess
    connection: Connection
    run_ids: list[str] = field(default_factory=list)
    """The runs that it was given and has not reported on yet, in that order."""
    busy: bool = False


@register("local")
class Local(Launcher):
    """A pool of warm processes on this machine."""

    def warm_up(self) -> None:
        """Start the server that workers are forked from."""
        warm_up()

    def check(self, job: Job) -> None:
        """Raise UserError for a device that is not here or lacks the precision of a run."""
        available_devices(job.options.devices)
        check_precision(job)

    def launch(self, job: Job) -> dict[str, State]:
        """Train the runs in as many processes as the options say or the devices bear."""
        shared = self.Resources.of(job.options.resources).runs_per_gpu
        here = placed(job, shared)
        if shared > 1 and here.devices == ("cpu",):
            terminal().say(f"runs_per_gpu={shared} has no effect: the runs are trained on the CPU")
        return train_in_pool(here)


@register("debug")
class Debug(Launcher):
    """The runs one after the other in this process, where a debugger sees them."""

    def check(self, job: Job) -> None:
        """Raise UserError for a run timeout, at which a process ends, and as `local` does."""
        if job.options.run_timeout is not None:
            raise UserError(
                "the launcher debug has no processes to end: use local for --run-timeout"
            )
        available_devices(job.options.devices)
        check_precision(job)

    def launch(self, job: Job) -> dict[str, State]:
        """Train the runs one after the other on the first device."""
        from oodbench.train.execute import execute

        states: dict[str, State] = {}
        settings = replace(job, devices=available_devices(job.options.devices)).settings_of(0)
        with Display(job, 1) as display:
            for run_id in job.ids:
                job.check_plan()
                display.started(0, [run_id])
                state, message = execute(
                    job.specs[run_id],
                    job.results.run(run_id),
                    settings,
                    lambda step: display.stepped(0, step),
                )
                display.idle(0)
                if state is State.INTERRUPTED:
                    raise UserError(f"{message}; once that is mended, the same launch goes on")
                display.ended(run_id, state, message)
                states[run_id] = state
        return states


def train_in_pool(job: Job) -> dict[str, State]:
    """Train the runs in a pool of warm processes, devices assigned round-robin; returns their states.

    A worker is given as many runs of one bundle as it may train together. A process that dies takes
    one run with it, which counts as failed; if it had several, they are tried again in halves. A
    new process takes its place. Processes whose launcher has died end by themselves.
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
        self.states: dict[str, State] = {}
        self.held: dict[str, float] = {}
        """When each run that another process holds was first asked for."""
        self.returned: Counter[str] = Counter()
        self.bundle_keys: dict[str, tuple[str, ...]] = {}
        self.alone: set[tuple[str, ...]] = set()
        """The bundles whose runs turned out to be trained one at a time."""
        self.limits: dict[str, int] = {}
        """The number of runs that a worker gets together after one of them has ended its process."""
        self.workers = [_start(job, i) for i in range(job.at_once)]

    def train(self, display: Display) -> dict[str, State]:
        """Hand out runs until all have ended; returns their states."""
        while self.queue or any(w.busy for w in self.workers):
            for worker in self.workers:
                if not worker.busy and self.queue:
                    _hand_out(worker, self._take(worker.index), display)
            self.job.check_plan()
            for worker in _ready(self.workers):
                self._receive_message(worker, display)
        return self.states

    def _receive_message(self, worker: Worker, display: Display) -> None:
        """Handle the next message of a worker."""
        event, value, message, run_id = _receive(worker)
        if event == "step":
            display.stepped(worker.index, int(value))
        elif event == "end":
            worker.run_ids.remove(run_id)
            if not self._requeued(run_id, State(value), message):
                self._run_ended(run_id, State(value), message, display)
        elif event == "idle":
            self.alone.update(map(self._bundle_key, worker.run_ids))
            self.queue.extendleft(reversed(worker.run_ids))
            worker.run_ids, worker.busy = [], False
            display.idle(worker.index)
        else:
            self.workers[worker.index] = _start(self.job, worker.index)
            display.idle(worker.index)
            late = self._fail_late_runs(worker, display)
            left = [run_id for run_id in worker.run_ids if run_id not in late]
            if late:
                self.queue.extendleft(reversed(left))
                return
            for run_id in left:
                self._worker_died(run_id, State(value), message, len(left), display)

    def _fail_late_runs(self, worker: Worker, display: Display) -> list[str]:
        """Record the failure of the runs that a dead worker was at if it had run out of time.

        Returns the ids of those runs: none if the worker died of something else.
        """
        runs = [self.job.results.run(run_id) for run_id in worker.run_ids]
        stack = "".join(run.take_stack() for run in runs)
        if not stack:
            return []
        beats = [(run, run.heartbeat()) for run in runs]
        late = [run for run, beat in beats if beat and beat.pid == worker.process.pid]
        beside = (
            f", with {counted(len(late) - 1, 'run')} vectorized beside it" if len(late) > 1 else ""
        )
        message = (
            f"it took longer than the run timeout of {self.job.options.run_timeout:g} s{beside}"
        )
        for run in late:
            run.fail(message, stack)
            self._run_ended(run.id, State.FAILED, message, display)
        return [run.id for run in late]

    def _worker_died(
        self, run_id: str, state: State, message: str, together: int, display: Display
    ) -> None:
        """Queue a run again, or record its failure, after its worker died with `together` runs."""
        if state is State.FAILED and together > 1:
            self.limits[run_id] = together // 2
            self.queue.append(run_id)
        elif not self._requeued(run_id, state):
            self.job.results.run(run_id).fail(message, "")
            self._run_ended(run_id, State.FAILED, message, display)

    def _run_ended(self, run_id: str, state: State, message: str, display: Display) -> None:
        """Record and show how a run ended."""
        display.ended(run_id, state, message)
        self.states[run_id] = state

    def _bundle_key(self, run_id: str) -> tuple[str, ...]:
        if run_id not in self.bundle_keys:
            self.bundle_keys[run_id] = self.job.specs[run_id].bundle_key
        return self.bundle_keys[run_id]

    def _take(self, worker: int) -> list[str]:
        """Take the next run out of the queue, and of its bundle as many as a worker is to have."""
        settings = self.job.settings_of(worker)
        first, bundle = self.queue[0], self._bundle_key(self.queue[0])
        limit = self.limits.get(first, settings.vectorize or MAX_VECTORIZED)
        if limit == 1 or bundle in self.alone:
            return [self.queue.popleft()]
        alike = [
            i
            for i in self.queue
            if self._bundle_key(i) == bundle and self.limits.get(i, limit) == limit
        ]
        taken = alike[: min(limit, -(-len(alike) // len(self.workers)))]
        chosen = set(taken)
        self.queue = deque(i for i in self.queue if i not in chosen)
        return taken

    def _requeued(self, run_id: str, state: State, message: str = "") -> bool:
        """Put a run back into the queue if it was interrupted or another process holds it.

        Raises UserError with the message of an interruption that would meet every other run, too.
        """
        if state is State.INTERRUPTED and message:
            raise UserError(f"{message}; once that is mended, the same launch goes on")
        if state is State.INTERRUPTED:
            self.returned[run_id] += 1
            again = self.returned[run_id] <= MAX_REQUEUES
        elif state is State.ELSEWHERE:
            waited = time.monotonic() - self.held.setdefault(run_id, time.monotonic())
            patient = waited < LOCK_RETRY_SECONDS
            again = patient or _is_our_double(self.job.results.run(run_id))
            if again and self.held.keys() >= set(self.queue):
                time.sleep(0.2 if patient else 2.0)
        else:
            again = False
        if again:
            self.queue.append(run_id)
        return again


def stop(seconds: float) -> None:
    """Ask every worker of this process to checkpoint its run and end, and wait at most `seconds`."""
    workers = multiprocessing.active_children()
    for worker in workers:
        if worker.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, STOP)
    until = time.monotonic() + seconds
    for worker in workers:
        worker.join(max(0.0, until - time.monotonic()))


def _is_our_double(run: RunDirectory) -> bool:
    """Whether this very cluster job trains the run a second time, on a node given up for dead.

    The double may be killed at any time and nobody but us would know: we wait for its end. Another
    job's runs are left to that job.
    """
    beat = run.heartbeat()
    return beat is not None and beat.job is not None and beat.job == slurm_job()


def warm_up() -> None:
    """Start the server that workers are forked from: it imports torch while the caller goes on.

    It ends with the last of us and our workers. The first worker starts it if this has not, or if
    it has died since.
    """
    if FORKS:
        from multiprocessing import forkserver

        forkserver.set_forkserver_preload(
            ["oodbench.train.execute", "oodbench.sweep.launchers.local", "typer", "torch._dynamo"]
        )
        with _blocked(), _environment(MALLOC | environment(PORTABLE)):
            forkserver.ensure_running()


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Give these environment variables, and no others, to processes that are started within."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def _blocked() -> Iterator[None]:
    """Block `SIGNALS` in processes that are started within, and in those forked from them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # it would unblock them
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start(job: Job, index: int) -> Worker:
    """Start a worker, from a new server if the one that it is to be forked from dies meanwhile.

    Raises UserError if servers go on dying.
    """
    for _ in range(MAX_SERVERS):
        try:
            return _forked(job, index)
        except (EOFError, OSError) as error:  # our end of a connection to a server that is dead
            print(
                f"The server that workers are forked from died ({type(error).__name__}); another "
                "one is started.",
                file=sys.stderr,
            )
            time.sleep(SERVER_SECONDS)
    raise UserError(
        f"no worker could be started: the server that workers are forked from died {MAX_SERVERS} times, "
        "as when the memory is used up"
    )


def _forked(job: Job, index: int) -> Worker:
    warm_up()
    native = all(spec.arithmetic == NATIVE for spec in job.specs.values())
    # the server to fork from has loaded torch, and its arithmetic is portable for good
    context: Any = SpawnContext()
    if FORKS and not native:
        context = multiprocessing.get_context("forkserver")
    connection, workers_end = context.Pipe()
    variables = environment(NATIVE if native else PORTABLE)
    if job.gpus:
        variables["CUDA_VISIBLE_DEVICES"] = job.gpus[index % len(job.gpus)]
    process = context.Process(
        target=work,
        args=(workers_end, job.results.path.absolute(), job.settings_of(index), variables),
        name=f"worker-{index}",
        daemon=True,
    )
    with workers_end, _blocked(), _environment(MALLOC | variables):
        process.start()
    return Worker(index, process, connection)


def _hand_out(worker: Worker, run_ids: list[str], display: Display) -> None:
    worker.run_ids, worker.busy = run_ids, True
    display.started(worker.index, run_ids)
    with contextlib.suppress(OSError):  # if it has died, the loop will see it
        worker.connection.send([display.specs[i] for i in run_ids])


def _ready(workers: Sequence[Worker]) -> list[Worker]:
    waiting = {w.connection: w for w in workers}
    return [waiting[key] for key in wait(list(waiting))]  # type: ignore[index]


def _receive(worker: Worker) -> tuple[str, str, str, str]:
    """A worker's message: ("step", number), ("end", state, sentence, run), ("idle",) or ("died",
    state, why).

    A worker that is idle has not taken up the runs that it was given and has not reported on. The state
    of one that died is `failed`, or `interrupted` if it was asked to end.
    """
    try:
        event, value, message, run_id = worker.connection.recv()
        return str(event), str(value), str(message), str(run_id)
    except (EOFError, OSError):
        worker.process.join()
        code = worker.process.exitcode
        if code in (-KILL, LOST_EXIT_CODE):
            time.sleep(KILL_SECONDS)
        asked = code in (0, -signal.SIGTERM, -STOP)
        state = State.INTERRUPTED if asked else State.FAILED
        return "died", state, f"its process died (exit code {code})", ""
