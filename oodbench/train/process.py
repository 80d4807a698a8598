"""The C library's allocator, told to keep the memory that tensors give back."""

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's <malloc.h>


def keep_freed_memory() -> None:
    """Reuse the pages of freed tensors instead of returning them to the system (glibc only).

    By default each tensor above a few hundred kilobytes is mapped and unmapped anew, and every
    page of it faults again: a fifth of the time of a full-batch step of a small network.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library
        return
    mallopt(_MMAP_THRESHOLD, 1 << 30)
    mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)
