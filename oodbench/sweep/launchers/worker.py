"""The main loop of a worker process, which trains one run after the other."""

import os
import signal
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path

from oodbench.arithmetic import settle
from oodbench.orphans import end_with_parent
from oodbench.results.directory import Results
from oodbench.results.provenance import slurm_job
from oodbench.train.settings import TrainSettings

STOP = getattr(signal, "SIGUSR2", signal.SIGTERM)
"""The signal at which a worker saves its runs and ends; Windows has none, and ends the process at once."""
SIGNALS = {STOP, signal.SIGTERM, signal.SIGINT}
"""The signals with which a cluster, or Ctrl-C, asks every process of a job to end."""


def work(
    connection: Connection, results: Path, settings: TrainSettings, environment: Mapping[str, str]
) -> None:
    """Train the runs that the launcher sends, until it closes the connection or dies."""
    end_with_parent()
    os.environ.clear()  # the server that this process was forked from may have an older one
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the launcher's to handle
    from oodbench.registry import load_plugins
    from oodbench.terminal import format_warnings
    from oodbench.train.execute import execute_bundle
    from oodbench.train.process import unchanged
    from oodbench.train.settings import Interrupts

    settle()
    interrupts = Interrupts()
    signal.signal(STOP, lambda *_: interrupts.ask_to_stop())
    if slurm_job() is not None:  # the cluster's warning before a kill
        signal.signal(signal.SIGTERM, lambda *_: interrupts.ask_to_save())
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    format_warnings()
    for plugin in settings.plugins:
        with unchanged(f"the plug-in {plugin}"):
            load_plugins([plugin])
    last = 0.0

    def progress(step: int) -> None:
        nonlocal last
        if time.monotonic() - last > 0.2:
            last = time.monotonic()
            send("step", step)

    def send(event: str, value: object = "", message: str = "", run_id: str = "") -> None:
        try:
            connection.send((event, value, message, run_id))
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
            [(spec, Results(results).run(spec.id)) for spec in specs],
            settings,
            lambda run_id, state, message: send("end", state, message, run_id),
            progress,
            interrupts,
        )
        send("idle")
