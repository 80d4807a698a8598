"""Processes that do not outlive the one that started them."""

import multiprocessing
import os
import threading


def end_with_parent() -> None:
    """Have this process end as soon as the one that started it has, however that ended.

    It ends at once, whatever it is at. Raises AssertionError in a process that `multiprocessing`
    has not started.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()
