"""Problem + Symmetry -> Divisions that annealing begins with, and how hot it begins."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import numpy as np

from hgpart.arrays import Int32
from hgpart.errors import BackendError, MissingPackageError
from hgpart.hypergraph.blocks import Blocks, divide, layer_blocks
from hgpart.hypergraph.building import CnnHypergraph
from hgpart.partition.baselines.incremental import incremental
from hgpart.partition.baselines.layerwise import layerwise_within
from hgpart.partition.baselines.transformed_parts import has_parts, transformed_parts
from hgpart.partition.external.kahypar import kahypar
from hgpart.partition.native.clock import Clock
from hgpart.partition.native.grids import grid_start
from hgpart.partition.native.layer_shares import layer_shares
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.project import project
from hgpart.partition.steering.fixed import parts_by
from hgpart.partition.steering.obeying import cut_at_runs
from hgpart.partition.symmetry.divisions import Division, division_of
from hgpart.partition.symmetry.symmetry import Symmetry

SHARES_OF_EPS = (0.4, 0.6, 0.8, 1.0)  # of the room above the average, that grids may use
MOST_KAHYPAR_STEPS = 700_000  # k vertices + 4 pins, see `isolated`: about two seconds a run

Start = tuple[Division, tuple[float, ...]]  # and the hottest temperatures of its chains


def coarse_starts(problem: Problem, symmetry: Symmetry, clock: Clock, seed: int) -> Iterator[Start]:
    """Tasks in order, a transformed model's parts, layers in parts of their own, and others'."""
    if problem.start is not None:
        yield division_of(symmetry, *at_home(problem)), (0.0003, 0.00001)
    yield division_of(symmetry, *incremental(problem)), (0.003, 0.001)
    if has_parts(problem):
        yield division_of(symmetry, *transformed_parts(problem)), (0.001, 0.0001)
    if clock.left <= 0:
        return
    yield _runs(problem, symmetry, 1.0), (0.001, 0.0001)
    cut = layerwise_within(problem)
    for number, blocks_per_part in enumerate((8, 16)):
        model = _divided(problem, blocks_per_part)
        if cut is not None and number == 0:
            parts = cut.astype(np.int32)[model.vertex_layers]
            yield division_of(symmetry, model, parts), (0.001, 0.0001)
        if (partition := by_kahypar(problem, model, clock, seed)) is not None:
            yield division_of(symmetry, model, partition), (0.0001, 0.00001)


def at_home(problem: Problem) -> tuple[CnnHypergraph, Int32]:
    """Each filter on the first device that has its weights, or where there is most room."""
    assert problem.start is not None
    blocks = cut_at_runs(problem, layer_blocks(problem.views))
    model = problem.hypergraph(blocks)
    parts = np.full(model.vertices, -1, dtype=np.int32)
    for at, homes in problem.start.homes.items():
        own = np.flatnonzero(model.vertex_layers == at)
        held = homes[model.blocks.rows[at][model.vertex_rows[own]]]
        parts[own] = np.where(held.any(axis=1), held.argmax(axis=1), -1)
    room = problem.capacities.astype(np.float64)
    np.subtract.at(room, parts[parts >= 0], model.weights[parts >= 0])
    for vertex in np.flatnonzero(parts < 0).tolist():
        parts[vertex] = int(room.argmax())
        room[parts[vertex]] -= model.weights[vertex]
    return model, parts


def fine_starts(problem: Problem, symmetry: Symmetry, clock: Clock, seed: int) -> Iterator[Start]:
    """Grids for several shares of the parts, and KaHyPar's."""
    for share in SHARES_OF_EPS:
        if clock.left <= 0:
            break
        hottest: tuple[float, ...] = (3e-5, 3e-6)
        if share == SHARES_OF_EPS[-1]:  # for small models, where a step changes much
            hottest += (1e-2, 1e-3)
        yield _runs(problem, symmetry, share), hottest
    model = _divided(problem, 16)
    if (parts := by_kahypar(problem, model, clock, seed)) is not None:
        yield division_of(symmetry, model, parts), (3e-3, 3e-5)


def strips(problem: Problem, symmetry: Symmetry, model: CnnHypergraph, parts: Int32) -> Division:
    """A coarse-grain partition as a fine-grain one: all cells of a task in its part."""
    return division_of(symmetry, *by_rows(problem, model, parts))


def by_rows(problem: Problem, model: CnnHypergraph, parts: Int32) -> tuple[CnnHypergraph, Int32]:
    """A coarse-grain partition as one of fine-grain blocks that are as wide as their layers."""
    columns = tuple(np.array([0, view.columns]) for view in problem.views)
    whole = problem.hypergraph(Blocks(model.blocks.rows, columns))
    return whole, project(parts, model, whole)


def _runs(problem: Problem, symmetry: Symmetry, share_of_eps: float) -> Division:
    """Runs of layers in parts of their own, as far as the parts go; fine-grain, as grids."""
    room = problem.capacities
    even = room * (problem.total / max(1, int(room.sum())))
    shares = layer_shares(problem, even + share_of_eps * np.maximum(0, room - even))
    return grid_start(problem, symmetry, shares)


def _divided(problem: Problem, blocks_per_part: int) -> CnnHypergraph:
    blocks = blocks_per_part * problem.k
    divided = divide(problem.graph, problem.work, problem.modelling, blocks)
    return problem.hypergraph(cut_at_runs(problem, divided))


def by_kahypar(
    problem: Problem,
    model: CnnHypergraph,
    clock: Clock,
    seed: int,
    most_steps: float = MOST_KAHYPAR_STEPS,
    most_runs: int = 1,
    share: float = 1.0,
) -> Int32 | None:
    """What KaHyPar finds for blocks of a model, in a share of the time that is left.

    None if a run needs more steps, or time is up.
    """
    steps = problem.k * model.vertices + 4 * int(model.nets.sizes().sum())
    left = clock.left
    if steps > most_steps or left <= 0:
        return None
    limit = None if left == math.inf else share * left
    try:
        return parts_by(partial(kahypar, most_runs=most_runs), problem, model, seed, limit)
    except (BackendError, MissingPackageError):
        return None  # one start of several
    except KeyboardInterrupt:
        clock.interrupt()
        return None
