"""The part of every task and of the blocks: one partition, and one price for it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from partitioned_models import (
    MODELS,
    channel_graphs,
    divided_graphs,
    graph_of,
    modellings,
)

from hgpart.errors import ArgumentError
from hgpart.hypergraph.blocks import Blocks, divide, single_blocks
from hgpart.hypergraph.building import cnn_hypergraph
from hgpart.hypergraph.metrics import Evaluation, evaluate
from hgpart.hypergraph.modelling import Modelling
from hgpart.hypergraph.partition_files import blocks_of_parts, full_parts, full_vertices
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.partition.problem.project import project
from hgpart.work.figures import Work, flops

PARTS = 3
MODELLINGS = [
    Modelling(grain=grain, linear=linear, input_vertex=vertices, output_vertex=vertices)
    for grain in ("coarse", "fine")
    for linear in ("neuron", "layer")
    for vertices in (True, False)
]


def figures(evaluation: Evaluation) -> list[object]:
    return [
        evaluation.loads.tolist(),
        evaluation.volume,
        evaluation.cut_net,
        evaluation.traffic.tolist(),
        evaluation.messages.tolist(),
    ]


def clustered(count: int, seed: int) -> np.ndarray:
    """Random parts that often are those of the vertex before, so that there are blocks."""
    random = np.random.default_rng(seed)
    parts = random.integers(0, PARTS, count)
    for vertex in range(1, count):
        if random.random() < 0.7:
            parts[vertex] = parts[vertex - 1]
    return parts.astype(np.int32)


def assert_same_price(
    graph: ChannelGraph, work: Work, modelling: Modelling, parts: np.ndarray
) -> None:
    full = cnn_hypergraph(graph, work, single_blocks(graph, modelling), modelling)
    model, block_parts = blocks_of_parts(graph, work, modelling, parts)
    assert block_parts.dtype == np.int32
    assert model.hypergraph.vertices <= full.hypergraph.vertices
    found = evaluate(model.hypergraph, block_parts, PARTS)
    assert figures(found) == figures(evaluate(full.hypergraph, parts, PARTS))
    assert full_parts(model, block_parts).tolist() == parts.tolist()


@given(channel_graphs(), modellings)
def test_vertices_are_those_of_the_full_hypergraph(
    graph_and_work: tuple[ChannelGraph, Work], modelling: Modelling
) -> None:
    graph, work = graph_and_work
    full = cnn_hypergraph(graph, work, single_blocks(graph, modelling), modelling)
    assert full_vertices(modelling.views(graph)) == full.hypergraph.vertices


@given(channel_graphs(), modellings, st.data())
def test_any_parts_of_tasks_cost_the_same_in_blocks(
    graph_and_work: tuple[ChannelGraph, Work], modelling: Modelling, data: st.DataObject
) -> None:
    graph, work = graph_and_work
    count = full_vertices(modelling.views(graph))
    part = st.integers(0, PARTS - 1)
    parts = np.array(data.draw(st.lists(part, min_size=count, max_size=count)), dtype=np.int32)
    assert_same_price(graph, work, modelling, parts)


@pytest.mark.full
@pytest.mark.parametrize("modelling", MODELLINGS, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_parts_of_traced_models_cost_the_same_in_blocks(name: str, modelling: Modelling) -> None:
    graph = graph_of(name)
    for seed in range(3):
        parts = clustered(full_vertices(modelling.views(graph)), seed)
        assert_same_price(graph, flops(graph), modelling, parts)


@given(divided_graphs(), st.data())
def test_parts_of_blocks_are_repeated_over_their_tasks(
    divided: tuple[ChannelGraph, Work, Modelling, Blocks], data: st.DataObject
) -> None:
    graph, work, modelling, blocks = divided
    model = cnn_hypergraph(graph, work, blocks, modelling)
    count = model.hypergraph.vertices
    part = st.integers(0, PARTS - 1)
    parts = np.array(data.draw(st.lists(part, min_size=count, max_size=count)), dtype=np.int32)
    single = cnn_hypergraph(graph, work, single_blocks(graph, modelling), modelling)
    found = full_parts(model, parts)
    assert found.dtype == np.int32
    assert found.tolist() == project(parts, model, single).tolist()


def test_blocks_are_the_largest_that_the_parts_allow() -> None:
    """A partition of four blocks a layer, written out task by task, is four blocks a layer."""
    graph = graph_of("plain")
    blocks = divide(graph, flops(graph), Modelling(), 12)
    model = cnn_hypergraph(graph, flops(graph), blocks, Modelling())
    parts = (np.arange(model.hypergraph.vertices) % PARTS).astype(np.int32)
    tasks = full_parts(model, parts)
    found, found_parts = blocks_of_parts(graph, flops(graph), Modelling(), tasks)
    assert found_parts.tolist() == parts.tolist()
    for one, other in zip(found.blocks.rows, blocks.rows, strict=True):
        assert one.tolist() == other.tolist()


@pytest.mark.parametrize("extra", [-1, 1])
def test_a_wrong_number_of_parts_is_refused(extra: int) -> None:
    graph = graph_of("plain")
    count = full_vertices(Modelling().views(graph))
    parts = np.zeros(count + extra, dtype=np.int32)
    with pytest.raises(ArgumentError, match=rf"{count + extra} parts, expected .* {count} v"):
        blocks_of_parts(graph, flops(graph), Modelling(), parts)
