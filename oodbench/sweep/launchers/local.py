"""The launchers of this machine: `local`, a pool of warm processes, and `debug`, the calling process.

A cluster's job trains its runs with such a pool, too.
"""

import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import wait

from oodbench.errors import UserError
from oodbench.results.provenance import slurm_job
from oodbench.results.run_directory import RunDirectory
from oodbench.results.run_spec import State
from oodbench.sweep.launchers import Job, Launcher, register
from oodbench.sweep.launchers.progress import Display
from oodbench.sweep.launchers.worker import Worker, receive, start, warm_up
from oodbench.terminal import counted, terminal

LOCK_RETRY_SECONDS = 5.0
"""Seconds for which the pool keeps trying to train a run that another process holds."""
RETRY_SECONDS = 30.0
"""The pause before failed runs are trained again."""
MANY = 8
"""Pieces of a bundle have at least 1 / MANY of a worker's share of all runs."""
MAX_REQUEUES = 3
"""How often a run is queued again after its process was asked to end or ended before the run."""


@register("local")
class Local(Launcher):
    """A pool of warm processes on this machine."""

    def warm_up(self) -> None:
        """Start the server that workers are forked from."""
        warm_up()

    def check(self, job: Job) -> None:
        """Raise UserError for a device that is not here or lacks the precision of a run."""
        check_devices(job)

    def launch(self, job: Job) -> dict[str, State]:
        """Train the runs in as many processes as the options say or the devices allow."""
        shared = self.Resources.of(job.options.resources).runs_per_gpu
        here = placed(job, shared)
        if shared > 1 and here.devices == ("cpu",):
            terminal().say(f"runs_per_gpu={shared} has no effect: the runs are trained on the CPU")
        return with_retries(here, train_in_pool)


@register("debug")
class Debug(Launcher):
    """Trains the runs one after another in this process, where a debugger sees them."""

    def check(self, job: Job) -> None:
        """Raise UserError for a run timeout, which ends a process, and as `local` does."""
        if job.options.run_timeout is not None:
            raise UserError(
                "the launcher debug has no processes to end: use local for `run_timeout`"
            )
        check_devices(job)

    def launch(self, job: Job) -> dict[str, State]:
        """Train the runs one after another on the first device."""
        return with_retries(job, self._train)

    def _train(self, job: Job) -> dict[str, State]:
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
                    raise UserError(
                        f"{message}; once that is fixed, the same launch resumes the runs"
                    )
                display.ended(run_id, state, message)
                states[run_id] = state
        return states


def with_retries(job: Job, train: Callable[[Job], dict[str, State]]) -> dict[str, State]:
    """Train the runs, and failed runs again as often as `retries` says; returns their states.

    All errors are alike, as none says whether it will pass. A failed run's error names the attempt.
    """
    states, left, most = dict[str, State](), job.ids, job.options.retries + 1
    for attempt in range(1, most + 1):
        states |= train(replace(job, ids=left))
        left = tuple(i for i in left if states.get(i) is State.FAILED)
        if most == 1 or not left:
            break
        for run in map(job.results.run, left):
            if (why := run.failure()) is not None:
                run.fail(f"{why.error} (attempt {attempt} of {most})", why.traceback)
        if attempt < most:
            runs = counted(len(left), "failed run")
            terminal().say(f"{runs}: attempt {attempt + 1} of {most} in {RETRY_SECONDS:g} s.")
            time.sleep(RETRY_SECONDS)
    return states


def train_in_pool(job: Job) -> dict[str, State]:
    """Train the runs in a pool of warm processes, devices assigned round-robin; returns their states.

    A worker gets as many runs of one bundle as it may train together. If a worker dies, its run counts as
    failed, several runs are retried in halves, and a new worker starts. Workers end when their launcher
    dies.
    """
    with Display(job, job.at_once) as display:
        pool = _Pool(job, display)
        try:
            return pool.train()
        finally:
            for worker in pool.workers:
                worker.process.kill()
            for worker in pool.workers:
                worker.process.join()


class _Pool:
    """The workers of a job, the bundles that wait for a worker, and the states of ended runs."""

    def __init__(self, job: Job, display: Display) -> None:
        self.job, self.display = job, display
        self.workers = [start(job, i) for i in range(job.at_once)]
        self.waiting = deque(_bundles(job))
        self.states: dict[str, State] = {}
        self.held: dict[str, float] = {}
        """The time of the first attempt at each run that another process holds."""
        self.returned: Counter[str] = Counter()

    def train(self) -> dict[str, State]:
        while self.waiting or any(w.busy for w in self.workers):
            for worker in self.workers:
                if not worker.busy and self.waiting:
                    worker.run_ids, worker.busy = self.waiting.popleft(), True
                    self.display.started(worker.index, worker.run_ids)
                    with suppress(OSError):  # if it has died, the loop will see it
                        worker.connection.send([self.job.specs[i] for i in worker.run_ids])
            self.job.check_plan()
            ready = wait([w.connection for w in self.workers])
            for worker in [w for w in self.workers if w.connection in ready]:
                self._receive(worker)
        return self.states

    def _receive(self, worker: Worker) -> None:
        message = receive(worker)
        if message.event == "step":
            self.display.stepped(worker.index, message.value)
        elif message.event == "end":
            worker.run_ids.remove(message.run_id)
            self._run_ended(message.run_id, message.value, message.text)
        else:
            self.display.idle(worker.index)
            left, worker.run_ids, worker.busy = worker.run_ids, [], False
            if message.event == "died":
                self.workers[worker.index] = start(self.job, worker.index)
                left = self._worker_died(worker, left, message.value, message.text)
            self.waiting.extendleft([i] for i in reversed(left))  # they train one at a time

    def _worker_died(self, worker: Worker, ids: list[str], state: State, message: str) -> list[str]:
        """The runs to train again at once; the others have failed or are at the end of the queue."""
        runs = [self.job.results.run(run_id) for run_id in ids]
        if stack := "".join(run.take_stack() for run in runs):
            beats = [(run, run.heartbeat()) for run in runs]
            late = [run for run, beat in beats if beat and beat.pid == worker.process.pid]
            message = f"it took longer than the run timeout of {self.job.options.run_timeout:g} s"
            if len(late) > 1:
                message += f", with {counted(len(late) - 1, 'run')} in the same program"
            for run in late:
                self._fail(run, message, stack)
            return [run.id for run in runs if run not in late]
        if state is State.FAILED and len(ids) > 1:
            half = len(ids) // 2
            self.waiting += [ids[:half], ids[half:]]
            return []
        for run in runs:
            if not self._requeued(run.id, state):
                self._fail(run, message, "")
        return []

    def _fail(self, run: RunDirectory, message: str, stack: str) -> None:
        run.fail(message, stack)
        self._run_ended(run.id, State.FAILED, message)

    def _run_ended(self, run_id: str, state: State, message: str) -> None:
        if not self._requeued(run_id, state, message):
            self.display.ended(run_id, state, message)
            self.states[run_id] = state

    def _requeued(self, run_id: str, state: State, message: str = "") -> bool:
        again = False
        if state is State.INTERRUPTED:
            if message:  # every other run would be interrupted, too
                raise UserError(f"{message}; once that is fixed, the same launch resumes the runs")
            self.returned[run_id] += 1
            again = self.returned[run_id] <= MAX_REQUEUES
        elif state is State.ELSEWHERE:
            waited = time.monotonic() - self.held.setdefault(run_id, time.monotonic())
            patient = waited < LOCK_RETRY_SECONDS
            again = patient or _is_our_double(self.job.results.run(run_id))
            if again and all(self.held.keys() >= {*bundle} for bundle in self.waiting):
                time.sleep(0.2 if patient else 2.0)
        if again:
            self.waiting.append([run_id])
        return again


def _bundles(job: Job) -> Iterator[list[str]]:
    """The runs by bundle, in pieces that give every worker some."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for run_id in job.ids:
        alike.setdefault(job.specs[run_id].bundle_key, []).append(run_id)
    for ids in alike.values():
        share = max(len(ids), len(job.ids) // MANY)
        size = min(job.options.vectorize, -(-share // job.at_once))
        yield from (ids[i : i + size] for i in range(0, len(ids), size))


def _is_our_double(run: RunDirectory) -> bool:
    """Whether this process's cluster job trains the run a second time, on a node given up for dead.

    The double may be killed at any time, and only this process would notice, so it waits for the double.
    The runs of other jobs are left to them.
    """
    beat = run.heartbeat()
    return beat is not None and beat.job is not None and beat.job == slurm_job()


def placed(job: Job, runs_per_gpu: int) -> Job:
    """The job with this machine's devices and the number of processes.

    If all devices are GPUs, `runs_per_gpu` processes share each GPU and see no other, so that they allocate
    no memory there.
    """
    devices, workers = available_devices(job.options.devices), job.options.workers
    if devices == ("cpu",):
        return replace(job, devices=devices, workers=workers or os.cpu_count() or 1)
    job = replace(job, devices=devices, workers=workers or len(devices) * runs_per_gpu)
    if "cpu" in devices:
        return job
    numbers = [name.partition(":")[2] for name in devices]
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        numbers = [visible.split(",")[int(number)].strip() for number in numbers]
    return replace(job, devices=("cuda:0",), gpus=tuple(numbers))


def available_devices(wanted: str) -> tuple[str, ...]:
    """The devices that `wanted` names, in a list such as `cuda:0,cuda:1`; `auto` is all GPUs, or the CPU.

    Raises UserError for a device that is not here.
    """
    import torch

    count = torch.cuda.device_count()
    if wanted == "auto":
        return tuple(f"cuda:{i}" for i in range(count)) or ("cpu",)
    names = tuple(name.strip() for name in wanted.split(","))
    for name in names:
        if name != "cpu" and name not in [f"cuda:{i}" for i in range(count)]:
            raise UserError(f"there is no device '{name}' here (cpu and {count} CUDA devices)")
    return names


def check_devices(job: Job) -> None:
    """Raise UserError if a device is not here or lacks the precision of a run."""
    from oodbench.train.process import check_precision  # which loads torch

    devices = available_devices(job.options.devices)
    for precision in sorted({spec.precision for spec in job.specs.values()}):
        for device in devices:
            check_precision(precision, device)
