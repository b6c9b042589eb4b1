"""The partitioners by name; all keep the contract of `Backend`."""

from __future__ import annotations

from typing import Literal, Protocol

from hgpart.arrays import Int32, Int64
from hgpart.errors import ArgumentError, not_one_of
from hgpart.hypergraph.hypergraph import Hypergraph
from hgpart.partition.exact.counting import exact
from hgpart.partition.external.kahypar import kahypar
from hgpart.partition.external.mtkahypar import mtkahypar
from hgpart.partition.native.any_hypergraph import native
from hgpart.partition.problem.memory import MemoryLimits
from hgpart.partition.problem.objectives import Objective


class Backend(Protocol):
    """A partitioner: divide the vertices into parts so that little travels between them."""

    def __call__(
        self,
        hypergraph: Hypergraph,
        capacities: Int64,
        *,
        seed: int = 0,
        time_limit: float | None = None,
    ) -> Int32:
        """Return the part of each vertex.

        Parameters
        ----------
        hypergraph : Hypergraph
        capacities : int64 array, shape (k,)
            Largest weight that each of the k parts may have, in the unit of the weights; see
            `balance.capacities`.
        seed : int, optional
            The same seed gives the same partition, another one may give another; >= 0.
        time_limit : float, optional
            Seconds after which the partitioner is killed, and the best partition that it has
            found by then counts (so that it may differ from run to run); none when left out.

        Returns
        -------
        int32 array, shape (vertices,)
            0 to k - 1. It may exceed the capacities, which the caller's metrics are to judge.

        Raises
        ------
        HypergraphError
            If an array is not as documented, or there is no vertex.
        ArgumentError
            If a capacity, the seed or the time limit is out of range.
        MissingPackageError
            If the partitioner is not installed.
        BackendError
            If the partitioner failed, found nothing in time or returned what is not a partition.
        """
        ...


BACKENDS: dict[str, Backend] = {
    "native": native,
    "kahypar": kahypar,
    "mtkahypar": mtkahypar,
    "exact": exact,
}


def backend(name: str) -> Backend:
    """Return the partitioner of that name.

    Raises
    ------
    ArgumentError
        If there is none.

    Examples
    --------
    >>> backend("kahypar") is kahypar
    True
    """
    if name not in BACKENDS:
        raise not_one_of("backend", name, BACKENDS)
    return BACKENDS[name]


def check_backend(
    name: str,
    objective: Objective,
    memory: MemoryLimits | None,
    slices: int | Literal["auto"] = 1,
) -> None:
    """Raise an ArgumentError unless there is a partitioner of that name that takes these."""
    backend(name)
    if name == "exact" and slices != 1:
        others = ", ".join(other for other in BACKENDS if other != name)
        raise ArgumentError(f"backend 'exact' takes no slices of the batch: {others} do")
    if name != "native" and (memory is not None or objective.name != "volume"):
        wanted = "memory limit" if memory is not None else f"objective {objective.name!r}"
        raise ArgumentError(f"backend {name!r} takes no {wanted}: native does")
