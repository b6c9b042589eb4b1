"""Problem -> partition of least volume, and the proof, by OR-Tools CP-SAT.

What counts is how many units of each class lie in each part (`counts`), which is a small integer
program that is solved for a few parts; for more, what a single part can hold says how far the best
can be (`contents_bound`). The native solver's partition comes first, and never a worse one.
"""

from __future__ import annotations

import importlib.util
import time

import numpy as np

from hgpart.arrays import Int32, Int64
from hgpart.errors import ArgumentError, MissingPackageError
from hgpart.hypergraph.building import evaluate_parts
from hgpart.hypergraph.hypergraph import Hypergraph
from hgpart.hypergraph.metrics import communication_volume, part_loads
from hgpart.partition.exact.contents_bound import contents_bound
from hgpart.partition.exact.counts import solve_counts
from hgpart.partition.exact.net_pins import class_variables
from hgpart.partition.external.contract import check_request
from hgpart.partition.native.any_hypergraph import native
from hgpart.partition.native.search import native_partition
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.problem.solution import Solution
from hgpart.partition.symmetry.divisions import blocks_of, division_of
from hgpart.partition.symmetry.finding import symmetry_of
from hgpart.partition.symmetry.symmetry import Symmetry
from hgpart.partition.symmetry.vertex_classes import (
    division_of_parts,
    parts_of_division,
    vertex_classes,
)

TIME_LIMIT = 60.0  # seconds, where none is given
EFFORT = 0.3  # of the native solver, for a start of the counts program
SHARE_OF_START = 0.25  # of the time, that the start may take
MOST_COUNTED = 8  # parts, for which the counts program is solved, where it is small enough
SHARE_OF_CONTENTS = 1 / 3  # of the time after the start, that `contents_bound` may take before it
MOST_VARIABLES = 100_000


def exact(
    hypergraph: Hypergraph, capacities: Int64, *, seed: int = 0, time_limit: float | None = None
) -> Int32:
    """Partition a small hypergraph by the counts program of its equal vertices; see `backends`.

    After 60 s, where there is no other time limit, the best by then is returned. A model is better
    partitioned by `exact_partition`, which knows more of it.

    Raises
    ------
    ArgumentError
        Also if the hypergraph is too large.
    """
    check_request(hypergraph, capacities, seed, time_limit)
    check_installed()
    limit = TIME_LIMIT if time_limit is None else time_limit
    deadline = time.monotonic() + limit
    k = len(capacities)
    parts = native(hypergraph, capacities, seed=seed, time_limit=limit * SHARE_OF_START)
    volume = communication_volume(hypergraph, parts, k)
    is_within = bool((part_loads(hypergraph, parts, k) <= capacities).all())
    if is_within and volume == 0:
        return parts
    symmetry = vertex_classes(hypergraph)
    _check_size(symmetry, k)
    solved = solve_counts(
        symmetry,
        capacities,
        division_of_parts(symmetry, parts, k),
        volume if is_within else None,
        0,
        seed=seed,
        deadline=deadline,
    )
    if solved.interrupted:
        raise KeyboardInterrupt
    if solved.division is None:
        return parts
    solved_parts = parts_of_division(symmetry, solved.division)
    better = not is_within or communication_volume(hypergraph, solved_parts, k) < volume
    return solved_parts if better else parts


def exact_partition(problem: Problem, search: Search, bound: int) -> Solution:
    """Partition a model, and prove how far from the least volume that is.

    The same seed and effort give the same partition if it is proven optimal before the time limit
    (60 s where there is none), whatever the number of cores. Ctrl-C returns the best by then.

    Parameters
    ----------
    search : Search
        The effort is of the native solver's search: relative to a third or so of its default where
        the counts program goes on from there, to its default in more than 8 parts.
    bound : int
        Bytes that are known to be sent at least; see `bounds.lower_bound`.

    Returns
    -------
    Solution
        The capacities may be exceeded where no partition within them was found.

    Raises
    ------
    ArgumentError
        If the model is fine-grain, or its weights or costs are too large for CP-SAT.
    MissingPackageError
        If OR-Tools is not installed.
    """
    check_installed()
    if problem.modelling.grain != "coarse":
        raise ArgumentError(
            f"grain is {problem.modelling.grain!r}, expected 'coarse' for backend exact: rows and "
            "columns of tasks are not counted; take backend native"
        )
    limit = TIME_LIMIT if search.time_limit is None else search.time_limit
    deadline = time.monotonic() + limit
    k, seed, capacities = problem.k, search.seed, problem.capacities
    symmetry = symmetry_of(problem)
    is_counted = k <= MOST_COUNTED and sum(class_variables(symmetry, k)) <= MOST_VARIABLES
    effort = EFFORT * search.effort if is_counted else search.effort
    first = native_partition(problem, Search(seed, effort, SHARE_OF_START * limit), bound)
    if first.interrupted:
        return first
    model, parts, interrupted = first.model, first.parts, False
    try:
        evaluation = evaluate_parts(model, parts, k)
        volume = evaluation.volume
        is_within = bool((evaluation.loads <= capacities).all())
        start = division_of(symmetry, model, parts)
        if is_within and volume > bound:
            now = time.monotonic()
            until = now + (SHARE_OF_CONTENTS if is_counted else 1) * (deadline - now)
            bound, interrupted = contents_bound(
                symmetry, capacities, start, volume, bound, seed=seed, deadline=until
            )
        if interrupted or not is_counted or (is_within and volume == bound):
            return Solution(model, parts, bound, interrupted)
        known = volume if is_within else None
        solved = solve_counts(
            symmetry, capacities, start, known, bound, seed=seed, deadline=deadline
        )
        bound, interrupted = solved.bound, solved.interrupted
        if solved.division is not None:
            better = blocks_of(problem, symmetry, solved.division)
            if known is None or evaluate_parts(*better, k).volume < known:
                model, parts = better
    except KeyboardInterrupt:  # the best by now is returned
        interrupted = True
    return Solution(model, parts, bound, interrupted)


def check_installed() -> None:
    """Raise a MissingPackageError unless OR-Tools is installed."""
    if importlib.util.find_spec("ortools") is None:
        raise MissingPackageError("the package ortools is not installed: pip install ortools")


def _check_size(symmetry: Symmetry, k: int) -> None:
    """Refuse what no program of reasonable size describes."""
    sizes = class_variables(symmetry, k)
    if sum(sizes) <= MOST_VARIABLES:
        return
    largest = int(np.argmax(sizes))
    vertex = int(np.flatnonzero(symmetry.elements.classes == largest)[0])
    raise ArgumentError(
        f"k is {k}, which makes {sum(sizes):,} variables for backend exact, {sizes[largest]:,} of "
        f"them for vertices like vertex {vertex}, expected at most {MOST_VARIABLES:,}: take a "
        "smaller k, or backend native"
    )
