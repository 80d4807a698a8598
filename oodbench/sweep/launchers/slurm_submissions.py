"""What a sweep has submitted to a cluster, on disk. Imports no torch.

OUT/jobs/<name>/submission.json   one array of jobs: which runs are in which
                *_log.out, .err   what the jobs print
OUT/jobs/lock                     held by the launch that submits
OUT/code/<fingerprint>/           the frozen code of launches with --snapshot
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock

from oodbench.files import write_whole
from oodbench.results.directory import Results
from oodbench.results.schemas import DamagedFile, read_file


@dataclass(frozen=True)
class Submission:
    """One array of jobs. It is written before Slurm has it; its name is the name of its jobs."""

    name: str
    packs: tuple[tuple[str, ...], ...]
    """The ids of the runs in each job of the array."""
    time: float
    """The time of the submission, in seconds since 1970."""
    commit: str | None
    job: str | None = None
    """Slurm's id of the array; None until Slurm has answered."""
    cancelled: bool = False

    def log(self, index: int, folder: Path) -> Path | None:
        """The log of the job at an index of the array, or None if it has none."""
        pattern = f"{self.job}_{index}_*.err" if len(self.packs) > 1 else f"{self.job}_*.err"
        return max(folder.glob(f"{self.name}/{pattern}"), default=None)


class Submissions:
    """The submissions in a results directory."""

    def __init__(self, results: Results) -> None:
        self.folder = results.path.absolute() / "jobs"

    def lock(self) -> FileLock:
        """The lock that a launch holds while it looks at what is queued and submits the rest."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return FileLock(self.folder / "lock")

    def write(self, submission: Submission) -> None:
        """Write or rewrite a submission."""
        (self.folder / submission.name).mkdir(parents=True, exist_ok=True)
        text = json.dumps(asdict(submission))
        write_whole(self.folder / submission.name / "submission.json", text)

    def __iter__(self) -> Iterator[Submission]:
        """All submissions, the oldest first.

        Of one that is damaged nothing is known: its runs are judged by their own files alone.
        """
        found = []
        for path in self.folder.glob("*/submission.json"):
            with suppress(DamagedFile):
                found.append(read_file(path, Submission))
        return iter(sorted((s for s in found if s is not None), key=lambda s: s.time))

    def of_runs(self) -> dict[str, tuple[Submission, int]]:
        """The last submission of each run and the job's index in its array, unless cancelled."""
        return {
            run_id: (submission, index)
            for submission in self
            if not submission.cancelled
            for index, pack in enumerate(submission.packs)
            for run_id in pack
        }
