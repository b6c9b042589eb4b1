"""The transports between processes, checked by `hgpart run` before it imports torch."""

from __future__ import annotations

from collections.abc import Iterable

from hgpart.errors import ArgumentError, not_one_of

TRANSPORTS = ("gloo", "nccl")  # by way of the hosts, from GPU to GPU


def check_transport(transport: str) -> None:
    """Raise an ArgumentError for an unknown --backend."""
    if transport not in TRANSPORTS:
        raise not_one_of("backend", transport, TRANSPORTS)


def check_carries(transport: str, devices: Iterable[str]) -> None:
    """Raise an ArgumentError if a transport can't carry messages between such devices."""
    if transport == "nccl":
        for device in devices:
            if not device.startswith("cuda"):
                raise ArgumentError(
                    f"backend nccl on device {device}: accepted are GPUs, as in --devices cuda, "
                    "and backend gloo on any device"
                )
