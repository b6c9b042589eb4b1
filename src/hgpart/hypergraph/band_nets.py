"""Nets of whole maps + windows of rows -> nets of bands: of segments of rows with the same readers.

The rows of a band that the same bands of the same layers read are a segment. A map's net becomes
one for each of its segments, with its rows' share of the cost, and so connectivity - 1 stays what
travels, with bands cut anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hgpart.arrays import Int64
from hgpart.hypergraph.cnn_vertices import CnnVertices
from hgpart.hypergraph.modelling import LayerVertices, by_vertices
from hgpart.hypergraph.nets import Nets
from hgpart.sequences import Sequences, distinct, distinct_pairs


def sums_in_bands(model: CnnVertices, views: Sequence[LayerVertices], sums: Nets) -> Nets:
    """A net of each band for each of the first one's reductions."""
    cuts = [view.row_cuts for view in views]
    reducing = sums.layers % len(views)
    pieces = []
    for band in range(len(model.in_bands)):
        own = np.flatnonzero(model.in_bands[band][sums.roots] >= 0)
        rows, height = (
            np.array(
                [
                    (cuts[at][band + 1] - cuts[at][band], cuts[at][-1])
                    for at in reducing[own].tolist()
                ],
                dtype=np.int64,
            )
            .reshape(-1, 2)
            .T
        )
        nets = sums.take(own)
        sets = nets.sets.take(nets.lists.take(nets.readers).values)  # each list has one set
        every = np.arange(len(own) + 1)
        pieces.append(
            replace(
                nets,
                costs=nets.costs // height * rows,
                roots=model.in_bands[band][nets.roots].astype(np.int32),
                readers=every[:-1],
                lists=Sequences(every, every[:-1]),
                sets=Sequences(sets.pointers, model.in_bands[band][sets.values]),
            )
        )
    return Nets.joined(pieces)


def maps_in_bands(model: CnnVertices, views: Sequence[LayerVertices], maps: Nets) -> Nets:
    """A net for each segment of the rows of each map."""
    segments = _Segments(model, views)
    readers = model.vertex_layers[maps.sets.values[maps.sets.pointers[:-1]]].astype(np.int64)
    sets, in_bands = _sets_in_bands(model, maps.sets, readers)
    layers, numbers = np.unique(np.stack([maps.layers, maps.readers]), axis=1, return_inverse=True)
    lists = list[Int64]()
    costs, roots, own_lists, nets = [], [], [], []
    of_pair = [np.flatnonzero(numbers.ravel() == at) for at in range(layers.shape[1])]
    for (at, own), members in zip(layers.T.tolist(), of_pair, strict=True):
        named = maps.lists[own]
        for band, rows, read in segments.of(at, tuple(distinct(readers[named]).tolist())):
            chosen = [in_bands[reading][named[readers[named] == layer]] for layer, reading in read]
            costs.append(maps.costs[members] // views[at].height * rows)
            roots.append(model.in_bands[band][maps.roots[members]])
            own_lists.append(np.full(len(members), len(lists)))
            nets.append(members)
            lists.append(np.sort(np.concatenate(chosen)))
    nothing = [np.zeros(0, np.int64)]
    taken = np.concatenate([*nothing, *nets])
    return Nets(
        costs=np.concatenate([*nothing, *costs]),
        gathers=maps.gathers[taken],
        layers=maps.layers[taken],
        roots=np.concatenate([*nothing, *roots]).astype(np.int32),
        readers=np.concatenate([*nothing, *own_lists]),
        lists=Sequences(np.cumsum([0, *map(len, lists)]), np.concatenate([*nothing, *lists])),
        sets=sets,
    )


def _sets_in_bands(
    model: CnnVertices, sets: Sequences, layers: Int64
) -> tuple[Sequences, list[Int64]]:
    """The sets of each band, and for each band the number of each set; -1 where there is none."""
    pieces, numbers, count = list[Sequences](), list[Int64](), 0
    for vertices in model.in_bands:
        has_band = vertices[sets.values[sets.pointers[:-1]]] >= 0
        chosen = np.flatnonzero(has_band)
        own = sets.take(chosen)
        pieces.append(Sequences(own.pointers, vertices[own.values]))
        numbers.append(np.where(has_band, count + np.cumsum(has_band) - 1, -1))
        count += len(chosen)
    return Sequences.joined(pieces), numbers


class _Segments:
    """The segments of each layer's rows, by the layers that read it."""

    def __init__(self, model: CnnVertices, views: Sequence[LayerVertices]) -> None:
        self._views, self._graph = views, model.graph
        self._members = by_vertices(views)
        self._known: dict[tuple[int, tuple[int, ...]], list[_Segment]] = {}

    def of(self, at: int, readers: tuple[int, ...]) -> list[_Segment]:
        """The segments of a layer of which some layers, named by their first, read a map."""
        if (at, readers) not in self._known:
            self._known[at, readers] = self._new(at, readers)
        return self._known[at, readers]

    def _new(self, at: int, readers: tuple[int, ...]) -> list[_Segment]:
        cuts = self._views[at].row_cuts
        pairs = [self._reading_bands(at, layer) for layer in readers]
        most = max(self._views[layer].bands for layer in readers)
        rows = np.concatenate([rows for rows, _ in pairs])
        keys = np.concatenate([number * most + bands for number, (_, bands) in enumerate(pairs)])
        read = Sequences.of_pairs(rows, keys, cuts[-1])
        alike, examples = read.alike()
        bands = np.searchsorted(cuts, np.arange(cuts[-1]), "right") - 1
        segments = list[_Segment]()
        keyed = bands * len(examples) + alike
        for key in distinct(keyed).tolist():
            band, number = divmod(key, len(examples))
            own = [divmod(value, most) for value in read[int(examples[number])].tolist()]
            if own:
                count = int((keyed == key).sum())
                segments.append(
                    (band, count, [(readers[layer], reading) for layer, reading in own])
                )
        return segments

    def _reading_bands(self, at: int, layer: int) -> tuple[Int64, Int64]:
        """Pairs of a row of a layer and a band, of another one, that reads it."""
        rows, bands = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for view in self._members[layer]:
            for source in self._graph.layer_rows[view.at].reads:
                if source.source == at:
                    reads = source.windows.reads
                    rows.append(reads.values)
                    bands.append(np.searchsorted(view.row_cuts, reads.owners, "right") - 1)
        return distinct_pairs(np.concatenate(rows), np.concatenate(bands))


_Segment = tuple[int, int, list[tuple[int, int]]]  # a band, its rows, and (layer, band) that read
