"""Merging, unmerging and spreading, and where channels lie, against loops over the elements."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from hgpart.placement.cutting.layouts import (
    apart,
    channel_layout,
    merge,
    spread,
    together,
    unmerge,
    varying_axes,
)


@st.composite
def shapes_and_axes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    dims = draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))
    return shape, tuple(sorted(dims))


@given(shapes_and_axes())
def test_merge_keeps_the_order_and_unmerge_undoes_it(case):
    shape, axes = case
    tensor = torch.arange(int(np.prod(shape))).reshape(shape)
    merged = merge(tensor, axes)
    sizes = [shape[dim] for dim in axes]
    for place in itertools.product(*map(range, shape)):
        along = int(np.ravel_multi_index([place[dim] for dim in axes], sizes))
        others = [place[dim] for dim in range(len(shape)) if dim not in axes]
        others.insert(axes[0], along)
        assert merged[tuple(others)] == tensor[place]
    assert torch.equal(unmerge(merged, axes, sizes), tensor)


@given(shapes_and_axes(), st.data())
def test_spread_puts_slices_in_their_places(case, data):
    shape, axes = case
    dim, size = axes[0], shape[axes[0]] + data.draw(st.integers(0, 3))
    order = data.draw(st.permutations(range(size)))[: shape[dim]]
    tensor = torch.randn(shape, requires_grad=True)
    found = spread(tensor, dim, torch.tensor(order), size)
    assert torch.equal(found.index_select(dim, torch.tensor(order)), tensor)
    rest = [place for place in range(size) if place not in order]
    assert not found.index_select(dim, torch.tensor(rest, dtype=torch.long)).any()
    found.sum().backward()
    assert bool((tensor.grad == 1).all())


@given(shapes_and_axes(), st.data())
def test_a_layout_says_where_channels_lie(case, data):
    shape, axes = case
    count, first = 5, 7
    labels = st.integers(first, first + count - 1)
    sizes = [shape[dim] if dim in axes else 1 for dim in range(len(shape))]
    area = int(np.prod(sizes))
    ids = torch.tensor(data.draw(st.lists(labels, min_size=area, max_size=area)))
    ids = ids.reshape(sizes).expand(shape)
    assert varying_axes(ids) == tuple(
        dim
        for dim in range(len(shape))
        if any(not torch.equal(one, ids.select(dim, 0)) for one in ids.unbind(dim))
    )
    layout = channel_layout(ids, axes, first)
    assert (layout.shape, layout.axes) == (shape, axes)
    members = np.array(sorted(data.draw(st.sets(st.integers(0, count - 1)))), dtype=np.int64)
    positions = layout.positions(members)
    merged = merge(ids, axes).movedim(axes[0], 0)
    merged = merged.reshape(len(merged), -1)
    wanted = [at for at, row in enumerate(merged) if int(row[0]) - first in members]
    assert positions.tolist() == wanted


@given(shapes_and_axes(), st.integers(1, 3), st.booleans())
def test_samples_are_brought_apart_in_any_batch(case, batch, batch_first):
    """Positions along what is left are the same for every batch."""
    shape, axes = case
    dim = axes[0]
    each = shape[dim]
    sizes = (-1, each) if batch_first else (each, -1)
    merged = {dim: sizes}

    def ids_of(samples):
        channels = torch.arange(int(np.prod(shape)), dtype=torch.int32).reshape(shape)
        added = channels.unsqueeze(dim if batch_first else dim + 1)
        spread_out = added.expand(*[samples if at == -1 else at for at in _with(shape, dim, sizes)])
        return spread_out.flatten(dim, dim + 1)

    ids = ids_of(batch)
    assert torch.equal(together(apart(ids, merged), [dim]), ids)
    one, other = (channel_layout(ids_of(n), varying_axes(ids_of(n)), 0, merged) for n in (batch, 5))
    assert one.axes == other.axes
    assert one.channels.tolist() == other.channels.tolist()
    assert other.apart(ids_of(5).shape) == other.shape


def _with(shape, dim, sizes):
    return (*shape[:dim], *sizes, *shape[dim + 1 :])
