"""A function of the user's -> Way, registered by its name; what it returns is checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from hgpart.errors import ArgumentError, BackendError, HgpartError
from hgpart.hypergraph.building import CnnHypergraph
from hgpart.partition.baselines.known_ways import Parts
from hgpart.partition.external.contract import checked_parts
from hgpart.partition.given_parts import partition_of_parts
from hgpart.partition.partition import Partition, uninterrupted
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.ways.built_in import BUILT_IN, BY_BACKEND, FILTERS, FORMER, HYBRID, SPATIAL
from hgpart.partition.ways.way import Divide, Way, nothing

NAME = re.compile(r"[a-z0-9][a-z0-9_-]*", re.ASCII)
# Names of `hgpart bench` for ways to train or run a model that no plan describes: no way has them.
TRAINING_NAMES = (
    "apart",
    "ddp",
    "fsdp",
    "pipeline-gpipe",
    "pipeline-1f1b",
    "ps-sync",
    "ps-async",
    "fused-tiles",
)
_registered: dict[str, Way] = {}


def ways_of_users() -> Mapping[str, Way]:
    """Return what `hgpart.way` has registered, by name."""
    return _registered


def way(
    name: str,
    words: str = "a way of the user's",
    *,
    needs: Callable[[Problem], str | None] = nothing,
    slices: Callable[[Problem], int] | None = None,
    searches: bool = False,
) -> Callable[[Divide], Divide]:
    """Register a function as a way to divide models; `compare`, `bench` and `recommend` list it.

    The function gets a `Problem` (``graph``, ``work``, ``k``, ``eps``, ``modelling``) and a
    `Search` (``seed``, ``effort``), and returns parts in any form that `partitioned_as` takes: an
    array with the part of every task of the problem, or the parts of each layer by its name. What
    it returns is checked, and its figures are hgpart's own.

    Parameters
    ----------
    name : str
        Small letters, digits, hyphens and underscores. A name registered before is replaced.
    words : str
        One line for tables and pages.
    needs : function of a Problem, optional
        Returns why a problem can't be divided this way, or None where it can.
    slices : function of a Problem, optional
        Returns how many slices the batch is divided into; the problem then has these.
    searches : bool
        Whether its parts depend on the problem's eps: `compare` then has a row for each eps.

    Raises
    ------
    ArgumentError
        If the name is of other characters, or built in.

    >>> import hgpart, numpy
    >>> @hgpart.way("in-turns", "task after task, part after part")
    ... def in_turns(problem, search):
    ...     return numpy.arange(problem.tasks) % problem.k
    >>> model, shape = hgpart.load_model("lenet5", device="meta")
    >>> graph = hgpart.channel_graph(hgpart.trace(model, hgpart.example_inputs(model, shape)))
    >>> hgpart.partition_by("in-turns", graph, hgpart.flops(graph), k=2).evaluation.volume > 0
    True
    """
    if NAME.fullmatch(name) is None:
        raise ArgumentError(f"way {name!r}: accepted are small letters, digits, hyphens and _")
    numbered = re.fullmatch(rf"({HYBRID}|{SPATIAL}|{FILTERS})\d+", name)
    if name in _reserved() or numbered:
        raise ArgumentError(f"way {name!r} is built in: accepted is another name")

    def register(divide: Divide) -> Divide:
        _registered[name] = Way(
            name,
            words,
            partial(_of_user, name, divide),
            needs=partial(_asked_user, name, needs),
            slices=None if slices is None else partial(_asked_user, name, slices),
            searches=searches,
        )
        return divide

    return register


def _reserved() -> set[str]:
    """The names that users' ways can't have."""
    return {*BUILT_IN, *BY_BACKEND, *TRAINING_NAMES, *FORMER}


def _asked_user(name: str, function: Callable[..., Any], *asked: Any) -> Any:
    """Call a user's function; whatever goes wrong in it names the way."""
    try:
        return function(*asked)
    except HgpartError:
        raise
    except Exception as error:
        raise BackendError(f"way {name!r}: {type(error).__name__}: {error}") from error


def _of_user(name: str, divide: Divide, problem: Problem, search: Search) -> Parts:
    """Divide a problem by a user's function, and check what it returns."""
    divided = _asked_user(name, divide, problem, search)
    if isinstance(divided, Partition):
        uninterrupted(divided)
        divided = divided.model, divided.parts
    if isinstance(divided, tuple) and len(divided) == 2 and isinstance(divided[0], CnnHypergraph):
        return _checked(name, problem, *divided)
    try:
        given = partition_of_parts(problem, divided)
    except ArgumentError as error:
        raise BackendError(f"way {name!r}: {error}") from None
    return given.model, given.parts


def _checked(name: str, problem: Problem, model: CnnHypergraph, parts: Any) -> Parts:
    """Blocks and parts that a user's way returned, if they are of the problem."""
    if model.graph.fingerprint != problem.graph.fingerprint or model.modelling != problem.modelling:
        raise BackendError(
            f"way {name!r} returned a partition of another problem: accepted are blocks of the "
            "problem that it got, as of problem.hypergraph(blocks)"
        )
    given = checked_parts(f"way {name!r}", parts, model.vertices, problem.k)
    # The blocks again, with the weights of this problem's work.
    return problem.hypergraph(model.blocks), given
