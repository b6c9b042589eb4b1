"""A box of what only moves elements about is that box of the whole."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from cut_steps import CHANNELS, Cutter, boxes, divided_channels
from hypothesis import given
from hypothesis import strategies as st

from hgpart.placement.cutting.reindexing import _same_elements


def shuffled(maps):
    batch, _, height, width = maps.shape
    apart = maps.view(batch, 3, CHANNELS // 3, height, width)
    return apart.transpose(1, 2).contiguous().view(batch, CHANNELS, height, width)


def swapped(maps):
    first, second = maps.split([5, 7], 1)
    return torch.cat([second, first], 1)


CHANGES = {
    "flatten": lambda maps: maps.flatten(1),
    "flatten map": lambda maps: maps.flatten(2),
    "view": lambda maps: maps.view(-1, 4, 3, 16),
    "view across": lambda maps: maps.reshape(-1, 8, 6, 4),
    "unflatten": lambda maps: maps.unflatten(1, (2, 6)),
    "unsqueeze": lambda maps: maps.unsqueeze(1),
    "squeeze": lambda maps: maps[:, 2:3].squeeze(1),
    "permute": lambda maps: maps.permute(0, 2, 3, 1),
    "permute batch": lambda maps: maps.permute(1, 0, 3, 2),
    "transpose": lambda maps: maps.flatten(2).transpose(1, 2),
    "movedim": lambda maps: maps.movedim(1, -1),
    "tokens": lambda maps: maps.flatten(2).transpose(1, 2).flatten(1),
    "slice": lambda maps: maps[:, 2:11:3, 1:],
    "negative slice": lambda maps: maps[:, -4:-1],
    "narrow": lambda maps: maps.narrow(1, 3, 5),
    "select": lambda maps: maps[:, 4],
    "negative select": lambda maps: maps.select(2, -1),
    "cat": lambda maps: torch.cat([maps, maps[:, 3:8]], 1),
    "cat maps": lambda maps: torch.cat([maps, maps], -1),
    "split": lambda maps: maps.split(5, 1)[2],
    "split swapped": swapped,
    "chunk": lambda maps: maps.chunk(3, dim=1)[1],
    "chunk maps": lambda maps: maps.chunk(2, dim=-1)[1],
    "unbind": lambda maps: maps.unbind(1)[7],
    "stack": lambda maps: torch.stack([maps, maps], 2),
    "expand": lambda maps: maps[:, :1].expand(-1, 6, -1, -1),
    "expand new": lambda maps: maps.expand(2, *maps.shape),
    "shuffle": shuffled,
    "clone": lambda maps: maps.clone().contiguous(),
}


@cache
def cutter() -> Cutter:
    return Cutter(CHANGES)


@pytest.mark.parametrize("name", CHANGES)
@given(data=st.data())
def test_a_box_is_that_of_the_whole(name, data):
    cut = cutter()
    cut.check(name, data.draw(boxes(cut.fixed(name))), data.draw(divided_channels()))


@pytest.mark.parametrize("name", ["flatten", "permute", "cat", "split swapped", "shuffle"])
def test_takes_no_more_of_its_operand_than_the_box(name):
    cut = cutter()
    dim = 3 if name == "permute" else 1
    wanted = np.arange(cut.fixed(name)[dim])[: 16 if name == "flatten" else 1]
    _, names = cut.program(name, {dim: wanted}, [np.array([at]) for at in range(CHANNELS)])
    assert len([one for one in names if one.startswith("piece")]) == 1


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_same_elements_are_the_same_numbers_in_the_same_order(sizes, data):
    other = data.draw(st.permutations(sizes))
    if data.draw(st.booleans()):
        other = [int(np.prod(other))]
    box = data.draw(boxes(dict(enumerate(sizes))))
    numbers = np.arange(int(np.prod(sizes)))
    axes = [box.get(dim, np.arange(size)) for dim, size in enumerate(sizes)]
    wanted = numbers.reshape(sizes)[np.ix_(*axes)].ravel()
    found = _same_elements(tuple(sizes), tuple(other), box)
    if found is not None:
        axes = [found.get(dim, np.arange(size)) for dim, size in enumerate(other)]
        assert numbers.reshape(other)[np.ix_(*axes)].ravel().tolist() == wanted.tolist()
    else:
        places = np.unravel_index(wanted, other)
        assert np.prod([len(np.unique(along)) for along in places]) > len(wanted)
