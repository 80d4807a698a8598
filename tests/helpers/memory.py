"""The memory at most of a run in a process of its own.

`python -m tests.helpers.memory FOLDER stored|memory`: the folder holds the files of
`tests.helpers.stored_data.write`, with `SIDE` pixels a side. Prints megabytes.
Pages of mapped files do not count: the system takes them back when it needs them.
"""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import tests.helpers.stored_data as stored_data
from oodbench.sweep.file import validate
from oodbench.sweep.plan import make_plan
from oodbench.train.run import Run
from oodbench.train.settings import TrainSettings

SIDE, STEPS = 32, 60


def main(folder: Path, stored: bool) -> float:
    """Train for some steps, evaluate everything, and say what it took."""
    options = {"name": stored_data.Speckles.name, "side": SIDE, "stored": stored}
    values = {
        "name": "memory",
        "datasets": [options],
        "algorithms": [{"name": "ERM", "hparams": {"batch_size": 64}}],
        "network": {"name": "MLP", "hparams": {"width": 4, "depth": 1}},
        "trials": 1,
        "steps": STEPS,
    }
    (spec,) = make_plan(validate(values, "memory"), folder).runs.values()
    run = Run(spec, TrainSettings(data_dir=folder, loader_workers=2))
    done = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        peak = pool.submit(_peak, done)
        run.run_steps(STEPS)
        run.evaluate()
        done.set()
    return peak.result()


def _peak(done: threading.Event) -> float:
    """The most private memory that was seen until `done`, looked at every few milliseconds."""
    most = 0
    while not done.wait(0.003):
        status = Path("/proc/self/status").read_text().splitlines()
        (now,) = (line.split()[1] for line in status if line.startswith("RssAnon"))
        most = max(most, int(now))
    return most / 1024


if __name__ == "__main__":
    print(main(Path(sys.argv[1]), sys.argv[2] == "stored"))
