"""JSON file, name -> Machine, and back.

`hgpart calibrate` writes such files; others are written by hand. In the shortest form devices are
alike, and links have a latency, in seconds, and a bandwidth, in bytes per second::

    {"format": "hgpart machine 1", "nodes": [8, 8],
     "inside": {"latency": 2e-6, "bandwidth": 3e11},
     "between": {"latency": 5e-6, "bandwidth": 1.2e10}}

(devices 0 to 7 are one node, 8 to 15 the other; a machine of one node has no "between"). All other
fields may be left out:

- ``"device": {"kind": "NVIDIA A100", "memory": 40000000000, "threads": 1}`` describes all devices,
  memory in bytes; ``"devices"`` is a list with an object for each instead. ``"speed": 0.5`` of one
  says that it computes half as fast as the device that layers are timed on. ``"slower":
  {"bandwidth": 1e9, "memory": 100000000000}`` is memory beside its own, which it writes and reads
  at so many bytes per second: the folder for temporary files, or the memory of a GPU's host;
  without ``"memory"`` it has room for all.
- ``"both_ways"`` of a link is the bandwidth of each way while messages are sent both ways, if they
  slow each other down.
- Measured links have, instead, ``"sizes"`` of messages in bytes, their ``"seconds"``, and their
  seconds ``"both_ways"``.
- ``"pairs"`` are links of single pairs, each with its ``"from"`` and ``"to"``; one way suffices if
  the other is as fast.
- ``"all_reduce"`` has ``"sizes"`` and ``"seconds"`` of all-reduces by all devices.
- ``"together": [1, 1.2]`` are the factors by which computing slows down while one and while two
  devices of a node compute, and so on. ``"memory_bound"`` is an object with the same for norms and
  the like.
- ``"handling": 5e-10`` are seconds of computing that a byte of a message costs its sender, and its
  receiver; ``"stall": 5e-4`` are seconds for each message of any length.
- ``"name"`` and ``"note"`` are for readers; ``"disturbed"`` is what disturbed the measurement, if
  anything did.

Only plausible figures are accepted: a message takes at most 1e9 s, a link has 1 to 1e18 bytes per
second, and nothing is slowed down by more than a factor of 1e6.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hgpart.errors import ArgumentError, did_you_mean
from hgpart.files.json_files import JsonObject, read_json
from hgpart.files.writing import write_text
from hgpart.machines.machine import (
    MOST_BANDWIDTH,
    MOST_FACTOR,
    MOST_SECONDS,
    AllReduce,
    Device,
    Link,
    Machine,
    Slowdown,
    SlowerMemory,
)
from hgpart.machines.named import MOST_DEVICES, NAMES, named_machine

FORMAT = "hgpart machine 1"
WHAT = (
    f'{{"format": "{FORMAT}", "nodes": [2], "inside": {{"latency": 1e-5, "bandwidth": 1e9}}}}, '
    f"a file of hgpart calibrate -o, or {', '.join(NAMES)}"
)


def load_machine(source: Path | str, k: int | None = None) -> Machine:
    """Read a machine file, or make a machine by its name (`NAMES`), as ``10gbe`` or ``10gbe:16``.

    Parameters
    ----------
    source : Path or str
        A file or a name.
    k : int, optional
        Number of devices, for a name without one.

    Raises
    ------
    FormatError
        If the file can't be read or is malformed; the message names the line.
    ArgumentError
        If the number of devices of a name is missing or not accepted.
    """
    machine = named_machine(str(source), k)
    if machine is not None:
        return machine
    near = did_you_mean(str(source).partition(":")[0], NAMES)
    return machine_of(read_json(source, WHAT + near, FORMAT))


def machine_of(head: JsonObject) -> Machine:
    """Make the machine of a file that has been read.

    Raises
    ------
    FormatError
        For the reasons of `load_machine`.
    """
    nodes = head.wholes("nodes")
    if not 1 <= sum(nodes) <= MOST_DEVICES or min(nodes) < 1:  # before that many are made
        raise head.wrong("nodes", f"1 or more devices in each, {MOST_DEVICES} at most in all")
    slowdown = _slowdown(head)
    fields = head.fields
    return Machine(
        name=head.string("name") if "name" in fields else Path(head.path).stem,
        devices=_devices(head, sum(nodes)),
        nodes=tuple(nodes),
        inside=_link(head.object("inside")),
        between=_link(head.object("between")) if len(nodes) > 1 else None,
        pairs=_pairs(head, sum(nodes)) if "pairs" in fields else {},
        all_reduce=_all_reduce(head.object("all_reduce")) if "all_reduce" in fields else None,
        together=slowdown.together,
        memory_bound=_slowdown(head.object("memory_bound")) if "memory_bound" in fields else None,
        handling=_cost(head, "handling", "byte"),
        stall=_cost(head, "stall", "message"),
        note=head.string("note") if "note" in fields else "",
        disturbed=head.string("disturbed") if "disturbed" in fields else "",
    )


def _devices(head: JsonObject, k: int) -> tuple[Device, ...]:
    if "devices" in head.fields:
        return tuple(map(_device, head.objects("devices", k)))
    device = _device(head.object("device")) if "device" in head.fields else Device("unknown")
    return (device,) * k


def _device(record: JsonObject) -> Device:
    speed = record.number("speed") if "speed" in record.fields else 1.0
    if not 1 / MOST_FACTOR <= speed <= MOST_FACTOR:
        raise record.wrong("speed", f"{1 / MOST_FACTOR:g} to {MOST_FACTOR:g} times as fast")
    return Device(
        record.string("kind") if "kind" in record.fields else "unknown",
        record.whole("memory", 1) if record.fields.get("memory") is not None else None,
        record.whole("threads", 1) if "threads" in record.fields else 1,
        speed,
        _slower(record.object("slower")) if record.fields.get("slower") is not None else None,
    )


def _slower(record: JsonObject) -> SlowerMemory:
    bandwidth = record.number("bandwidth")
    if not 1 <= bandwidth <= MOST_BANDWIDTH:
        raise record.wrong("bandwidth", f"1 to {MOST_BANDWIDTH:g} bytes per second")
    has_limit = record.fields.get("memory") is not None
    return SlowerMemory(bandwidth, record.whole("memory", 1) if has_limit else None)


def _link(record: JsonObject) -> Link:
    if "sizes" not in record.fields:
        both_ways = record.number("both_ways") if "both_ways" in record.fields else None
        latency, bandwidth = record.number("latency"), record.number("bandwidth")
        try:
            return Link.of(latency, bandwidth, both_ways)
        except ArgumentError as error:
            wrong = str(error).split(maxsplit=1)[0]  # which of the three is named first
            raise record.wrong(wrong, f"that of a link ({error})") from None
    sizes, seconds = tuple(record.wholes("sizes")), tuple(record.numbers("seconds"))
    both = tuple(record.numbers("both_ways")) if "both_ways" in record.fields else seconds
    try:
        return Link(sizes, seconds, both)
    except ArgumentError as error:
        raise record.wrong("seconds", f"those of messages ({error})") from None


def _pairs(head: JsonObject, k: int) -> dict[tuple[int, int], Link]:
    pairs = {}
    for record in head.objects("pairs", len(head.items("pairs"))):
        sender, receiver = record.whole("from", 0, k - 1), record.whole("to", 0, k - 1)
        if sender == receiver or (sender, receiver) in pairs:
            raise record.wrong("to", f"another device than {sender}, and each pair once")
        pairs[sender, receiver] = _link(record)
    return pairs


def _all_reduce(record: JsonObject) -> AllReduce:
    try:
        return AllReduce(tuple(record.wholes("sizes")), tuple(record.numbers("seconds")))
    except ArgumentError as error:
        raise record.wrong("seconds", f"those of all-reduces ({error})") from None


def _slowdown(record: JsonObject) -> Slowdown:
    together = tuple(record.numbers("together")) if "together" in record.fields else (1.0,)
    try:
        return Slowdown(together)
    except ArgumentError as error:
        raise record.wrong("together", f"1, then 1 or more ({error})") from None


def _cost(head: JsonObject, name: str, of: str) -> float:
    cost = head.number(name) if name in head.fields else 0.0
    if not 0 <= cost <= MOST_SECONDS:
        raise head.wrong(name, f"0 to {MOST_SECONDS:g} s a {of}")
    return cost


# ------------------------------------------------------------------ writing


def save_machine(machine: Machine, path: Path | str) -> None:
    """Write a machine file, as `load_machine` reads it.

    Raises
    ------
    OutputError
        If the file can't be written.
    """
    write_text(path, machine_json(machine))


def machine_json(machine: Machine) -> str:
    """The text of a machine file: a line for each field, device and pair."""
    fields: dict[str, Any] = {
        "format": FORMAT,
        "name": machine.name,
        "note": machine.note,
        "disturbed": machine.disturbed or None,
        "nodes": machine.nodes,
        "together": machine.together,
        "memory_bound": machine.memory_bound and asdict(machine.memory_bound),
        "handling": machine.handling,
        "stall": machine.stall,
        "inside": asdict(machine.inside),
        "between": machine.between and asdict(machine.between),
        "all_reduce": machine.all_reduce and asdict(machine.all_reduce),
    }
    lines = [
        f'  "{name}": {json.dumps(value)}' for name, value in fields.items() if value is not None
    ]
    lines.append(_listed("devices", [asdict(device) for device in machine.devices]))
    pairs = [
        {"from": sender, "to": receiver, **asdict(link)}
        for (sender, receiver), link in machine.pairs.items()
    ]
    lines.append(_listed("pairs", pairs))
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _listed(name: str, objects: list[Mapping[str, Any]] | list[dict[str, Any]]) -> str:
    lines = ",\n".join(f"    {json.dumps(item)}" for item in objects)
    return f'  "{name}": [\n{lines}\n  ]' if lines else f'  "{name}": []'
