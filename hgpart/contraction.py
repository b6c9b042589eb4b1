"""Hypergraph + clusters of its vertices -> smaller Hypergraph."""

from __future__ import annotations

from hgpart import _native
from hgpart.hypergraph import Hypergraph, Int32


def contract(hypergraph: Hypergraph, clusters: Int32, count: int) -> Hypergraph:
    """Make one vertex of each cluster of vertices.

    Vertex ``c`` of the result weighs what the vertices of cluster ``c`` weigh together. The pins
    of a net become the distinct clusters among them, the root's first. A net within one cluster
    is dropped. Nets that have the same root, pins, direction and layer are merged, their costs
    added. Nets, and the pins of a net, stay in the order of first appearance.

    This is exact: for every partition that keeps the clusters whole, loads, communication
    volume, cut-net, traffic and messages are those of the original.

    Parameters
    ----------
    hypergraph : Hypergraph
    clusters : int32 array, shape (vertices,)
        Cluster of each vertex, 0 to count - 1.
    count : int
        Number of clusters, at most the number of vertices; one without a vertex weighs 0.

    Raises
    ------
    HypergraphError
        If an array is not as documented, or a sum exceeds 64 bits.

    Examples
    --------
    Two filters read the maps of two others; each pair becomes one block:

    >>> import numpy as np
    >>> hypergraph = Hypergraph(
    ...     weights=np.array([3, 3, 5, 5], dtype=np.int64),
    ...     costs=np.array([10, 10], dtype=np.int64),
    ...     pointers=np.array([0, 3, 6], dtype=np.int64),
    ...     pins=np.array([0, 2, 3, 1, 2, 3], dtype=np.int32),
    ...     gathers=np.array([False, False]),
    ...     net_layers=np.array([0, 0], dtype=np.int32),
    ... )
    >>> blocks = contract(hypergraph, np.array([0, 0, 1, 1], dtype=np.int32), 2)
    >>> blocks.weights.tolist(), blocks.pins.tolist(), blocks.costs.tolist()
    ([6, 10], [0, 1], [20])
    """
    return Hypergraph(*_native.contract(hypergraph, clusters, count))
