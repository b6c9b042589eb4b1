"""Nets with shared sets of readers -> Hypergraph, with all pins or with parts as vertices.

The maps of a dense layer are all read by the same tasks: maps x readers pins of the full
hypergraph are one set here, whatever the blocks. Metrics need no more than the sets; pins are
written out for partitioners and files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hgpart.arrays import Bool, Int32, Int64
from hgpart.errors import HypergraphError
from hgpart.hypergraph.hypergraph import Hypergraph
from hgpart.hypergraph.metrics import part_loads
from hgpart.sequences import Sequences, equal_rows

PINS_AT_ONCE = 2**22  # pins that are written out in some hundred MB


@dataclass(frozen=True)
class Nets:
    """Nets whose pins are a root and the vertices of all sets of a list.

    The sets of a list have no vertex in common; the root may be in one of them.

    Attributes
    ----------
    costs : int64 array, shape (nets,)
        Bytes of each net.
    gathers : bool array, shape (nets,)
        Whether each net's vertices send to its root.
    layers : int32 array, shape (nets,)
        Layers as in `Hypergraph.net_layers`.
    roots : int32 array, shape (nets,)
        The root of each net.
    readers : int64 array, shape (nets,)
        The list of each net.
    lists : Sequences
        The sets of each list.
    sets : Sequences
        The vertices of each set, ascending.
    """

    costs: Int64
    gathers: Bool
    layers: Int32
    roots: Int32
    readers: Int64
    lists: Sequences
    sets: Sequences

    @classmethod
    def joined(cls, pieces: Sequence[Nets]) -> Nets:
        """All nets of several pieces, one piece after another."""
        lists = np.cumsum([0, *(len(piece.lists) for piece in pieces)])
        sets = np.cumsum([0, *(len(piece.sets) for piece in pieces)])
        return cls(
            costs=np.concatenate([piece.costs for piece in pieces]),
            gathers=np.concatenate([piece.gathers for piece in pieces]),
            layers=np.concatenate([piece.layers for piece in pieces]),
            roots=np.concatenate([piece.roots for piece in pieces]),
            readers=np.concatenate(
                [piece.readers + first for piece, first in zip(pieces, lists, strict=False)]
            ),
            lists=Sequences.joined(
                [piece.lists.shifted(first) for piece, first in zip(pieces, sets, strict=False)]
            ),
            sets=Sequences.joined([piece.sets for piece in pieces]),
        )

    def shifted(self, vertices: int, layers: int) -> Nets:
        """The same nets with higher numbers of vertices and layers."""
        return replace(
            self,
            layers=self.layers + np.int32(layers),
            roots=self.roots + np.int32(vertices),
            sets=self.sets.shifted(vertices),
        )

    def take(self, nets: Int64) -> Nets:
        """Some of the nets, by their numbers."""
        return replace(
            self,
            costs=self.costs[nets],
            gathers=self.gathers[nets],
            layers=self.layers[nets],
            roots=self.roots[nets],
            readers=self.readers[nets],
        )

    def sizes(self) -> Int64:
        """Number of pins of each net."""
        vertices = np.zeros(len(self.lists), dtype=np.int64)
        np.add.at(vertices, self.lists.owners, self.sets.lengths[self.lists.values])
        return vertices[self.readers] + 1 - self._holds_root()

    def _holds_root(self) -> Bool:
        """Whether one of each net's sets has its root."""
        width = int(max(self.sets.values.max(initial=0), self.roots.max(initial=0))) + 1
        members = self.sets.owners * width + self.sets.values  # ascending
        own = self.lists.take(self.readers)
        wanted = own.values * width + self.roots[own.owners]
        at = np.searchsorted(members, wanted)
        holds_root = np.zeros(len(self.roots), dtype=np.bool_)
        holds_root[own.owners[np.append(members, -1)[at] == wanted]] = True
        return holds_root

    def written_out(self, weights: Int64) -> Hypergraph:
        """The hypergraph with all pins: a net's root, then the others ascending."""
        pointers = np.concatenate([[0], np.cumsum(self.sizes())]).astype(np.int64)
        pins = np.empty(pointers[-1], dtype=np.int32)
        is_root = np.zeros(len(pins), dtype=np.bool_)
        is_root[pointers[:-1]] = True
        pins[is_root] = self.roots
        first = 0
        while first < len(self.roots):
            reach = np.searchsorted(pointers, pointers[first] + PINS_AT_ONCE, "right")
            last = max(first + 1, int(reach) - 1)
            lists = self.lists.take(self.readers[first:last])
            vertices = self.sets.take(lists.values)
            is_other = vertices.values != self.roots[first:last][lists.owners[vertices.owners]]
            span = slice(pointers[first], pointers[last])
            pins[span][~is_root[span]] = vertices.values[is_other]
            first = last
        return Hypergraph(weights, self.costs, pointers, pins, self.gathers, self.layers)

    def of_parts(self, weights: Int64, parts: Int32, k: int) -> Hypergraph:
        """The hypergraph whose vertices are the parts: the weight of vertex p is part p's work.

        Nets within a part are left out; nets that are then alike become one, with the sum of their
        costs. Loads, volume, cut-net, traffic and messages stay the same: they depend only on the
        parts of a net's root and readers. This takes time in the number of vertices, not of pins.

        Raises
        ------
        HypergraphError
            If `parts` has not one part from 0 to k - 1 per vertex, or a sum exceeds 64 bits.
        """
        loads = part_loads(_without_nets(weights), parts, k)
        # Sets of vertices become sets of parts, of which there are few; so do lists of sets.
        sets = Sequences.of_pairs(
            self.sets.owners, parts[self.sets.values].astype(np.int64), len(self.sets)
        )
        set_numbers, first = sets.alike()
        sets = sets.take(first)
        named = set_numbers[self.lists.values]
        lists = Sequences.of_pairs(self.lists.owners, named, len(self.lists))
        list_numbers, first = lists.alike()
        readers = lists.take(first).united(sets)
        reader_numbers, first = readers.alike()
        readers = readers.take(first)

        numbers = reader_numbers[list_numbers[self.readers]]
        table = np.stack([self.layers, self.gathers, parts[self.roots], numbers], axis=1)
        nets, first = equal_rows(table.astype(np.int64))
        roots, read = parts[self.roots[first]], readers.take(numbers[first])
        is_other = read.values != roots[read.owners]
        owners = np.concatenate([np.arange(len(first)), read.owners[is_other]])
        pins = np.concatenate([roots, read.values[is_other]])[np.argsort(owners, kind="stable")]
        sizes = np.bincount(owners, minlength=len(first))
        cut = sizes > 1
        counted = cut[nets]
        if sum(self.costs[counted].tolist()) >= 2**63:
            raise HypergraphError(
                f"cost of the cut nets is more than {2**63 - 1}, the most that 64 bits hold"
            )
        costs = np.zeros(len(first), dtype=np.int64)
        np.add.at(costs, nets[counted], self.costs[counted])
        return Hypergraph(
            weights=loads,
            costs=costs[cut],
            pointers=np.concatenate([[0], np.cumsum(sizes[cut])]).astype(np.int64),
            pins=pins[np.repeat(cut, sizes)].astype(np.int32),
            gathers=self.gathers[first[cut]],
            net_layers=self.layers[first[cut]],
        )


def _without_nets(weights: Int64) -> Hypergraph:
    return Hypergraph(
        weights=weights,
        costs=np.zeros(0, np.int64),
        pointers=np.zeros(1, np.int64),
        pins=np.zeros(0, np.int32),
        gathers=np.zeros(0, np.bool_),
        net_layers=np.zeros(0, np.int32),
    )
