"""Heartbeats by the clock, from a thread: a run that is at work is never taken for lost."""

import threading
from collections.abc import Callable
from contextlib import suppress

from oodbench.results.directory import RunDirectory

BEAT_SECONDS = 5.0
"""Seconds between two heartbeats of a run."""


class Heartbeats:
    """A thread that beats for the runs that this process holds, however long their steps take.

    It lives as long as the `with` block.
    """

    def __init__(self) -> None:
        self._runs: dict[RunDirectory, Callable[[], int]] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeats", daemon=True)

    def __enter__(self) -> "Heartbeats":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def start(self, directory: RunDirectory, step: Callable[[], int]) -> None:
        """Beat for a run, now and from now on; `step` returns the step that it is at.

        Raises OSError if the first beat cannot be written; a later one that cannot is left out.
        """
        directory.beat(step())
        with self._lock:
            self._runs[directory] = step

    def stop(self, directory: RunDirectory) -> None:
        """Beat no more for a run, and remove its heartbeat."""
        with self._lock:
            self._runs.pop(directory, None)
        directory.rest()

    def _beat(self) -> None:
        while not self._over.wait(BEAT_SECONDS):
            with self._lock:
                for directory, step in self._runs.items():
                    with suppress(OSError):  # a full disk may have room again at the next beat
                        directory.beat(step())
