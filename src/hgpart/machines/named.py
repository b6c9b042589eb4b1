"""Name -> Machine: a few that are so common that nobody need write their files.

Figures are those of public data sheets and standards, none is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hgpart.errors import ArgumentError
from hgpart.machines.machine import Device, Link, Machine

MOST_DEVICES = 2**16


@dataclass(frozen=True)
class _Kind:
    """What machines of a name have in common.

    Attributes
    ----------
    device : Device
    of_node : int
        Devices of a node; the last one may have fewer.
    inside, between : Link
    note : str
    """

    device: Device
    of_node: int
    inside: Link
    between: Link
    note: str


def _10gbe() -> _Kind:
    # 10GBASE-T carries 10 Gb/s (IEEE 802.3an). Of the 1538 bytes that a frame takes on the wire TCP
    # with timestamps has 1448. Two network stacks and a switch take tens of microseconds.
    link = Link.of(latency=5e-5, bandwidth=10e9 / 8 * 1448 / 1538)
    return _Kind(Device("CPU"), 1, link, link, "computers on 10 Gb Ethernet, TCP")


def _nvlink_8() -> _Kind:
    # NVIDIA A100 data sheet: 40 GB, NVLink 600 GB/s, which is 300 each way, between any two by
    # NVSwitch. EDR InfiniBand: 100 Gb/s after its 64b/66b code; 4096 bytes of a packet of 4122.
    # The latencies are what a launch of a kernel takes that sends.
    device = Device("NVIDIA A100 40GB", memory=40 * 10**9)
    inside = Link.of(latency=5e-6, bandwidth=300e9)
    between = Link.of(latency=1e-5, bandwidth=100e9 / 8 * 4096 / 4122)
    return _Kind(device, 8, inside, between, "nodes of 8 with NVLink, 100 Gb InfiniBand between")


def _edge_wifi() -> _Kind:
    # Raspberry Pi 4 product brief: 4 cores, 4 GB, IEEE 802.11ac. That has 433.3 Mb/s for one stream
    # at 80 MHz; of these TCP gets about 60 %, half of it as each packet goes by an access point,
    # and both ways share the air.
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
    """Make the machine of a name; None if there is none of it.

    Parameters
    ----------
    name : str
        One of `NAMES`, or with a number of devices, as in ``10gbe:16``.
    k : int, optional
        Number of devices of a name that does not say it.

    Raises
    ------
    ArgumentError
        If nothing says a number of devices, or it is not accepted.

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
        found = "no number of devices" if devices is None else f"{devices} devices"
        raise ArgumentError(
            f"machine {kind!r} has {found}: accepted are 1 to {MOST_DEVICES}, as in {kind}:16"
        )
    of = _KINDS[kind]()
    whole, rest = divmod(devices, of.of_node)
    nodes = (of.of_node,) * whole + ((rest,) if rest else ())
    return Machine(
        name=f"{kind}:{devices}",
        devices=(of.device,) * devices,
        nodes=nodes,
        inside=of.inside,
        between=of.between if len(nodes) > 1 else None,
        note=f"{of.note}; figures of data sheets",
    )
