"""ChannelGraph + kind -> Partition: good ones, bad ones and random ones, to try a placement on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hgpart.errors import ArgumentError
from hgpart.hypergraph.blocks import Blocks, Modelling, full_vertices, layer_blocks
from hgpart.hypergraph.building import CnnHypergraph, cnn_hypergraph
from hgpart.hypergraph.hypergraph import Int32, Int64
from hgpart.hypergraph.partition_files import blocks_of_parts
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.partition import Partition, check_arguments, evaluated, partition_graph
from hgpart.partition.baselines.horizontal import horizontal
from hgpart.partition.baselines.layerwise import layerwise
from hgpart.work.figures import Work

KINDS = {
    "good": "the partitioner's",
    "random": "a part for each vertex at random",
    "horizontal": "every layer in k equal shares",
    "layers": "cuts between layers",
}

MOST_RANDOM_VERTICES = 2_000_000  # beyond, it is blocks that get a part at random
MOST_CUTS = 7  # then, of a layer's tasks, and of the channels of each


def partition_of_kind(
    kind: str,
    graph: ChannelGraph,
    work: Work,
    k: int,
    eps: float,
    *,
    modelling: Modelling | None = None,
    backend: str = "native",
    seed: int = 0,
) -> Partition:
    """Divide a model in some way; all but the good one are balanced only by chance.

    Parameters
    ----------
    kind : str
        One of `KINDS`.
    graph, work, k, eps, modelling, backend, seed
        As in `partition_graph`.

    Raises
    ------
    ArgumentError
        If an argument is out of range.
    HgpartError
        As `partition_graph`, for the good one.
    """
    check_kind(kind)
    check_arguments(k, eps, seed, None)
    modelling = modelling or Modelling()
    if kind == "good":
        return partition_graph(graph, work, k, eps, modelling=modelling, backend=backend, seed=seed)
    if kind == "random":
        model, parts = _random(graph, work, modelling, k, seed)
    elif kind == "horizontal":
        model, parts = horizontal(graph, work, modelling, k)
    else:
        cut = layerwise(graph, work, replace(modelling, grain="coarse"), k)
        model = cnn_hypergraph(graph, work, layer_blocks(graph, modelling), modelling)
        parts = cut.astype(np.int32)[model.vertex_layers]
    return evaluated(
        graph, work, model, modelling, parts, k, eps, seed=seed, backend=kind, start=kind
    )


def check_kind(kind: str) -> None:
    """Refuse what is no kind of partition."""
    if kind not in KINDS:
        raise ArgumentError(f"partition {kind!r}: accepted are {', '.join(KINDS)}")


def _random(
    graph: ChannelGraph, work: Work, modelling: Modelling, k: int, seed: int
) -> tuple[CnnHypergraph, Int32]:
    """Draw the part of every vertex or, where there are too many, of every block of random size."""
    draw = np.random.default_rng(seed)
    vertices = full_vertices(graph, modelling)
    if vertices <= MOST_RANDOM_VERTICES:
        parts = draw.integers(0, k, vertices).astype(np.int32)
        return blocks_of_parts(graph, work, modelling, parts)
    rows: list[Int64] = []
    columns: list[Int64] = []
    for at, layer in enumerate(graph.layers):
        read = modelling.split_read(layer)
        if layer.tied_to != at:  # one vertex with the other's
            rows.append(rows[layer.tied_to])
            columns.append(columns[layer.tied_to])
            continue
        solid = modelling.is_solid(layer)
        rows.append(np.array([0, layer.tasks]) if solid else _cuts(layer.tasks, draw))
        columns.append(np.array([0, 1]) if read is None else _cuts(len(read.channels), draw))
    model = cnn_hypergraph(graph, work, Blocks(tuple(rows), tuple(columns)), modelling)
    return model, draw.integers(0, k, model.vertices).astype(np.int32)


def _cuts(size: int, draw: np.random.Generator) -> Int64:
    """Cut a run of `size` at random places."""
    count = min(size - 1, int(draw.integers(MOST_CUTS + 1)))
    inner = draw.choice(np.arange(1, size), count, replace=False)
    return np.array([0, *np.sort(inner).tolist(), size], dtype=np.int64)
