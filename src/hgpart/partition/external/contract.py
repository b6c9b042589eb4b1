"""The contract of all backends: checked arguments and results, and cases that need no search."""

from __future__ import annotations

import numpy as np

from hgpart.arrays import Int32, Int64
from hgpart.errors import ArgumentError, BackendError, HypergraphError
from hgpart.hypergraph.hypergraph import Hypergraph
from hgpart.hypergraph.metrics import communication_volume, part_loads
from hgpart.partition.problem.balance import pack
from hgpart.partition.problem.checks import LONGEST_LIMIT


def check_request(
    hypergraph: Hypergraph, capacities: Int64, seed: int, time_limit: float | None
) -> None:
    """Raise unless the arguments are what the contract says."""
    one_part = np.zeros(hypergraph.vertices, dtype=np.int32)
    part_loads(hypergraph, one_part, 1)
    communication_volume(hypergraph, one_part, 1)
    if hypergraph.vertices == 0:
        raise HypergraphError("the hypergraph has no vertices, expected at least one")
    if len(capacities) == 0 or capacities.min() < 0:
        raise ArgumentError(
            f"capacities are {capacities.tolist()}, expected 0 or more for at least one part"
        )
    if seed < 0:
        raise ArgumentError(f"seed is {seed}, expected 0 or more")
    if time_limit is not None and not 0 < time_limit <= LONGEST_LIMIT:
        raise ArgumentError(
            f"time limit is {time_limit:g} s, expected more than 0 and at most {LONGEST_LIMIT:g}"
        )


def easy_parts(
    hypergraph: Hypergraph, capacities: Int64, fixed: Int32 | None = None
) -> Int32 | None:
    """Parts where no search is needed: all fits in one, or nothing can be saved; else None.

    A vertex with a part of its own in `fixed` (not -1) is there.
    """
    k = len(capacities)
    fits = int(hypergraph.weights.sum()) <= capacities.max()
    if k == 1 or (fits and (fixed is None or (fixed < 0).all())):
        return np.full(hypergraph.vertices, capacities.argmax(), dtype=np.int32)
    if k >= hypergraph.vertices or not counted_nets(hypergraph).any():
        parts = pack(hypergraph.weights, capacities)
        return parts if fixed is None else np.where(fixed < 0, parts, fixed).astype(np.int32)
    return None


def counted_nets(hypergraph: Hypergraph) -> np.ndarray:
    """Mask of the nets that can cost anything: bool array, shape (nets,)."""
    return (np.diff(hypergraph.pointers) > 1) & (hypergraph.costs > 0)


def checked_parts(name: str, parts: object, vertices: int, k: int) -> Int32:
    """Return what a backend returned, as int32, after checking that it is a partition.

    Raises
    ------
    BackendError
        If it is not one of `vertices` whole numbers from 0 to k - 1.
    """
    try:
        numbers = np.asarray(parts)
    except ValueError:  # lists of unequal lengths
        numbers = np.empty(0)
    if numbers.shape != (vertices,) or numbers.dtype.kind not in "iu":
        raise BackendError(
            f"{name} returned {_described(parts, numbers)}, expected {vertices} whole numbers, "
            "the part of each vertex"
        )
    if numbers.min() < 0 or numbers.max() >= k:
        raise BackendError(
            f"{name} returned parts {numbers.min()} to {numbers.max()}, expected 0 to {k - 1}"
        )
    return numbers.astype(np.int32)


def _described(parts: object, numbers: np.ndarray) -> str:
    if numbers.ndim == 0 or not numbers.size:
        return f"a {type(parts).__name__}"
    return f"an array of shape {numbers.shape} and type {numbers.dtype}"
