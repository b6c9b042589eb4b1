"""ChannelGraph + work + k + eps -> Partition: blocks, backend, then split blocks and improve."""

from __future__ import annotations

import math
import numbers
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from hgpart import _native
from hgpart.errors import ArgumentError, InfeasibleError
from hgpart.hypergraph.blocks import Blocks, Modelling, divide, full_vertices, halve
from hgpart.hypergraph.building import (
    CnnHypergraph,
    channel_shares,
    check_bytes,
    check_work,
    cnn_hypergraph,
    evaluate_parts,
)
from hgpart.hypergraph.hypergraph import Int32, Int64
from hgpart.hypergraph.metrics import Evaluation, imbalance
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.partition.backends import backend as backend_named
from hgpart.partition.baselines.layerwise import layerwise_within
from hgpart.partition.bounds.lower_bound import lower_bound, relative_gap
from hgpart.partition.exact.counting import exact_partition
from hgpart.partition.external.isolated import LONGEST_LIMIT
from hgpart.partition.native.search import Progress, native_partition
from hgpart.partition.problem.balance import capacities, pack, within
from hgpart.partition.problem.memory import MemoryLimits, part_memory
from hgpart.partition.problem.objectives import VOLUME, Objective
from hgpart.partition.problem.project import project
from hgpart.work.figures import Work

SLOWEST, FASTEST = 1e-9, 1e9  # speeds of devices are relative
MOST_EFFORT = 1000

# Blocks for each part, so that a block is a small share of a part; more for fine-grain, where a
# layer's blocks are a grid. With more, KaHyPar merges them again and finds nothing better, unless
# eps is so small that it needs smaller ones to balance.
BLOCKS_PER_PART = {"coarse": 16, "fine": 32}
MOST_BLOCKS_PER_PART = 64
BLOCK_OF_EPS = 1.5  # a block's share of a part, at most, in units of eps

# Split blocks are improved up to this size even when the balance holds already.
MAX_SPLIT_VERTICES = 20_000
MAX_IMPROVED_PINS = 4_000_000

# A search for balance goes on down to single tasks, up to this size: 1 GB or so.
MAX_BALANCED_VERTICES = 5_000_000
MAX_BALANCED_PINS = 30_000_000

# Refinement keeps a count for each net and part: 2 GB.
MAX_REFINED_COUNTS = 2**29


@dataclass(frozen=True)
class Partition:
    """A k-way partition of a model, and what it costs by hgpart's own metrics.

    Attributes
    ----------
    model : CnnHypergraph
        The blocks that the parts are of.
    modelling : Modelling
    parts : int32 array, shape (model.vertices,)
    k, eps, seed, backend, speeds
        What was asked for; `speeds` is None for equal devices.
    start : str
        What the best partition was found from: the backend's, or "layerwise", the cut between
        layers of least volume within eps.
    evaluation : Evaluation
    feasible : bool
        Whether every part's load is at most (1 + eps) times its share, and its memory within its
        limit.
    lower_bound : int
        Bytes that every partition whose loads are within eps sends at least: of
        `bound.lower_bound`, or more where the backend proves more.
    objective : Objective
        What the search was for.
    memory : MemoryLimits or None
        What each part may need.
    memory_bytes : int64 array, shape (k,), or None
        What it needs, where that is limited; see `memory`.
    interrupted : bool
        Whether Ctrl-C ended the search: it is the best that had been found by then.
    """

    model: CnnHypergraph
    modelling: Modelling
    parts: Int32
    k: int
    eps: float
    seed: int
    backend: str
    start: str
    speeds: tuple[float, ...] | None
    evaluation: Evaluation
    feasible: bool
    lower_bound: int
    objective: Objective = VOLUME
    memory: MemoryLimits | None = None
    memory_bytes: Int64 | None = None
    interrupted: bool = False

    @property
    def gap(self) -> float:
        """Share of the objective that a better partition within eps might do without; 0.0: none.

        Negative where it is less than the lower bound, which only an infeasible one can be.
        """
        least = self.objective.least(self.lower_bound, self.k)
        return relative_gap(self.objective.value(self.evaluation.traffic), least)


def partition_graph(
    graph: ChannelGraph,
    work: Work,
    k: int,
    eps: float,
    *,
    modelling: Modelling | None = None,
    backend: str = "native",
    seed: int = 0,
    speeds: Sequence[float] | None = None,
    objective: Objective = VOLUME,
    memory: MemoryLimits | None = None,
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
    graph : ChannelGraph
    work : Work
    k : int
        Devices, at least 1 and at most the number of tasks.
    eps : float
        Imbalance allowed: no part's work exceeds (1 + eps) times its share of the total.
    modelling : Modelling, optional
        Grain, batch size and what counts; coarse-grain at batch 32 when left out.
    backend : str
        "native", "kahypar" or "mtkahypar"; or "exact" (coarse-grain only, small k), which proves
        how good its partition is.
    seed : int
        The same seed gives the same partition.
    speeds : sequence of k numbers, optional
        Relative speeds of the devices; a part's share is in proportion.
    objective : Objective
        What to have little of: all bytes, those of the part with most, or the cost of the links
        that they take. Of the native solver.
    memory : MemoryLimits, optional
        Bytes that each part may need. Of the native solver.
    time_limit : float, optional
        Seconds for the backend and the improvement after it, each level of which it ends early;
        results may then differ from run to run. 60 s for "exact", where none is given.
    effort : float
        How long the native solver searches, relative to its default.
    best_effort : bool
        Return the best that was found, marked infeasible, where eps can't be met.
    on_progress : function of a float and an int or None, optional
        Called several times a second by the native solver: the share of its search that is done,
        and the volume in bytes of the best partition so far, None at first.

    Raises
    ------
    ArgumentError
        If an argument is out of range, or the backend can't take the model.
    InfeasibleError
        If eps can't be met, and then it names the heaviest task and the smallest eps known to do,
        or a memory limit can't.
    BackendError, MissingPackageError
        If the backend fails or is not installed.
    KeyboardInterrupt
        On Ctrl-C, where there is nothing to return yet.
    """
    modelling = modelling or Modelling()
    check_arguments(k, eps, seed, speeds)
    check_search(time_limit, effort)
    if k > (tasks := full_vertices(graph, modelling)):
        raise ArgumentError(f"k is {k}, expected at most {tasks}, the number of tasks")
    check_work(graph, work)
    check_bytes(graph, modelling)
    check_goal(k, backend, objective, memory)
    k, eps, seed = int(k), float(eps), int(seed)  # NumPy's numbers don't go into a plan file
    heaviest, heaviest_work = _heaviest_task(graph, work, modelling)
    total = sum(
        int(each) * layer.tasks
        for each, layer in zip(work.per_task, graph.layers, strict=True)
        if modelling.has_vertices(layer)
    )
    shares = [1.0] * k if speeds is None else list(map(float, speeds))
    room = capacities(total, shares, eps)
    smallest = _smallest_eps(heaviest_work, total, shares)
    if heaviest_work > room.max() and not best_effort:
        enough = _round_up(_packed_imbalance(graph, work, modelling, shares, smallest))
        raise InfeasibleError(
            f"eps {eps:g} can't be met with k={k}: the heaviest task, {heaviest}, is "
            f"{100 * heaviest_work / total:.3g} % of all work; the smallest eps known to do is "
            f"{enough}"
        )
    goal = room
    if heaviest_work > room.max():
        goal = capacities(total, shares, _round_up(smallest))

    deadline = math.inf if time_limit is None else time.monotonic() + time_limit
    start, bound, interrupted = backend, lower_bound(graph, work, modelling, goal), False
    if backend in ("native", "exact"):
        if backend == "native":
            solution = native_partition(
                graph,
                work,
                modelling,
                goal,
                bound,
                objective=objective,
                memory=memory,
                seed=seed,
                effort=effort,
                deadline=deadline,
                on_progress=on_progress,
            )
        else:
            solution = exact_partition(
                graph, work, modelling, goal, bound, seed=seed, effort=effort, time_limit=time_limit
            )
        model, parts, bound = solution.model, solution.parts, solution.bound
        interrupted = solution.interrupted
        if _rank(model, parts, goal)[0] > 0 and not interrupted:
            better = _split_and_improve(graph, work, modelling, model, parts, goal, seed, deadline)
            needed = _memory_bytes(graph, modelling, memory, *better, k)
            if _in_memory(memory, needed):
                model, parts = better
    else:
        model, parts, start = _by_blocks(
            graph, work, modelling, goal, backend, seed, eps, time_limit, deadline
        )
    found = evaluated(
        graph,
        work,
        model,
        modelling,
        parts,
        k,
        eps,
        seed=seed,
        backend=backend,
        start=start,
        speeds=None if speeds is None else tuple(shares),
        objective=objective,
        memory=memory,
        bound=bound,
        interrupted=interrupted,
    )
    if not found.feasible and not best_effort:
        if interrupted:
            raise KeyboardInterrupt("before a partition within the limits was found")
        if not _in_memory(memory, found.memory_bytes):
            raise InfeasibleError(_too_little_memory(found))
        reached = found.evaluation.imbalance
        raise InfeasibleError(
            f"no partition within eps {eps:g} was found for k={k}: the best has imbalance "
            f"{reached:.4g}, so the smallest eps known to do is {_round_up(reached)}; the heaviest "
            f"task, {heaviest}, is {100 * heaviest_work / max(1, total):.3g} % of all work"
        )
    return found


def _memory_bytes(
    graph: ChannelGraph,
    modelling: Modelling,
    memory: MemoryLimits | None,
    model: CnnHypergraph,
    parts: Int32,
    k: int,
) -> Int64 | None:
    if memory is None:
        return None
    return part_memory(graph, model, modelling, parts, k, memory.copies)


def _in_memory(memory: MemoryLimits | None, needed: Int64 | None) -> bool:
    return memory is None or needed is None or bool((needed <= memory.bytes).all())


def _too_little_memory(found: Partition) -> str:
    assert found.memory is not None
    assert found.memory_bytes is not None
    needed, limits = found.memory_bytes, np.array(found.memory.bytes)
    part = int((needed - limits).argmax())
    return (
        f"no partition within the memory limits was found for k={found.k}: in the best, part "
        f"{part} needs {needed[part]} bytes of {limits[part]}, and all parts {needed.sum()} of "
        f"{limits.sum()}, with {found.memory.copies:g} copies of the parameters"
    )


def evaluated(
    graph: ChannelGraph,
    work: Work,
    model: CnnHypergraph,
    modelling: Modelling,
    parts: Int32,
    k: int,
    eps: float,
    *,
    seed: int,
    backend: str,
    start: str,
    speeds: tuple[float, ...] | None = None,
    objective: Objective = VOLUME,
    memory: MemoryLimits | None = None,
    bound: int | None = None,
    interrupted: bool = False,
) -> Partition:
    """Put a partition, whoever made it, together with its figures by hgpart's own metrics.

    `bound` is a lower bound of the volume within eps, where one is known.
    """
    if bound is None:
        room = capacities(int(model.weights.sum()), speeds or [1] * k, eps)
        bound = lower_bound(graph, work, modelling, room)
    evaluation = evaluate_parts(model, parts, k, speeds)
    needed = _memory_bytes(graph, modelling, memory, model, parts, k)
    return Partition(
        model=model,
        modelling=modelling,
        parts=parts,
        k=k,
        eps=eps,
        seed=seed,
        backend=backend,
        start=start,
        speeds=speeds,
        evaluation=evaluation,
        feasible=within(evaluation.loads, speeds or [1] * k, eps) and _in_memory(memory, needed),
        lower_bound=bound,
        objective=objective,
        memory=memory,
        memory_bytes=needed,
        interrupted=interrupted,
    )


def _by_blocks(
    graph: ChannelGraph,
    work: Work,
    modelling: Modelling,
    goal: Int64,
    backend: str,
    seed: int,
    eps: float,
    time_limit: float | None,
    deadline: float,
) -> tuple[CnnHypergraph, Int32, str]:
    """Have a general partitioner divide blocks, then split and move them; say what was best."""
    blocks = divide(graph, work, modelling, len(goal) * _blocks_per_part(modelling.grain, eps))
    model = cnn_hypergraph(graph, work, blocks, modelling)
    parts = backend_named(backend)(model.hypergraph, goal, seed=seed, time_limit=time_limit)
    parts = _refine(model, parts, goal, seed, deadline)
    start = backend
    cut = layerwise_within(graph, work, replace(modelling, grain="coarse"), goal)
    if cut is not None:
        # So that no cut between layers within eps is ever better.
        other = cut.astype(np.int32)[model.vertex_layers]
        other = _refine(model, other, goal, seed, deadline)
        if _rank(model, other, goal) < _rank(model, parts, goal):
            parts, start = other, "layerwise"
    model, parts = _split_and_improve(graph, work, modelling, model, parts, goal, seed, deadline)
    return model, parts, start


def _blocks_per_part(grain: str, eps: float) -> int:
    needed = math.ceil(1 / max(eps * BLOCK_OF_EPS, 1 / MOST_BLOCKS_PER_PART))
    return max(BLOCKS_PER_PART[grain], needed)


def _split_and_improve(
    graph: ChannelGraph,
    work: Work,
    modelling: Modelling,
    model: CnnHypergraph,
    parts: Int32,
    goal: Int64,
    seed: int,
    deadline: float,
) -> tuple[CnnHypergraph, Int32]:
    """Halve blocks and move the halves, as long as that is small or the balance asks for it.

    Returns the coarsest blocks that hold the best partition.
    """
    best, best_parts, best_rank = model, parts, _rank(model, parts, goal)
    while time.monotonic() < deadline:
        balanced = best_rank[0] == 0
        blocks = halve(model.blocks, graph, modelling)
        if _same(blocks, model) or (balanced and model.vertices > MAX_SPLIT_VERTICES):
            break
        if _most_vertices(blocks) > MAX_BALANCED_VERTICES:
            break
        finer = cnn_hypergraph(graph, work, blocks, modelling)
        pins = int(finer.nets.sizes().sum())
        if pins > (MAX_IMPROVED_PINS if balanced else MAX_BALANCED_PINS):
            break
        parts = _refine(finer, project(parts, model, finer), goal, seed, deadline)
        model = finer
        if (rank := _rank(model, parts, goal)) < best_rank:
            best, best_parts, best_rank = model, parts, rank
    if best_rank[0] > 0:
        # Heaviest first is the surest way to balance, whatever travels.
        packed = pack(model.weights, goal)
        parts = _refine(model, packed, goal, seed, deadline)
        if _rank(model, parts, goal) < best_rank:
            best, best_parts = model, parts
    return best, best_parts


def _refine(model: CnnHypergraph, parts: Int32, goal: Int64, seed: int, deadline: float) -> Int32:
    """Move single vertices, as long as the counts of that have room."""
    if len(model.nets.costs) * len(goal) > MAX_REFINED_COUNTS:
        return parts
    return _native.refine(model.hypergraph, parts, goal, seed, deadline - time.monotonic())


def _rank(model: CnnHypergraph, parts: Int32, goal: Int64) -> tuple[float, int]:
    """Largest overload, relative to its part's capacity, then volume: less is better."""
    found = evaluate_parts(model, parts, len(goal))
    over = np.maximum(found.loads - goal, 0)
    return float((over / np.maximum(goal, 1)).max()), found.volume


def _most_vertices(blocks: Blocks) -> int:
    """A bound on the vertices that blocks make, without making them."""
    return sum(
        (len(rows) - 1) * len(columns)
        for rows, columns in zip(blocks.rows, blocks.columns, strict=True)
    )


def _same(blocks: Blocks, model: CnnHypergraph) -> bool:
    pairs = zip(
        (*blocks.rows, *blocks.columns), (*model.blocks.rows, *model.blocks.columns), strict=True
    )
    return all(len(one) == len(other) for one, other in pairs)


def _heaviest_task(graph: ChannelGraph, work: Work, modelling: Modelling) -> tuple[str, int]:
    """The heaviest vertex of the full hypergraph, and its work; that of tied layers adds up."""
    names: dict[int, str] = {}
    weights: dict[int, Int64] = {}
    for at, layer in enumerate(graph.layers):
        if not modelling.has_vertices(layer):
            continue
        read = modelling.split_read(layer)
        each = int(work.per_task[at])
        if read is not None:
            cells = channel_shares(read, each)
            found = np.append(cells, each - cells.sum(axis=1))  # of cells, then reductions
            name = f"a filter channel of {layer.name}"
        elif modelling.is_solid(layer):
            found, name = np.array([each * layer.tasks]), f"all of {layer.name}"
        else:
            found, name = np.array([each]), f"a filter of {layer.name}"
        names.setdefault(layer.tied_to, name)
        weights[layer.tied_to] = weights.get(layer.tied_to, 0) + found
    at = max(weights, key=lambda index: int(weights[index].max()))
    return names[at], int(weights[at].max())


def _smallest_eps(heaviest: int, total: int, speeds: Sequence[float]) -> float:
    """The eps below which the heaviest task fits on no device."""
    if total == 0:
        return 0.0
    exact = [Fraction(str(speed)) for speed in speeds]
    return float(heaviest * sum(exact) / (total * max(exact)) - 1)


def _packed_imbalance(
    graph: ChannelGraph, work: Work, modelling: Modelling, speeds: list[float], smallest: float
) -> float:
    """Imbalance of whole tasks, heaviest first, each put where there is most room."""
    tasks = [1 if modelling.is_solid(layer) else layer.tasks for layer in graph.layers]
    per_task = work.per_task * [
        layer.tasks // count for layer, count in zip(graph.layers, tasks, strict=True)
    ]
    first = np.cumsum([0, *tasks])
    weights = np.zeros(int(first[-1]), dtype=np.int64)
    for at, layer in enumerate(graph.layers):
        start = int(first[layer.tied_to])
        weights[start : start + tasks[at]] += per_task[at]
    parts = pack(weights, capacities(int(weights.sum()), speeds, smallest))
    loads = np.zeros(len(speeds), dtype=np.int64)
    np.add.at(loads, parts, weights)
    return imbalance(loads, speeds)


def _round_up(eps: float) -> float:
    """Three digits, not below the number itself.

    >>> _round_up(0.15241), _round_up(0.0)
    (0.153, 0.0)
    """
    if eps <= 0:
        return 0.0
    step = 10.0 ** (math.floor(math.log10(eps)) - 2)
    return float(f"{math.ceil(eps / step) * step:.3g}")


def check_arguments(k: int, eps: float, seed: int, speeds: Sequence[float] | None) -> None:
    """Raise an ArgumentError for what no model can be partitioned with."""
    if not _is_whole(k) or k < 1:
        raise ArgumentError(f"k is {k}, expected a whole number of devices, at least 1")
    if not _is_number(eps) or not math.isfinite(eps) or eps < 0:
        raise ArgumentError(f"eps is {eps}, expected a number >= 0, as 0.1 for 10 %")
    if not _is_whole(seed) or not 0 <= seed < 2**63:
        raise ArgumentError(f"seed is {seed}, expected a whole number from 0 to {2**63 - 1}")
    if speeds is not None and len(speeds) != k:
        raise ArgumentError(f"{len(speeds)} speeds for k={k}, expected one for each device")
    for speed in speeds if speeds is not None else ():
        if not _is_number(speed) or not SLOWEST <= speed <= FASTEST:
            raise ArgumentError(
                f"speed is {speed}, expected a number from {SLOWEST:g} to {FASTEST:g}"
            )


def check_search(time_limit: float | None, effort: float) -> None:
    """Raise an ArgumentError for what no search can take."""
    accepted = time_limit is None or (_is_number(time_limit) and 0 < time_limit <= LONGEST_LIMIT)
    if not accepted:
        raise ArgumentError(
            f"time limit is {time_limit} s, expected more than 0 and at most {LONGEST_LIMIT:g}"
        )
    if not _is_number(effort) or not 0 <= effort <= MOST_EFFORT:
        raise ArgumentError(f"effort is {effort}, expected 0 to {MOST_EFFORT}, 1 by default")


def check_goal(k: int, backend: str, objective: Objective, memory: MemoryLimits | None) -> None:
    """Raise an ArgumentError for what the backend can't search for, or what is not for k parts."""
    if memory is not None and len(memory.bytes) != k:
        raise ArgumentError(
            f"{len(memory.bytes)} memory limits for k={k}, expected one for each device"
        )
    if objective.links is not None and len(objective.links) != k:
        raise ArgumentError(f"link costs of {len(objective.links)} devices, expected k={k}")
    if backend != "native" and (memory is not None or objective.name != "volume"):
        wanted = "a memory limit" if memory is not None else f"objective {objective.name!r}"
        raise ArgumentError(
            f"backend {backend!r} takes no {wanted.removeprefix('a ')}: native does"
        )


def _is_whole(value: object) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


__all__ = ["Partition", "partition_graph"]
