"""The process -> the CPU cores it may use, its number of threads, and the processor's name."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from pathlib import Path

OWN_GROUPS = Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")
CORES = Path("/sys/devices/system/cpu")


def usable_cores() -> int:
    """Number of cores that this process may use, at least 1.

    A batch system or `taskset` may give it some of the machine's cores (its affinity), a container
    some of their time (the quotas of its control groups): 1.5 cores' time keeps two threads busy.
    """
    cores = len(affinity())
    return max(1, min(cores, math.ceil(min(_quotas(), default=cores))))


def affinity() -> set[int]:
    """Numbers of the cores that this process may run on: its affinity, or all without one.

    Unlike `usable_cores`, this disregards quotas of time.
    """
    try:
        return os.sched_getaffinity(0)
    except AttributeError:  # on Linux only
        return set(range(os.cpu_count() or 1))


def threads_of_each(processes: int) -> int:
    """Threads for each of several processes: OMP_NUM_THREADS if set, else a share of the cores."""
    text = os.environ.get("OMP_NUM_THREADS", "")
    return int(text) if text.isdecimal() and int(text) else max(1, usable_cores() // processes)


def take_own_cores(process: int, processes: int, threads: int) -> None:
    """Bind this process, one of several on this machine, to its share of the cores.

    Otherwise the system moves two processes to one core now and then, and all others wait. Where
    there is no core for each thread of each process, or cores can't be chosen, nothing is done; nor
    under a quota of time, because others may then be at work on any core.

    Parameters
    ----------
    process : int
        Number of this process.
    threads : int
        Threads that each of them computes with.
    """
    cores = sorted(affinity(), key=lambda core: (_first_sibling(core), core))
    share = len(cores) // processes
    if threads <= share and len(cores) == usable_cores() and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores[process * share : (process + 1) * share])


def _first_sibling(core: int) -> int:
    """The first of the hardware threads that share a physical core, which a process should have."""
    try:
        text = (CORES / f"cpu{core}/topology/thread_siblings_list").read_text()
        return int(re.split("[,-]", text)[0])
    except (OSError, ValueError):
        return core


def processor() -> str:
    """The name that the processor gives itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "unknown processor"


def _quotas() -> Iterator[float]:
    """Quotas, in cores, of the process's control groups that limit its time."""
    for folder in _groups():
        try:  # version 2, then version 1
            if (folder / "cpu.max").exists():
                quota, period = (folder / "cpu.max").read_text().split()
            else:
                quota = (folder / "cpu.cfs_quota_us").read_text()
                period = (folder / "cpu.cfs_period_us").read_text()
            cores = int(quota) / int(period)
        except (OSError, ValueError, ZeroDivisionError):
            continue  # there is no quota, or it is "max"
        if cores > 0:  # -1 means none
            yield cores


def _groups() -> Iterator[Path]:
    """Folders of the process's control groups, and of those around them.

    In a container its own group may be mounted where the root was; then some of these do not exist.
    """
    try:
        lines = OWN_GROUPS.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        own = GROUPS / ("cpu" if controllers else "") / path.lstrip("/")
        yield own
        yield from own.parents[: len(own.parts) - len(GROUPS.parts)]
