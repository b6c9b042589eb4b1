"""ChannelGraph + work + k + eps -> Partition: the problem, its bound, a backend, its figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np

from hgpart.arrays import Int64
from hgpart.errors import ArgumentError, InfeasibleError
from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.partition.backends import Backend, backend_name, check_backend
from hgpart.partition.backends import backend as backend_named
from hgpart.partition.bounds.lower_bound import lower_bound
from hgpart.partition.bounds.part_bound import part_bound
from hgpart.partition.by_blocks import by_blocks
from hgpart.partition.exact.counting import exact_partition
from hgpart.partition.external.mtkahypar import mtkahypar
from hgpart.partition.heaviest_task import HeaviestTask, heaviest_task, with_room
from hgpart.partition.improving import rank, split_and_improve
from hgpart.partition.native.search import native_partition
from hgpart.partition.native.tiled import tiled_partition
from hgpart.partition.number_of_bands import numbers_for, promising_bands
from hgpart.partition.number_of_slices import best_known, promising
from hgpart.partition.partition import Partition, evaluated
from hgpart.partition.problem.balance import round_up
from hgpart.partition.problem.constraints import Constraints, constraints_of
from hgpart.partition.problem.memory import MemoryLimits, in_words
from hgpart.partition.problem.objectives import VOLUME, Objective
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Progress, Search
from hgpart.partition.problem.solution import Solution
from hgpart.partition.slice_order import in_order
from hgpart.partition.steering.feasible import check_constraints
from hgpart.work.figures import Work

SHARE_OF_WHOLE = 0.05  # of a bound's effort, and of the time, for whether slices are needed at all
FLAT_SHARE = 0.2  # of the time that is given, where bands are tried as well


def partition_graph(
    graph: ChannelGraph,
    work: Work,
    k: int,
    eps: float,
    *,
    modelling: Modelling | None = None,
    slices: int | Literal["auto"] | None = None,
    bands: int | Literal["auto"] | None = None,
    backend: str | Backend = "native",
    seed: int = 0,
    speeds: Sequence[float] | None = None,
    objective: Objective = VOLUME,
    memory: MemoryLimits | None = None,
    constraints: Constraints | Mapping[str, Any] | None = None,
    time_limit: float | None = None,
    best_effort: bool = False,
    effort: float = 1.0,
    on_progress: Progress | None = None,
) -> Partition:
    """Divide a model's tasks among k devices within eps, with as little traffic as possible.

    The native solver counts how many of a layer's equal tasks lie in each part; see `native`. For
    the others layers become blocks of equal work, which they partition; the best cut between
    layers within eps takes its place where it is better. Then blocks are split and single ones
    moved while that lowers the volume or until the balance holds, down to single tasks
    (coarse-grain) or channels of tasks (fine-grain).

    Ctrl-C in the search of "native" or "exact" ends it: the best partition by then is returned, and
    says so (`Partition.interrupted`).

    Parameters
    ----------
    k : int
        Devices, at least 1 and at most the number of tasks.
    eps : float
        Imbalance allowed: no part's work exceeds (1 + eps) times its share of the total.
    modelling : Modelling, optional
        Grain, batch size and what counts; coarse-grain at batch 32 when left out.
    slices : int or "auto", optional
        Slices of the batch, instead of the modelling's; "auto" chooses the number that saves most.
    bands : int or "auto", optional
        Bands of rows, instead of the modelling's; "auto" chooses the number that saves most, or 1.
    backend : str or function
        "native", "kahypar" or "mtkahypar"; or "exact" (coarse-grain only, small k), which proves
        how good its partition is. Or a partitioner of your own: a program as `load_backend` names
        it ("command:patoh {graph} {k}"), or a function that takes what a `Backend` takes; what it
        returns is checked, evaluated and improved like theirs.
    seed : int
        The same seed gives the same partition.
    speeds : sequence of k numbers, optional
        Relative speeds of the devices; a part's share is in proportion.
    objective : Objective
        Measure that is to be small: all bytes, those of the part with most, the cost of the links
        that they take, or seconds. Only "native" takes one other than all bytes, and "mtkahypar"
        link costs.
    memory : MemoryLimits, optional
        Bytes that each part may need. Only "native" takes them.
    constraints : Constraints or mapping, optional
        Where layers must lie: pins, layers together, apart, or whole on one device; as a mapping
        the arguments of `hgpart.constraints`, as in ``{"pin": ["conv1=0"]}``.
    time_limit : float, optional
        Seconds for the backend and the improvement after it, each level of which it ends early;
        results may then differ from run to run. 60 s for "exact", where none is given.
    effort : float
        Length of the native solver's search, relative to its default.
    best_effort : bool
        Whether to return the best that was found, marked infeasible, where eps can't be met.
    on_progress : function of a float and an int or None, optional
        Called several times a second by the native solver: the share of its search that is done,
        and the volume in bytes of the best partition so far, None at first.

    Raises
    ------
    ArgumentError
        If an argument is out of range, or the backend can't take the model.
    InfeasibleError
        If eps can't be met, and then it names the heaviest task and the smallest eps known to do,
        or a memory limit can't, or constraints can't: it names the fewest that must give way.
    BackendError, MissingPackageError
        If the backend fails or is not installed.
    KeyboardInterrupt
        On Ctrl-C, where there is nothing to return yet.
    """
    wanted = modelling or Modelling()
    if slices is not None:
        wanted = replace(wanted, slices=1 if slices == "auto" else slices)
    if bands is not None:
        wanted = replace(wanted, bands=1 if bands == "auto" else bands)
    problem = Problem(
        graph,
        work,
        wanted,
        k,
        eps,
        speeds,
        objective,
        memory,
        constraints=constraints_of(constraints),
    )
    search = Search(seed, effort, time_limit, on_progress)
    in_any = slices == "auto", bands == "auto"
    return with_part_bound(solve_in_tiles(problem, search, backend, best_effort, *in_any), search)


def with_part_bound(partition: Partition, search: Search) -> Partition:
    """The partition with the better lower bound by what a part can hold, if there is one.

    It is looked for in the time that the search has left, some seconds at most; Ctrl-C ends it.
    """
    volume, bound = partition.evaluation.volume, partition.lower_bound
    if not partition.feasible or partition.interrupted or volume <= bound or search.left <= 0:
        return partition
    better, _ = part_bound(partition.problem, search.left, min(1.0, search.effort))
    return replace(partition, lower_bound=max(bound, better))


def solve_in_tiles(
    problem: Problem,
    search: Search,
    backend: str | Backend = "native",
    best_effort: bool = False,
    any_slices: bool = False,
    any_bands: bool = False,
) -> Partition:
    """Divide a model as `solve` does; the numbers of slices and of bands are chosen if asked for.

    The result is never worse than what is found without bands. On Ctrl-C, or where bands are too
    much for the search, it is the best by then.
    """
    check_constraints(problem, best_effort)
    divide = solve_in_slices if any_slices else solve
    if not any_bands:
        return divide(problem, search, backend, best_effort)
    flat = problem.in_bands(1)
    check_backend(backend, flat.objective, flat.memory, flat.modelling.slices, "auto")
    if not numbers_for(flat):
        return divide(flat, search, backend, best_effort)
    partitions: list[Partition] = []
    refused: list[InfeasibleError] = []

    def attempt(
        divide: Callable[..., Partition], own: Problem, share: float, begin: float, end: float
    ) -> bool:
        """Divide one of them in a share of the time, with that progress; whether to go on."""
        part = search.part(share, begin=begin, end=end)
        try:
            partitions.append(divide(own, part, backend, best_effort))
        except InfeasibleError as error:
            refused.append(error)
        return search.left > 0 and not (partitions and partitions[-1].interrupted)

    goes_on = attempt(divide, flat, FLAT_SHARE, 0.0, FLAT_SHARE)
    slices = [flat.modelling.slices]
    if partitions and partitions[0].modelling.slices not in slices:
        slices.insert(0, partitions[0].modelling.slices)
    interrupted = False
    step = (1 - FLAT_SHARE) / len(slices)
    try:
        while goes_on and slices:
            own = flat.in_slices(slices.pop(0))
            bands, rest = promising_bands(own, search), step * len(slices)
            share, begin = 1 / (1 + len(slices)), 1 - rest - (1 - FLAT_SHARE) * step
            goes_on = attempt(solve, own.in_bands(bands), share, begin, 1 - rest)
    except KeyboardInterrupt:
        if not partitions:
            raise
        interrupted = True
    except ArgumentError:  # too many tiles for an objective or memory limits
        if not partitions:
            raise
    if not partitions:
        raise refused[-1]
    interrupted |= any(partition.interrupted for partition in partitions)
    return replace(min(partitions, key=_rank), interrupted=interrupted)


def solve_in_slices(
    problem: Problem,
    search: Search,
    backend: str | Backend = "native",
    best_effort: bool = False,
) -> Partition:
    """Divide a model as `solve` does, with the batch in as many slices as save most, or fewer.

    The native solver's result is never worse than the best known way with two slices or as many as
    parts. Where eps can't be met with the batch whole, because a task is too heavy, slices may meet
    it.
    """
    check_backend(backend, problem.objective, problem.memory, "auto")
    partitions: list[Partition] = []
    refused: list[InfeasibleError] = []
    known = best_known(problem)
    # Volumes with which a number of slices need not be tried: one slice can send no less than its
    # lower bound, and as many as the known way has are tried for what that way sends.
    whole = problem.in_slices(1)
    effort = SHARE_OF_WHOLE * min(1.0, search.effort)
    least, interrupted = part_bound(whole, SHARE_OF_WHOLE * search.left, effort)
    if interrupted:
        raise KeyboardInterrupt
    enough = {1: max(least, lower_bound(whole)) - 1}
    if known is not None:
        enough = {known.slices: known.volume, **enough}
    numbers = [*dict.fromkeys((promising(problem, search), *enough))]
    for number, slices in enumerate(numbers):
        if any(_is_at_most(partition, enough[slices]) for partition in partitions):
            continue
        try:
            part = search.part(begin=number / len(numbers), end=(number + 1) / len(numbers))
            partitions.append(solve(problem.in_slices(slices), part, backend, best_effort))
        except InfeasibleError as error:
            refused.append(error)
        if partitions and partitions[-1].interrupted:
            break
    if not partitions:
        raise refused[-1]
    return min(partitions, key=_rank)


def _is_at_most(partition: Partition, volume: int) -> bool:
    """Whether a partition within the limits sends no more, where that is what counts."""
    is_all = partition.feasible and partition.problem.objective.is_volume
    return is_all and partition.evaluation.volume <= volume


def _rank(partition: Partition) -> tuple[bool, float, int, int]:
    """Sort key: less is better."""
    modelling = partition.modelling
    return not partition.feasible, partition.objective_value, modelling.bands, modelling.slices


def solve(
    problem: Problem,
    search: Search,
    backend: str | Backend = "native",
    best_effort: bool = False,
) -> Partition:
    """Divide a model as `partition_graph` does, which says what is raised."""
    modelling = problem.modelling
    check_backend(backend, problem.objective, problem.memory, modelling.slices, modelling.bands)
    if problem.k > problem.tasks:
        raise ArgumentError(
            f"k is {problem.k}, expected at most {problem.tasks}, the number of tasks"
        )
    check_constraints(problem, best_effort)
    name, heaviest = backend_name(backend), heaviest_task(problem)
    roomy = with_room(problem, heaviest, best_effort)
    bound = lower_bound(roomy)
    solution = _solved(roomy, search, bound, backend)
    partition = evaluated(
        problem,
        solution.model,
        in_order(problem, solution.model, solution.parts),
        seed=search.seed,
        backend=name,
        start=solution.start or name,
        bound=max(bound, solution.bound),
        interrupted=solution.interrupted,
    )
    if not partition.feasible and not best_effort:
        raise _infeasible(partition, heaviest, problem.tasks)
    return partition


def _solved(problem: Problem, search: Search, bound: int, backend: str | Backend) -> Solution:
    """Solve by the backend."""
    modelling = problem.modelling
    if backend == "native" and modelling.slices * modelling.bands > 1:
        return _balanced(problem, search, tiled_partition(problem, search, bound))
    if backend == "native":
        return _balanced(problem, search, native_partition(problem, search, bound))
    if backend == "exact":
        return _balanced(problem, search, exact_partition(problem, search, bound))
    links = problem.objective.links
    if links is not None:  # which Mt-KaHyPar alone takes, see `check_backend`
        mapped = by_blocks(problem, search, partial(mtkahypar, links=links))
        return _balanced(problem, search, mapped)
    return by_blocks(problem, search, backend_named(backend))


def _balanced(problem: Problem, search: Search, solution: Solution) -> Solution:
    """Split blocks and move them where a part has too much, if memory has room for that."""
    model, parts, memory = solution.model, solution.parts, problem.memory
    if rank(model, parts, problem.capacities)[0] == 0 or solution.interrupted:
        return solution
    model, parts = split_and_improve(problem, search, model, parts)
    if memory is not None and not memory.hold(memory.needed(model, parts)):
        return solution
    return replace(solution, model=model, parts=parts)


def _infeasible(best: Partition, heaviest: HeaviestTask, tasks: int) -> BaseException:
    """The error that says why the best partition is not what was asked for."""
    if best.interrupted:
        return KeyboardInterrupt("before a partition within the limits was found")
    problem, needed = best.problem, best.memory_bytes
    memory = problem.memory
    if memory is not None and needed is not None and not memory.hold(needed):
        return InfeasibleError(_too_little_memory(problem, memory, needed, tasks))
    if best.broken:
        return InfeasibleError(
            f"no partition was found that keeps to {'; '.join(best.broken)}; "
            "one may have to give way"
        )
    reached = best.evaluation.imbalance
    if problem.constraints:
        return InfeasibleError(
            f"no partition within eps {problem.eps:g} was found for k={problem.k} with "
            f"{problem.constraints}: the best has imbalance {reached:.4g}, so the smallest eps "
            f"known to do is {round_up(reached)}; {heaviest}"
        )
    return InfeasibleError(
        f"no partition within eps {problem.eps:g} was found for k={problem.k}: the best has "
        f"imbalance {reached:.4g}, so the smallest eps known to do is {round_up(reached)}; "
        f"{heaviest}"
    )


def _too_little_memory(problem: Problem, memory: MemoryLimits, needed: Int64, tasks: int) -> str:
    k, constraints = problem.k, problem.constraints
    limits = np.array(memory.bytes)
    part = int((needed - limits).argmax())
    least = -(-int(needed.sum()) // max(1, int(limits.min())))
    enough = f"; such devices, {least} or more of them, may do" if least > k else ""
    if constraints:  # more devices may not help what has to be on one of them
        enough = f"; a constraint may have to give way: {constraints}"
    elif least > tasks:
        enough = f"; {tasks} such devices, one for each task, have less than that, too"
    return (
        f"no partition within the memory limits was found for k={k}: in the best, part "
        f"{part} needs {in_words(needed[part])} of {in_words(limits[part])}, and all parts "
        f"{in_words(needed.sum())} of {in_words(limits.sum())}, with {memory.counted}{enough}"
    )
