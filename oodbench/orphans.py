"""Child processes that end with their parent."""

import multiprocessing
import os
import threading


def end_with_parent() -> None:
    """End this process as soon as its parent has ended, for any reason.

    It exits at once, without cleanup. Raises AssertionError in a process that `multiprocessing`
    did not start.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()
