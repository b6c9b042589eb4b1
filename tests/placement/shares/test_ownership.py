"""Who has each task and each cell is what the parts of its vertices say."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from partitioned_graphs import partitioned_graphs

from hgpart.placement.shares.ownership import ownership


@given(partitioned_graphs())
def test_tasks_and_cells_are_with_their_vertices(case):
    graph, partition = case
    model, modelling = partition.model, partition.modelling
    owners = ownership(partition)
    vertices = zip(model.vertex_layers, model.vertex_rows, model.vertex_columns, strict=True)
    part_of = {
        tuple(map(int, vertex)): part
        for vertex, part in zip(vertices, partition.parts.tolist(), strict=True)
    }
    assert owners.k == partition.k
    for at, layer in enumerate(graph.layers):
        if not modelling.has_vertices(layer):
            assert owners.finish[at] is None
            assert owners.cells[at] is None
            continue
        read, first = modelling.split_read(layer), layer.tied_to
        rows, columns = model.blocks.rows[at], model.blocks.columns[at]
        row_of = [block_of(rows, task) for task in range(layer.tasks)]
        assert owners.finish[at].tolist() == [[part_of[first, row, -1] for row in row_of]]
        assert owners.splits[at] == next((n for n, r in enumerate(layer.reads) if r is read), None)
        if read is None:
            assert owners.cells[at] is None
            continue
        count = len(read.channels)
        found = np.full((owners.k, layer.tasks, count), 0)
        for part, rectangles in enumerate(owners.cells[at]):
            tasks = [task for one in rectangles for task in one.tasks.tolist()]
            assert len(tasks) == len(set(tasks))
            for one in rectangles:
                assert (np.diff(one.tasks) > 0).all()
                assert (np.diff(one.positions) > 0).all()
                found[part][np.ix_(one.tasks, one.positions)] += 1
        for task in range(layer.tasks):
            for position in range(count):
                read_by_task = task * read.groups // layer.tasks == position * read.groups // count
                wanted = [0] * owners.k
                if read_by_task:
                    wanted[part_of[first, row_of[task], block_of(columns, position)]] = 1
                assert found[:, task, position].tolist() == wanted


def block_of(cuts: np.ndarray, number: int) -> int:
    (block,) = [at for at in range(len(cuts) - 1) if cuts[at] <= number < cuts[at + 1]]
    return block
