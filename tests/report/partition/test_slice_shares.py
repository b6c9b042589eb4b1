"""Which part has which filters of which slices, counted one by one."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from partitioned_models import channel_graphs, modellings

from hgpart.hypergraph.blocks import single_blocks
from hgpart.hypergraph.building import cnn_hypergraph
from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.report.partition.slice_shares import SliceShares, slice_shares, way_divided, who_has
from hgpart.work.figures import Work

K = 3


def of(slices: range, *parts: int) -> SliceShares:
    return SliceShares(tuple(slices), parts, (1 / len(parts),) * len(parts), (4,) * len(parts))


@given(channel_graphs(), modellings, st.integers(1, 5), st.randoms(use_true_random=False))
def test_slices_that_lie_alike_stand_together(
    worked: tuple[ChannelGraph, Work], base: Modelling, slices: int, random: Random
) -> None:
    modelling = replace(base, batch_size=slices, slices=slices)
    model = cnn_hypergraph(*worked, single_blocks(worked[0], modelling), modelling)
    few = [[random.randrange(K) for _ in range(model.slice_vertices)] for _ in range(2)]
    by_slice = np.array([random.choice(few) for _ in range(slices)], dtype=np.int32)
    found = slice_shares(model, by_slice.ravel())
    for view, layout, groups in zip(model.views, model.layouts, found, strict=True):
        if layout is None:
            assert groups == ()
            continue
        own = np.flatnonzero(model.vertex_layers[: model.slice_vertices] == view.first)
        assert sorted(at for group in groups for at in group.slices) == list(range(slices))
        for group in groups:
            mine = by_slice[group.slices[0]]
            alike = [at for at in range(slices) if (by_slice[at, own] == mine[own]).all()]
            assert list(group.slices) == alike
            assert group.parts == tuple(sorted(set(mine[own].tolist())))
            rows = np.diff(model.blocks.rows[view.at])
            tasks = dict.fromkeys(group.parts, 0)
            for row, count in enumerate(rows.tolist()):
                tasks[int(mine[layout.finish + row])] += count
            assert group.tasks == tuple(tasks.values())
            assert sum(group.shares) == pytest.approx(1)
            weights = {part: model.weights[own[mine[own] == part]].sum() for part in group.parts}
            if total := sum(weights.values()):
                expected = [weight / total for weight in weights.values()]
                assert group.shares == pytest.approx(expected)


@pytest.mark.parametrize(
    ("groups", "way", "said"),
    [
        ([of(range(8), 3)], "whole", "3"),
        ([of(range(8), *range(32))], "filters", "0-31 3% each"),
        ([of(range(at, at + 1), at) for at in range(32)], "slices", "1 sample each: parts 0-31"),
        (
            [of(range(4 * at, 4 * at + 4), at) for at in range(8)],
            "slices",
            "4 samples each: parts 0-7",
        ),
        ([of(range(4), 0), of(range(4, 8), 1)], "slices", "0-3: 0; 4-7: 1"),
        ([of(range(0, 32, 2), 0), of(range(1, 32, 2), 1)], "slices", "16 samples each: parts 0-1"),
        (
            [of(range(0, 31, 2), 0), of(range(1, 31, 2), 4)],
            "slices",
            "15-16 samples each: parts 0, 4",
        ),
        ([of(range(2), 0), of(range(2, 3), 1, 2)], "slices, filters", "0-1: 0; 2: 1-2 50% each"),
        (
            [of(range(at, at + 1), at, at + 1) for at in range(9)],
            "slices, filters",
            "in 9 ways: parts 0-9",
        ),
    ],
)
def test_a_layer_is_one_line(groups: list[SliceShares], way: str, said: str) -> None:
    assert way_divided(groups) == way
    assert who_has(groups, [1] * sum(len(group.slices) for group in groups)) == said


def test_slices_of_unequal_size_are_counted_in_samples() -> None:
    thirds = [of(range(3 * at, 3 * at + 3), 2 - at) for at in range(3)]
    assert who_has(thirds, [1, 1, 1, 2, 2, 2, 1, 1, 2]) == "3-6 samples each: parts 2, 1, 0"


@pytest.mark.parametrize(
    ("slices", "tiles", "way", "said"),
    [
        (1, [0, 0, 0, 0], "whole", "0"),
        (1, [0, 1, 2, 3], "bands", "3-5 rows each: parts 0-3"),
        (1, [0, 1, 1, 0], "bands", "0: 0; 1-2: 1; 3: 0"),
        (2, [0, 0, 1, 1], "slices", "0: 0; 1: 1"),
        (2, [0, 1, 0, 1], "bands", "0: 0; 1: 1"),
        (2, [0, 1, 1, 1], "slices, bands", "slice 0 (0: 0; 1: 1); slice 1 (1)"),
        (
            3,
            [0, 1, 2, 0, 1, 2, 3, 3, 4],
            "slices, bands",
            "slices 0-1 (3-5 rows each: parts 0-2); slice 2 (0-1: 3; 2: 4)",
        ),
        (
            2,
            [0, 1, (0, 1), 1],
            "slices, bands, filters",
            "slice 0 (0: 0; 1: 1); slice 1 (0: 0-1 50% each; 1: 1)",
        ),
        (
            9,
            [at * band for at in range(9) for band in range(2)],
            "slices, bands",
            "in 9 ways: parts 0-8",
        ),
    ],
)
def test_a_layer_in_bands_is_one_line(
    slices: int, tiles: list[int | tuple[int, ...]], way: str, said: str
) -> None:
    """The parts of each tile, slice by slice and in each band by band."""
    at_parts: dict[tuple[int, ...], list[int]] = {}
    for at, parts in enumerate(tiles):
        at_parts.setdefault(parts if isinstance(parts, tuple) else (parts,), []).append(at)
    groups = [replace(of(range(1), *parts), slices=tuple(held)) for parts, held in at_parts.items()]
    bands = len(tiles) // slices
    assert way_divided(groups, bands) == way
    assert who_has(groups, [1] * slices, [5, 3, 3, 4][:bands]) == said
