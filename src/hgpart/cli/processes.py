"""The same command again, in one process for each part."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import typer

from hgpart.cli.command_lines import written_out
from hgpart.errors import ArgumentError, OutputError
from hgpart.run.processes.transports import TRANSPORTS, check_carries


def started_as_rank() -> bool:
    """Whether torchrun, or `start_ranks`, has started this process as one of several."""
    return "RANK" in os.environ


def tell_torchrun(message: str) -> None:
    """Say why this process fails where torchrun looks for it, if that has started it.

    torchrun's report begins with a traceback of torchrun itself, which its processes can't prevent,
    and ends with what the first process that failed has said here.
    """
    file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if file is not None:
        said = {"message": message, "extraInfo": {"timestamp": str(int(time.time()))}}
        with suppress(OSError):
            Path(file).write_text(json.dumps({"message": said}), encoding="utf-8")


def on_several_machines() -> bool:
    """Whether ranks were started on other machines, too, as far as is known."""
    return os.environ.get("LOCAL_WORLD_SIZE") != os.environ.get("WORLD_SIZE")


def check_one_clock(timeline: Path | None, one_process: bool) -> None:
    """Raise an ArgumentError if a timeline would be of clocks that have nothing in common."""
    if timeline is not None and not one_process and on_several_machines():
        raise ArgumentError(
            "--timeline of processes on several machines, which have no clock in common: accepted "
            "is one machine, with LOCAL_WORLD_SIZE as WORLD_SIZE"
        )


def check_devices(devices: Sequence[str], transport: str) -> None:
    """Refuse, before parts are run here on these devices, what would be refused there."""
    from hgpart.run.processes.connection import device_of_rank

    check_carries(transport, devices)
    for rank, device in enumerate(devices):
        device_of_rank(device, rank if transport in TRANSPORTS else 0)  # threads are one process


def start_ranks(context: typer.Context, k: int) -> None:
    """Run a command of hgpart in k processes on this machine, and wait for them."""
    from hgpart.run.processes.launch import launch

    try:
        launch("hgpart", [context.command.name or "", *written_out(context)], k)
    except OutputError as error:  # no mistake, and nothing to say, as where this process prints
        raise typer.Exit(error.exit_status) from None


def device_of_each(devices: Sequence[str] | None, k: int) -> tuple[str, ...]:
    """The device of each part, as --devices says.

    >>> device_of_each(["cpu"], 3)
    ('cpu', 'cpu', 'cpu')

    ``auto`` takes the GPUs of this machine in turn, or else the CPU; a process among several takes
    the GPU of its local rank.
    """
    devices = tuple(devices or ["cpu"])
    if devices == ("auto",):
        devices = _devices_here(k)
    if len(devices) not in (1, k):
        raise ArgumentError(
            f"--devices {','.join(devices)}: accepted are one for all and one for each of {k} parts"
        )
    return devices if len(devices) == k else devices * k


def _devices_here(k: int) -> tuple[str, ...]:
    import torch

    gpus = torch.cuda.device_count()
    if not gpus:
        return ("cpu",)
    if started_as_rank():
        return (f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % gpus}",)
    return tuple(f"cuda:{part % gpus}" for part in range(k))
