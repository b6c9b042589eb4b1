"""Hypergraph: vertices with weights, nets with costs, pins in CSR arrays."""

from __future__ import annotations

from dataclasses import dataclass

from hgpart.arrays import Bool, Int32, Int64


@dataclass(frozen=True)
class Hypergraph:
    """A weighted hypergraph in CSR arrays.

    The pins of net ``e`` are ``pins[pointers[e]:pointers[e + 1]]``; the first of them is the
    net's *root*: the vertex that sends the map to the others or, where ``gathers[e]``, the
    vertex that receives a partial sum from each of them.

    Attributes
    ----------
    weights : int64 array, shape (vertices,)
        Work of each vertex, >= 0.
    costs : int64 array, shape (nets,)
        Bytes of each net, >= 0.
    pointers : int64 array, shape (nets + 1,)
        Where each net's pins begin in `pins`, and then the number of pins.
    pins : int32 array, shape (pointers[-1],)
        Vertices of the nets, net by net.
    gathers : bool array, shape (nets,)
        Whether the pins send to the root (a reduction); if not, the root sends.
    net_layers : int32 array, shape (nets,)
        Layer whose maps the net carries; partial sums count as a layer of their own. There is
        one message per layer, sender and receiver.
    """

    weights: Int64
    costs: Int64
    pointers: Int64
    pins: Int32
    gathers: Bool
    net_layers: Int32

    @property
    def vertices(self) -> int:
        """Number of vertices."""
        return len(self.weights)

    @property
    def nets(self) -> int:
        """Number of nets."""
        return len(self.costs)
