"""The partitioners by name; all keep the contract of `Backend`."""

from __future__ import annotations

from typing import Literal, Protocol

from hgpart.arrays import Int32, Int64
from hgpart.errors import ArgumentError, BackendError, not_one_of
from hgpart.hypergraph.hypergraph import Hypergraph
from hgpart.partition.exact.counting import exact
from hgpart.partition.external.kahypar import kahypar
from hgpart.partition.external.mtkahypar import MOST_MAPPED, mtkahypar
from hgpart.partition.external.program import PREFIX, ProgramBackend
from hgpart.partition.external.user_backend import UserBackend
from hgpart.partition.native.any_hypergraph import native
from hgpart.partition.problem.memory import MemoryLimits
from hgpart.partition.problem.objectives import LinkCosts, Objective
from hgpart.specs.user_code import UserCode


class Backend(Protocol):
    """A partitioner: divide the vertices into parts so that little travels between them.

    Any function that takes these arguments can be one: pass it to `partition_graph`, or name it on
    the command line (`load_backend`).
    """

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


def backend(named: str | Backend) -> Backend:
    """Return the partitioner of a name; a function of the user's becomes one.

    Parameters
    ----------
    named : str or function
        One of `BACKENDS`, a function, or what `load_backend` takes.

    Raises
    ------
    ArgumentError
        If there is none of that name.
    BackendError
        If there is no such program, or no such function in the user's code.

    Examples
    --------
    >>> backend("kahypar") is kahypar
    True
    """
    if not isinstance(named, str):
        return named if isinstance(named, UserBackend | ProgramBackend) else UserBackend(named)
    if ":" in named:
        return load_backend(named)
    if named not in BACKENDS:
        raise not_one_of("backend", named, BACKENDS, besides="command:PROGRAM or a function")
    return BACKENDS[named]


def backend_name(named: str | Backend) -> str:
    """Name of a backend, as a partition keeps it."""
    partitioner = backend(named)
    return partitioner.name if isinstance(partitioner, UserBackend | ProgramBackend) else str(named)


def load_backend(spec: str) -> Backend:
    """Find a program of the user's that partitions, or import a function.

    Parameters
    ----------
    spec : str
        ``path/file.py:function`` or ``package.module:function``; the function takes what a
        `Backend` takes, and returns the part of each vertex. Or ``command:`` and a command line,
        as in ``command:patoh {graph} {k} UM=O IB={eps} SD={seed}``. It is run without a shell, in
        the present folder. In its words stand for

        - ``{graph}``: the hypergraph's file, in PaToH's format if the command names a file that has
          "patoh" in its name, or else in hMETIS's; ``{patoh}``, ``{hmetis}``: in that format;
        - ``{k}``, ``{seed}``: number of parts; seed, below 2^31;
        - ``{eps}``: imbalance allowed, such as 0.1; ``{ubfactor}``: the same as the UBfactor of
          shmetis and hmetis, see `ubfactor`;
        - ``{output}``: the file to write the part of each vertex to. Without it, that is read from
          the only file ``{graph}.part*``, where PaToH, hMETIS and KaHyPar write it.

    Raises
    ------
    ArgumentError
        If a command line is malformed.
    BackendError
        If program, file, module or function do not exist, or the code raises anything. When the
        backend is called: if the function raises anything, the program fails, or they return what
        is not a partition.
    """
    if spec.startswith(PREFIX):
        return ProgramBackend(spec)
    code = UserCode(spec, "backend", BackendError)
    return UserBackend(code.load(), code)


def check_backend(
    named: str | Backend,
    objective: Objective,
    memory: MemoryLimits | None,
    slices: int | Literal["auto"] = 1,
    bands: int | Literal["auto"] = 1,
) -> None:
    """Raise an ArgumentError unless there is such a partitioner, and it takes these."""
    name = backend_name(named)
    if name == "exact" and slices != 1:
        rest = ", ".join(known for known in BACKENDS if known != name)
        raise ArgumentError(f"backend 'exact' takes no slices of the batch: {rest} do")
    if bands != 1 and (name == "exact" or objective.in_seconds):
        what = "backend 'exact'" if name == "exact" else f"objective {objective.name!r}"
        raise ArgumentError(f"bands of rows ({bands}) with {what}: accepted is 1")
    if name == "native" or (objective.is_volume and memory is None):
        return
    if memory is not None:
        raise ArgumentError(f"backend {name!r} takes no memory limit: native does")
    if not isinstance(objective, LinkCosts):
        raise ArgumentError(f"backend {name!r} takes no objective {objective.name!r}: native does")
    if name != "mtkahypar":
        raise ArgumentError(f"backend {name!r} takes no link costs: native and mtkahypar do")
    k = len(objective.links)
    if k > MOST_MAPPED:
        raise ArgumentError(
            f"k is {k}, expected at most {MOST_MAPPED} for backend {name!r} with objective "
            f"{objective.name!r}: native takes more"
        )
