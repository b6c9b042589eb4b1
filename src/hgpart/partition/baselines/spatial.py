"""Problem with bands of rows -> ways that others divide images, as partitions.

Spatial: every layer with rows by its bands, so that borders travel (LBANN DistConv, MoDNN,
DeepThings); the layers behind, which need all rows, by their filters. With slices of the batch,
too, it is domain and data parallelism together (Gholami et al. 2018). Low maps are mostly not worth
the messages of their borders: spatial down to a height, all that is lower lies on one part.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hgpart.arrays import Bool, Float64, Int32, Int64
from hgpart.hypergraph.blocks import layer_blocks
from hgpart.hypergraph.building import CnnHypergraph
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.partition.baselines.by_slices import by_turns, dealt
from hgpart.partition.baselines.horizontal import horizontal
from hgpart.partition.problem.problem import Problem

UNEVEN_BANDS = 4  # a part, where devices differ in speed: shares are of whole bands


def slices_beside_bands(problem: Problem) -> int:
    """The least number of slices, more than 1, that leaves each the same number of parts, above 1.

    1 if there is none.
    """
    most = min(problem.modelling.batch_size, problem.k // 2)
    return next((count for count in range(2, most + 1) if problem.k % count == 0), 1)


def bands_for(problem: Problem) -> int:
    """Return as many bands as a slice has parts, or some times as many where devices differ."""
    slices = problem.modelling.slices
    count = problem.k // slices if problem.k % slices == 0 else problem.k
    if len({*problem.rates}) > 1:
        count *= UNEVEN_BANDS
    return min(count, problem.graph.most_rows)


def rows_to_divide(problem: Problem) -> str | None:
    """Why rows can't be divided; None where they can."""
    if problem.graph.most_rows > 1:
        return None
    return "no layer of the model has rows to divide (hgpart trace --rows says why)"


def rows_as_tall(least: int, problem: Problem) -> str | None:
    """Why there are no maps of that many rows or more to divide; None where there are."""
    tallest = problem.graph.most_rows
    if tallest >= least or tallest == 1:
        return rows_to_divide(problem)
    return f"no map has {least} rows: accepted are 2 to {tallest}"


def rows_and_samples_to_divide(problem: Problem) -> str | None:
    """Why rows and samples can't both be divided; None where they can."""
    if problem.modelling.slices == 1:
        return (
            f"{problem.k} devices for slices of {problem.modelling.batch_size} samples and bands: "
            "accepted is a product of two numbers above 1, the first at most the samples"
        )
    return rows_to_divide(problem)


def spatial(problem: Problem) -> tuple[CnnHypergraph, Int32]:
    """Deal the bands of each layer out to the parts, in order; the filters of layers without bands.

    Where a layer has fewer bands than there are parts, several share a band's filters. With S
    slices, the parts of each of S runs share the bands of a slice.

    Returns
    -------
    CnnHypergraph and int32 array
        The blocks, and the part of each vertex.
    """
    model, by_filters = horizontal(problem)
    layers = np.array([view.bands > 1 for view in model.views])
    return model, by_bands(problem, model, by_filters, layers)


def spatial_down_to(problem: Problem, least: int) -> tuple[CnnHypergraph, Int32]:
    """Deal out the bands of layers whose maps have that many rows or more.

    All other layers lie on the fastest part; with slices of the batch, on one part of each slice.
    """
    model = problem.hypergraph(layer_blocks(problem.views))
    slices, k = problem.modelling.slices, problem.k
    runs = slices if slices > 1 and k % slices == 0 else 1
    rates = np.array(problem.rates, dtype=np.float64).reshape(runs, -1)
    fastest = np.arange(runs) * (k // runs) + rates.argmax(axis=1)
    alone = fastest[by_turns(problem, runs)].astype(np.int32)
    layers = _heights(model) >= least
    return model, by_bands(problem, model, np.repeat(alone, model.slice_vertices), layers)


def heights_of(graph: ChannelGraph) -> tuple[int, ...]:
    """The numbers of rows that maps with rows have, ascending."""
    heights = {rows.height for rows in graph.layer_rows if rows.height is not None}
    return tuple(sorted(heights - {1}))


def rows_then_filters(problem: Problem) -> Iterator[tuple[CnnHypergraph, Int32]]:
    """Layers of tall maps by bands and those of low ones by filters, as one weird trick in space.

    One for each height below which filters are divided; the first is `spatial`.
    """
    for least in heights_of(problem.graph) or [1]:
        yield filters_below(problem, least)


def filters_below(problem: Problem, least: int) -> tuple[CnnHypergraph, Int32]:
    """Deal out the bands of layers whose maps have that many rows or more, and others' filters."""
    model, by_filters = horizontal(problem)
    return model, by_bands(problem, model, by_filters, _heights(model) >= least)


def _heights(model: CnnHypergraph) -> Int64:
    """The number of rows of each layer in bands; 0 for others."""
    return np.array([view.cell_cuts[-1] if view.bands > 1 else 0 for view in model.views])


def by_bands(problem: Problem, model: CnnHypergraph, parts: Int32, layers: Bool) -> Int32:
    """The same parts, but for some layers the bands dealt out."""
    slices, k = problem.modelling.slices, problem.k
    runs = slices if slices > 1 and k % slices == 0 else 1
    rates = np.array(problem.rates, dtype=np.float64).reshape(runs, -1)
    first = by_turns(problem, runs) * (k // runs)
    own: Int32 = parts.reshape(slices, -1).copy()
    counts, by_rows = model.band_counts, layers[model.vertex_layers[: model.slice_vertices]]
    blocks = np.array([len(rows) - 1 for rows in model.blocks.rows])[model.vertex_layers]
    for number in range(slices):
        run = int(first[number]) // (k // runs)
        for count in np.unique(counts[counts > 1]).tolist():
            chosen = np.flatnonzero(by_rows & (counts == count))
            begin, end = _dealt(count, rates[run])[:, model.vertex_bands[chosen]]
            within = model.vertex_rows[chosen] * (end - begin) // blocks[chosen]
            own[number][chosen] = first[number] + begin + within
    return own.ravel()


def _dealt(bands: int, rates: Float64) -> Int32:
    """The first part of each band, and the one behind its last: fewer bands have several each."""
    count = len(rates)
    if bands < count:
        ends = -(-np.arange(bands + 1) * count // bands)
        return np.stack([ends[:-1], ends[1:]]).astype(np.int32)
    parts = dealt(bands, rates)
    return np.stack([parts, parts + 1])
