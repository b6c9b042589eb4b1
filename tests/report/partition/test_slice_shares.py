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
        ([of(range(2), 0), of(range(2, 3), 1, 2)], "both", "0-1: 0; 2: 1-2 50% each"),
        ([of(range(at, at + 1), at, at + 1) for at in range(9)], "both", "in 9 ways: parts 0-9"),
    ],
)
def test_a_layer_is_one_line(groups: list[SliceShares], way: str, said: str) -> None:
    assert way_divided(groups) == way
    assert who_has(groups, [1] * 32) == said


def test_slices_of_unequal_size_are_counted_in_samples() -> None:
    thirds = [of(range(3 * at, 3 * at + 3), 2 - at) for at in range(3)]
    assert who_has(thirds, [1, 1, 1, 2, 2, 2, 1, 1, 2]) == "3-6 samples each: parts 2, 1, 0"
