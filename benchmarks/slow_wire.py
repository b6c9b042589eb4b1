"""Start a program in two processes with a network each, and between them a wire of a given speed.

Each process is in a network namespace of its own; a veth pair joins them, and a token bucket at
each end lets through so many megabits a second, as a network card of that speed does each way.
Linux, as root; the namespaces are removed at the end.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

WIRE = "wire"  # the interface, in both
ADDRESSES = "10.9.8.1", "10.9.8.2"
PORT = "29507"  # which nobody else has in a network of one's own
BURST = "256kb"  # that passes at once: what the kernel hands over at a time is 64


def launch_on_wire(program: str, arguments: Sequence[str], megabits: float) -> None:
    """Run a Python program as rank 0 and rank 1, until both have ended; ends with their status."""
    names = [f"hgpart-{os.getpid()}-{rank}" for rank in range(2)]
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        for name in names:
            ip("netns", "add", name)
        ip(
            *("link", "add", WIRE, "netns", names[0], "type", "veth"),
            *("peer", "name", WIRE, "netns", names[1]),
        )
        for name, address in zip(names, ADDRESSES, strict=True):
            ip("-n", name, "address", "add", f"{address}/24", "dev", WIRE)
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", WIRE, "up")
            bucket = "rate", f"{megabits}mbit", "burst", BURST, "latency", "100ms"
            ran("tc", "-n", name, "qdisc", "add", "dev", WIRE, "root", "tbf", *bucket)
        for rank, name in enumerate(names):
            inside = ("ip", "netns", "exec", name, sys.executable, program, *arguments)
            ranks.append(subprocess.Popen(inside, env={**os.environ, **environment(rank)}))
        if any([rank.wait() for rank in ranks]):
            sys.exit("a process failed")
    finally:
        for rank_process in ranks:
            rank_process.kill()
            rank_process.wait()
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False)


def environment(rank: int) -> dict[str, str]:
    """What torchrun sets."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": ADDRESSES[0],
        "MASTER_PORT": PORT,
        "GLOO_SOCKET_IFNAME": WIRE,
    }


def ip(*arguments: str) -> None:
    ran("ip", *arguments)


def ran(*command: str) -> None:
    subprocess.run(command, check=True)
