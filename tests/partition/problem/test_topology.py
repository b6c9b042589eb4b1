"""Topology files: nodes of devices, or a cost for each link."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from random_machines import machines

from hgpart.errors import ArgumentError, FormatError
from hgpart.machines.machine import Machine
from hgpart.machines.machine_files import FORMAT as MACHINE
from hgpart.machines.machine_files import load_machine, save_machine
from hgpart.partition.problem.objectives import MOST_COST
from hgpart.partition.problem.topology import FORMAT, load_speeds, load_topology, over_machine


def written(path: Path, **fields: Any) -> Path:
    path.write_text(json.dumps({"format": FORMAT, **fields}))
    return path


def test_devices_in_nodes(tmp_path: Path) -> None:
    path = written(tmp_path / "t.json", nodes=[1, 2], inside=0.5, between=4)
    assert load_topology(path, 3).links.tolist() == [[0, 4, 4], [4, 0, 0.5], [4, 0.5, 0]]


def test_a_cost_for_each_link(tmp_path: Path) -> None:
    path = written(tmp_path / "t.json", links=[[7, 1], [2, 7]])
    assert load_topology(path, 2).links.tolist() == [[0, 1], [2, 0]]


@given(machines())
def test_a_byte_on_a_link_of_a_machine_costs_its_seconds_beside_the_fastest_link(
    machine: Machine,
) -> None:
    k = machine.k
    seconds = {
        (sender, receiver): 1 / machine.link(sender, receiver).bandwidth
        for sender in range(k)
        for receiver in range(k)
        if sender != receiver
    }
    fastest = min(seconds.values(), default=1.0)
    if max(seconds.values(), default=1.0) > MOST_COST * fastest:
        with pytest.raises(ArgumentError, match="a link cost is not a number from 0 to 1e\\+09"):
            over_machine(machine)
        return
    links = over_machine(machine).links
    assert links is not None
    for (sender, receiver), one in seconds.items():
        assert links[sender, receiver] == pytest.approx(one / fastest)
    assert not np.diag(links).any()


def test_a_machine_file_is_a_topology(tmp_path: Path) -> None:
    machine = load_machine("nvlink-8:10")
    save_machine(machine, tmp_path / "machine.json")
    expected = over_machine(machine).links
    assert np.array_equal(load_topology(tmp_path / "machine.json", 10).links, expected)
    assert np.array_equal(load_topology("nvlink-8", 10).links, expected)
    assert np.array_equal(load_topology("nvlink-8:10", 10).links, expected)


def test_of_a_larger_machine_the_fastest_devices_are_taken(tmp_path: Path) -> None:
    path, whole = tmp_path / "m.json", load_machine("nvlink-8:10")
    boards = tuple(replace(device, speed=at + 1) for at, device in enumerate(whole.devices))
    save_machine(replace(whole, devices=boards), path)
    assert load_speeds(path, 3) == (8, 9, 10)
    links = over_machine(whole).links[7:, 7:]  # the first of these is in another node
    assert np.array_equal(load_topology(path, 3).links, links / links[links > 0].min())
    path = written(tmp_path / "few.json", format=MACHINE, nodes=[2**40])
    with pytest.raises(FormatError, match="65536 at most in all"):
        load_topology(path, 3)
    with pytest.raises(ArgumentError, match="machine 10gbe:2 of 2 devices for k=3"):
        load_topology("10gbe:2", 3)


def test_another_number_of_devices_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "t.json", nodes=[2, 2], inside=1, between=4)
    with pytest.raises(ArgumentError, match="is for 4 devices, expected k=3"):
        load_topology(path, 3)


@pytest.mark.parametrize("nodes", [[8000], [2**40], [2**62] * 100, [4000, 4000]])
def test_devices_are_counted_before_there_is_room_for_their_links(
    nodes: list[int], tmp_path: Path
) -> None:
    """67 bytes took 3.8 GB: a cost for each pair of 8000 devices, and only then a look at k."""
    path = written(tmp_path / "t.json", nodes=nodes, inside=1, between=4)
    tracemalloc.start()
    with pytest.raises(ArgumentError, match=f"is for {sum(nodes)} devices, expected k=3"):
        load_topology(path, 3)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 10**7


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"links": [[0, 10**400], [1, 0]]}, "not a square of numbers"),
        ({}, 'no "nodes"'),
        ({"nodes": [2], "inside": 1}, 'no "between"'),
        ({"nodes": [2, -1], "inside": 1, "between": 1}, "whole numbers from 0"),
        ({"nodes": [2], "inside": -1, "between": 1}, '"inside": a number from 0'),
        ({"nodes": [2], "inside": 0, "between": 1}, "all link costs are 0"),
        ({"links": [[0, 1]]}, "not a square"),
        ({"links": 3}, "a list"),
    ],
)
def test_what_is_malformed_is_named(fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=message):
        load_topology(written(tmp_path / "t.json", **fields), 2)
