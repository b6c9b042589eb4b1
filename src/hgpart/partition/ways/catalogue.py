"""Name -> Way: every way to divide a model, in one catalogue that all that lists ways reads.

A way is a function from a `Problem` and a `Search` to parts. Its name is what users type and read:
in `hgpart partition --way`, `compare`, `verify`, `bench` and `recommend`. To add a way, write
its function in `baselines/` and register it in `built_in`; users register theirs with `hgpart.way`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.util import find_spec

from hgpart.errors import ArgumentError, not_one_of
from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.partition.backends import BACKENDS
from hgpart.partition.partition import Partition, uninterrupted
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.ways.built_in import (
    BUILT_IN,
    BY_BACKEND,
    FILTERS,
    FORMER,
    HYBRID,
    SPATIAL,
    by_backend,
    filters_way,
    hybrid_way,
    spatial_way,
)
from hgpart.partition.ways.of_users import ways_of_users
from hgpart.partition.ways.way import Way
from hgpart.work.figures import Work


def ways() -> Mapping[str, Way]:
    """Return the ways to divide any model, by name: built in, of installed backends, of users."""
    others = [name for name in BACKENDS if name not in ("native", "exact")]  # exact takes minutes
    installed = [name for name in others if find_spec(name) is not None]
    listed = [way for way in BUILT_IN.values() if way.for_any]
    listed += [by_backend(name, grain) for name in installed for grain in ("coarse", "fine")]
    return {**{way.name: way for way in listed}, **ways_of_users()}


def way_named(name: str, listed: Iterable[str] | None = None, besides: str = "") -> Way:
    """Return the way of a name, listed or not; ``hybrid-R`` and ``spatial-R`` for any number R.

    Parameters
    ----------
    listed : iterable of str, optional
        The names that the error lists. Default: those of `ways`.
    besides : str
        What else the error says is accepted.

    Raises
    ------
    ArgumentError
        If there is none; says which are near, or what a former name is now.

    >>> way_named("hybrid-4").words[:10]
    '4 replicas'
    >>> way_named("gems")
    Traceback (most recent call last):
        ...
    hgpart.errors.ArgumentError: way 'gems' is called opposed-replicas now
    """
    ways_of_numbers = ((HYBRID, hybrid_way), (SPATIAL, spatial_way), (FILTERS, filters_way))
    for prefix, numbered in ways_of_numbers:
        number = name.removeprefix(prefix)
        if number != name and number.isdecimal():
            if int(number) < 2:
                raise ArgumentError(f"way {name!r}: accepted is {prefix} and a number above 1")
            return numbered(int(number))
    known = {**BY_BACKEND, **BUILT_IN, **ways_of_users()}
    if name in known:
        return known[name]
    if name in FORMER:
        raise ArgumentError(f"way {name!r} is called {FORMER[name]} now")
    begin = [other for other in known if other.startswith(name)]
    if begin:
        raise ArgumentError(f"way {name!r}: did you mean {' or '.join(begin)}?")
    any_number = [f"{prefix}R" for prefix, _ in ways_of_numbers]
    raise not_one_of("way", name, listed or [*ways(), *any_number], besides)


def partition_by(
    name: str,
    graph: ChannelGraph,
    work: Work,
    k: int,
    eps: float = 0.1,
    *,
    modelling: Modelling | None = None,
    seed: int = 0,
) -> Partition:
    """Divide a model by a way of the catalogue, as `hgpart partition --way` does.

    Parameters
    ----------
    name : str
        A name that ``hgpart compare MODEL`` lists: ``layerwise`` cuts between layers.
    k : int
        Number of parts.
    eps : float
        Imbalance that ways which search are allowed; the partition says whether it is within it.
    modelling : Modelling, optional
        Batch size and what counts; the way decides grain and slices.

    Raises
    ------
    ArgumentError, InfeasibleError
        If there is no such way, or the model can't be divided that way.

    >>> import hgpart
    >>> model, shape = hgpart.load_model("lenet5", device="meta")
    >>> graph = hgpart.channel_graph(hgpart.trace(model, hgpart.example_inputs(model, shape)))
    >>> partition = hgpart.partition_by("layerwise", graph, hgpart.flops(graph), k=2)
    >>> partition.feasible, round(partition.evaluation.imbalance, 2)
    (False, 0.44)
    """
    chosen = way_named(name)
    problem = Problem(graph, work, modelling or Modelling(), k, eps)
    return uninterrupted(chosen.partition(problem, Search(seed)))
