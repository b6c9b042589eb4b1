"""Partition -> ShareNets: who pays for which net, and what any single move of a share changes.

A layer's *share* on a part is all of it that lies there: filters, slices and bands. A hypergraph
whose vertices are the shares is exact for every partition that keeps shares whole, and has a few
hundred vertices, so that all moves of single shares and of whole layers are tried.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from hgpart.arrays import Bool, Int64
from hgpart.hypergraph.hypergraph import Hypergraph
from hgpart.hypergraph.metrics import traffic
from hgpart.partition import Partition

MAPS, SUMS, GRADIENTS, STATISTICS = "maps", "partial sums", "gradients", "statistics"


class Paid(NamedTuple):
    """Nets of a layer that lie alike.

    Attributes
    ----------
    layer : int
        The layer whose maps, sums, gradients or statistics they carry.
    what : str
        One of these four.
    root : int
        The part that sends them, or that gathers them where they are not maps.
    others : tuple of int
        The other parts.
    readers : tuple of int
        Other layers that have pins of theirs, by the first of those that share a weight.
    nbytes : int
        Bytes that travel: their costs, once for each other part.
    """

    layer: int
    what: str
    root: int
    others: tuple[int, ...]
    readers: tuple[int, ...]
    nbytes: int


class Grown(NamedTuple):
    """Bytes that a move adds, by what they are paid for.

    Attributes
    ----------
    layers : tuple of int
        The layers at the other end.
    what : str
        What travels.
    is_own : bool
        Whether it is of the layer that moves, or else of the first of the others.
    """

    layers: tuple[int, ...]
    what: str
    is_own: bool
    nbytes: int


@dataclass(frozen=True, eq=False)
class ShareNets:
    """The shares of a partition's layers, and the nets between them.

    Attributes
    ----------
    layers, parts : int64 arrays, shape (shares,)
        The first of the layers that share a weight, and the part, of each share.
    nets : Hypergraph
        Its vertices are the shares.
    """

    partition: Partition
    layers: Int64
    parts: Int64
    nets: Hypergraph

    @classmethod
    def of(cls, partition: Partition) -> ShareNets:
        """Find the shares, and join the nets that are alike."""
        model, k = partition.model, partition.k
        keys = model.vertex_layers.astype(np.int64) * k + partition.parts
        shares, numbers = np.unique(keys, return_inverse=True)
        nets = model.nets.of_parts(model.weights, numbers.astype(np.int32), len(shares))
        return cls(partition, shares // k, shares % k, nets)

    @cached_property
    def owners(self) -> Int64:
        """The net of each pin."""
        owners: Int64 = np.repeat(np.arange(self.nets.nets), np.diff(self.nets.pointers))
        return owners

    @cached_property
    def roots(self) -> Int64:
        """The share that is the root of each net."""
        roots: Int64 = self.nets.pins[self.nets.pointers[:-1]].astype(np.int64)
        return roots

    @cached_property
    def net_layers(self) -> Int64:
        """The layer whose maps, sums, gradients or statistics each net carries."""
        layers: Int64 = self.nets.net_layers.astype(np.int64) % max(1, len(self._views))
        return layers

    @cached_property
    def kinds(self) -> list[str]:
        """What each net carries."""
        layers, slices = len(self._views), self.partition.modelling.slices
        kinds = []
        for number in self.nets.net_layers.tolist():
            if number < 2 * layers * slices:
                kinds.append(SUMS if number // layers % 2 else MAPS)
            else:
                kinds.append(GRADIENTS if number < layers * (2 * slices + 1) else STATISTICS)
        return kinds

    @cached_property
    def paid(self) -> Int64:
        """Bytes that travel for each net."""
        pinned = self._pinned(np.ones(len(self.layers), np.bool_))
        paid: Int64 = self.nets.costs * (pinned.sum(axis=1) - 1)
        return paid

    def sent_by(self) -> Int64:
        """Bytes that travel for nets of each layer; they add up to the volume."""
        sent = np.zeros(len(self._views), dtype=np.int64)
        np.add.at(sent, self.net_layers, self.paid)
        return sent

    def received_by(self, layer: int) -> int:
        """Bytes of other layers' nets that come to parts, or from them, where a layer has pins."""
        own = self.layers == layer
        nets = self._of_layer(layer)
        others = nets[self.layers[self.roots[nets]] != layer]
        pinned = self._pinned(own)[others]
        pinned[np.arange(len(others)), self.parts[self.roots[others]]] = False
        return int((self.nets.costs[others] * pinned.sum(axis=1)).sum())

    def changes(self, layer: int) -> tuple[Int64, Int64]:
        """Bytes by which single moves of a layer change the volume.

        Connectivity counts the parts of a net's pins: those of the layer's own and of the others.

        Returns
        -------
        int64 array, shape (k,)
            Where the layer lies whole on each part.
        int64 array, shape (k, k)
            Where its share of the part of the row moves to the part of the column.
        """
        nets = self._of_layer(layer)
        costs = self.nets.costs[nets]
        own = self._pinned(self.layers == layer)[nets]
        others = self._pinned(self.layers != layer)[nets]
        missing = (~(own | others)).astype(np.int64)
        without = (~others).astype(np.int64)
        connected = (own | others).sum(axis=1)
        whole = costs @ (others.sum(axis=1)[:, None] + without - connected[:, None])
        leaving = costs @ (own & ~others)
        coming = (own * costs[:, None]).T @ missing
        shares = coming - leaving[:, None]
        np.fill_diagonal(shares, 0)
        return whole.astype(np.int64), shares.astype(np.int64)

    def traffic_of(self, layer: int, source: int | None, target: int) -> Int64:
        """Bytes from part to part once a share, or where there is no source a layer, has moved."""
        parts = np.where(self._moved(layer, source), target, self.parts).astype(np.int32)
        return traffic(self.nets, parts, self.partition.k)

    def growth(self, layer: int, source: int | None, target: int) -> list[Grown]:
        """The nets that pay more once a share, or where there is no source a layer, has moved."""
        nets = self._of_layer(layer)
        moved = self._moved(layer, source)
        stays = self._pinned(~moved)[nets]
        stays[:, target] |= self._pinned(moved)[nets].any(axis=1)
        after = self.nets.costs[nets] * (stays.sum(axis=1) - 1)
        grown: dict[tuple[tuple[int, ...], str, bool], int] = {}
        for net, more in zip(nets.tolist(), (after - self.paid[nets]).tolist(), strict=True):
            root = int(self.layers[self.roots[net]])
            is_own = root == layer
            ends = self._readers(net) if is_own else (int(self.net_layers[net]),)
            key = ends, self.kinds[net], is_own
            grown[key] = grown.get(key, 0) + more
        found_more = [Grown(*key, more) for key, more in grown.items() if more > 0]
        return sorted(found_more, key=lambda item: -item.nbytes)

    def payments(self, layer: int | None = None) -> list[Paid]:
        """Nets that travel, of all layers or with pins of one, those that pay most first."""
        nets = np.arange(self.nets.nets) if layer is None else self._of_layer(layer)
        pinned = self._pinned(np.ones(len(self.layers), np.bool_))
        paid: dict[tuple[int, str, int, tuple[int, ...]], tuple[int, set[int]]] = {}
        for net in nets[self.paid[nets] > 0].tolist():
            root = int(self.parts[self.roots[net]])
            others = tuple(part for part in np.flatnonzero(pinned[net]).tolist() if part != root)
            key = int(self.net_layers[net]), self.kinds[net], root, others
            nbytes, readers = paid.get(key, (0, set[int]()))
            paid[key] = nbytes + int(self.paid[net]), readers.union(self._readers(net))
        rows = [Paid(*key, tuple(sorted(own)), nbytes) for key, (nbytes, own) in paid.items()]
        return sorted(rows, key=lambda row: -row.nbytes)

    @property
    def _views(self) -> tuple[object, ...]:
        return self.partition.model.views

    def _readers(self, net: int) -> tuple[int, ...]:
        """Layers other than the root's that have pins of a net."""
        pins = self.nets.pins[self.nets.pointers[net] : self.nets.pointers[net + 1]]
        layers = set(self.layers[pins].tolist()) - {int(self.layers[self.roots[net]])}
        return tuple(sorted(layers))

    def _moved(self, layer: int, source: int | None) -> Bool:
        """The shares of a layer, or that on one part."""
        own: Bool = self.layers == layer
        return own if source is None else own & (self.parts == source)

    def _of_layer(self, layer: int) -> Int64:
        """The nets with pins of a layer."""
        nets: Int64 = np.unique(self.owners[self.layers[self.nets.pins] == layer])
        return nets

    def _pinned(self, shares: Bool) -> Bool:
        """Whether each net has a pin on each part, among some of the shares."""
        pinned = np.zeros((self.nets.nets, self.partition.k), dtype=np.bool_)
        chosen = shares[self.nets.pins]
        pinned[self.owners[chosen], self.parts[self.nets.pins[chosen]]] = True
        return pinned
