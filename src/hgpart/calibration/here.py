"""A process of a run -> Device, node: what it computes on, and its first rank on this computer."""

from __future__ import annotations

import os
import platform
from datetime import date
from importlib.metadata import version
from pathlib import Path

import torch

from hgpart.cores import processor
from hgpart.machines.machine import Device

LIMIT = Path("/sys/fs/cgroup/memory.max")  # the container's


def device_here(device: torch.device, threads: int, sharers: int) -> Device:
    """Describe the device of this process.

    Parameters
    ----------
    sharers : int
        Number of processes on this computer, which share its memory.
    """
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return Device(properties.name, properties.total_memory, threads)
    return Device(processor(), host_memory() // sharers, threads)


def host_memory() -> int:
    """Bytes of memory that processes of this computer, or of its container, can use."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(memory, int(LIMIT.read_text()))
    except (OSError, ValueError):  # there is none, or it is "max"
        return memory


def first_of_node() -> int:
    """The rank of the first process on this computer, by what torchrun or `launch` has set."""
    return int(os.environ["RANK"]) - int(os.environ.get("LOCAL_RANK", "0"))


def how_measured(transport: str) -> str:
    """A line that says with which versions, on which system and when something was measured."""
    return (
        f"hgpart {version('hgpart')} calibrate over {transport}, torch {torch.__version__}, "
        f"Python {platform.python_version()}, {platform.system()} {platform.release()}, "
        f"{date.today()}"
    )
