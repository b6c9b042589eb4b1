"""Lanes: messages as they were sent, no waiting where there is room, and ends that are gone."""

from __future__ import annotations

import gc
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hgpart.errors import RunError
from hgpart.run.processes import lanes
from hgpart.run.processes.lanes import HEADER, LINE, WORDS, Inbox, Lane, lanes_of
from hgpart.run.processes.launch import launch

RING = 16 * LINE
RANK = threading.local()


def both_ends(is_gone=lambda: False, timeout=10.0):
    memory = torch.zeros(WORDS * 8 + RING, dtype=torch.uint8)
    return (Lane(memory, is_gone, timeout) for _ in range(2))


def message(number, size):
    return (torch.arange(size) * 7 + number).to(torch.uint8)


sizes = st.lists(st.integers(0, RING // 2), max_size=12)


@given(st.lists(sizes, max_size=6), st.randoms(use_true_random=False))
def test_messages_arrive_in_any_order_of_receiving(passes, draw):
    """All of a pass that fit are sent before any is received, and more where there is room."""
    near, far = both_ends()
    messages, numbers = [], count()
    for of_pass in passes:
        numbered = dict(zip(numbers, of_pass, strict=False))
        fitting = near.fitting(numbered)
        assert fitting == far.fitting(numbered)
        messages.append({number: numbered[number] for number in sorted(fitting)})
    ahead = draw.random() < 0.5
    sending = threading.Thread(target=lambda: [send(near, of_pass) for of_pass in messages])
    if ahead:  # as far into later passes as there is room
        sending.start()
    for of_pass in messages:
        if not ahead:
            send(near, of_pass)
        expected = [(far.expect(size), number, size) for number, size in of_pass.items()]
        draw.shuffle(expected)
        for begin, number, size in expected:
            got = torch.empty(size, dtype=torch.uint8)
            far.receive(begin, number, got)
            assert torch.equal(got, message(number, size))
    if ahead:
        sending.join()


def send(near, of_pass):
    for number, size in of_pass.items():
        cut = size * (number % 5) // 4  # the first piece, or the second, may be empty
        near.send(number, [message(number, size)[:cut], message(number, size)[cut:]])


@given(sizes)
def test_the_smallest_fit_as_many_as_have_room(of_pass):
    (near, _) = both_ends()
    numbered = dict(enumerate(of_pass))
    fitting = near.fitting(numbered)

    def taken(numbers):
        return sum(-(-(HEADER + numbered[number]) // LINE) * LINE for number in numbers)

    assert taken(fitting) <= RING // 2
    left = {*numbered} - fitting
    if left:
        smallest = min(left, key=lambda number: (numbered[number], number))
        assert taken({*fitting, smallest}) > RING // 2
        assert max((numbered[number] for number in fitting), default=0) <= numbered[smallest]


def test_ends_that_disagree_are_told_so():
    """An end that was not told would read the bytes of another message."""
    near, far = both_ends()
    near.send(3, [message(3, 10)])
    with pytest.raises(RunError, match=r"^message 3 of 10 bytes came for message 4 of 10: acc"):
        far.receive(far.expect(10), 4, torch.empty(10, dtype=torch.uint8))
    near, far = both_ends()
    near.send(3, [message(3, 10)])
    with pytest.raises(RunError, match=r"^message 3 of 10 bytes came for message 3 of 12: acc"):
        far.receive(far.expect(12), 3, torch.empty(12, dtype=torch.uint8))


def test_a_full_ring_waits_until_something_was_received():
    near, far = both_ends()
    messages = 2 * RING // LINE  # of a line each
    sending = threading.Thread(
        target=lambda: [near.send(at, [message(at, 10)]) for at in range(messages)]
    )
    sending.start()
    got = torch.empty(10, dtype=torch.uint8)
    for at in range(messages):
        far.receive(far.expect(10), at, got)
        assert torch.equal(got, message(at, 10))
    sending.join()


def test_ends_that_do_not_answer():
    near, far = both_ends(timeout=0.2)
    got = torch.empty(1, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match=r"^Timed out waiting"):
        far.receive(far.expect(1), 3, got)
    near, far = both_ends(is_gone=lambda: True)
    near.send(3, [message(3, 1)])
    far.receive(far.expect(1), 3, got)  # what came before still is there
    assert int(got) == 3
    with pytest.raises(RuntimeError, match=r"^Connection closed"):
        far.receive(far.expect(1), 3, got)
    near, far = both_ends()
    near.close()
    with pytest.raises(RuntimeError, match=r"^Connection closed"):
        far.receive(far.expect(1), 3, got)


PROCESSES = """
import torch
from hgpart.run.processes.connection import connect

with connect(3, timeout=60) as connection:
    assert len(connection.lanes) == 2, connection.lanes
    rank = connection.rank
    assert connection.numbers([rank, -rank]) == [[0, 0], [1, -1], [2, -2]]
    for size in (1, 70_000, 3):
        for peer, lanes in connection.lanes.items():
            lanes.there.send(size, [torch.full((size,), 10 * rank + peer, dtype=torch.uint8)])
        for peer, lanes in connection.lanes.items():
            got = torch.empty(size, dtype=torch.uint8)
            lanes.back.receive(lanes.back.expect(size), size, got)
            assert (got == 10 * peer + rank).all()
"""


@pytest.mark.full
def test_processes_of_one_machine_have_lanes(tmp_path):
    program = tmp_path / "ranks.py"
    program.write_text(PROCESSES)
    launch(str(program), [], 3)


def meeting(k):
    """A function that gathers what threads of k ranks have."""
    told, barrier = [None] * k, threading.Barrier(k)

    def of_rank(rank):
        def gather(value):
            told[rank] = value
            barrier.wait(10)
            found = [*told]
            barrier.wait(10)
            return found

        return gather

    return of_rank


def found_by(k):
    gather = meeting(k)

    def of_rank(rank):
        RANK.number = rank
        return lanes_of(rank, k, gather(rank), 10.0)

    with ThreadPoolExecutor(k) as threads:
        return [*threads.map(of_rank, range(k))]


def test_if_one_has_no_lane_none_has(monkeypatch):
    """Ranks that had all of theirs waited for numbers from ranks that had not."""
    assert [sorted(found) for found in found_by(3)] == [[1, 2], [0, 2], [0, 1]]
    opened = iter(range(10))

    def fails_once(address, of=Inbox.of):
        if next(opened) == 3:
            raise OSError("too many open files")
        return of(address)

    monkeypatch.setattr(Inbox, "of", fails_once)
    assert found_by(3) == [{}, {}, {}]


def test_other_machines_have_no_lanes(monkeypatch):
    machines = ("one",), None, ("one",), ("other",), None
    monkeypatch.setattr(lanes, "_machine", lambda: machines[RANK.number])
    assert [sorted(found) for found in found_by(5)] == [[2], [], [0], [], []]


def test_what_is_no_inbox_is_not_opened(tmp_path):
    with (tmp_path / "file").open("w+b") as file:
        file.write(bytes(lanes.LINE + lanes.INBOX))
        with pytest.raises(FileNotFoundError):
            Inbox.of(lanes.Address(os.getpid(), file.fileno(), bytes(lanes.TOKEN)))
    made = Inbox.made()
    with pytest.raises(FileNotFoundError):
        Inbox.of(lanes.Address(made.address.process, made.address.file, bytes(lanes.TOKEN)))


def test_files_are_closed():
    def files():
        gc.collect()
        return len([*Path("/proc/self/fd").iterdir()])

    found_by(2)
    before = files()
    for _ in range(3):
        found_by(2)
    assert files() == before
