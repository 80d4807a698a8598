"""Train the runs of a bundle in this process, vectorized if that is possible and faster."""

import contextlib
import errno
import faulthandler
import os
import threading
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from filelock import Timeout
from torch import Tensor

from oodbench.arithmetic import warn_unless
from oodbench.errors import UserError, definition, described
from oodbench.files import is_disk_full
from oodbench.results.directory import Directory
from oodbench.results.provenance import begun_by, provenance
from oodbench.results.run_directory import RunDirectory
from oodbench.results.run_spec import RunSpec, State
from oodbench.results.schemas import DamagedFile
from oodbench.train.digests import digests_of
from oodbench.train.loop import Program, Training, begin, train
from oodbench.train.process import clean_process
from oodbench.train.run import Run
from oodbench.train.settings import Interrupts, TrainSettings
from oodbench.train.vectorized import VectorizedProgram, capacity, explained, program_key

Ended = Callable[[str, State, str], None]
"""Called with a run's id, its state and, for a failure, a sentence."""
Steps = Callable[[int], None]
DATA_BYTES = 2**30
"""Bytes of inputs in memory above which all runs of a program have the same data."""
BEAT_SECONDS = 5.0
"""Seconds between two heartbeats."""


def execute(
    spec: RunSpec,
    directory: RunDirectory,
    settings: TrainSettings,
    progress: Steps = lambda step: None,
    interrupts: Interrupts | None = None,
) -> tuple[State, str]:
    """Train a run unless it has ended or another process trains it; errors of the run are not raised.

    Returns the state (`done`, `diverged`, `failed`, `interrupted`, or `elsewhere` if another process trains
    the run) and, for a failure, a sentence; failed.json has the traceback.
    """
    states: list[tuple[State, str]] = []
    execute_bundle(
        [(spec, directory)],
        settings,
        lambda run_id, state, message: states.append((state, message)),
        progress,
        interrupts,
    )
    return states[0]


def execute_bundle(
    runs: Iterable[tuple[RunSpec, RunDirectory]],
    settings: TrainSettings,
    ended: Ended,
    progress: Steps = lambda step: None,
    interrupts: Interrupts | None = None,
) -> list[str]:
    """Train the runs of one bundle (`RunSpec.bundle_key`) of a results directory, each as `execute` would.

    Returns the ids of the runs that were not started because they must be trained one at a time. If a
    vectorized program fails, as for lack of memory, its halves continue from the runs' last checkpoints. A
    run that fails alone in such a program has failed, as it would have other bits if not vectorized.
    Only runs whose method turns out to be impossible to vectorize are trained one at a time instead.
    """
    # runs with the same data side by side
    ordered = sorted(runs, key=lambda run: (*run[0].data_key, run[0].draw))
    # absolute paths, as a method may change the working directory
    waiting = deque((spec, RunDirectory(run.path.absolute())) for spec, run in ordered)
    interrupts = interrupts or Interrupts()
    most, alone, bundle = settings.vectorize, set[str](), _Bundle(settings, ended)
    with _heartbeats(Directory(waiting[0][1].results), bundle.steps):
        while waiting and not interrupts.stop:
            vectorize = waiting[0][0].id not in alone
            try:
                with clean_process(settings.threads):
                    bundle.acquire(waiting, most if vectorize else 1, vectorize)
                if bundle.held:
                    # again, as building the runs may have changed settings
                    with clean_process(settings.threads, bundle.held[0].run.spec.precision):
                        bundle.train(progress, interrupts)
            except Exception as error:
                if not bundle.held:
                    raise
                left = [(held.run.spec, held.directory) for held in bundle.held]
                together = bundle.vectorized and not is_disk_full(error, left[0][1].path)
                if together and (reason := explained(error)):
                    alone |= {spec.id for spec, _ in left}
                    how = "are trained one at a time, as they cannot be trained together"
                    warnings.warn(f"the runs of {left[0][0].row} {how}: {reason}", stacklevel=2)
                elif together and len(left) > 1:
                    most = len(left) // 2
                else:
                    bundle.fail(*left[0], error)
                    left = []
                waiting.extendleft(reversed(left))
            finally:
                bundle.release()
            if vectorize and most > 1 and not bundle.vectorized:
                return [spec.id for spec, _ in waiting]
    for spec, _ in waiting:
        ended(spec.id, State.INTERRUPTED, "")
    return []


class _Bundle:
    """Runs that are trained at the same time, with their locks; one bundle follows another."""

    def __init__(self, settings: TrainSettings, ended: Ended) -> None:
        self.settings = settings
        self.vectorized = False
        self.held: list[Training] = []
        self._locks: dict[RunDirectory, contextlib.ExitStack] = {}
        self._keys: dict[str, object] = {}
        """The `program_key` of every run that was loaded, by id."""
        self._ended = ended
        self._time_limit = contextlib.ExitStack()

    def steps(self) -> dict[str, int]:
        """The step of each run by id; 0 while a run is loaded."""
        loaded = {t.directory.id: t.run.step for t in self.held}
        return {directory.id: loaded.get(directory.id, 0) for directory in [*self._locks]}

    def acquire(
        self, waiting: deque[tuple[RunSpec, RunDirectory]], limit: int, vectorize: bool
    ) -> None:
        """Take up to `limit` runs of `waiting` that can be trained together, at least one if any is free.

        Without `vectorize` a single run is taken, and is not vectorized.
        """
        self.vectorized, key = False, None
        others: list[tuple[RunSpec, RunDirectory]] = []
        while waiting and len(self.held) < limit and self._fits(waiting[0][0]):
            spec, directory = waiting.popleft()
            if self.held and self._keys.get(spec.id, key) != key:
                others.append((spec, directory))
                continue
            run = self._begin(spec, directory)
            if run is None:
                continue
            if len(self.held) == 1:
                key = program_key(run) if vectorize else None
                self.vectorized = key is not None
                limit = min(limit, capacity(run)) if self.vectorized else 1
            elif self._keys.setdefault(spec.id, program_key(run)) != key:
                self._release(directory)
                others.append((spec, directory))
        waiting.extend(others)

    def _fits(self, spec: RunSpec) -> bool:
        if any(spec.data_key == held.run.spec.data_key for held in self.held):
            return True
        every = [e.x for held in self.held for e in held.run.data.environments.values()]
        held = {x.data_ptr(): x.nbytes for x in every if isinstance(x, Tensor)}
        return sum(held.values()) < DATA_BYTES

    def _begin(self, spec: RunSpec, directory: RunDirectory) -> Run | None:
        # None, after calling `ended`, if the run fails or is not to be trained here
        if (how := self._lock(directory)) is not None:
            self._ended(spec.id, *how)
            return None
        if len(self._locks) == 1 and self.settings.run_timeout is not None:
            self._time_limit.enter_context(_time_limit(self.settings.run_timeout, directory))
        try:
            training = begin(spec, directory, self.settings)
        except Exception as error:
            self.fail(spec, directory, error)
            return None
        self.held.append(training)
        return training.run

    def _lock(self, directory: RunDirectory) -> tuple[State, str] | None:
        try:
            with contextlib.ExitStack() as locks:
                if not directory.is_in_tables:
                    locks.enter_context(directory.lock())
                if (end := directory.end()) is not None:
                    return end, ""
                directory.beat(0)
                locks.callback(directory.rest)
                self._locks[directory] = locks.pop_all()
        except Timeout:
            return State.ELSEWHERE, ""
        except (OSError, DamagedFile) as error:  # the disk is full, or missing
            return _state_after(error, directory)
        return None

    def train(self, progress: Steps, interrupts: Interrupts) -> None:
        settings = self.settings
        made_by = provenance(settings.device, settings.threads, settings.plugins)
        made_by["vectorized"] = self.vectorized
        first = self.held[0]
        dataset = None if settings.scratch else first.run.data.dataset
        made_by["digests"] = digests_of(first.run.spec, dataset, first.directory.results)
        if settings.device == "cpu":
            warn_unless(first.run.spec.arithmetic)
        for t in self.held:
            before = t.directory.made_by() if t.run.step else None
            made = begun_by(made_by, before) if before else made_by
            t.directory.start(t.run.spec, t.run.context, made)
            t.observers.tell("started", t.run.spec, t.run.step)

        def ended(training: Training, state: State) -> None:
            self._release(training.directory)
            training.observers.tell("ended", state, "")
            self._ended(training.run.spec.id, state, "")

        program = VectorizedProgram if self.vectorized else Program
        train([*self.held], ended, progress, interrupts, program)

    def fail(self, spec: RunSpec, directory: RunDirectory, error: Exception) -> None:
        """Record that a run failed, or that it was interrupted if the disk is full."""
        training = next((held for held in self.held if held.directory is directory), None)
        method = None if training is None else type(training.run.algorithm)
        state, message = _state_after(error, directory, method)
        if state is State.FAILED:
            try:
                directory.fail(message, "".join(traceback.format_exception(error)))
            except OSError:  # it cannot be written, but shown in the log
                traceback.print_exception(error)
        self._release(directory)
        if training is not None:
            training.observers.tell("ended", state, message)
        self._ended(spec.id, state, message)

    def _release(self, directory: RunDirectory) -> None:
        locks = self._locks.pop(directory, None)
        self.held = [held for held in self.held if held.directory is not directory]
        if locks is not None:
            locks.close()

    def release(self) -> None:
        self._time_limit.close()
        for directory in [*self._locks]:
            self._release(directory)


@contextlib.contextmanager
def _heartbeats(results: Directory, steps: Callable[[], dict[str, int]]) -> Iterator[None]:
    """Within the block, a thread writes the steps of this process's runs, by id.

    It beats by the clock, so that runs with long steps do not count as lost.
    """
    stopped = threading.Event()

    def beat() -> None:
        ends = False
        while not ends:
            ends = stopped.wait(BEAT_SECONDS)
            with contextlib.suppress(OSError):  # a full disk may have room at the next beat
                results.beat({} if ends else steps())

    thread = threading.Thread(target=beat, name="heartbeats", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def _state_after(
    error: Exception, directory: RunDirectory, method: type | None = None
) -> tuple[State, str]:
    # `method` is named in errors whose traceback has no line of the user's code, as in a backward pass
    if is_disk_full(error, directory.path):
        return State.INTERRUPTED, f"{directory.path}: {os.strerror(errno.ENOSPC)}"
    if isinstance(error, FileNotFoundError):
        for path in (directory.results, directory.path):
            if not path.exists():
                return State.INTERRUPTED, f"{path} was moved or deleted while its runs were trained"
    if isinstance(error, UserError):
        return State.FAILED, str(error)
    step = None if method is None else f"a step of {definition(method)}"
    return State.FAILED, described(error, step)


@contextlib.contextmanager
def _time_limit(seconds: float, directory: RunDirectory) -> Iterator[None]:
    # ends this process after `seconds`, with the stacks of its threads in `directory.stack`; by a thread
    # of C, which Python code cannot delay
    with directory.stack.open("w") as file:
        faulthandler.dump_traceback_later(seconds, exit=True, file=file)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
    directory.stack.unlink(missing_ok=True)
