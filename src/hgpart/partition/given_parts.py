"""Problem + parts that somebody else has found -> Partition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hgpart.arrays import Int64
from hgpart.errors import ArgumentError, not_one_of
from hgpart.hypergraph.cnn_vertices import band_by_band
from hgpart.hypergraph.modelling import LayerVertices
from hgpart.hypergraph.partition_files import blocks_of_parts
from hgpart.layers.channel_graph import INPUT, OUTPUT
from hgpart.partition.partition import ANOTHER_TOOL, Partition, evaluated
from hgpart.partition.problem.problem import Problem

Parts = Sequence[int] | NDArray[np.integer]


def partition_of_parts(problem: Problem, parts: Parts | Mapping[str, int | Parts]) -> Partition:
    """Evaluate a partition that is given by the part of each task.

    Parameters
    ----------
    parts : sequence or array of int, or mapping of such by layer
        Numbers from 0 to k - 1. Either the part of each vertex of the full hypergraph, in the order
        of ``hgpart export``: slice by slice, band by band, layer by layer, filter by filter
        (fine-grain with the channels of each filter). Or, by the name of each layer (``hgpart
        trace`` lists them), the part of each filter, or one part for all filters, in every slice
        and band. In both forms model inputs and outputs can be left out: they go to the part of the
        first filter, and to that of the last.

    Raises
    ------
    ArgumentError
        If parts are not whole numbers from 0 to k - 1, or not as many as vertices. If a layer has
        no parts, or there is no layer of a name.
    """
    views, slices = [view for view in problem.views if view.is_own], problem.modelling.slices
    if isinstance(parts, Mapping):
        of_band, exists = _with_ends(views, _by_name(views, parts)), _in_bands(views) >= 0
        every = np.tile(np.broadcast_to(of_band, exists.shape)[exists], slices)
    else:
        every = _of_vertices(views, _whole_numbers("parts", parts), slices)
    outside = every[(every < 0) | (every >= problem.k)]
    if len(outside):
        raise ArgumentError(f"part {outside[0]}: accepted are 0 to {problem.k - 1}")
    model, of_blocks = blocks_of_parts(
        problem.graph, problem.work, problem.modelling, every.astype(np.int32)
    )
    return evaluated(problem, model, of_blocks, seed=0, backend=ANOTHER_TOOL, start=ANOTHER_TOOL)


def number_of_parts(parts: Parts | Mapping[str, int | Parts]) -> int:
    """One more than the largest part.

    >>> number_of_parts([0, 2, 1]), number_of_parts({"conv": [0, 1], "linear": 1})
    (3, 2)
    """
    lists = parts.values() if isinstance(parts, Mapping) else [parts]
    largest = [int(_whole_numbers("parts", some).max(initial=0)) for some in lists]
    return 1 + max(largest, default=0)


def _whole_numbers(what: str, parts: object) -> Int64:
    try:
        numbers = np.atleast_1d(np.asarray(parts))
    except ValueError:  # lists of unequal lengths
        numbers = np.empty((0, 0))
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise ArgumentError(f"{what}: accepted are whole numbers, in one list or array")
    return numbers.astype(np.int64)


def _by_name(views: Sequence[LayerVertices], parts: Mapping[str, int | Parts]) -> dict[str, Int64]:
    """The part of each vertex of the layers that are named."""
    if any(view.split is not None for view in views):
        raise ArgumentError(
            "parts by layer, fine-grain: accepted is an array with the part of each vertex"
        )
    rows = {view.layer.name: view.rows for view in views}
    cells = {view.layer.name: view.count // view.rows for view in views}
    by_name: dict[str, Int64] = {}
    for name, own in parts.items():
        if name not in rows:
            raise not_one_of("layer", name, rows)
        numbers = _whole_numbers(f"parts of layer {name}", own)
        if len(numbers) not in (1, rows[name]):
            raise ArgumentError(
                f"{len(numbers)} parts of layer {name}: accepted are {rows[name]}, one for each "
                "filter, or one for all"
            )
        by_name[name] = np.broadcast_to(numbers, (cells[name], rows[name])).ravel()
    return by_name


def _of_vertices(views: Sequence[LayerVertices], parts: Int64, slices: int) -> Int64:
    """The part of each vertex of each slice, with those of inputs and outputs."""
    is_end = np.repeat([*map(_is_end, views)], [view.count for view in views])
    in_bands = _in_bands(views)
    exists = in_bands >= 0
    is_inner = np.broadcast_to(~is_end, exists.shape)[exists]
    expected, without = slices * len(is_inner), slices * int(is_inner.sum())
    if len(parts) == expected:
        return parts
    if len(parts) != without:
        ends = f", or {without} without inputs and outputs" if without != expected else ""
        raise ArgumentError(
            f"{len(parts)} parts: accepted are {expected}, one for each vertex{ends}"
        )
    inputs = np.repeat([view.layer.kind == INPUT for view in views], [view.count for view in views])
    every = np.zeros((slices, len(is_inner)), dtype=np.int64)
    every[:, is_inner] = parts.reshape(slices, -1)
    for own in in_bands:  # inputs like the first filter that has the band, outputs like the last
        inner = own[(own >= 0) & ~is_end]
        for of_kind, like in ((inputs, 0), (is_end & ~inputs, -1)):
            chosen = own[(own >= 0) & of_kind]
            every[:, chosen] = every[:, inner[like : like + 1 or None]] if len(inner) else 0
    return every.ravel()


def _in_bands(views: Sequence[LayerVertices]) -> Int64:
    """The vertex of a slice with each band, of those of the first band; see `band_by_band`."""
    return band_by_band(np.concatenate([view.vertex_bands for view in views]))


def _with_ends(views: Sequence[LayerVertices], by_name: Mapping[str, Int64]) -> Int64:
    """The part of each vertex of a slice, in order."""
    inner = [view.layer.name for view in views if not _is_end(view)]
    missing = next((name for name in inner if name not in by_name), None)
    if missing is not None:
        raise ArgumentError(f"no parts of layer {missing}: accepted are parts of every layer")
    first, last = (by_name[inner[0]][0], by_name[inner[-1]][-1]) if inner else (0, 0)

    def of_layers() -> Iterator[Int64]:
        for view in views:
            end = first if view.layer.kind == INPUT else last
            yield by_name.get(view.layer.name, np.full(view.count, end, dtype=np.int64))

    return np.concatenate([np.zeros(0, np.int64), *of_layers()])


def _is_end(view: LayerVertices) -> bool:
    return view.layer.kind in (INPUT, OUTPUT)
