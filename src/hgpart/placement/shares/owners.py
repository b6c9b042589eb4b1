"""Partitions of all shares -> a partition by the owners of the model's parameters.

An element that several parts compute with belongs to one of them, whose optimizer changes it. That
part sends its value to the others and adds up their gradients: so ownership should be balanced.
Layers go, the largest first, to the part that owns the least of what is given away so far; a layer
that is large by itself is divided by its tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hgpart.arrays import Int32, Int64
from hgpart.hypergraph.blocks import Blocks
from hgpart.hypergraph.building import CnnHypergraph, cnn_hypergraph, evaluate_parts
from hgpart.hypergraph.parameters import vertex_parameters
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.partition import Partition
from hgpart.partition.problem.project import containing
from hgpart.sequences import equal_rows
from hgpart.work.figures import Work

MUCH = 8  # a layer is divided if it exceeds this fraction (1/8) of a part's share of everything
FEW = 2  # tasks per part: a layer with fewer stays whole


def owned(shares: Sequence[Partition], learning: ChannelGraph, work: Work) -> Partition:
    """Choose for each vertex one of the parts that have it in some share.

    The choice depends on the partitions alone, so all processes choose alike. Vertices that do not
    learn belong to the part of the first share.

    Parameters
    ----------
    shares : sequence of Partition
        Partitions of the model, with the same blocks.
    learning : ChannelGraph
        The model's graph, with only the parameters that learn.

    Returns
    -------
    Partition
        Partition of the model, whose blocks are within those of the shares.
    """
    first, modelling = shares[0], replace(shares[0].modelling, bands=1)
    whole = first.model
    if whole.modelling.bands > 1:
        whole = cnn_hypergraph(whole.graph, work, whole.blocks, modelling)
    tiles = [
        parts[containing(share.model, whole)]
        for share in shares
        for parts in parts_in_bands(share.model, share.parts)
    ]
    model, parts = owners_of(whole, tiles, first.k, learning, work)
    return replace(
        first,
        problem=replace(first.problem, modelling=modelling),
        model=model,
        parts=parts,
        evaluation=evaluate_parts(model, parts, first.k, first.problem.speeds),
    )


def parts_in_bands(model: CnnHypergraph, parts: Int32) -> Int32:
    """The part of each vertex of the first band in each band, shape (bands, vertices).

    Where its layer has fewer bands, it is that of the first. There is a single slice.
    """
    in_bands = np.where(model.in_bands >= 0, model.in_bands, model.in_bands[0])
    return np.asarray(parts[in_bands])


def owners_of(
    model: CnnHypergraph, shares: Sequence[Int32], k: int, learning: ChannelGraph, work: Work
) -> tuple[CnnHypergraph, Int32]:
    """The same from the parts of all shares, as a model and the part of each of its vertices.

    The model has a single slice.
    """
    vertices_of_slice = np.arange(len(shares[0]))
    held = np.zeros((len(vertices_of_slice), k), dtype=np.int64)
    for share_parts in shares:
        held[vertices_of_slice, share_parts] = 1
    # Bytes that each vertex's owner has to send.
    costs = _parameter_bytes(model, learning) * (held.sum(axis=1) - 1)
    classes, examples = equal_rows(np.column_stack([model.vertex_layers, held]))
    totals = np.zeros(len(examples), dtype=np.int64)
    np.add.at(totals, classes, costs)
    members = np.split(np.argsort(classes, kind="stable"), np.cumsum(np.bincount(classes))[:-1])
    parts, loads = shares[0].copy(), np.zeros(k, dtype=np.int64)
    divided: dict[int, Int64] = {}  # by class, the part of each task, or -1
    rows = [*model.blocks.rows]
    for number in sorted(np.flatnonzero(totals).tolist(), key=lambda at: (-totals[at], at)):
        vertices, holders = members[number], np.flatnonzero(held[examples[number]])
        view = model.views[model.vertex_layers[examples[number]]]
        of_task = _bytes_of_tasks(model, view.at, vertices, costs[vertices])
        few = np.count_nonzero(of_task >= 0) < FEW * len(holders)
        if few or view.is_solid or totals[number] * MUCH <= totals.sum() // k:
            part = holders[np.argmin(loads[holders])]
            parts[vertices] = part
            loads[part] += totals[number]
            continue
        tasks = np.flatnonzero(of_task >= 0)
        middles = 2 * np.cumsum(of_task[tasks]) - of_task[tasks]
        ends = np.cumsum(_filled(loads[holders], int(totals[number])))
        owners = holders[np.minimum(np.searchsorted(2 * ends, middles), len(holders) - 1)]
        np.add.at(loads, owners, of_task[tasks])
        divided[number] = np.full(view.layer.tasks, -1)
        divided[number][tasks] = owners
        cuts = tasks[1:][np.diff(owners) != 0]
        rows[view.at] = np.union1d(rows[view.at], cuts)
    if divided:
        rows = [rows[view.first] for view in model.views]
        finer = cnn_hypergraph(
            model.graph, work, Blocks(tuple(rows), model.blocks.columns), model.modelling
        )
        within = containing(model, finer)
        parts = parts[within]
        for number, of_tasks in divided.items():
            own = np.flatnonzero(classes[within] == number)
            cuts = finer.blocks.rows[finer.vertex_layers[own[0]]]
            parts[own] = of_tasks[cuts[finer.vertex_rows[own]]]
        model = finer
    return model, parts


def _parameter_bytes(model: CnnHypergraph, learning: ChannelGraph) -> Int64:
    """Bytes of each vertex's parameters that learn."""
    return vertex_parameters(replace(model, views=model.modelling.views(learning)))[1]


def _bytes_of_tasks(model: CnnHypergraph, at: int, vertices: Int64, costs: Int64) -> Int64:
    """Bytes of each task of a layer in some of its vertices; -1 for tasks without any of these."""
    rows = model.blocks.rows[at]
    total, some = np.zeros(len(rows) - 1, dtype=np.int64), np.zeros(len(rows) - 1, dtype=np.bool_)
    np.add.at(total, model.vertex_rows[vertices], costs)
    some[model.vertex_rows[vertices]] = True
    sizes = np.diff(rows)
    return np.repeat(np.where(some, total // sizes, -1), sizes)


def _filled(loads: Int64, amount: int) -> Int64:
    """Shares of an amount that bring the least loaded to one level.

    >>> _filled(np.array([5, 0, 2]), 6).tolist()
    [0, 4, 2]
    """
    ordered = np.sort(loads)
    for count in range(1, len(ordered) + 1):
        level = (amount + int(ordered[:count].sum())) // count
        if count == len(ordered) or level <= ordered[count]:
            break
    return np.maximum(0, level - loads)
