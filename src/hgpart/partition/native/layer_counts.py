"""Problem over slices -> how many slices of each layer each part computes, annealed (native).

The coarse picture of a partition over slices: filters of a layer stay together, and which slices a
part has follows from how many, as those that layers have in common stay where they are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from hgpart import _native
from hgpart.arrays import Int32, Int64
from hgpart.cores import usable_cores
from hgpart.hypergraph.blocks import layer_blocks
from hgpart.hypergraph.building import CnnHypergraph
from hgpart.hypergraph.parameters import vertex_gradients, vertex_statistics
from hgpart.partition.native.annealing import Cooling
from hgpart.partition.problem.problem import Problem


@dataclass(frozen=True, eq=False)
class LayerModel:
    """Costs of layers whose slices lie on several parts.

    Attributes
    ----------
    loads : int64 array, shape (layers,)
        Work of each layer that has vertices of its own, in all slices.
    parameters : int64 array, shape (layers,)
        Bytes that travel for all parts but one that have a slice of it, with statistics of norms.
    makers, readers : int32 arrays, shape (edges,)
        Layers, the first before the second, which use the same maps.
    maps : int64 array, shape (edges,)
        Bytes of these maps, in all slices.
    capacities : int64 array, shape (k,)
    """

    loads: Int64
    parameters: Int64
    makers: Int32
    readers: Int32
    maps: Int64
    capacities: Int64
    slices: int


@dataclass(frozen=True, eq=False)
class CountsChain:
    """Counts, shape (k * layers,), and how they are annealed; no rows are divided."""

    counts: Int32
    schedule: Cooling


def layer_model(problem: Problem) -> LayerModel:
    """Add up what whole layers cost."""
    modelling = problem.modelling
    whole = replace(problem, modelling=replace(modelling, grain="coarse", slices=1))
    model = whole.hypergraph(layer_blocks(whole.views))
    nets, edges = model.map_nets, Counter[tuple[int, int]]()
    users_of = nets.lists.united(nets.sets)
    for root, readers, cost in zip(
        nets.roots.tolist(), nets.readers.tolist(), nets.costs.tolist(), strict=True
    ):
        users = np.union1d(users_of[readers], root).tolist()
        for pair in pairwise(users):
            edges[pair] += cost
    pairs = np.array(list(edges), dtype=np.int32).reshape(-1, 2)
    return LayerModel(
        loads=model.weights * sum(modelling.slice_work),
        parameters=vertex_gradients(model) + vertex_statistics(model),
        makers=np.ascontiguousarray(pairs[:, 0]),
        readers=np.ascontiguousarray(pairs[:, 1]),
        maps=np.array(list(edges.values()), dtype=np.int64),
        capacities=problem.capacities,
        slices=modelling.slices,
    )


@dataclass(frozen=True, eq=False)
class FoundCounts:
    """Counts, shape (k * layers,), the bytes that they cost, and the share of work above limits."""

    counts: Int32
    cost: float
    excess: float

    @property
    def rank(self) -> tuple[float, float]:
        """Sort key: less is better."""
        return self.excess, self.cost


def anneal_counts(
    layers: LayerModel,
    chains: Sequence[CountsChain],
    seconds: float = math.inf,
    on_progress: Callable[[float], object] | None = None,
) -> tuple[list[FoundCounts], bool]:
    """Anneal counts, shape (k * layers,), by their schedules; at least as good as they were.

    Returns
    -------
    list of FoundCounts
        Distinct results, best first.
    bool
        Whether Ctrl-C ended it.
    """
    results, interrupted = _native.anneal_counts(
        layers, list(chains), usable_cores(), seconds, on_progress
    )
    distinct = {result[0].tobytes(): FoundCounts(*result) for result in results if len(result[0])}
    return sorted(distinct.values(), key=lambda result: result.rank), interrupted


def counts_of(model: CnnHypergraph, parts: Int32, k: int) -> Int32:
    """Number of slices of each layer that each part has.

    It is exact where the filters of a layer lie together, and rounded elsewhere.
    """
    slices = model.modelling.slices
    layers = model.vertex_layers[: model.slice_vertices]
    numbers = np.cumsum(np.diff(layers, prepend=layers[:1]) > 0)
    shares = np.zeros((int(numbers[-1]) + 1, k))
    sizes = np.zeros(len(numbers))
    for at, layout in enumerate(model.layouts):
        if layout is not None and model.views[at].is_own:
            rows = np.diff(model.blocks.rows[at])
            sizes[layout.finish : layout.finish + len(rows)] = rows / rows.sum()
    np.add.at(shares, (np.tile(numbers, slices), parts), np.tile(sizes, slices))
    # Whole numbers that add up: what is left goes to the largest remainders.
    counts = np.floor(shares + 1e-9).astype(np.int32)
    for own, share in zip(counts, shares, strict=True):
        left = slices - int(own.sum())
        own[np.argsort(own - share, kind="stable")[:left]] += 1
    return np.ascontiguousarray(counts.T).ravel()


def parts_of_counts(layers: LayerModel, counts: Int32) -> Int32:
    """Say which slices: those of a layer that a part has already stay with it, by most bytes.

    Returns
    -------
    int32 array, shape (slices, layers)
    """
    table = counts.reshape(len(layers.capacities), len(layers.loads))
    result = np.zeros((layers.slices, len(layers.loads)), dtype=np.int32)
    slices = np.arange(layers.slices)
    for layer in range(len(layers.loads)):
        wish = np.zeros((layers.slices, len(table)))
        for edge in np.flatnonzero(layers.readers == layer).tolist():
            wish[slices, result[:, layers.makers[edge]]] += layers.maps[edge]
        left = table[:, layer].copy()
        wish[:, left == 0] = -1
        for _ in slices:
            at, part = divmod(int(wish.argmax()), len(table))
            result[at, layer] = part
            left[part] -= 1
            wish[at] = -2
            if left[part] == 0:
                wish[:, part] = np.minimum(wish[:, part], -1)
    return result
