"""A part of a block is the part of every task in it, whichever blocks hold the task."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from partitioned_models import chain, divided_graphs

from hgpart.hypergraph.blocks import Blocks, halve, single_blocks
from hgpart.hypergraph.building import CnnHypergraph, cnn_hypergraph
from hgpart.hypergraph.metrics import communication_volume, part_loads
from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.partition.problem.project import project
from hgpart.work.figures import Work

PARTS = 4


def parts_of_tasks(
    graph: ChannelGraph, model: CnnHypergraph, modelling: Modelling, parts: np.ndarray
) -> dict[tuple[int, int, int], int]:
    """Part of each (layer, task, channel position; -1 finishes the task), from the blocks."""
    found = {}
    for vertex, part in enumerate(parts.tolist()):
        at, row = int(model.vertex_layers[vertex]), int(model.vertex_rows[vertex])
        layer, column = graph.layers[at], int(model.vertex_columns[vertex])
        rows, columns = model.blocks.rows[at].tolist(), model.blocks.columns[at].tolist()
        split = modelling.split_read(layer)
        for task in range(rows[row], rows[row + 1]):
            if column < 0:
                found[at, task, -1] = part
                continue
            per_group = len(split.channels) // split.groups
            group = task * split.groups // layer.tasks
            for position in range(columns[column], columns[column + 1]):
                if position // per_group == group:
                    found[at, task, position] = part
    return found


@given(divided_graphs(), st.data())
def test_every_task_keeps_its_part(
    divided: tuple[ChannelGraph, Work, Modelling, Blocks], data: st.DataObject
) -> None:
    graph, work, modelling, blocks = divided
    source = cnn_hypergraph(graph, work, blocks, modelling)
    count = source.hypergraph.vertices
    drawn = data.draw(st.lists(st.integers(0, PARTS - 1), min_size=count, max_size=count))
    parts = np.array(drawn, dtype=np.int32)
    before = parts_of_tasks(graph, source, modelling, parts)
    for finer in (halve(blocks, modelling.views(graph)), single_blocks(graph, modelling), blocks):
        target = cnn_hypergraph(graph, work, finer, modelling)
        projected = project(parts, source, target)
        assert projected.dtype == np.int32
        assert parts_of_tasks(graph, target, modelling, projected) == before
        assert communication_volume(target.hypergraph, projected, PARTS) == communication_volume(
            source.hypergraph, parts, PARTS
        )
        loads = part_loads(target.hypergraph, projected, PARTS)
        assert loads.tolist() == part_loads(source.hypergraph, parts, PARTS).tolist()


def test_a_larger_block_has_the_part_of_its_first_task() -> None:
    graph, work = chain([4], [8], [1])
    source = cnn_hypergraph(graph, work, single_blocks(graph, Modelling()), Modelling())
    halves = Blocks(
        (np.array([0, 1]), np.array([0, 2, 4]), np.array([0, 1])), (np.array([0, 1]),) * 3
    )
    target = cnn_hypergraph(graph, work, halves, Modelling())
    parts = np.array([0, 1, 2, 3, 2, 0], dtype=np.int32)
    assert project(parts, source, target).tolist() == [0, 1, 3, 0]
