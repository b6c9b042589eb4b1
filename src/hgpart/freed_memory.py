"""The process -> one whose allocator keeps memory that is freed, and hands it out again.

glibc may give the memory of each large tensor that is freed back to the system, which then makes
new pages for the next one. That takes up to a quarter of a training step on CPUs, and differs from
one process to the next. PyTorch's tuning guide recommends other allocators; two settings do as
well. The kept memory is fragmented, so that a process takes more than it holds: in a step of a part
of resnet50 a fifth to two thirds more. If memory is short, nothing should be kept:
`keep_no_freed_memory`, or ``MALLOC_MMAP_THRESHOLD_=65536`` in the environment.
"""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Mapping
from contextlib import suppress

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4  # <malloc.h>
LARGE, MOST = 2**16, 2**16  # bytes of what gets memory of its own; how much of that there may be
_SETTINGS = {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_"}


def keep_freed_memory() -> bool:
    """Keep what this process frees for what it allocates later, until it ends.

    Returns
    -------
    bool
        Whether this was set. It needs glibc's allocator, and no variable in the environment that
        sets when memory is given back.
    """
    return _set({M_TRIM_THRESHOLD: -1, M_MMAP_MAX: 0})


def keep_no_freed_memory() -> bool:
    """Give what this process frees from now on back to the system at once.

    Returns
    -------
    bool
        Whether this was set; see `keep_freed_memory`, whose setting this ends.
    """
    return _set({M_TRIM_THRESHOLD: LARGE, M_MMAP_THRESHOLD: LARGE, M_MMAP_MAX: MOST})


def _set(values: Mapping[int, int]) -> bool:
    if not _SETTINGS.isdisjoint(os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library
        return False
    return all(mallopt(name, value) for name, value in values.items())


def give_back_freed_memory() -> None:
    """Give back to the system what this process has freed until now."""
    gc.collect()
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
