"""Partitions of all shares -> a partition of whom the model's parameters belong to.

An element that several parts compute with belongs to one of them, whose optimizer changes it. That
part sends the others what it is, and adds up their gradients: so what belongs to parts is to be
even. Layer after layer, the largest first, goes to whom least of it belongs to as yet; a layer that
is much by itself is divided by its tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hgpart.arrays import Int64
from hgpart.hypergraph.blocks import Blocks
from hgpart.hypergraph.building import CnnHypergraph, cnn_hypergraph, evaluate_parts
from hgpart.hypergraph.parameters import vertex_parameters
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.partition import Partition
from hgpart.sequences import equal_rows
from hgpart.work.figures import Work

MUCH = 8  # a layer is divided if it is more than a part's share of everything, divided by this
FEW = 2  # tasks for each of the parts: a layer that has less stays whole


def owned(shares: Sequence[Partition], learning: ChannelGraph, work: Work) -> Partition:
    """Choose for each vertex one of the parts that have it in some share.

    It depends on the partitions alone, so all processes choose alike. What does not learn belongs
    to the part of the first share.

    Parameters
    ----------
    shares : sequence of Partition
        Of the model, with the same blocks.
    learning : ChannelGraph
        The model's, whose layers have the parameters that learn and no others.
    work : Work

    Returns
    -------
    Partition
        Of the model, with blocks within those of the shares.
    """
    first = shares[0]
    model, every = first.model, np.arange(len(first.parts))
    held = np.zeros((len(every), first.k), dtype=np.int64)
    for one in shares:
        held[every, one.parts] = 1
    # What each vertex's owner has to send.
    costs = _parameter_bytes(model, learning) * (held.sum(axis=1) - 1)
    classes, examples = equal_rows(np.column_stack([model.vertex_layers, held]))
    totals = np.zeros(len(examples), dtype=np.int64)
    np.add.at(totals, classes, costs)
    members = np.split(np.argsort(classes, kind="stable"), np.cumsum(np.bincount(classes))[:-1])
    parts, loads = first.parts.copy(), np.zeros(first.k, dtype=np.int64)
    divided: dict[int, Int64] = {}  # by class, the part of each task, or -1
    rows = [*model.blocks.rows]
    for number in sorted(np.flatnonzero(totals).tolist(), key=lambda one: (-totals[one], one)):
        vertices, holders = members[number], np.flatnonzero(held[examples[number]])
        view = model.views[model.vertex_layers[examples[number]]]
        each = _bytes_of_tasks(model, view.at, vertices, costs[vertices])
        few = np.count_nonzero(each >= 0) < FEW * len(holders)
        if few or view.is_solid or totals[number] * MUCH <= totals.sum() // first.k:
            part = holders[np.argmin(loads[holders])]
            parts[vertices] = part
            loads[part] += totals[number]
            continue
        tasks = np.flatnonzero(each >= 0)
        middles = 2 * np.cumsum(each[tasks]) - each[tasks]
        ends = np.cumsum(_filled(loads[holders], int(totals[number])))
        owners = holders[np.minimum(np.searchsorted(2 * ends, middles), len(holders) - 1)]
        np.add.at(loads, owners, each[tasks])
        divided[number] = np.full(view.layer.tasks, -1)
        divided[number][tasks] = owners
        cuts = tasks[1:][np.diff(owners) != 0]
        rows[view.at] = np.union1d(rows[view.at], cuts)
    if divided:
        rows = [rows[view.first] for view in model.views]
        finer = cnn_hypergraph(
            model.graph, work, Blocks(tuple(rows), model.blocks.columns), model.modelling
        )
        within = in_blocks(model, finer)
        parts = parts[within]
        for number, of_tasks in divided.items():
            own = np.flatnonzero(classes[within] == number)
            cuts = finer.blocks.rows[finer.vertex_layers[own[0]]]
            parts[own] = of_tasks[cuts[finer.vertex_rows[own]]]
        model = finer
    evaluation = evaluate_parts(model, parts, first.k, first.problem.speeds)
    return replace(first, model=model, parts=parts, evaluation=evaluation)


def in_blocks(model: CnnHypergraph, finer: CnnHypergraph) -> Int64:
    """The vertex of a model that each vertex of finer blocks is in; those of the first slice."""
    found = np.zeros(finer.slice_vertices, dtype=np.int64)
    layers = finer.vertex_layers[: len(found)]
    for at, layout in enumerate(model.layouts):
        if layout is None or not model.views[at].is_own:
            continue
        own = np.flatnonzero(layers == at)
        begin = finer.blocks.rows[at][finer.vertex_rows[own]]
        row = np.searchsorted(model.blocks.rows[at], begin, "right") - 1
        column = finer.vertex_columns[own].astype(np.int64)
        cell = layout.cell(row, np.maximum(column, 0))
        found[own] = np.where(column < 0, layout.finish + row, cell)
    return found


def _parameter_bytes(model: CnnHypergraph, learning: ChannelGraph) -> Int64:
    """Bytes of the parameters of each vertex that learn."""
    return vertex_parameters(replace(model, views=model.modelling.views(learning)))[1]


def _bytes_of_tasks(model: CnnHypergraph, at: int, vertices: Int64, costs: Int64) -> Int64:
    """What tasks of a layer have in some vertices of it; -1 of tasks that these are not for."""
    rows = model.blocks.rows[at]
    total, some = np.zeros(len(rows) - 1, dtype=np.int64), np.zeros(len(rows) - 1, dtype=np.bool_)
    np.add.at(total, model.vertex_rows[vertices], costs)
    some[model.vertex_rows[vertices]] = True
    sizes = np.diff(rows)
    return np.repeat(np.where(some, total // sizes, -1), sizes)


def _filled(loads: Int64, amount: int) -> Int64:
    """What each is to get of an amount, so that the least loaded come to one level.

    >>> _filled(np.array([5, 0, 2]), 6).tolist()
    [0, 4, 2]
    """
    ordered = np.sort(loads)
    for count in range(1, len(ordered) + 1):
        level = (amount + int(ordered[:count].sum())) // count
        if count == len(ordered) or level <= ordered[count]:
            break
    return np.maximum(0, level - loads)
