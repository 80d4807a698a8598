import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.bench.process_tree import cost_of

pytestmark = pytest.mark.nightly

BURN = (
    "import time\nwhile time.process_time() < 0.4: pass\nheld = b'x' * 80_000_000\ntime.sleep(0.6)"
)


def run(code: str, folder: Path) -> list[str]:
    script = folder / "script.py"
    script.write_text(code)
    return [sys.executable, "-S", "-E", str(script)]


def test_orphans_count_in_seconds_and_memory(tmp_path: Path) -> None:
    command = " ".join(run(BURN, tmp_path))
    cost = cost_of(
        ["sh", "-c", f"({command} &) ; echo said; sleep 0.5; exit 3"], tmp_path, os.environ
    )
    assert cost.code == 3
    assert (tmp_path / "log.txt").read_text() == "said\n"
    assert cost.cpu_seconds >= 0.4
    alone = cost_of(run("import time; time.sleep(0.5)", tmp_path), tmp_path, os.environ)
    assert alone.cpu_seconds < 0.4
    assert alone.processes == 1
    assert 0 < alone.memory_mb < 80


def test_memory_of_children_is_added(tmp_path: Path) -> None:
    holder = run("held = b'x' * 60_000_000\nimport time; time.sleep(1.0)", tmp_path)
    joined = " ".join(holder)
    cost = cost_of(["sh", "-c", f"{joined} & {joined} & wait"], tmp_path, os.environ)
    assert cost.processes == 3
    assert 120 < cost.memory_mb < 240
    assert cost.wall_seconds >= 1.0


def test_the_command_ends_with_whoever_asked(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    code = (
        "import sys; from pathlib import Path; from tests.bench.process_tree import cost_of; import os;"
        f"cost_of(['sh', '-c', 'echo $$ > {pid}; sleep 60'], Path({str(tmp_path)!r}), os.environ)"
    )
    asker = subprocess.Popen([sys.executable, "-c", code])
    until = time.monotonic() + 30
    while not (pid.exists() and pid.read_text().strip()):
        assert time.monotonic() < until
        time.sleep(0.05)
    asker.send_signal(signal.SIGKILL)
    asker.wait()
    while time.monotonic() < until:
        try:
            os.kill(int(pid.read_text()), 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    pytest.fail("the command lives on")
