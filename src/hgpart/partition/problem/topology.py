"""Topology or machine -> Objective: what a byte costs on the link between two devices.

A file of JSON, either devices in nodes, with fast links inside a node::

    {"format": "hgpart topology 1", "nodes": [4, 4], "inside": 1, "between": 10}

(devices 0 to 3 are one node, 4 to 7 the other), or the cost from each device to each other one::

    {"format": "hgpart topology 1", "links": [[0, 1], [1, 0]]}

or a machine (`hgpart.machines.machine_files`: what ``hgpart calibrate -o`` writes, or a name such
as ``10gbe``): a byte costs the seconds that it takes on its link, beside those on the fastest link.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from hgpart.arrays import Float64
from hgpart.errors import ArgumentError
from hgpart.files.json_files import JsonObject, read_json
from hgpart.machines.machine import Link, Machine
from hgpart.machines.machine_files import FORMAT as MACHINE
from hgpart.machines.machine_files import machine_of
from hgpart.machines.named import NAMES, named_machine
from hgpart.partition.problem.objectives import (
    MOST_COST,
    LinkCosts,
    Seconds,
    over_links,
    step_time,
)

FORMAT = "hgpart topology 1"
WAYS_THERE_AND_BACK = 2  # maps go there, their gradients back
WHAT = (
    f'{{"format": "{FORMAT}", "nodes": [4, 4], "inside": 1, "between": 10}}, a file of hgpart '
    f"calibrate -o, or {', '.join(NAMES)}"
)


def _of_long_messages(link: Link) -> float:
    return 1 / link.bandwidth


def load_topology(path: Path | str, k: int) -> LinkCosts:
    """Read what the links between k devices cost, from a topology or a machine.

    Raises
    ------
    FormatError
        If the file can't be read or is malformed; says which line.
    ArgumentError
        If it is for another number of devices.
    """
    named = named_machine(str(path), k)
    if named is not None:
        return over_machine(named.of_fastest(k))
    head = read_json(path, WHAT, FORMAT, MACHINE)
    if head.string("format") == MACHINE:
        return over_machine(machine_of(head).of_fastest(k))
    return _of_links(head, k) if "links" in head.fields else _of_nodes(head, k)


def load_speeds(path: Path | str, k: int) -> tuple[float, ...] | None:
    """Read the speeds of a machine's k fastest devices; None if they are alike, or a topology's.

    Raises
    ------
    FormatError
        If the file can't be read or is malformed; says which line.
    ArgumentError
        If there are fewer than k.
    """
    if named_machine(str(path), k) is not None:
        return None
    head = read_json(path, WHAT, FORMAT, MACHINE)
    if head.string("format") != MACHINE:
        return None
    return machine_of(head).of_fastest(k).speeds


def over_machine(machine: Machine) -> LinkCosts:
    """Return the objective of the seconds that bytes of long messages take on a machine's links.

    The fastest link costs 1.

    >>> from hgpart.machines.machine import Device, Link, Machine
    >>> fast, slow = Link.of(0, bandwidth=2**33), Link.of(0, bandwidth=2**30)
    >>> over_machine(Machine("m", (Device("GPU"),) * 3, (2, 1), fast, slow)).links.tolist()
    [[0.0, 1.0, 8.0], [1.0, 0.0, 8.0], [8.0, 8.0, 0.0]]
    """
    seconds = seconds_a_byte(machine)
    off_diagonal = ~np.eye(machine.k, dtype=bool)
    return over_links(seconds / seconds[off_diagonal].min() if machine.k > 1 else [[0.0]])


def seconds_a_byte(machine: Machine, of: Callable[[Link], float] = _of_long_messages) -> Float64:
    """Seconds of a byte from device s to device r at ``[s, r]``; 0 from a device to itself.

    Parameters
    ----------
    of : function of a Link, optional
        Seconds of a byte on a link; by default those of a byte of a long message.
    """
    seconds = np.full((machine.k, machine.k), of(machine.inside))
    if machine.between is not None:
        node = np.array(machine.node_of)
        seconds[node[:, None] != node[None, :]] = of(machine.between)
    for first, second in machine.pairs:
        for sender, receiver in ((first, second), (second, first)):
            seconds[sender, receiver] = of(machine.link(sender, receiver))
    np.fill_diagonal(seconds, 0.0)
    return seconds


def time_objective(
    machine: Machine, k: int, seconds: float, micro_batches: int, trains: bool = True
) -> Seconds:
    """Return the objective of a step on the k fastest devices of a machine.

    Parameters
    ----------
    seconds : float
        All work of a step.
    trains : bool
        Whether gradients of maps go back.

    Raises
    ------
    ArgumentError
        If the machine has fewer devices.
    """
    fastest = machine.of_fastest(k)
    links = (WAYS_THERE_AND_BACK if trains else 1) * seconds_a_byte(fastest)
    speeds = fastest.speeds
    alike = 1.0 if speeds is not None else fastest.devices[0].speed
    return step_time(links, seconds / alike, micro_batches, speeds)


def _of_links(head: JsonObject, k: int) -> LinkCosts:
    try:
        objective = over_links(head.items("links"))
    except ArgumentError as error:
        raise head.wrong("links", f"k rows of k numbers ({error})") from None
    _check_devices(head.path, len(objective.links), k)
    return objective


def _of_nodes(head: JsonObject, k: int) -> LinkCosts:
    sizes = head.wholes("nodes")
    _check_devices(head.path, sum(sizes), k)  # before there is a row for each
    costs = {name: head.number(name) for name in ("inside", "between")}
    for name, cost in costs.items():
        if not 0 <= cost <= MOST_COST:
            raise head.wrong(name, f"a number from 0 to {MOST_COST:g}")
    node = np.repeat(np.arange(len(sizes)), sizes)
    links = np.where(node[:, None] == node[None, :], costs["inside"], costs["between"])
    try:
        return over_links(links)
    except ArgumentError as error:
        raise head.wrong("between", f"a number above 0 ({error})") from None


def _check_devices(path: Path | str, devices: int, k: int) -> None:
    if devices != k:
        raise ArgumentError(f"{path} is for {devices} devices, expected k={k}")
