"""The process -> one whose allocator keeps memory that is freed, and hands it out again.

By glibc's defaults each large tensor that is freed may go back to the system, whose pages are then
made anew for the next one: up to a quarter of a training step on CPUs, and not the same from one
process to the next. PyTorch's tuning guide has other allocators for it; two settings do as well.
What is kept lies in pieces, so that a process takes more than it holds: in a step of a part of
resnet50 a fifth more, or two thirds. Whoever is short of memory sets
``MALLOC_MMAP_THRESHOLD_=65536``, and nothing is kept.
"""

from __future__ import annotations

import ctypes
import gc
import os
from contextlib import suppress

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # <malloc.h>
_SETTINGS = {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_"}


def keep_freed_memory() -> bool:
    """Keep what this process frees for what it allocates later, until it ends.

    Returns
    -------
    bool
        Whether it was set: with glibc's allocator, and where the environment does not set when it
        gives memory back.
    """
    if not _SETTINGS.isdisjoint(os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library
        return False
    return bool(mallopt(M_TRIM_THRESHOLD, -1) and mallopt(M_MMAP_MAX, 0))


def give_back_freed_memory() -> None:
    """Let the system have what this process has freed until now."""
    gc.collect()
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
