"""Name of a device -> the device, if it is there; what a measurement on it says."""

from __future__ import annotations

from datetime import date

import torch

from hgpart.cores import processor
from hgpart.errors import ArgumentError


def device_named(name: str) -> torch.device:
    """The CPU, or an accelerator of this machine, such as "cuda" or "cuda:1".

    Raises
    ------
    ArgumentError
        If there is none of that name.
    """
    found = torch.accelerator.current_accelerator(check_available=True)
    devices = ["cpu"]
    if found is not None:
        devices += [found.type]
        devices += [f"{found.type}:{at}" for at in range(torch.accelerator.device_count())]
    if name not in devices:
        raise ArgumentError(f"device {name!r}: accepted here are {', '.join(devices)}")
    return torch.device(name)


def wait_for(device: torch.device) -> None:
    """Return when a device has done all that it was given."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def measured_on(device: torch.device, what: str) -> str:
    """Say where, with what and when `what` was measured.

    >>> " threads) batch 2, torch " in measured_on(torch.device("cpu"), "batch 2")
    True
    """
    if device.type == "cpu":
        place, name = f"cpu ({torch.get_num_threads()} threads)", processor()
    else:
        place = str(device)
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return f"{place} {what}, torch {torch.__version__}, {name}, {date.today()}"
