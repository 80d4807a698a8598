"""The cost of a command with all of its descendants. Linux only.

The command is run by an observer: another process, which adopts the command's orphans and waits for
them, so that their seconds count.
"""

import contextlib
import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of <sys/prctl.h>
REST = 20
"""The observer sleeps at least this many times as long as one look at the processes takes."""


@dataclass(frozen=True)
class Cost:
    """The cost of a command and its descendants."""

    wall_seconds: float
    cpu_seconds: float
    """User and system time of all processes."""
    memory_mb: float
    """The largest sum of their proportional set sizes that was seen: a shared page counts once."""
    processes: int
    """The largest number of processes that was seen."""
    code: int
    """The command's exit code."""


def cost_of(
    command: Sequence[str], folder: Path, env: Mapping[str, str], cwd: Path | None = None
) -> Cost:
    """Run a command, whose output goes to `folder`/log.txt, and which never outlives this process."""
    out = folder.resolve() / "cost.json"
    observer = [sys.executable, str(Path(__file__).resolve()), str(out), *command]
    with (folder / "log.txt").open("w") as log:
        process = subprocess.Popen(
            observer, stdout=log, stderr=log, start_new_session=True, env=env, cwd=cwd
        )
        try:
            process.wait()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    return Cost(**json.loads(out.read_text()))


def observe(command: Sequence[str]) -> Cost:
    """Run a command and wait for its end and then for that of all it left behind.

    The calling process leads its session and has no other children. When its own parent dies, the
    session is killed.
    """
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    sizes: list[list[float]] = [[]]
    pause = 0.2
    start = time.perf_counter()
    process = subprocess.Popen(command)
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(pause)
            break
        if os.getppid() != parent:
            os.killpg(0, signal.SIGKILL)
        before = time.process_time()
        sizes.append(_megabytes())
        pause = max(0.2, REST * (time.process_time() - before))
    wall = time.perf_counter() - start
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    memory, processes = max(map(sum, sizes)), max(map(len, sizes))
    return Cost(wall, used.ru_utime + used.ru_stime, memory, processes, code)


def _megabytes() -> list[float]:
    """The proportional set size of every descendant of this process."""
    sizes = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended
            sizes.append(process.memory_full_info().pss / 2**20)
    return sizes


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(asdict(observe(sys.argv[2:]))))
