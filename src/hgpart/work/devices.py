"""Name of a device -> the device; memory left on it, and a description for measurements."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import date
from pathlib import Path

import torch

from hgpart.cores import processor
from hgpart.errors import ArgumentError

GROUP, LIMITS = Path("/sys/fs/cgroup"), ("memory.max", "memory.current")


def device_named(name: str) -> torch.device:
    """The CPU, or an accelerator of this machine, such as "cuda" or "cuda:1".

    Raises
    ------
    ArgumentError
        If there is no device of that name.
    """
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    devices = ["cpu"]
    if accelerator is not None:
        devices += [accelerator.type]
        devices += [f"{accelerator.type}:{at}" for at in range(torch.accelerator.device_count())]
    if name not in devices:
        raise ArgumentError(f"device {name!r}: accepted here are {', '.join(devices)}")
    return torch.device(name)


def wait_for(device: torch.device) -> None:
    """Return when a device has done all work that it was given."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def clock_of(device: torch.device) -> Callable[[], float]:
    """A clock that waits until a device has done the work it was given, then tells the time."""
    if device.type == "cpu":
        return time.perf_counter

    def now() -> float:
        wait_for(device)
        return time.perf_counter()

    return now


def memory_left(device: torch.device) -> int:
    """Bytes that a device has free, as far as is known."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    left = [2**62]
    if device.type == "cpu":
        with suppress(OSError, ValueError):  # on Linux only
            lines = Path("/proc/meminfo").read_text().splitlines()
            left += [2**10 * int(line.split()[1]) for line in lines if "MemAvailable" in line]
        with suppress(OSError, ValueError):  # in a container only, or there it is "max"
            most, used = (int((GROUP / name).read_text()) for name in LIMITS)
            left.append(most - used)
    return min(left)


def measured_on(device: torch.device, what: str) -> str:
    """A line that says where, with which versions and when `what` was measured.

    >>> " threads) batch 2, torch " in measured_on(torch.device("cpu"), "batch 2")
    True
    """
    if device.type == "cpu":
        place, name = f"cpu ({torch.get_num_threads()} threads)", processor()
    else:
        place = str(device)
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return f"{place} {what}, torch {torch.__version__}, {name}, {date.today()}"
