"""What carries messages between processes: `hgpart run` refuses others before it imports torch."""

from __future__ import annotations

from hgpart.errors import ArgumentError

TRANSPORTS = ("gloo", "nccl")  # by way of the hosts, from GPU to GPU


def check_transport(transport: str) -> None:
    """Raise an ArgumentError for what --backend does not know."""
    if transport not in TRANSPORTS:
        raise ArgumentError(f"backend {transport!r}: accepted are {' and '.join(TRANSPORTS)}")
