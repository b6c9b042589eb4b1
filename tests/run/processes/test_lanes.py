"""Lanes: messages as they were sent, no waiting where there is room, and ends that are gone."""

from __future__ import annotations

import os
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hgpart.run.processes.lanes import LINE, WORDS, Lane
from hgpart.run.processes.launch import launch

RING = 16 * LINE


def both_ends(is_gone=lambda: False, timeout=10.0):
    memory = torch.zeros(WORDS * 8 + RING, dtype=torch.uint8)
    return (Lane(memory, is_gone, timeout) for _ in range(2))


def message(number, size):
    return (torch.arange(size) * 7 + number).to(torch.uint8)


sizes = st.lists(st.integers(0, RING // 2), max_size=12)


@given(st.lists(sizes, max_size=6), st.randoms(use_true_random=False))
def test_messages_arrive_in_any_order_of_receiving(passes, draw):
    """In each pass as many as have room are sent before the first of them is received."""
    near, far = both_ends()
    number = 0
    for of_pass in passes:
        largest = near.largest(of_pass)
        assert largest == far.largest(of_pass)
        small = [size for size in of_pass if size <= largest]
        expected = []
        for size in small:
            cut = draw.randint(0, size)
            near.send([message(number, size)[:cut], message(number, size)[cut:]])
            expected.append((far.expect(size), number, size))
            number += 1
        draw.shuffle(expected)
        for begin, sent, size in expected:
            got = torch.empty(size, dtype=torch.uint8)
            far.receive(begin, got)
            assert torch.equal(got, message(sent, size))


@given(sizes)
def test_the_largest_is_the_most_that_has_room(of_pass):
    (near, _) = both_ends()
    largest = near.largest(of_pass)

    def lines(most):
        return sum(-(-size // LINE) for size in of_pass if size <= most)

    assert lines(largest) * LINE <= RING // 2
    larger = [size for size in of_pass if size > largest]
    assert not larger or lines(min(larger)) * LINE > RING // 2


def test_a_full_ring_waits_until_something_was_received():
    near, far = both_ends()
    count = 2 * RING // LINE  # messages, of a line each
    sending = threading.Thread(target=lambda: [near.send([message(at, 10)]) for at in range(count)])
    sending.start()
    got = torch.empty(10, dtype=torch.uint8)
    for at in range(count):
        far.receive(far.expect(10), got)
        assert torch.equal(got, message(at, 10))
    sending.join()


def test_ends_that_do_not_answer():
    near, far = both_ends(timeout=0.2)
    got = torch.empty(1, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match=r"^Timed out waiting"):
        far.receive(far.expect(1), got)
    near, far = both_ends(is_gone=lambda: True)
    near.send([message(3, 1)])
    far.receive(far.expect(1), got)  # what came before still is there
    assert int(got) == 3
    with pytest.raises(RuntimeError, match=r"^Connection closed"):
        far.receive(far.expect(1), got)
    near, far = both_ends()
    near.close()
    with pytest.raises(RuntimeError, match=r"^Connection closed"):
        far.receive(far.expect(1), got)


PROCESSES = """
import torch
from hgpart.run.processes.connection import connect

with connect(3, timeout=60) as connection:
    assert len(connection.lanes) == 2, connection.lanes
    rank = connection.rank
    assert connection.numbers([rank, -rank]) == [[0, 0], [1, -1], [2, -2]]
    for size in (1, 70_000, 3):
        for peer, lanes in connection.lanes.items():
            lanes.there.send([torch.full((size,), 10 * rank + peer, dtype=torch.uint8)])
        for peer, lanes in connection.lanes.items():
            got = torch.empty(size, dtype=torch.uint8)
            lanes.back.receive(lanes.back.expect(size), got)
            assert (got == 10 * peer + rank).all()
"""


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="there are lanes on Linux only")
def test_processes_of_one_machine_have_lanes(tmp_path):
    program = tmp_path / "ranks.py"
    program.write_text(PROCESSES)
    launch(str(program), [], 3)
