"""Tasks in order, a part after the other: against the loop of thesis 5.1.3 and 5.1.4."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from partitioned_models import MODELS, chain, channel_graphs, graph_of, modellings

from hgpart.hypergraph.blocks import single_blocks
from hgpart.hypergraph.building import CnnHypergraph, cnn_hypergraph
from hgpart.hypergraph.metrics import evaluate
from hgpart.hypergraph.modelling import Modelling
from hgpart.hypergraph.partition_files import full_parts
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.partition.baselines.incremental import incremental
from hgpart.partition.problem.problem import Problem
from hgpart.work.figures import Work, flops

COARSE = Modelling(batch_size=1, bytes_per_element=1, output_vertex=False)
FINE = replace(COARSE, grain="fine")


def looped(weights: list[int], k: int) -> list[int]:
    """Part of each vertex; a part is full as soon as its work exceeds the average."""
    parts: list[int] = []
    part = load = 0
    for weight in weights:
        parts.append(part)
        load += weight
        if load > sum(weights) / k and part < k - 1:
            part, load = part + 1, 0
    return parts


def with_last_channels(model: CnnHypergraph, parts: list[int]) -> list[int]:
    """Move every reduction to the part of the cell with the last channel of its row."""
    last: dict[tuple[int, int], int] = {}
    places = list(
        zip(
            model.vertex_layers.tolist(),
            model.vertex_rows.tolist(),
            model.vertex_columns.tolist(),
            strict=True,
        )
    )
    for (layer, row, column), part in zip(places, parts, strict=True):
        if column >= 0:
            last[layer, row] = part
    return [
        last.get((layer, row), part) if column < 0 else part
        for (layer, row, column), part in zip(places, parts, strict=True)
    ]


def assert_as_looped(graph: ChannelGraph, work: Work, modelling: Modelling, k: int) -> None:
    full = cnn_hypergraph(graph, work, single_blocks(graph, modelling), modelling)
    expected = with_last_channels(full, looped(full.hypergraph.weights.tolist(), k))
    model, parts = incremental(Problem(graph, work, modelling, k))
    assert full_parts(model, parts).tolist() == expected
    ours = evaluate(model.hypergraph, parts, k)
    of_tasks = evaluate(full.hypergraph, np.array(expected, dtype=np.int32), k)
    assert ours.loads.tolist() == of_tasks.loads.tolist()
    assert ours.volume == of_tasks.volume


@given(channel_graphs(), modellings, st.integers(1, 5))
def test_is_what_the_loop_gives(
    graph_and_work: tuple[ChannelGraph, Work], modelling: Modelling, k: int
) -> None:
    assert_as_looped(*graph_and_work, modelling, k)


@pytest.mark.parametrize("grain", ["coarse", "fine"])
@pytest.mark.parametrize("name", MODELS)
def test_is_what_the_loop_gives_for_traced_models(name: str, grain: str) -> None:
    graph = graph_of(name)
    for k in (2, 3, 7):
        assert_as_looped(graph, flops(graph), Modelling(grain=grain), k)


@given(channel_graphs(), modellings, st.integers(1, 5))
def test_each_part_but_the_last_just_exceeds_the_average(
    graph_and_work: tuple[ChannelGraph, Work], modelling: Modelling, k: int
) -> None:
    graph, work = graph_and_work
    coarse = replace(modelling, grain="coarse")
    full = cnn_hypergraph(graph, work, single_blocks(graph, coarse), coarse)
    weights = full.hypergraph.weights
    model, block_parts = incremental(Problem(graph, work, coarse, k))
    parts = full_parts(model, block_parts)
    assert (np.diff(parts) >= 0).all() and (np.diff(parts) <= 1).all()
    if not len(parts):
        return
    for part in range(int(parts.max())):
        own = weights[parts == part].tolist()
        assert sum(own) * k > weights.sum()
        assert sum(own[:-1]) * k <= weights.sum()


def test_a_filter_whose_channels_are_divided_is_reduced_where_its_last_channel_is() -> None:
    # One filter of three channels, each worth 4: the first two exceed the average of 6.
    graph, work = chain([3, 1], [0, 12], [1, 1])
    model, parts = incremental(Problem(graph, work, FINE, 2))
    whole = full_parts(model, parts).tolist()
    cells, reduction = whole[-4:-1], whole[-1]
    assert cells == [0, 0, 1]
    assert reduction == 1


def test_heavy_tasks_leave_the_last_parts_empty() -> None:
    """As in thesis table 5.5, where averages from N=64 on are those of fewer parts."""
    graph, work = chain([4], [400], [1])
    model, parts = incremental(Problem(graph, work, COARSE, 6))
    assert evaluate(model.hypergraph, parts, 6).loads.tolist() == [100, 100, 100, 100, 0, 0]
