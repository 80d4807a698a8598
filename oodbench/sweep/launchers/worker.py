"""Starts worker processes, which train one run after another, and exchanges messages with them."""

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from oodbench.arithmetic import NATIVE, PORTABLE, environment, settle
from oodbench.errors import UserError
from oodbench.orphans import end_with_parent
from oodbench.results.directory import Directory
from oodbench.results.provenance import slurm_job
from oodbench.results.run_spec import State
from oodbench.sweep.launchers import Job
from oodbench.train.settings import TrainSettings

STOP = getattr(signal, "SIGUSR2", signal.SIGTERM)
"""The signal at which a worker saves its runs and ends; on Windows the process ends at once."""
SIGNALS = {STOP, signal.SIGTERM, signal.SIGINT}
"""The signals by which a cluster, or Ctrl-C, asks every process of a job to end."""
KILL_SECONDS = 2.0
"""How long this process must survive a killed worker for the worker's run to count as failed. A machine
that goes down, or a cluster that ends a job, may kill workers first; their runs are then resumed."""
LOST_EXIT_CODE = 255
"""The exit code that multiprocessing reports for a worker whose fork server has died as well."""
MAX_SERVERS = 3
"""How often the server that workers are forked from is started for one worker."""
SERVER_SECONDS = 0.5
"""Seconds after which the system knows that a silent server has ended."""
MALLOC = {"MALLOC_TRIM_THRESHOLD_": str(2**31 - 1), "MALLOC_MMAP_THRESHOLD_": str(2**30)}
"""Environment variables of workers, unless the user sets them. glibc then reuses pages of freed tensors; by
default it maps and unmaps every tensor above a few hundred kilobytes, and each page faults again."""
FORKS = sys.platform == "linux" and "forkserver" in multiprocessing.get_all_start_methods()
"""Whether workers are forked, which libraries support on Linux only."""
KILL = 9
"""The number of SIGKILL, which Windows does not name."""


class Message(NamedTuple):
    """A worker's report: `step` (the number), `end` (of a run, with the state), `idle` or `died` (a state).

    An idle worker has not started the runs that it was given and has not reported on. The state of a dead
    worker is `failed`, or `interrupted` if the worker was asked to end.
    """

    event: str
    value: Any = ""
    text: str = ""
    run_id: str = ""


@dataclass
class Worker:
    """A process that imports torch once and trains one run after another."""

    index: int
    process: BaseProcess
    connection: Connection
    run_ids: list[str] = field(default_factory=list)
    """The runs that it was given and has not reported on, in order."""
    busy: bool = False


def start(job: Job, index: int) -> Worker:
    """Start a worker, with a new fork server if the server dies; raises UserError if servers keep dying."""
    for _ in range(MAX_SERVERS):
        with contextlib.suppress(EOFError, OSError):  # our end of a connection to a dead server
            return _forked(job, index)
        time.sleep(SERVER_SECONDS)
    raise UserError(
        f"no worker could be started: the server that workers are forked from died {MAX_SERVERS} times, "
        "as when the memory is used up"
    )


def _forked(job: Job, index: int) -> Worker:
    warm_up()
    native = all(spec.arithmetic == NATIVE for spec in job.specs.values())
    # the fork server has loaded torch, whose arithmetic is then portable for good
    forks = FORKS and not native
    context: Any = multiprocessing.get_context("forkserver") if forks else SpawnContext()
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
    with workers_end, _for_children(MALLOC | variables):
        process.start()
    return Worker(index, process, connection)


def warm_up() -> None:
    """Start the server that workers are forked from, unless it is alive; it imports torch meanwhile.

    The server ends with the last of this process and its workers.
    """
    if FORKS:
        from multiprocessing import forkserver

        forkserver.set_forkserver_preload(
            [
                "oodbench.results.parquet",
                "oodbench.train.execute",
                "oodbench.sweep.launchers.local",
                "typer",
            ]
        )
        with _for_children(MALLOC | environment(PORTABLE)):
            forkserver.ensure_running()


@contextlib.contextmanager
def _for_children(variables: Mapping[str, str]) -> Iterator[None]:
    """Within the block, started processes have these environment variables, and block SIGNALS."""
    before, main = dict(os.environ), sys.modules["__main__"]
    can_block = hasattr(signal, "pthread_sigmask")
    if can_block:
        resource_tracker.ensure_running()  # it would unblock them
        unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    _set_environment(variables)
    # workers would import the launching script, which would launch again
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        _set_environment(before)
        if can_block:
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)


def _set_environment(variables: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(variables)


def work(
    connection: Connection, results: Path, settings: TrainSettings, environment: Mapping[str, str]
) -> None:
    """Train the runs that the launcher sends, until the launcher closes the connection or dies."""
    end_with_parent()
    _set_environment(environment)  # the fork server may have an older one
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the launcher's to handle
    from oodbench.registry import load_plugins
    from oodbench.terminal import format_warnings
    from oodbench.train.execute import execute_bundle
    from oodbench.train.settings import Interrupts

    settle()
    interrupts = Interrupts()

    def interrupt(number: int, _: object) -> None:
        if number == STOP:
            interrupts.stop = True
        else:
            interrupts.save = True

    signal.signal(STOP, interrupt)
    if slurm_job() is not None:  # the cluster's warning before a kill
        signal.signal(signal.SIGTERM, interrupt)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    format_warnings()
    load_plugins(settings.plugins)
    last = 0.0

    def progress(step: int) -> None:
        nonlocal last
        if time.monotonic() - last > 0.2:
            last = time.monotonic()
            send(Message("step", step))

    def send(message: Message) -> None:
        try:
            connection.send(message)
        except OSError:
            os._exit(1)  # the launcher is gone: leave the run as it is, for the next launch

    while not interrupts.stop:
        try:
            if not connection.poll(0.2):
                continue
            specs = connection.recv()
        except (EOFError, OSError):
            return
        execute_bundle(
            [(spec, Directory(results).run(spec.id)) for spec in specs],
            settings,
            lambda run_id, state, text: send(Message("end", state, text, run_id)),
            progress,
            interrupts,
        )
        send(Message("idle"))


def receive(worker: Worker) -> Message:
    """The worker's next message; `died` after its end."""
    try:
        message: Message = worker.connection.recv()
        return message
    except (EOFError, OSError):
        worker.process.join()
        code = worker.process.exitcode
        if code in (-KILL, LOST_EXIT_CODE):
            time.sleep(KILL_SECONDS)
        asked = code in (0, -signal.SIGTERM, -STOP)
        state = State.INTERRUPTED if asked else State.FAILED
        return Message("died", state, f"its process died (exit code {code})")


def stop(seconds: float) -> None:
    """Ask every worker of this process to save its runs and end, and wait at most `seconds`."""
    workers = multiprocessing.active_children()
    for worker in workers:
        if worker.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, STOP)
    until = time.monotonic() + seconds
    for worker in workers:
        worker.join(max(0.0, until - time.monotonic()))
