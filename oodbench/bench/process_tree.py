"""What a command costs with all of its descendants. Linux only.

It is run by an observer, a process of its own that adopts the command's orphans and waits for them,
so that their seconds are counted.
"""

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

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of <sys/prctl.h>
REST = 20
"""The sampler of the memory sleeps so many times as long as a sample keeps a core busy."""


@dataclass(frozen=True)
class Cost:
    """What a command and its descendants took."""

    wall_seconds: float
    cpu_seconds: float
    """User and system time of all processes."""
    memory_mb: float
    """The largest sample of their proportional set sizes' sum: a shared page counts once."""
    processes: int
    """The most that a sample saw."""
    code: int
    """The command's exit code."""


def cost_of(
    command: Sequence[str], folder: Path, env: Mapping[str, str], cwd: Path | None = None
) -> Cost:
    """Run a command, whose output goes to `folder`/log.txt; whatever interrupts us, it ends with us."""
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

    The calling process must lead its session and have no other children. When its own parent dies,
    the session ends.
    """
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    largest, most = 0.0, 0
    start = time.perf_counter()
    process = subprocess.Popen(command)
    pause = 0.2
    while True:
        try:
            process.wait(pause)
            break
        except subprocess.TimeoutExpired:
            if os.getppid() != parent:
                os.killpg(0, signal.SIGKILL)
            began = time.process_time()
            memory, count = _memory()
            largest, most = max(largest, memory), max(most, count)
            pause = max(0.2, REST * (time.process_time() - began))
    wall = time.perf_counter() - start
    while True:
        try:
            os.wait()
        except ChildProcessError:
            break
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Cost(wall, used.ru_utime + used.ru_stime, largest, most, process.returncode)


def _memory() -> tuple[float, int]:
    """The megabytes of this session's processes but this one, and how many there are."""
    ours = os.getpid()
    total, count = 0.0, 0
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == ours:
            continue
        try:
            fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) != ours:
                continue
            lines = Path(entry.path, "smaps_rollup").read_text().splitlines()
        except (OSError, ValueError):  # it has ended
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
        count += 1
    return total, count


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(asdict(observe(sys.argv[2:]))))
