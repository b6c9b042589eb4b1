"""The native core; every function raises HypergraphError for arrays that are not as documented."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hgpart.arrays import Float64, Int32, Int64
from hgpart.hypergraph.hypergraph import Hypergraph

def publish(words: Int64, at: int, number: int) -> None:
    """Write a word that several processes have.

    Whoever reads it also sees what was written into their memory before.
    """

def wait_for(words: Int64, at: int, number: int, closed: int, seconds: float) -> bool:
    """Wait until a word that several processes have is at least a number; returns whether it is.

    The wait ends in vain after so many seconds, or when the word at `closed` is not 0.
    """

def communication_volume(hypergraph: Hypergraph, parts: Int32, k: int) -> int: ...
def cut_net(hypergraph: Hypergraph, parts: Int32, k: int) -> int: ...
def part_loads(hypergraph: Hypergraph, parts: Int32, k: int) -> Int64: ...
def traffic(hypergraph: Hypergraph, parts: Int32, k: int) -> Int64: ...
def messages(hypergraph: Hypergraph, parts: Int32, k: int) -> Int64: ...
def refine(
    hypergraph: Hypergraph,
    parts: Int32,
    capacities: Int64,
    seed: int,
    seconds: float = ...,
    may_lie: NDArray[np.bool_] | None = None,
) -> Int32: ...
def anneal(
    symmetry: Any,
    goal: Any,
    chains: Sequence[Any],
    threads: int,
    seconds: float = ...,
    on_progress: Callable[[float], object] | None = None,
) -> tuple[list[tuple[list[Int64], list[Int32], int, float]], bool]: ...
def anneal_counts(
    layers: Any,
    chains: Sequence[Any],
    threads: int,
    seconds: float = ...,
    on_progress: Callable[[float], object] | None = None,
) -> tuple[list[tuple[Int32, float, float]], bool]: ...
def contents_bound(model: Any, operations: float, seconds: float = ...) -> tuple[float, bool]: ...
def joined(
    parts: Int32,
    seconds: Float64,
    once: Float64,
    alike: Int32,
    pointers: Int64,
    needs: Int32,
    travels: Float64,
    most: int,
    rounding: float,
) -> tuple[Int64, Int32]: ...
def list_schedule(graph: Any, micro_batches: int) -> tuple[Int64, Float64]: ...
def simulate(
    step: Any,
    nodes: Int32,
    slowdown: Float64,
    memory_slowdown: Float64,
    queues: bool,
    steps: int = 1,
) -> tuple[Float64, Float64, Float64, Float64]: ...
