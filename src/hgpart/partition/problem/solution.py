"""The result of a solver that knows models."""

from __future__ import annotations

from dataclasses import dataclass

from hgpart.arrays import Int32
from hgpart.hypergraph.building import CnnHypergraph


@dataclass(frozen=True, eq=False)
class Solution:
    """A partition that a solver found, and what the solver knows of it.

    Attributes
    ----------
    model : CnnHypergraph
        The largest blocks that the partition keeps whole.
    parts : int32 array, shape (model.hypergraph.vertices,)
        Part of each vertex.
    bound : int
        Bytes that every partition within the capacities sends at least, as far as the solver knows.
    interrupted : bool
        Whether Ctrl-C ended the search, so that this is only the best found by then.
    start : str or None
        Start that it was found from; None for the solver's own.
    """

    model: CnnHypergraph
    parts: Int32
    bound: int = 0
    interrupted: bool = False
    start: str | None = None
