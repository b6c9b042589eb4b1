"""Blocks of equal work: divisions that fit the graph, whatever it is, down to single tasks."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from partitioned_models import (
    MODELS,
    GraphMaker,
    chain,
    channel_graphs,
    divided_graphs,
    graph_of,
    modellings,
    read,
)

from hgpart.hypergraph.blocks import (
    Blocks,
    divide,
    halve,
    layer_blocks,
    linked_layers,
    single_blocks,
)
from hgpart.hypergraph.building import cnn_hypergraph
from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.channel_graph import INPUT, OUTPUT, ChannelGraph
from hgpart.work.figures import Work, flops


def assert_divides(graph: ChannelGraph, modelling: Modelling, blocks: Blocks) -> None:
    """Every layer's tasks and split channels are cut into runs; tied layers alike."""
    for at, layer in enumerate(graph.layers):
        split = modelling.split_read(layer)
        counts = layer.tasks, 1 if split is None else len(split.channels)
        for cuts, count in zip((blocks.rows[at], blocks.columns[at]), counts, strict=True):
            ends = cuts.tolist()
            assert ends[0] == 0
            assert ends[-1] == count
            assert all(low < high for low, high in pairwise(ends))
        if modelling.is_solid(layer):
            assert len(blocks.rows[at]) == 2
        assert blocks.rows[at].tolist() == blocks.rows[layer.tied_to].tolist()
        assert blocks.columns[at].tolist() == blocks.columns[layer.tied_to].tolist()


def sizes(cuts: np.ndarray) -> list[int]:
    return np.diff(cuts).tolist()


@given(channel_graphs(), modellings, st.integers(1, 200))
def test_any_graph_is_divided(
    graph_and_work: tuple[ChannelGraph, Work], modelling: Modelling, count: int
) -> None:
    graph, work = graph_and_work
    blocks = divide(graph, work, modelling, count)
    assert_divides(graph, modelling, blocks)
    weights = cnn_hypergraph(graph, work, blocks, modelling).hypergraph.weights
    tasks = [layer.tasks for layer in graph.layers]
    assert weights.sum() == (work.per_task * tasks).sum()


@pytest.mark.parametrize("grain", ["coarse", "fine"])
@pytest.mark.parametrize("name", MODELS)
def test_traced_models_are_divided(name: str, grain: str) -> None:
    graph, modelling = graph_of(name), Modelling(grain=grain)
    for count in (1, 8, 100, 10**6):
        assert_divides(graph, modelling, divide(graph, flops(graph), modelling, count))


def test_blocks_have_about_equal_work() -> None:
    graph, work = chain([64, 64, 64], [6400, 12800, 1600], [1, 1, 1])
    blocks = divide(graph, work, Modelling(), 26)
    assert [len(rows) - 1 for rows in blocks.rows] == [1, 8, 16, 2, 1]


def test_block_counts_are_powers_of_two() -> None:
    graph, work = chain([60, 60], [3000, 5400], [1, 1])
    for count in range(1, 60):
        rows = divide(graph, work, Modelling(), count).rows
        assert all((len(cuts) - 1).bit_count() == 1 for cuts in rows)


def test_fine_grain_blocks_are_grids_twice_as_high_as_wide() -> None:
    graph, work = chain([64, 64], [0, 6400], [1, 1])
    blocks = divide(graph, work, Modelling(grain="fine"), 32)
    assert len(blocks.rows[2]) - 1 == 8
    assert len(blocks.columns[2]) - 1 == 4


def test_linked_layers_have_the_same_rows() -> None:
    """The stem adds to what the body makes: map j of one and of the other meet in one task."""
    graph = graph_of("residual")
    names = [layer.name for layer in graph.layers]
    stem, body, last = map(names.index, ("stem", "body.0", "body.2"))
    linked = linked_layers(graph)
    assert linked[stem] == linked[last] == stem
    assert linked[body] == body
    for count in (1, 10, 40, 1000):
        rows = divide(graph, flops(graph), Modelling(), count).rows
        assert rows[stem].tolist() == rows[last].tolist()


def test_links_are_the_closure_of_shared_weights_and_equal_indices() -> None:
    maker = GraphMaker()
    image = maker.add(INPUT, 1, channels=3)
    one = maker.add("dense", 4, (read(image),))
    two = maker.add("dense", 4, (read(one),))
    maker.add("dense", 4, (read(two),), tied_to=1)
    maker.add("depthwise", 4, (read(two, groups=4),))
    maker.add("same index", 4, (read(two[::-1], groups=4),))  # another order: not the same index
    maker.add("same index", 3, (read(two[:3], groups=3),))  # not all of them
    graph = maker.graph()
    assert linked_layers(graph).tolist() == [0, 1, 2, 1, 2, 5, 6]


def test_layers_tied_at_two_resolutions_have_the_same_grid() -> None:
    """The convolution is four times the work at the first resolution, and has one grid."""
    graph = graph_of("tied")
    fine = Modelling(grain="fine")
    for count in (16, 32, 64, 256):
        assert_divides(graph, fine, divide(graph, flops(graph), fine, count))


def test_a_solid_layer_leaves_the_blocks_of_linked_layers_alone() -> None:
    """A gate made by a linear layer scales the maps of a convolution."""
    maker = GraphMaker()
    image = maker.add(INPUT, 1, channels=3)
    maps = maker.add("dense", 8, (read(image, partial=True),), weights=24)
    gate = maker.add("linear", 8, (read(maps, partial=True),), weights=64)
    maker.add("same index", 8, (read(maps, groups=8), read(gate, groups=8)))
    graph = maker.graph()
    work = Work(np.array([0, 100, 1, 0]), "MAC", 1, "test")
    blocks = divide(graph, work, Modelling(linear="layer"), 8)
    assert [sizes(rows) for rows in blocks.rows] == [[1], [1] * 8, [8], [1] * 8]


def test_a_layer_over_a_concatenation_is_cut_where_its_sources_are() -> None:
    maker = GraphMaker()
    image = maker.add(INPUT, 1, channels=3)
    left = maker.add("dense", 6, (read(image),))
    right = maker.add("dense", 4, (read(image),))
    both = np.concatenate([left, right])
    maker.add("same index", 10, (read(both, groups=10),))
    maker.add(OUTPUT, 1, (read(both),), channels=0)
    graph = maker.graph()
    work = Work(np.array([0, 4, 6, 0, 0]), "MAC", 1, "test")
    blocks = divide(graph, work, Modelling(), 4)
    assert [sizes(blocks.rows[at]) for at in (1, 2, 3)] == [[3, 3], [2, 2], [3, 3, 2, 2]]


def test_no_work_at_all_is_one_block_a_layer() -> None:
    graph = graph_of("pooling")
    blocks = divide(graph, flops(graph), Modelling(), 100)
    assert [len(rows) for rows in blocks.rows] == [2, 2, 2]


@given(divided_graphs())
def test_halving_cuts_every_block_in_two(
    divided: tuple[ChannelGraph, Work, Modelling, Blocks],
) -> None:
    graph, _, modelling, blocks = divided
    halves = halve(blocks, modelling.views(graph))
    assert_divides(graph, modelling, halves)
    for at, layer in enumerate(graph.layers):
        pairs = [(blocks.columns[at], halves.columns[at])]
        if not modelling.is_solid(layer):
            pairs.append((blocks.rows[at], halves.rows[at]))
        for before, after in pairs:
            expected = [
                part for size in sizes(before) for part in (size // 2, size - size // 2) if part
            ]
            assert sizes(after) == expected


@given(divided_graphs())
def test_halving_ends_at_single_tasks(
    divided: tuple[ChannelGraph, Work, Modelling, Blocks],
) -> None:
    graph, _, modelling, _ = divided
    blocks = layer_blocks(modelling.views(graph))
    for _ in range(10):
        blocks = halve(blocks, modelling.views(graph))
    singles = single_blocks(graph, modelling)
    for found, expected in zip(
        (*blocks.rows, *blocks.columns), (*singles.rows, *singles.columns), strict=True
    ):
        assert found.tolist() == expected.tolist()
