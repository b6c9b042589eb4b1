"""Name -> Way: every way to divide a model, registered once; all that lists ways reads this.

A way is a function from a `Problem` and a `Search` to parts. Its name is what users type and read:
in `hgpart partition --way`, `compare`, `verify`, `bench` and `recommend`. To add a way, write
its function in `baselines/` and register it here; users register theirs with `hgpart.way`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from hgpart.arrays import Int32, Int64
from hgpart.errors import ArgumentError, BackendError, HgpartError, InfeasibleError, not_one_of
from hgpart.hypergraph.blocks import layer_blocks
from hgpart.hypergraph.building import CnnHypergraph
from hgpart.hypergraph.metrics import imbalance
from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.partition.backends import BACKENDS
from hgpart.partition.baselines.by_slices import (
    data_parallel,
    hybrid,
    in_every_slice,
    opposed_replicas,
    replica,
)
from hgpart.partition.baselines.horizontal import horizontal
from hgpart.partition.baselines.incremental import incremental
from hgpart.partition.baselines.known_ways import (
    Parts,
    layer_cut,
    numbers_of_replicas,
    stages_of_rooms,
)
from hgpart.partition.baselines.layerwise import (
    layerwise,
    layerwise_by_count,
    layerwise_by_parameters,
    uncuttable_runs,
)
from hgpart.partition.baselines.one_weird_trick import one_weird_trick
from hgpart.partition.baselines.random_parts import random_parts
from hgpart.partition.baselines.transformed_parts import transformed_parts
from hgpart.partition.external.contract import checked_parts
from hgpart.partition.given_parts import partition_of_parts
from hgpart.partition.number_of_slices import numbers_of_slices
from hgpart.partition.partition import Partition, evaluated, uninterrupted
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.stages import solve, solve_in_slices
from hgpart.partition.step_traffic import step_flows, together
from hgpart.work.figures import Work

Divided = Partition | Parts
Divide = Callable[[Problem, Search], Any]  # what users' functions return is checked

HYBRID = "hybrid-"
NAME = re.compile(r"[a-z0-9][a-z0-9_-]*", re.ASCII)
EFFORT_OF_REPLICAS = 0.1  # of a search, for each number of replicas that is tried
# Names of `hgpart bench` for ways to train that divide no model: no division has them.
TRAINING_NAMES = (
    "apart",
    "ddp",
    "fsdp",
    "pipeline-gpipe",
    "pipeline-1f1b",
    "ps-sync",
    "ps-async",
)
FORMER = {  # what ways were called before each had one name
    "coarse-native": "coarse",
    "fine-native": "fine",
    "sliced-native": "sliced",
    "filterwise-horizontal": "horizontal",
    "halves": "horizontal",
    "filterwise-incremental": "incremental",
    "filterwise": "incremental",
    "channelwise-incremental": "incremental-channels",
    "weird-trick": "one-weird-trick",
    "gems": "opposed-replicas",
    "good": "coarse",
    "layers": "layerwise",
}


def nothing(problem: Problem) -> str | None:
    """Need nothing: any problem can be divided."""
    return None


@dataclass(frozen=True)
class Way:
    """A way to divide a model.

    Attributes
    ----------
    words : str
        What it does and where it comes from, in one line.
    divide : function of a Problem and a Search
        Returns a Partition, or blocks of the model and the part of each. Raises an ArgumentError or
        InfeasibleError where it can't.
    needs : function of a Problem
        Says why a problem can't be divided this way; None where it can.
    grain : str or None
        The grain it divides at; None for the problem's own.
    slices : function of a Problem, or None
        How many slices it divides the batch into; None for as many as the problem has.
    in_slices : function of a Problem and a Search, or None
        The same for a number of slices that is given, where `divide` chooses one.
    searches : bool
        Whether its parts depend on eps; all others are as balanced as they happen to be.
    ring : bool
        Whether devices sum gradients in a ring, when its traffic is counted.
    for_any : bool
        Whether it is for any model, and listed; the others are used where they are named.
    """

    name: str
    words: str
    divide: Divide = field(compare=False)
    needs: Callable[[Problem], str | None] = field(default=nothing, compare=False)
    grain: str | None = "coarse"
    slices: Callable[[Problem], int] | None = field(default=None, compare=False)
    in_slices: Divide | None = field(default=None, compare=False)
    searches: bool = False
    ring: bool = False
    for_any: bool = True

    def problem(self, problem: Problem) -> Problem:
        """Return the problem at the way's grain, with the batch in the way's slices.

        Raises
        ------
        ArgumentError
            If the batch has fewer samples, or the model mixes them.
        """
        own = problem if self.grain is None else problem.at_grain(self.grain)
        return own if self.slices is None else own.in_slices(self.slices(own))

    def parts(self, problem: Problem, search: Search, slices: int | None = None) -> Parts:
        """Divide a model: blocks, and the part of each. See `partition`."""
        divided = self._divided(problem, search, slices)
        if isinstance(divided, Partition):
            uninterrupted(divided)
            return divided.model, divided.parts
        return divided

    def partition(self, problem: Problem, search: Search, slices: int | None = None) -> Partition:
        """Divide a model.

        Parameters
        ----------
        search : Search
            Seed, effort and time of ways that search.
        slices : int, optional
            Number of slices for the ways that would choose one.

        Raises
        ------
        ArgumentError, InfeasibleError
            If the problem can't be divided this way.
        BackendError
            If a way of the user's fails, or returns no parts.
        """
        divided = self._divided(problem, search, slices)
        if isinstance(divided, Partition):
            return divided
        model, parts = divided
        own = replace(problem, modelling=model.modelling)
        return evaluated(own, model, parts, seed=search.seed, backend=self.name, start=self.name)

    def _divided(self, problem: Problem, search: Search, slices: int | None) -> Partition | Parts:
        divide, own = self.divide, self.problem(problem)
        if slices is not None and self.in_slices is not None:
            divide, own = self.in_slices, own.in_slices(slices)
        if (why := self.needs(own)) is not None:
            raise ArgumentError(why)
        divided: Divided = divide(own, search)
        return divided


# ------------------------------------------------------------------ what ways need


def layers_that_compute(problem: Problem) -> str | None:
    """Need a layer with work for each part, tied layers counted once."""
    busy = len(np.unique(uncuttable_runs(problem.graph)[_has_work(problem)]))
    if problem.k > max(1, busy):
        return f"{problem.k} devices, but only {busy} layers that compute"
    return None


def _has_work(problem: Problem) -> Any:
    tasks = np.array([layer.tasks for layer in problem.graph.layers])
    return (tasks > 0) & (problem.work.per_task > 0)


def least_time_objective(problem: Problem) -> str | None:
    """Need the objective "time", which knows the machine."""
    if problem.objective.name == "time":
        return None
    return (
        f"the objective is {problem.objective.name}: accepted is time, which needs a machine, as "
        "in hgpart partition --objective time and hgpart recommend"
    )


# ------------------------------------------------------------------ how parts are made


def _rule(rule: Callable[[Problem], Parts]) -> Divide:
    """A rule for a whole batch; where the batch is in slices, each is divided alike."""

    def divide(problem: Problem, search: Search) -> Parts:
        if problem.modelling.slices == 1:
            return rule(problem)
        return in_every_slice(problem, *rule(problem.in_slices(1)))

    return divide


def _of_slices(rule: Callable[[Problem], Parts]) -> Divide:
    return lambda problem, search: rule(problem)


def _between_layers(cut: Callable[[Problem], Int64]) -> Divide:
    def divide(problem: Problem) -> Parts:
        model = problem.hypergraph(layer_blocks(problem.views))
        return model, cut(problem).astype(np.int32)[model.vertex_layers]

    return _rule(divide)


def _weird_trick(problem: Problem, search: Search) -> Parts:
    neurons = replace(problem.modelling, linear="neuron")
    return one_weird_trick(replace(problem, modelling=neurons))


def _single(problem: Problem, search: Search) -> Parts:
    model = problem.hypergraph(layer_blocks(problem.views))
    return model, np.zeros(model.vertices, dtype=np.int32)


def _solve_by(backend: str) -> Divide:
    return lambda problem, search: solve(problem, search, backend)


def _hybrid_of(replicas: int) -> Divide:
    def divide(problem: Problem, search: Search) -> Parts:
        if replicas == problem.k:
            return data_parallel(problem)
        own = uninterrupted(solve(replica(problem, replicas), search, best_effort=True))
        return hybrid(problem, replicas, own.model, own.parts)

    return divide


def _best_hybrid(problem: Problem, search: Search) -> Parts:
    batch_size = problem.modelling.batch_size
    numbers = numbers_of_replicas(problem.in_slices(min(problem.k, batch_size)))
    if not numbers:
        raise ArgumentError(
            f"{problem.k} devices and {batch_size} samples: equal replicas of several "
            "devices need 4 devices or more, no prime number, and a sample for each replica"
        )

    def divided(at: int, count: int) -> Parts:
        short = search.part(1 / (len(numbers) - at), EFFORT_OF_REPLICAS)
        own: Parts = _hybrid_of(count)(problem.in_slices(count), short)
        return own

    return _least_step(problem, (divided(at, count) for at, count in enumerate(numbers)))


def _best_stages(problem: Problem, search: Search) -> Parts:
    numbers = numbers_of_slices(problem.modelling.batch_size, problem.k)
    divided = (
        stages for slices in numbers for stages in stages_of_rooms(problem.in_slices(slices))
    )
    return _least_step(problem, divided)


def _stages_in_slices(problem: Problem, search: Search) -> Parts:
    return _least_step(problem, stages_of_rooms(problem))


def _least_step(problem: Problem, candidates: Iterable[Parts]) -> Parts:
    """The candidate within eps that sends least in a step; the first of equal ones."""
    balanced = [parts for parts in candidates if _imbalance(problem.k, *parts) <= problem.eps]
    if not balanced:
        raise InfeasibleError(f"none is within eps {problem.eps:g}")
    volumes = [together(step_flows(*parts, problem.k).values()).volume for parts in balanced]
    return balanced[volumes.index(min(volumes))]


def _imbalance(k: int, model: CnnHypergraph, parts: Int32) -> float:
    loads = np.zeros(k, dtype=np.int64)
    np.add.at(loads, parts, model.weights)
    return imbalance(loads)


# ------------------------------------------------------------------ the catalogue


def _hybrid(replicas: int) -> Way:
    def needs(problem: Problem) -> str | None:
        if problem.k % replicas == 0:
            return None
        others = [f"{HYBRID}{count}" for count in range(2, problem.k) if problem.k % count == 0]
        accepted = ", ".join((*others, "data-parallel"))
        return f"{problem.k} devices for {replicas} replicas: accepted are {accepted}"

    return Way(
        f"{HYBRID}{replicas}",
        f"{replicas} replicas on equally many devices, each divided as coarse is (DistBelief, "
        "HyPar-Flow)",
        _hybrid_of(replicas),
        needs=needs,
        slices=lambda problem: replicas,
        searches=True,
    )


def _by_backend(backend: str, grain: str) -> Way:
    """Hypergraph partitioning; by native it is named by its grain alone."""
    chapter = {"coarse": "3.4", "fine": "3.3"}[grain]
    return Way(
        grain if backend == "native" else f"{grain}-{backend}",
        f"{grain}-grain hypergraph partition (thesis {chapter}), by {backend}",
        _solve_by(backend),
        grain=grain,
        searches=True,
    )


def _built_in() -> Iterator[Way]:
    for grain in ("coarse", "fine"):
        yield _by_backend("native", grain)
    yield Way(
        "sliced",
        "coarse-grain hypergraph over slices of the batch, by native",
        solve_in_slices,
        in_slices=_solve_by("native"),
        searches=True,
    )
    yield Way(
        "layerwise",
        "the cut between layers of the smallest largest load, whatever it moves (thesis 5.1.1)",
        _between_layers(layerwise),
        needs=layers_that_compute,
        grain=None,
    )
    yield Way(
        "layerwise-uniform",
        "cuts between layers, equal numbers of them",
        _between_layers(layerwise_by_count),
        needs=layers_that_compute,
    )
    yield Way(
        "layerwise-params",
        "cuts between layers, equal parameters",
        _between_layers(layerwise_by_parameters),
        needs=layers_that_compute,
    )
    yield Way(
        "layerwise-volume",
        "the cut between layers that sends least within eps, or else filters in order",
        _rule(layer_cut),
        searches=True,
        for_any=False,
    )
    yield Way(
        "horizontal",
        "every layer's filters in k equal shares (thesis 5.1.2)",
        _rule(horizontal),
        grain=None,
    )
    yield Way(
        "incremental",
        "filters in order, a device after the other (thesis 5.1.3)",
        _rule(incremental),
    )
    yield Way(
        "incremental-channels",
        "filter channels in order, a device after the other (thesis 5.1.4)",
        _rule(incremental),
        grain="fine",
    )
    yield Way(
        "random",
        "a device for each filter at random",
        lambda problem, search: random_parts(problem, search.seed),
        grain=None,
    )
    yield Way(
        "hybrid",
        "replicas of several devices each, the best number of them (DistBelief, HyPar-Flow)",
        _best_hybrid,
        searches=True,
    )
    yield Way(
        "replicated-stages",
        "cuts between layers, each stage on one device or divided by samples (PipeDream)",
        _best_stages,
        in_slices=_stages_in_slices,
        searches=True,
    )
    yield Way(
        "opposed-replicas",
        "two copies cut between layers, in opposite order on the same devices (GEMS)",
        _of_slices(opposed_replicas),
        slices=lambda problem: 2,
    )
    yield Way(
        "data-parallel",
        "the model on every device, gradients all-reduced in a ring",
        _of_slices(data_parallel),
        slices=lambda problem: problem.k,
        ring=True,
    )
    yield Way(
        "parameter-server",
        "the model on every device, gradients to one of them and back (thesis 5.1.8)",
        _of_slices(data_parallel),
        slices=lambda problem: problem.k,
    )
    yield Way(
        "one-weird-trick",
        "data-parallel but for the linear layers at the end (Krizhevsky 2014)",
        _weird_trick,
        slices=lambda problem: problem.k,
        ring=True,
    )
    yield Way(
        "transformed-parts",
        "part p of a transformed model on device p, all else on the first (Brakel 2024, 3.3)",
        _rule(transformed_parts),
        for_any=False,
    )
    yield Way(
        "least-time",
        "filters for the least estimated time of a step, by native",
        _solve_by("native"),
        needs=least_time_objective,
        searches=True,
        for_any=False,
    )
    yield Way(
        "least-time-sliced",
        "slices and filters for the least estimated time of a step, by native",
        _solve_by("native"),
        needs=least_time_objective,
        slices=lambda problem: min(problem.k, problem.modelling.batch_size),
        searches=True,
        for_any=False,
    )
    yield Way("single", "the whole model and batch on one device", _single, for_any=False)


BUILT_IN: Mapping[str, Way] = {way.name: way for way in _built_in()}
BY_BACKEND: Mapping[str, Way] = {
    way.name: way
    for way in (_by_backend(name, grain) for name in BACKENDS for grain in ("coarse", "fine"))
}
_of_users: dict[str, Way] = {}


def ways() -> Mapping[str, Way]:
    """Return the ways to divide any model, by name: built in, of installed backends, of users."""
    others = [name for name in BACKENDS if name not in ("native", "exact")]  # exact takes minutes
    installed = [name for name in others if find_spec(name) is not None]
    listed = [way for way in BUILT_IN.values() if way.for_any]
    listed += [_by_backend(name, grain) for name in installed for grain in ("coarse", "fine")]
    return {**{way.name: way for way in listed}, **_of_users}


def ways_of_users() -> tuple[Way, ...]:
    """Return what `hgpart.way` has registered."""
    return tuple(_of_users.values())


def way_named(name: str, listed: Iterable[str] | None = None, besides: str = "") -> Way:
    """Return the way of a name, listed or not; ``hybrid-R`` for any number R of replicas.

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
    number = name.removeprefix(HYBRID)
    if number != name and number.isdecimal() and int(number) > 1:
        return _hybrid(int(number))
    known = {**BY_BACKEND, **BUILT_IN, **_of_users}
    if name in known:
        return known[name]
    if name in FORMER:
        raise ArgumentError(f"way {name!r} is called {FORMER[name]} now")
    begin = [other for other in known if other.startswith(name)]
    if begin:
        raise ArgumentError(f"way {name!r}: did you mean {' or '.join(begin)}?")
    raise not_one_of("way", name, listed or [*ways(), f"{HYBRID}R"], besides)


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
    if name in _reserved() or name.startswith(HYBRID):
        raise ArgumentError(f"way {name!r} is built in: accepted is another name")

    def register(divide: Divide) -> Divide:
        _of_users[name] = Way(
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
