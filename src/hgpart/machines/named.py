"""Name -> Machine: some machines so common that nobody needs to write their files.

The figures come from public data sheets and standards; none is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hgpart.errors import ArgumentError
from hgpart.machines.machine import Device, Link, Machine

MOST_DEVICES = 2**16
ASSUMED, ASSUMED_LINKS = "10gbe", "10 Gb Ethernet"  # where no machine is given


@dataclass(frozen=True)
class _Kind:
    """What machines of a name have in common.

    Attributes
    ----------
    of_node : int
        Devices per node; the last node may have fewer.
    """

    device: Device
    of_node: int
    inside: Link
    between: Link
    note: str


def _10gbe() -> _Kind:
    # 10GBASE-T carries 10 Gb/s (IEEE 802.3an). A frame takes 1538 bytes on the cable, of which TCP
    # with timestamps has 1448. Two network stacks and a switch take tens of microseconds.
    link = Link.of(latency=5e-5, bandwidth=10e9 / 8 * 1448 / 1538)
    return _Kind(Device("CPU"), 1, link, link, "computers on 10 Gb Ethernet, TCP")


def _nvlink_8() -> _Kind:
    # NVIDIA A100 data sheet: 40 GB, NVLink 600 GB/s, which is 300 each way, between any two by
    # NVSwitch. EDR InfiniBand: 100 Gb/s after its 64b/66b code; 4096 bytes of a packet of 4122.
    # The latencies are those of launching a kernel that sends.
    device = Device("NVIDIA A100 40GB", memory=40 * 10**9)
    inside = Link.of(latency=5e-6, bandwidth=300e9)
    between = Link.of(latency=1e-5, bandwidth=100e9 / 8 * 4096 / 4122)
    return _Kind(device, 8, inside, between, "nodes of 8 with NVLink, 100 Gb InfiniBand between")


def _edge_wifi() -> _Kind:
    # Raspberry Pi 4 product brief: 4 cores, 4 GB, IEEE 802.11ac, which has 433.3 Mb/s for a stream
    # at 80 MHz. TCP gets about 60 % of that, and half of it as each packet goes by an access
    # point; both ways share the air.
    device = Device("Raspberry Pi 4", memory=4 * 10**9, threads=4)
    rate = 433.3e6 / 8 * 0.6 / 2
    link = Link.of(latency=3e-3, bandwidth=rate, both_ways=rate / 2)
    return _Kind(device, 1, link, link, "small computers on Wi-Fi by an access point")


_KINDS: Mapping[str, Callable[[], _Kind]] = {
    "10gbe": _10gbe,
    "nvlink-8": _nvlink_8,
    "edge-wifi": _edge_wifi,
}
NAMES = tuple(_KINDS)


def named_machine(name: str, k: int | None = None) -> Machine | None:
    """Make the machine of a name; None if there is no such name.

    Parameters
    ----------
    name : str
        One of `NAMES`, optionally with a number of devices, as in ``10gbe:16``.
    k : int, optional
        Number of devices, for a name without one.

    Raises
    ------
    ArgumentError
        If the number of devices is missing or not accepted.

    Examples
    --------
    >>> named_machine("nvlink-8:20").nodes
    (8, 8, 4)
    """
    kind, colon, count = name.partition(":")
    if kind not in _KINDS:
        return None
    if colon and not (count.isdecimal() and count.isascii()):
        raise ArgumentError(f"machine {name!r}: accepted is a number of devices, as in {kind}:16")
    devices = int(count[:10]) if colon else k
    if devices is None or not 1 <= devices <= MOST_DEVICES:
        given = "no number of devices" if devices is None else f"{devices} devices"
        raise ArgumentError(
            f"machine {kind!r} has {given}: accepted are 1 to {MOST_DEVICES}, as in {kind}:16"
        )
    machines = _KINDS[kind]()
    whole, rest = divmod(devices, machines.of_node)
    nodes = (machines.of_node,) * whole + ((rest,) if rest else ())
    return Machine(
        name=f"{kind}:{devices}",
        devices=(machines.device,) * devices,
        nodes=nodes,
        inside=machines.inside,
        between=machines.between if len(nodes) > 1 else None,
        note=f"{machines.note}; figures of data sheets",
    )
