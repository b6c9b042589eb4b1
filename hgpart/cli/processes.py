"""The same command again, in one process for each part."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import typer

from hgpart.errors import ArgumentError, OutputError


def started_as_rank() -> bool:
    """Whether torchrun, or `start_ranks`, has started this process as one of several."""
    return "RANK" in os.environ


def start_ranks(command: str, arguments: Sequence[str], options: Mapping[str, Any], k: int) -> None:
    """Run a command of hgpart in k processes on this machine, and wait for them."""
    from hgpart.run.launch import launch

    try:
        launch("hgpart", [command, *arguments, *written_out(options)], k)
    except OutputError as error:  # no mistake, and nothing to say, as where this process prints
        raise typer.Exit(error.exit_status) from None


def written_out(options: Mapping[str, Any]) -> list[str]:
    """Options as they stand on a command line.

    >>> written_out({"--steps": 5, "--backward": True, "--json": None, "--devices": ("cpu", "cpu")})
    ['--steps', '5', '--backward', '--devices', 'cpu,cpu']
    """
    found = []
    for option, value in options.items():
        if value is True:
            found.append(option)
        elif isinstance(value, tuple):
            found += [option, ",".join(value)]
        elif value is not None and value is not False:
            found += [option, str(value)]
    return found


def device_of_each(devices: Sequence[str] | None, k: int) -> tuple[str, ...]:
    """What --devices says, for each part.

    >>> device_of_each(["cpu"], 3)
    ('cpu', 'cpu', 'cpu')
    """
    devices = tuple(devices or ["cpu"])
    if len(devices) not in (1, k):
        raise ArgumentError(
            f"--devices {','.join(devices)}: accepted are one for all and one for each of {k} parts"
        )
    return devices if len(devices) == k else devices * k
