"""The launcher `slurm`: runs packed into jobs, jobs into arrays, submitted through submitit.

What has to be done is read from the results directory whenever a job starts, also after Slurm has
requeued it; submitit's pickles only say which runs a job is about.

OUT/code/<time>/ holds the snapshots of launches with --snapshot.
"""

import contextlib
import hashlib
import importlib.util
import io
import math
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from filelock import Timeout

from oodbench.errors import UserError, unknown
from oodbench.files import whole_folder
from oodbench.identity import Code, Digests, changed_files, commit
from oodbench.registry import checkout
from oodbench.results.compact import compact
from oodbench.results.directory import Results
from oodbench.results.run_spec import RunSpec, State
from oodbench.sweep.launchers import Job, Launcher, RunStatus, register
from oodbench.sweep.launchers.local import train_in_pool
from oodbench.sweep.launchers.progress import title
from oodbench.sweep.launchers.resources import SlurmResources, minutes
from oodbench.sweep.launchers.slurm_queue import (
    BUSY,
    NoAnswer,
    Pack,
    Submission,
    Submissions,
    ask,
    cancel,
    delays,
    queue,
    status_of,
)
from oodbench.sweep.launchers.worker import stop
from oodbench.terminal import Terminal, counted, terminal
from oodbench.train.settings import TrainSettings
from oodbench.version import __version__

if TYPE_CHECKING:
    from submitit.helpers import DelayedSubmission

    from oodbench.sweep.estimate import Forecast

JOB_MINUTES = 10
"""About how long a job of short runs takes, unless `runs_per_job` says how many share one."""
MEASURING = 10.0
"""Seconds after which a launch begins to measure no further row."""
MAX_REQUEUES = 10_000
"""Time-outs after which a job is given up: more than any job has, as a run goes on where it was."""
OURS = {"job-name", "array", "output", "error", "open-mode", "signal", "chdir", "time", "wrap"}
"""Options of sbatch that the launcher sets itself."""
SUBMITIT = ("setup", "signal-delay-s")
"""Options of submitit, not of sbatch, that users may give."""
MAX_ARRAY_SIZE = 1001
"""Slurm's default for the most jobs of one array."""
FOLDERS = ("oodbench", "algorithms", "datasets", "sweeps", "pyproject.toml")
"""The parts of a checkout that runs need; of an installed wheel, the package alone."""
RUNS_SHOWN = 5
"""Runs of the first job that a dry run lists."""


@dataclass(frozen=True, kw_only=True)
class TrainRuns:
    """The work of a job: train its runs, as many at a time as it has room for."""

    job: Job
    """The sweep, its options and how many runs are trained at a time; its runs are on disk."""
    version: str = __version__
    """The version of oodbench that was submitted."""
    stop_seconds: float
    """The seconds that the runs have for their checkpoints when the job has to go."""

    def __call__(self, submitted: Mapping[str, Digests]) -> dict[str, State]:
        """Train the runs that have not ended and whose code, by its digests, is as it was submitted.

        Returns their states.
        """
        results = self.job.results
        ids = [i for i in submitted if not results.run(i).state().final]
        changes = {i: why for i in ids if (why := self._change(submitted[i]))}
        refused = {i: self._refuse(i, why) for i, why in changes.items()}
        stored = results.specs()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ""
        job = replace(
            self.job,
            specs={i: stored[i] for i in submitted},
            ids=tuple(i for i in ids if i not in refused),
            gpus=tuple(visible.split(",")) if visible else (),
        )
        trained = train_in_pool(job) if job.ids else {}
        compact(results, patient=False)  # another job of this array may be at it
        return refused | trained

    def checkpoint(self, submitted: Mapping[str, Digests]) -> "DelayedSubmission":
        """Stop the workers and return the job to queue again; submitit calls this when Slurm ends a job."""
        from submitit.helpers import DelayedSubmission

        stop(self.stop_seconds)
        return DelayedSubmission(self, submitted)

    def _change(self, digests: Digests) -> str:
        if self.job.options.snapshot:
            return ""
        if self.version != __version__:
            return f"oodbench {self.version} has become {__version__}"
        try:
            files = sorted(
                {f for code in digests.values() for f in changed_files(cast(Code, code))}
            )
        except FileNotFoundError as gone:
            return f"{gone} has been deleted"
        return f"{', '.join(files)} changed" if files else ""

    def _refuse(self, run_id: str, change: str) -> State:
        run = self.job.results.run(run_id)
        with contextlib.suppress(Timeout), run.lock():
            run.fail(
                f"{change} since this run was submitted: `launch --failed` submits it with what is here, "
                "--snapshot keeps a copy",
                "",
            )
        return run.state()


@register("slurm")
class Slurm(Launcher):
    """Array jobs of a Slurm cluster."""

    Resources = SlurmResources

    def launch(self, job: Job) -> dict[str, State]:
        """Submit the runs that are not queued yet and return at once, with `queued` for each of them.

        Raises UserError, and submits nothing, if the cluster could never run it.
        """
        request = Request(job)
        request.check()
        submissions = Submissions(job.results)
        with submissions.lock():
            before = self._states(job)
            arrays = request.arrays(before)
            if job.options.snapshot and arrays:
                take_snapshot(request.code, job.options.plugins)
            for name, packs in arrays.items():
                request.submit(name, packs, submissions)
        new = [pack for packs in arrays.values() for pack in packs]
        if new:
            terminal().say(described(new, request.asked))
        return before | {i: State.QUEUED for pack in new for i in pack}

    def preview(self, job: Job, console: Terminal) -> None:
        """Print the jobs that a launch would submit, and the first runs of the first."""
        request = Request(job)
        try:
            request.check()
        except NoAnswer:
            request.here = False
            console.say("Slurm does not answer here: partition and limits are not checked.")
        arrays = request.arrays(self._states(job))
        if arrays:
            console.say(described([p for packs in arrays.values() for p in packs], request.asked))
        for name, packs in arrays.items():
            console.print(
                f"\n{request.out / 'jobs' / name}: {counted(len(packs), 'job')}", soft_wrap=True
            )
            console.print("\n".join(request.lines()), soft_wrap=True)
        for first in next(iter(arrays.values()), ())[:1]:
            runs = f"{len(first)} runs, {request.at_a_time} at a time" if len(first) > 1 else "run"
            console.print(f"The first job's {runs}:")
            for run_id in first[:RUNS_SHOWN]:
                console.print(f"  {title(job.specs[run_id])}")

    def states(self, results: Results, ids: Collection[str]) -> dict[str, RunStatus]:
        """The status of the runs that were submitted, by Slurm's queue and the disk.

        Slurm is asked before the disk is read: what is gone from the queue has ended on the disk.
        """
        submissions = Submissions(results)
        if not any(True for _ in submissions):
            return {}
        try:
            jobs, problem = queue(submissions), ""
        except UserError as error:
            jobs, problem = None, f"Slurm does not tell: {error}"
        submitted = submissions.of_runs()
        return {
            i: status_of(results, i, *submitted[i], jobs, problem) for i in ids if i in submitted
        }

    def cancel(self, results: Results) -> int:
        """Cancel the sweep's jobs and no others; returns how many had not ended."""
        submissions = Submissions(results)
        left = [s for s in submissions if not s.cancelled]
        count = cancel(left)
        for submission in left:
            submissions.write(replace(submission, cancelled=True))
        return count

    def _states(self, job: Job) -> dict[str, State]:
        known = self.states(job.results, job.ids)
        return {i: known[i].state if i in known else job.results.run(i).state() for i in job.ids}


class Request:
    """The resources that a launch asks Slurm for."""

    def __init__(self, job: Job) -> None:
        self.here = shutil.which("sbatch") is not None
        """Whether Slurm can be asked."""
        asked = SlurmResources.of(job.options.resources)
        if job.options.devices not in ("auto", "cpu"):
            raise UserError(
                f"with --launcher slurm, --devices is auto or cpu, not '{job.options.devices}'"
            )
        device = "cuda:0" if job.options.devices == "auto" and asked.gpu_count else "cpu"
        self.out = job.results.path.absolute()
        self.at_a_time = asked.at_a_time(job.options.threads)
        data_dir = job.options.data_dir
        options = replace(job.options, data_dir=data_dir and data_dir.absolute())
        self.job = replace(job, options=options, workers=self.at_a_time, devices=(device,))
        self.asked = asked
        self.minutes = math.ceil(minutes(asked.time) or 1)
        given = {key.replace("_", "-"): value for key, value in asked.slurm.items()}
        for key in given.keys() & OURS:
            raise UserError(f"slurm: {key} is set by the launcher itself")
        self.delay = int(given.get("signal-delay-s", min(120, math.ceil(15 * self.minutes))))
        """Seconds between Slurm's signal and the end of a job's time."""
        copy = self.out / "code" / time.strftime("%Y-%m-%dT%H%M%S")
        self.code = copy if job.options.snapshot else checkout()
        """The folder from which jobs import the project."""
        self.setup = _setup(given.get("setup", []), self.code)
        self.options = _sbatch_options(asked) | {
            key: value for key, value in given.items() if key not in SUBMITIT
        }

    def lines(self) -> list[str]:
        """The job's options as sbatch takes them, then the commands before its Python."""
        options = {"time": self.minutes, **self.options}
        flags = [f"--{key}" if v is True else f"--{key}={v}" for key, v in options.items()]
        return [*flags, *self.setup]

    def check(self) -> None:
        """Raise UserError for an unknown partition, or a time for which it never starts a job."""
        rows = [row.split("|") for row in ask("sinfo", "--noheader", "--format=%P|%l").split()]
        limits = {name.rstrip("*"): limit for name, limit in rows}
        default = [name.rstrip("*") for name, _ in rows if name.endswith("*")]
        names = self.asked.partition.split(",") if self.asked.partition else default
        for name in names:
            if name not in limits:
                raise unknown("partition", name, limits, "this cluster")
        longest = max((minutes(limits[n]) or math.inf for n in names), default=math.inf)
        if self.minutes > longest:
            name = "' or '".join(names)
            limit = "' or '".join(limits[n] for n in names)
            raise UserError(
                f"time {self.asked.time} is over the limit of partition '{name}', {limit}"
            )

    def arrays(self, states: Mapping[str, State]) -> dict[str, tuple[Pack, ...]]:
        """The runs that nobody trains, in jobs and these in arrays, by name; raises UserError."""
        if "%" in str(self.out):
            raise UserError(
                f"{self.out}: Slurm's log files cannot lie in a folder with a % in its name"
            )
        packs = self._packs(
            [i for i, s in states.items() if s is State.PLANNED or s.can_be_retried]
        )
        earlier = len(list(Submissions(self.job.results)))
        sweep = re.sub(r"[^\w.-]", "-", self.job.name)
        longest = MAX_ARRAY_SIZE
        if self.here and packs:
            match = re.search(r"MaxArraySize\s*=\s*(\d+)", ask("scontrol", "show", "config"))
            longest = int(match[1]) if match else MAX_ARRAY_SIZE
        arrays: dict[str, tuple[Pack, ...]] = {}
        for i in range(0, len(packs), longest):
            members = tuple(packs[i : i + longest])
            key = f"{self.out} {earlier + len(arrays)} {list(members)}"
            arrays[f"{sweep}-{hashlib.sha256(key.encode()).hexdigest()[:8]}"] = members
        return arrays

    def _packs(self, ids: Sequence[str]) -> list[Pack]:
        specs = {i: self.job.specs[i] for i in ids}
        packs = packed(specs, self.asked, self.job.options)
        if (most := self.asked.max_jobs) is None:
            return packs
        queued = 0
        if self.here:
            queued = len(ask("squeue", "--noheader", "--array", "--me", "--format=%i").split())
        if queued >= most:
            raise UserError(
                f"you have {queued} jobs queued and max_jobs is {most}: wait, cancel some or raise it"
            )
        if len(packs) <= most - queued:
            return packs
        return _chunks(ids, math.ceil(len(ids) / (most - queued)))

    def submit(self, name: str, packs: tuple[Pack, ...], submissions: Submissions) -> None:
        """Submit an array, which is on disk before it is in the queue; raises UserError.

        Earlier failures of its runs are forgotten, as a job leaves failed runs alone, and recorded again
        if Slurm refuses the array.
        """
        submission = Submission(name, packs, time.time())
        runs = map(self.job.results.run, chain(*packs))
        failures = [(run, failure) for run in runs if (failure := run.failure()) is not None]
        for run, _ in failures:
            run.forget()
        submissions.write(submission)
        try:
            job = self._submit(submission)
        except BaseException:
            shutil.rmtree(submissions.folder / name)
            for run, failure in failures:
                run.fail(failure.error, failure.traceback)
            raise
        submissions.write(replace(submission, job=job))

    def _submit(self, submission: Submission) -> str:
        for delay in delays():
            try:
                with contextlib.redirect_stderr(io.StringIO()):  # the error says the same
                    return self._map(submission.name, submission.packs)
            except RuntimeError as error:  # of which submitit's errors are
                message = " ".join(str(error).split())
                if not BUSY.search(message):
                    raise UserError(f"sbatch: {message}") from error
            time.sleep(delay)
            cancel([submission])  # it may have been accepted without our hearing of it
        raise AssertionError("the delays end with an error")

    def _map(self, name: str, packs: tuple[Pack, ...]) -> str:
        from submitit import AutoExecutor

        from oodbench.train.digests import digests_of

        executor = AutoExecutor(
            self.out / "jobs" / name,
            cluster="slurm",
            slurm_max_num_timeout=MAX_REQUEUES,
            # no code from the folder where the job starts
            slurm_python=f"{shlex.quote(sys.executable)} -P",
        )
        executor.update_parameters(
            name=name,
            timeout_min=self.minutes,
            slurm_signal_delay_s=self.delay,
            slurm_array_parallelism=self.asked.parallel or sys.maxsize,
            slurm_setup=self.setup,
            # srun inherits no cpus since Slurm 22.05, and no environment under SBATCH_EXPORT=NONE
            slurm_srun_args=["--export=ALL", f"--cpus-per-task={self.asked.cpus}"],
            slurm_additional_parameters=self.options,
        )
        training = TrainRuns(
            job=replace(self.job, specs={}, ids=()),
            stop_seconds=self.delay / 2,
        )
        of_code = {i: digests_of(self.job.specs[i], None, self.out) for i in chain(*packs)}
        jobs = executor.map_array(training, [{i: of_code[i] for i in pack} for pack in packs])
        return str(jobs[0].job_id).partition("_")[0]


def packed(
    specs: Mapping[str, RunSpec],
    asked: SlurmResources,
    settings: TrainSettings,
    expected: "Forecast | None" = None,
) -> list[Pack]:
    """The ids of the runs of each job: `runs_per_job`, else as many as take about ten minutes.

    The times are measured here unless a forecast has them; a job gets no more than half of its time limit.
    """
    from oodbench.sweep.estimate import forecast

    if asked.runs_per_job is not None or len(specs) < 2:
        return _chunks([*specs], asked.runs_per_job or 1)
    expected = expected or forecast([*specs.values()], settings, limit=MEASURING)
    limit = 60 * min(JOB_MINUTES, (minutes(asked.time) or math.inf) / 2)
    room = asked.at_a_time(settings.threads) * limit
    packs: list[list[str]] = []
    left = 0.0
    for run_id, spec in specs.items():
        seconds = expected.seconds_of(spec, otherwise=room)
        if seconds > left:
            packs.append([])
            left = room
        packs[-1].append(run_id)
        left -= seconds
    return [tuple(pack) for pack in packs]


def _chunks(ids: Sequence[str], size: int) -> list[Pack]:
    return [tuple(ids[i : i + size]) for i in range(0, len(ids), size)]


def described(packs: Sequence[Pack], asked: SlurmResources) -> str:
    """A sentence on how runs share jobs."""
    text = f"Slurm: {counted(sum(map(len, packs)), 'run')} in {counted(len(packs), 'job')}"
    if asked.runs_per_job is None and any(len(pack) > 1 for pack in packs):
        text += f": short runs share jobs of about {JOB_MINUTES} minutes, or runs_per_job of them"
    return f"{text}."


def _sbatch_options(asked: SlurmResources) -> dict[str, Any]:
    options = {
        "partition": asked.partition,
        "account": asked.account,
        "qos": asked.qos,
        "constraint": asked.constraint,
        "mem": asked.memory,
        "gpus-per-node": asked.gpus if asked.gpu_count else None,
        "cpus-per-task": asked.cpus,
        "requeue": True,
    }
    return {key: value for key, value in options.items() if value is not None}


def _setup(given: str | list[str], code: Path) -> list[str]:
    path = ":".join(shlex.quote(str(p)) for p in dict.fromkeys([code, Path.cwd()]))
    ours = f"export PYTHONPATH={path}${{PYTHONPATH:+:$PYTHONPATH}}"
    return [*([given] if isinstance(given, str) else given), ours]


def take_snapshot(target: Path, plugins: Iterable[str]) -> None:
    """Copy the project, and the plug-ins that are a user's, into a folder for PYTHONPATH."""
    names = FOLDERS if (checkout() / "pyproject.toml").is_file() else FOLDERS[:1]
    sources = {name: checkout() / name for name in names}
    for plugin in plugins:
        sources |= _source_of(plugin)
    target.parent.mkdir(parents=True, exist_ok=True)
    with whole_folder(target) as temporary:
        for name, source in sources.items():
            copy = temporary / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, copy, ignore=shutil.ignore_patterns(".*", "__pycache__"))
            else:
                shutil.copy2(source, copy)
        (temporary / "COMMIT").write_text(commit() or "")


def _source_of(plugin: str) -> dict[str, Path]:
    spec = importlib.util.find_spec(plugin.partition(".")[0])
    if spec is not None and spec.origin is None:
        # a folder without __init__.py may hold anything: of it, the plug-in alone
        spec = importlib.util.find_spec(plugin)
    if spec is None or spec.origin is None or spec.name == "oodbench":
        return {}
    origin, module = Path(spec.origin), spec.name.replace(".", "/")
    if origin.name == "__init__.py":
        return {module: origin.parent}
    return {module + origin.suffix: origin}
