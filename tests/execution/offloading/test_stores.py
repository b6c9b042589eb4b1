"""Bytes in a file come back as they were, and leave room for others when they are given up."""

from __future__ import annotations

import os
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hgpart.errors import RunError
from hgpart.execution.offloading.stores import InFile


@given(st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=30))
def test_bytes_come_back_and_places_are_used_again(writes):
    """Each write is of some thousand bytes; some places are given up before the next."""
    memory, alive, most = InFile(), [], Counter()
    for number, (size, gives_up) in enumerate(writes):
        data = torch.full((1000 * size,), number, dtype=torch.uint8)
        alive.append((memory.write(data), data))
        for place, expected in alive:
            assert torch.equal(place.read(), expected)
        sizes = Counter(len(data) for _, data in alive)
        most |= sizes
        assert memory.nbytes == sum(size * count for size, count in most.items())
        if gives_up:
            alive.pop(number % len(alive))
            place = None


def test_a_place_that_was_given_up_is_the_next_ones():
    memory = InFile()
    for number in range(3):
        place = memory.write(torch.full((5000,), number, dtype=torch.uint8))
        assert place.read()[0] == number
        del place
    assert memory.nbytes == 5000


def test_a_folder_without_room_is_named(monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(RunError, match=r"5 bytes to offload: No space left on device; accepted is"):
        InFile().write(torch.zeros(5, dtype=torch.uint8))
