"""Problem of a transformed model -> each of its parts on a device, and all else on the first.

The division that F. Brakel's MSc thesis (2024, section 3.3) draws for its transformed models.
"""

from __future__ import annotations

import re

import numpy as np

from hgpart.arrays import Int32, Int64
from hgpart.errors import ArgumentError
from hgpart.hypergraph.blocks import Blocks
from hgpart.hypergraph.building import CnnHypergraph
from hgpart.hypergraph.modelling import LayerVertices
from hgpart.layers.channel_graph import ChannelGraph, Layer
from hgpart.partition.problem.problem import Problem

PART = re.compile(r"(?:(.*?)\.)?part_(\d+)(?:\..*)?", re.ASCII)  # as `transform` names them


def transformed_parts(problem: Problem) -> tuple[CnnHypergraph, Int32]:
    """Give device p the cells, or the channels, that are part p of a transformed model.

    Of convolutions in at most k groups each device gets a run of the groups. A layer whose tasks
    have a channel or a group each, that nothing else reads, is where these are made. All else is
    on device 0.

    Returns
    -------
    CnnHypergraph and int32 array
        The blocks, and the part of each vertex.

    Raises
    ------
    ArgumentError
        If there are more devices than parts.
    """
    devices = _devices(problem.graph, problem.k)
    count = len(np.unique(np.concatenate(devices)))
    if count != problem.k:
        raise ArgumentError(
            f"{problem.k} devices, but the model has {count} part{'s' if count > 1 else ''}: "
            "accepted are models of hgpart.transform with as many parts"
        )

    def cuts(view: LayerVertices) -> tuple[Int64, Int64]:
        changes = np.flatnonzero(np.diff(devices[view.at])) + 1
        inner = changes[:0] if view.is_solid else changes
        return np.array([0, *inner, view.layer.tasks]), np.array([0, view.columns])

    model = problem.hypergraph(Blocks.cut(problem.views, cuts))
    parts = [
        devices[at][model.blocks.rows[at][row]]
        for at, row in zip(model.vertex_layers, model.vertex_rows, strict=True)
    ]
    return model, np.array(parts, dtype=np.int32)


def has_parts(problem: Problem) -> bool:
    """Whether the model has a part for each of several devices."""
    if problem.k == 1:
        return False
    return len(np.unique(np.concatenate(_devices(problem.graph, problem.k)))) == problem.k


def _devices(graph: ChannelGraph, k: int) -> list[Int64]:
    """The device of each task of each layer."""
    counts: dict[str, int] = {}  # parts of each transformed module
    for layer in graph.layers:
        if (named := PART.fullmatch(layer.name)) is not None:
            inside = named[1] or ""
            counts[inside] = max(counts.get(inside, 0), int(named[2]) + 1)
    readers = _readers(graph)
    devices: list[Int64] = []
    for layer in graph.layers:
        if (named := PART.fullmatch(layer.name)) is not None:
            own = int(named[2]) * k // max(k, counts[named[1] or ""])
            devices.append(np.full(layer.tasks, own, dtype=np.int64))
        else:
            devices.append(_outside_parts(graph, layer, readers, devices, k))
    return devices


def _readers(graph: ChannelGraph) -> Int64:
    """How many layers read each channel."""
    counts = np.zeros(graph.first_channel[-1], dtype=np.int64)
    for layer in graph.layers:
        read = np.unique(
            np.concatenate([np.zeros(0, np.int64), *(r.channels for r in layer.reads)])
        )
        counts[read[read >= 0]] += 1
    return counts


def _outside_parts(
    graph: ChannelGraph, layer: Layer, readers: Int64, before: list[Int64], k: int
) -> Int64:
    """The device of each task of a layer that is in no part."""
    on_first = np.zeros(layer.tasks, dtype=np.int64)
    groups = layer.reads[0].groups if layer.reads else 1
    if layer.tasks == 1 or groups == 1:
        return on_first
    group = np.arange(layer.tasks) * groups // layer.tasks
    if layer.kind == "grouped" and groups <= k:
        return group * k // max(k, groups)
    read = layer.reads[0].channels
    if (read < 0).any() or (readers[read] > 1).any():
        return on_first
    return np.concatenate(before)[graph.task_of_channel[read[group * len(read) // groups]]]
