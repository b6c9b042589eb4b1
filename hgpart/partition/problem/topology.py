"""Topology file -> Objective: what a byte costs on the link between two devices.

A file of JSON, either devices in nodes, with fast links inside a node::

    {"format": "hgpart topology 1", "nodes": [4, 4], "inside": 1, "between": 10}

(devices 0 to 3 are one node, 4 to 7 the other), or the cost from each device to each other one::

    {"format": "hgpart topology 1", "links": [[0, 1], [1, 0]]}
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hgpart.errors import ArgumentError
from hgpart.files.json_files import JsonObject, read_json
from hgpart.partition.problem.objectives import MOST_COST, Objective, over_links

FORMAT = "hgpart topology 1"
WHAT = f'{{"format": "{FORMAT}", "nodes": [4, 4], "inside": 1, "between": 10}}'


def load_topology(path: Path | str, k: int) -> Objective:
    """Read what the links between k devices cost.

    Raises
    ------
    FormatError
        If the file can't be read or is malformed; says which line.
    ArgumentError
        If it is for another number of devices.
    """
    head = read_json(path, WHAT, FORMAT)
    return _of_links(head, k) if "links" in head.fields else _of_nodes(head, k)


def _of_links(head: JsonObject, k: int) -> Objective:
    try:
        objective = over_links(head.items("links"))
    except ArgumentError as error:
        raise head.wrong("links", f"k rows of k numbers ({error})") from None
    assert objective.links is not None
    _check_devices(head, len(objective.links), k)
    return objective


def _of_nodes(head: JsonObject, k: int) -> Objective:
    sizes = head.wholes("nodes")
    _check_devices(head, sum(sizes), k)  # before there is a row for each
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


def _check_devices(head: JsonObject, devices: int, k: int) -> None:
    if devices != k:
        raise ArgumentError(f"{head.path} is for {devices} devices, expected k={k}")
