"""Machines: how long messages take, on which link, and what does not fit together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_machines import links, machines

from hgpart.errors import ArgumentError
from hgpart.machines.machine import AllReduce, Device, Link, Machine, Slowdown, SlowerMemory
from hgpart.partition.problem.topology import time_objective

SLOW, FAST = Link.of(1e-3, 1e6), Link.of(1e-6, 1e9)
CPU = Device("CPU")


@given(links(), st.booleans())
def test_a_measured_message_takes_what_was_measured(link: Link, both_ways: bool) -> None:
    for size, seconds in zip(
        link.sizes, link.both_ways if both_ways else link.seconds, strict=True
    ):
        assert link.seconds_of(size, both_ways) == pytest.approx(seconds)


@given(links(), st.floats(0, 2.0**40), st.booleans())
def test_seconds_are_those_of_lines_between_what_was_measured(
    link: Link, nbytes: float, both_ways: bool
) -> None:
    """Within the sizes as numpy interpolates; a shorter message takes as long as the shortest."""
    times = link.both_ways if both_ways else link.seconds
    if nbytes <= link.sizes[-1]:
        expected = np.interp(nbytes, link.sizes, times)
    else:
        (x, y), (u, v) = zip(link.sizes[-2:], times[-2:], strict=True)
        expected = v + (nbytes - u) * (v - y) / (u - x)
    assert link.seconds_of(nbytes, both_ways) == pytest.approx(expected)


@given(links(), st.lists(st.floats(0, 2.0**42), min_size=2, max_size=2))
def test_a_longer_message_takes_no_less(link: Link, sizes: list[float]) -> None:
    short, long = sorted(sizes)
    assert link.seconds_of(short) <= link.seconds_of(long) * (1 + 1e-12)


@given(st.floats(0, 1), st.floats(2, 1e12), st.floats(0, 2.0**40))
def test_a_link_of_a_latency_and_a_bandwidth(
    latency: float, bandwidth: float, nbytes: float
) -> None:
    link = Link.of(latency, bandwidth, both_ways=bandwidth / 2)
    assert link.seconds_of(nbytes) == pytest.approx(latency + nbytes / bandwidth)
    assert link.seconds_of(nbytes, True) == pytest.approx(latency + 2 * nbytes / bandwidth)
    assert link.latency == latency
    assert link.bandwidth == pytest.approx(bandwidth)
    assert link.bandwidth_both_ways == pytest.approx(bandwidth / 2)


def test_all_reduces_are_interpolated_alike() -> None:
    assert AllReduce((0, 100), (1.0, 2.0)).seconds_of(150) == 2.5


def test_a_message_takes_the_link_of_its_pair_then_of_its_nodes() -> None:
    own = Link.of(0, 5e5)
    machine = Machine("m", (CPU,) * 5, (2, 3), FAST, SLOW, pairs={(1, 0): own, (3, 1): own})
    assert machine.k == 5
    assert machine.node_of == (0, 0, 1, 1, 1)
    for sender, receiver, link in (
        *((0, 1, own), (1, 0, own), (1, 3, own), (3, 1, own)),
        *((0, 2, SLOW), (4, 1, SLOW), (2, 3, FAST), (4, 3, FAST)),
    ):
        assert machine.link(sender, receiver) == link


def test_each_way_of_a_pair_may_have_a_link_of_its_own() -> None:
    machine = Machine("m", (CPU,) * 2, (2,), FAST, pairs={(0, 1): SLOW, (1, 0): FAST})
    assert (machine.link(0, 1), machine.link(1, 0)) == (SLOW, FAST)


@given(machines())
def test_every_two_devices_have_a_link(machine: Machine) -> None:
    known = {*machine.pairs.values(), machine.inside, machine.between}
    for sender in range(machine.k):
        for receiver in {*range(machine.k)} - {sender}:
            assert machine.link(sender, receiver) in known


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: Link((1,), (1.0,), (1.0,)), "1 times of messages of 1 sizes: accepted is one of"),
        (lambda: Link((1, 2), (1.0,), (1.0, 2.0)), "1 times of messages of 2 sizes"),
        (lambda: Link((2, 2), (1.0, 2.0), (1.0, 2.0)), r"messages of \[2, 2\] bytes: accepted are"),
        (
            lambda: Link((-1, 2), (1.0, 2.0), (1.0, 2.0)),
            "size of a message -1: accepted is 0",
        ),
        (lambda: Link((1, 2), (2.0, 1.0), (1.0, 2.0)), r"take \[2.0, 1.0\] s: accepted are asc"),
        (lambda: Link((1, 2), (1.0, 2.0), (1.0, 1.0)), r"take \[1.0, 1.0\] s"),
        (
            lambda: AllReduce((1, 2), (1.0, float("nan"))),
            "seconds of a message nan: accepted",
        ),
        (lambda: Link.of(-1e-9, 1.0), "latency -1e-09: accepted is 0 to 5e.08 s"),
        (lambda: Link.of(0, 0), "bandwidth 0: accepted is 1 to 1e.18 bytes per second"),
        (lambda: Link.of(0, 1, both_ways=float("inf")), "both_ways inf"),
        (lambda: Link.of(1.7e308, 1e9), "latency 1.7e.308: accepted is 0 to 5e.08 s"),
        (lambda: Link.of(0, 1.7e308), "bandwidth 1.7e.308"),
        (
            lambda: Link((1, 2), (0.0, 1e308), (0.0, 1.0)),
            "message 1e.308: accepted is 0 to 1e.09 s",
        ),
        (lambda: AllReduce((0, 2), (0.0, 1e-300)), "1e.18 bytes per second at most"),
        (lambda: Slowdown((1.0, 1e308)), "slow-down 1e.308: accepted is 1 to 1e.06"),
        (
            lambda: machine().of_fastest(3),
            "of 2 devices for k=3: accepted are 3 or more",
        ),
        (lambda: Device("CPU", memory=0), "memory 0: accepted is 1 byte or more"),
        (
            lambda: Device("CPU", memory=1.5),
            "memory 1.5: accepted is a whole number",
        ),
        (lambda: SlowerMemory(0.5), "bandwidth 0.5: accepted is 1 to 1e.18 bytes per second"),
        (lambda: SlowerMemory(1e9, 0), "slower memory 0: accepted is 1 byte or more"),
        (lambda: Device("CPU", threads=0), "threads 0: accepted is 1 or more"),
        (lambda: Slowdown((1.0, 0.9)), "slow-down 0.9: accepted is 1 to 1e.06"),
        (lambda: Slowdown((1.1, 1.2)), r"slow-downs \[1.1, 1.2\]: accepted is 1 for one device"),
        (lambda: Slowdown(()), r"slow-downs \[\]"),
        (lambda: machine(nodes=(2, 1)), r"nodes of \[2, 1\] devices: accepted are 2 in all"),
        (lambda: machine(nodes=(2, 0)), "devices of a node 0: accepted is 1 or more"),
        (lambda: machine(nodes=()), r"nodes of \[\] devices"),
        (lambda: machine(nodes=(1, 1)), "no link between 2 nodes: accepted is one"),
        (lambda: machine(pairs={(0, 2): FAST}), "from 0 to 2: accepted are two of the 2 devices"),
        (lambda: machine(pairs={(1, 1): FAST}), "from 1 to 1"),
        (lambda: machine(together=(1.0, 0.5)), "slow-down 0.5"),
        (lambda: machine(handling=-1.0), "handling -1.0: accepted is 0 to 1e.09 s a byte"),
        (lambda: machine(stall=-1.0), "stall -1.0: accepted is 0 to 1e.09 s a message"),
    ],
)
def test_what_does_not_fit_together_is_refused(made: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        made()


def machine(**fields: Any) -> Machine:
    return Machine(**{"name": "m", "devices": (CPU,) * 2, "nodes": (2,), "inside": FAST, **fields})


@given(links(), st.floats(1, 2.0**40), st.booleans())
def test_no_message_takes_less_a_byte_than_the_least(
    link: Link, nbytes: float, both_ways: bool
) -> None:
    least = link.least_seconds_a_byte * nbytes
    assert link.seconds_of(nbytes, both_ways) >= least * (1 - 1e-9)


def test_the_first_devices_of_a_machine() -> None:
    """Of many devices there were links for each two before the first few were taken: 32 GiB."""
    pairs = {(0, 3): SLOW, (1, 2): FAST}
    whole = Machine("m", (CPU,) * 5, (2, 3), FAST, SLOW, pairs, AllReduce((1, 2), (1.0, 2.0)))
    first = whole.of_fastest(3)
    assert (first.k, first.nodes, first.pairs, first.all_reduce) == (
        3,
        (2, 1),
        {(1, 2): FAST},
        None,
    )
    for one, other in ((0, 1), (1, 0), (1, 2), (0, 2)):
        assert first.link(one, other) == whole.link(one, other)
    assert (whole.of_fastest(2).nodes, whole.of_fastest(2).between) == ((2,), None)
    assert whole.of_fastest(5) == whole
    many = Machine("m", (CPU,) * 2**16, (2**16,), FAST)
    assert time_objective(many, 2, 1.0, 1).links.tolist() == [[0.0, 2e-9], [2e-9, 0.0]]


def test_the_fastest_devices_of_a_machine() -> None:
    """Of equally fast ones the first, so that of alike devices the first few are the fastest."""
    inside, between, slow = (Link.of(1e-6, rate) for rate in (1e9, 1e8, 1e7))
    devices = tuple(Device("board", speed=speed) for speed in (1.0, 2.0, 1.0, 4.0, 2.0))
    pairs = {(1, 3): slow, (0, 3): inside}
    whole = Machine("m", devices, (2, 3), inside, between, pairs=pairs)
    fastest = whole.of_fastest(3)
    assert whole.fastest(3) == (1, 3, 4)
    assert (fastest.nodes, fastest.pairs) == ((1, 2), {(0, 1): slow})
    for sender, receiver in ((0, 1), (0, 2), (2, 1)):
        there = whole.link(whole.fastest(3)[sender], whole.fastest(3)[receiver])
        assert fastest.link(sender, receiver) == there
