"""Shows the progress of a launch: on a terminal, a bar for the sweep and one for each worker.

In a notebook, a bar for the sweep. Elsewhere, a line for each ended run with the time left.
"""

import time
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column

from oodbench.errors import some
from oodbench.results.run_spec import RunSpec, State
from oodbench.sweep.launchers import Job
from oodbench.terminal import Terminal, duration, printable, terminal

LEAST_BAR = 8
"""The smallest width of a bar."""


def progress(console: Terminal, most: int, **options: Any) -> Progress:
    """Bars that count up to `most` and fit the terminal, with cut descriptions."""
    counts = 2 * len(str(most)) + 1
    times = 2 * len("0:00:00")
    room = console.width - LEAST_BAR - counts - times - 4  # a blank between two columns
    return Progress(
        TextColumn(
            "{task.description}",
            markup=False,
            table_column=Column(no_wrap=True, overflow="ellipsis", max_width=max(room, LEAST_BAR)),
        ),
        BarColumn(None, table_column=Column(max_width=40)),
        MofNCompleteColumn(table_column=Column(min_width=counts, no_wrap=True)),
        TimeElapsedColumn(table_column=Column(no_wrap=True)),
        TimeRemainingColumn(table_column=Column(no_wrap=True)),
        console=console,
        disable=not console.is_interactive,
        **options,
    )


def title(spec: RunSpec) -> str:
    """A run's row, dataset, test set, draw and trial, as printable text."""
    tests = "+".join(spec.test_environments)
    which = f"draw {spec.draw}, trial {spec.trial}"
    return printable(f"{spec.row} (test {tests}), {which}")


class Display:
    """Shows the progress of a job's runs."""

    def __init__(self, job: Job, workers: int) -> None:
        self.console = terminal()
        self.specs = job.specs
        self.total = len(job.specs)
        self.before = len(job.specs) - len(job.ids)
        """The number of runs that ended before this launch."""
        self.count = self.before
        self.started_at = time.monotonic()
        most = max([self.total, *(job.specs[i].steps for i in job.ids)])
        self._progress = progress(self.console, most)
        self._sweep = self._progress.add_task("runs", total=self.total, completed=self.count)
        self._bars = [self._progress.add_task("", visible=False) for _ in range(workers)]
        self._notebook: Any = None
        if self.console.is_jupyter:
            self._notebook = import_module("IPython.display").ProgressBar(self.total)
            self._notebook.display()

    def __enter__(self) -> "Display":
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        for bar in self._bars:
            self._progress.update(bar, visible=False)
        self._progress.stop()

    def started(self, worker: int, run_ids: Sequence[str]) -> None:
        """Show that a worker has started some runs."""
        text = some([title(self.specs[i]) for i in run_ids], 1)
        steps = max(self.specs[i].steps for i in run_ids)
        self._progress.reset(self._bars[worker], total=steps, visible=True)
        self._progress.update(self._bars[worker], description=text)

    def stepped(self, worker: int, step: int) -> None:
        """Show the number of steps that a worker has done."""
        self._progress.update(self._bars[worker], completed=step)

    def idle(self, worker: int) -> None:
        """Hide the bar of an idle worker."""
        self._progress.update(self._bars[worker], visible=False)

    def ended(self, run_id: str, state: State, message: str) -> None:
        """Count a run in a final state; print a line unless the run is done and a bar counts it."""
        if not state.final:
            return
        self.count += 1
        self._progress.update(self._sweep, completed=self.count)
        if self._notebook is not None:
            self._notebook.progress = self.count
        has_bar = self.console.is_interactive or self._notebook is not None
        if state is State.DONE and has_bar:
            return
        text = f"[{self.count}/{self.total}] {state}: {title(self.specs[run_id])}"
        if message:
            text += f": {message}"
        if not self.console.is_interactive:
            pace = (time.monotonic() - self.started_at) / (self.count - self.before)
            text += f", about {duration((self.total - self.count) * pace)} left"
        self.console.say(text)
