"""Train runs, one or many at a time: evaluate, checkpoint and resume."""

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from zipfile import ZipFile

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from oodbench.files import whole_file
from oodbench.results.run_directory import RunDirectory
from oodbench.results.run_spec import Evaluation, RunSpec, State
from oodbench.train.kept_weights import KeptWeights
from oodbench.train.observers import Observers
from oodbench.train.run import Run
from oodbench.train.settings import Interrupts, TrainSettings

CHECK_EVERY = 50
"""The steps between two checks of the losses, at which a diverged run ends."""
BLOCK_SECONDS = 1.0
"""About the longest time between two looks at the clock and at interrupts."""
CHECKPOINT_SECONDS = 10.0
EVALUATION_CHECKPOINT_SECONDS = 1.0
"""The least seconds between two checkpoints: at any step, and at an evaluation."""
CHECKPOINT_SHARE = 0.05
"""The largest share of a run's time for checkpoints."""


class Program:
    """Runs at the same step, trained one after the other; `train.vectorized` trains them at once."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = list(runs)

    def run_steps(self, steps: int) -> list[int | None]:
        """Do `steps` updates of every run; returns each run's first step whose loss was not finite."""
        return [run.run_steps(steps) for run in self.runs]

    def evaluate(self, which: Sequence[int]) -> list[list[Evaluation]]:
        """All metrics of the evaluated weights of some runs, by index."""
        return [self.runs[k].evaluate() for k in which]

    def sync_to_runs(self) -> None:
        """Write the program's states into the runs."""


@dataclass(eq=False)
class Training:
    """A run that is being trained, with its directory."""

    run: Run
    directory: RunDirectory
    saved: float = field(default_factory=time.monotonic)
    saving: float = 0.0
    """The seconds of the last checkpoint, summed over the runs of a program."""
    diverged: int | None = None
    """The first step whose loss was not finite."""
    divergence_recorded: bool = False
    """Whether a diverged run has written its last record."""

    def __post_init__(self) -> None:
        self.weights = KeptWeights(self.run, self.directory)
        self.observers = Observers(self.run.settings.observers, self.run.spec)

    @property
    def stop(self) -> int:
        """The next step at which anything may be due; a resumed run has the same stops."""
        step, spec = self.run.step, self.run.spec
        every = (spec.interval, CHECK_EVERY)
        return min(spec.steps, *(step // n * n + n for n in every))

    def checkpoint_is_due(self, now: float) -> bool:
        """Whether a checkpoint is due at the time `now` of the monotonic clock."""
        if self.run.step == self.run.spec.steps:
            return self.weights.wait_for_checkpoint
        limit = EVALUATION_CHECKPOINT_SECONDS if self.evaluation_is_due else CHECKPOINT_SECONDS
        rest = self.saving / CHECKPOINT_SHARE
        return now - self.saved > max(limit, rest)

    @property
    def evaluation_is_due(self) -> bool:
        """Whether the run is evaluated at its present step."""
        step, spec = self.run.step, self.run.spec
        return self.diverged is not None or step % spec.interval == 0 or step == spec.steps

    def record(self, evaluations: Sequence[Evaluation], seconds: float) -> None:
        """Write a record, after the predictions and weights of its step that are kept.

        A diverged run's last record has the step of the network, which is later than the first loss that is
        not finite, and no training means.
        """
        if self.run.settings.keep_predictions:
            self.run.keep_predictions(self.directory)
        record = self.run.record(evaluations, seconds)
        if self.diverged is not None:
            record["train"], self.divergence_recorded = {}, True
        ends = self.diverged is not None or self.run.step == self.run.spec.steps
        self.weights.record(record["evaluations"], ends)
        self.directory.append(record)
        self.observers.tell("evaluated", record)

    def finish(self, ended: Callable[["Training", State], None]) -> bool:
        """Record a run's end and call `ended` with its final state; returns whether the run has ended."""
        if self.diverged is not None:
            status = State.DIVERGED if self.divergence_recorded else None
        else:
            status = State.DONE if self.run.step == self.run.spec.steps else None
        if status is not None:
            self.weights.delete_superseded()
            self.directory.finish(status, self.run.step)
            self.directory.checkpoint.unlink(missing_ok=True)
            ended(self, status)
        return status is not None


def begin(spec: RunSpec, directory: RunDirectory, settings: TrainSettings) -> Training:
    """Resume a run from its checkpoint, or start it without records if there is no usable checkpoint.

    The caller holds the run's lock. Warns of a checkpoint that cannot be used. Raises UserError for a spec
    that cannot be run.
    """
    run = Run(spec, settings)
    if directory.checkpoint.is_file():
        try:
            resume(run, directory)
            return Training(run, directory)
        except UnfitError as error:
            warnings.warn(
                f"{directory.checkpoint} is not used: {error}; the run starts again", stacklevel=1
            )
            directory.checkpoint.unlink()
            run = Run(spec, settings)
    directory.forget_records()
    return Training(run, directory)


def train(
    trainings: Sequence[Training],
    ended: Callable[[Training, State], None],
    progress: Callable[[int], None],
    interrupts: Interrupts,
    program: Callable[[Sequence[Run]], Program],
) -> None:
    """Train runs to their ends; one `program` trains all runs at the same step.

    Runs that are behind catch up first. `ended` is called with each run's final state: `done`, `diverged`,
    or `interrupted` if `interrupts` ask to stop, after a checkpoint. `progress` is called with the step of
    the program after every block of steps, which takes about a second at most.
    """
    active = [t for t in trainings if not t.finish(ended)]
    team: list[Training] = []
    at_work: Program | None = None
    most = 1
    while active:
        step = min(t.run.step for t in active)
        together = [t for t in active if t.run.step == step]
        if at_work is None or together != team:
            if at_work is not None:
                at_work.sync_to_runs()
            team, at_work = together, program([t.run for t in together])
        stops = [t.stop for t in team]
        end = min([*stops, step + most, *(t.run.step for t in active if t.run.step > step)])
        start = time.perf_counter()  # on Windows, `monotonic` may not tick during a block
        for t, diverged in zip(team, at_work.run_steps(end - step), strict=True):
            t.diverged = diverged if t.diverged is None else t.diverged
        most = math.ceil(BLOCK_SECONDS * (end - step) / (time.perf_counter() - start))
        stop = interrupts.stop
        hurry = interrupts.save or stop
        arrived = [k for k, at in enumerate(stops) if at == end]
        _evaluate(at_work, {k: team[k] for k in arrived if team[k].evaluation_is_due})
        now = time.monotonic()
        due = [t for t in team if t.diverged is None and (hurry or t.checkpoint_is_due(now))]
        if due:
            at_work.sync_to_runs()
        for t in due:
            save_checkpoint(t.run, t.directory)
            t.weights.delete_superseded()
        saved = time.monotonic()
        for t in due:
            t.saved, t.saving = saved, saved - now
        interrupts.save = False
        progress(end)
        active = [t for t in active if not t.finish(ended)]
        if stop:
            for t in active:
                ended(t, State.INTERRUPTED)
            return


def _evaluate(program: Program, due: Mapping[int, Training]) -> None:
    if not due:
        return
    start = time.perf_counter()
    of_runs = program.evaluate(list(due))
    seconds = (time.perf_counter() - start) / len(due)
    for training, evaluations in zip(due.values(), of_runs, strict=True):
        training.record(evaluations, seconds)


class UnfitError(Exception):
    """A checkpoint cannot be used; the message says why."""


def save_checkpoint(run: Run, directory: RunDirectory) -> None:
    """Write a run's checkpoint, with the run's id and the number and hash of its records."""
    records = directory.sync_records()
    copied = tree_map_only(Tensor, torch.clone, run.state())  # a view would save its whole matrix
    state = {"id": run.spec.id, "records": records, "run": copied}
    with whole_file(directory.checkpoint) as file:
        torch.save(state, file)


def resume(run: Run, directory: RunDirectory) -> None:
    """Restore a new run from its checkpoint, and drop later records.

    Raises UnfitError if the checkpoint is damaged, of another run or another version, or if records before
    it are missing. The run may then be partly restored.
    """
    with directory.checkpoint.open("rb") as file:
        try:
            if ZipFile(file).testzip() is not None:  # torch checks no checksum
                raise UnfitError("it is damaged")
            file.seek(0)
            checkpoint = torch.load(file, map_location=run.settings.device, weights_only=True)
            if checkpoint["id"] != run.spec.id:
                raise UnfitError("it is another run's")
            count, sha256 = (checkpoint["records"][key] for key in ("records", "sha256"))
            run.restore(checkpoint["run"])
            due = len(run.spec.due(run.step))
        except (UnfitError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # damaged bytes may raise anything
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:150]
            what = "it cannot be read by this version of the method and of oodbench"
            raise UnfitError(f"{what} ({reason})") from error
    if count != due or not directory.keep_records(count, sha256):
        raise UnfitError(f"the {due} records up to its step {run.step} are not all there")
