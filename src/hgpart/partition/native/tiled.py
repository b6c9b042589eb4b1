"""Problem over slices of the batch and bands of rows -> Solution, by hgpart's own solver.

Early layers have large maps and few parameters and go by slices or bands, late ones the other way
round go by filters, or whole. First how many slices of whole layers each part has, from the ways
that are known; then tile by tile, layers whole at first and by filters later; fine-grain, from the
best of that, by channels of filters too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np

from hgpart import _native
from hgpart.arrays import Int32
from hgpart.hypergraph.blocks import Blocks, divide, layer_blocks
from hgpart.hypergraph.building import CnnHypergraph, evaluate_parts
from hgpart.hypergraph.shares import work_of_layers
from hgpart.partition.baselines.by_slices import in_every_slice
from hgpart.partition.baselines.known_ways import Parts, known_ways, stages_of_rooms
from hgpart.partition.baselines.spatial import rows_then_filters
from hgpart.partition.external.isolated import MOST_RUNS
from hgpart.partition.native.annealing import Cooling, Found
from hgpart.partition.native.layer_counts import (
    CountsChain,
    LayerModel,
    anneal_counts,
    counts_of,
    layer_model,
    parts_of_counts,
)
from hgpart.partition.native.rounds import Rounds
from hgpart.partition.native.search import native_partition
from hgpart.partition.native.starts import by_kahypar, by_rows
from hgpart.partition.native.toward_objective import (
    check_pairs,
    rounds_toward_objective,
    toward_objective,
)
from hgpart.partition.problem.number_of_blocks import tile_blocks
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.project import project
from hgpart.partition.problem.search import Search
from hgpart.partition.problem.solution import Solution
from hgpart.partition.steering.obeying import Obeying, cut_at_runs
from hgpart.partition.symmetry.divisions import Division, blocks_of, division_of
from hgpart.partition.symmetry.finding import symmetry_of
from hgpart.partition.symmetry.symmetry import Symmetry

COUNT_STEPS = 300_000  # of each chain of the rounds by counts, at effort 1
COUNT_ROUNDS = ((3e-3, 1e-3, 3e-4), (1e-3, 3e-4, 1e-4), (1e-3, 3e-4, 1e-4))  # temperatures
STEPS = 100_000  # of each chain of the rounds by slices, at effort 1
# Rows of a class, temperatures: layers whole, then by filters.
ROUNDS = ((2, (1e-3, 1e-5)), (16, (1e-3, 1e-4)), (16, (1e-4, 1e-5)))
# Where rows have bands, clusters of tiles move while it is hot.
BAND_STEPS = 300_000
BAND_ROUNDS = ((2, (3e-2, 1e-2, 1e-3)), (16, (1e-3, 3e-4)), (16, (1e-4, 1e-5)))
MOST_KAHYPAR_STEPS = 3_000_000  # see `by_kahypar`: some ten seconds
# Shares of the time that is left, for ways in bands and for KaHyPar among them; its least speed.
SHARE_OF_WAYS, SHARE_OF_KAHYPAR, STEPS_A_SECOND = 0.7, 0.6, 300_000
FINE_ROUNDS = ((1e-4, 1e-5), (1e-5, 1e-6))
FINE_ROWS = 6
MOST_VERTICES = 200_000  # of the division that fine-grain begins with
PARTS, LARGEST, MANY_LAYERS = 8, 2.0, 100
COLDEST, PRICE = 1e-6, 4.0
COARSE, SLACK = 0.2, 0.1  # of a part's capacity
KEPT = 3
# Of the search for the best partition of the model itself.
WHOLE_EFFORT, SHARE_OF_WHOLE = 0.1, 0.15


def tiled_partition(problem: Problem, search: Search, bound: int) -> Solution:
    """Partition the tiles of a model, each on its own.

    The result is never worse, by the objective, than the best partition of the whole model repeated
    in each tile, or than any known way within the limits.
    """
    coarse = problem.coarse
    whole = _whole(coarse, search)
    if whole.interrupted:
        obeying = Obeying(coarse)
        known = _ways(coarse.in_bands(1), whole)
        ways = [obeying.blocks(*in_every_band(coarse, *way)) for way in known]
        model, parts = min(ways, key=lambda way: _excess_and_value(coarse, *way))
        if problem is not coarse:
            model, parts = by_rows(problem, model, parts)
        return Solution(model, parts, bound, True)
    rounds = Rounds(coarse, search, bound, _number_of_rounds(problem))
    symmetry = symmetry_of(coarse)
    check_pairs(coarse, symmetry)
    try:
        _search(coarse, symmetry, rounds, whole)
    except KeyboardInterrupt:
        if rounds.best is None:
            raise
        rounds.clock.interrupt()
    assert rounds.best is not None
    model, parts = blocks_of(coarse, symmetry, rounds.best[1])
    solution = Solution(model, parts, bound, rounds.clock.interrupted)
    if problem is not coarse:
        return _fine(problem, search, solution, rounds)
    if not solution.interrupted:
        rounds.end()
    return solution


def _number_of_rounds(problem: Problem) -> int:
    """Number of rounds of the whole search, coarse-grain and fine-grain."""
    tiling = problem.modelling
    count = 1 + (tiling.bands > 1) + len(BAND_ROUNDS if tiling.bands > 1 else ROUNDS)
    if tiling.slices > 1:
        count += 1 + 2 * (1 + len(COUNT_ROUNDS))
    count += rounds_toward_objective(problem)
    if problem is not problem.coarse:
        count += 1 + len(FINE_ROUNDS) + rounds_toward_objective(problem)
    return count


def _whole(problem: Problem, search: Search) -> Solution:
    """The best partition of the model itself, in little time."""
    unsliced = problem.in_slices(1).in_bands(1)
    short = replace(search.part(SHARE_OF_WHOLE, WHOLE_EFFORT), on_progress=None)
    return native_partition(unsliced, short, 0)


def _fine(problem: Problem, search: Search, coarse: Solution, before: Rounds) -> Solution:
    """Anneal a coarse-grain partition by channels of filters too; never worse."""
    model, parts = by_rows(problem, coarse.model, coarse.parts)
    solution = replace(coarse, model=model, parts=parts)
    if solution.interrupted or search.left <= 0:
        return solution
    rounds = Rounds(problem, search.part(), coarse.bound, before.count)
    rounds.done, rounds.volume = before.done, before.volume
    try:
        symmetry = symmetry_of(problem)
        check_pairs(problem, symmetry)
        starts = [division_of(symmetry, model, parts)]
        if sum(own.size for own in starts[0].parts) > MOST_VERTICES:
            return solution
        whole = _whole(problem, search)
        flat = in_every_slice(problem.in_bands(1), whole.model, whole.parts)
        starts.append(division_of(symmetry, *in_every_band(problem, *flat)))
        best = rounds.anneal(symmetry, [(start, _no_steps(rounds)) for start in starts])
        steps = _at_effort(STEPS, rounds)
        for temperatures in FINE_ROUNDS:
            if not rounds.has_time(len(best[:KEPT]) * len(temperatures)):
                break
            chains = [
                (annealed.division, rounds.schedule(steps, hottest, COLDEST / 10, PRICE, FINE_ROWS))
                for annealed in best[:KEPT]
                for hottest in temperatures
            ]
            best = rounds.anneal(symmetry, chains, best)
        if not problem.objective.is_volume:
            divisions = starts + [annealed.division for annealed in best[:KEPT]]
            toward_objective(problem, rounds, symmetry, divisions, steps)
        rounds.end()
    except KeyboardInterrupt:
        rounds.clock.interrupt()
    if rounds.best is not None:
        model, parts = blocks_of(problem, *rounds.best)
    interrupted = rounds.clock.interrupted
    return replace(solution, model=model, parts=parts, interrupted=interrupted)


def _search(problem: Problem, symmetry: Symmetry, rounds: Rounds, whole: Solution) -> None:
    ways = [*_ways(problem.in_bands(1), whole)]
    in_bands = problem.modelling.bands > 1
    starts = [division_of(symmetry, *in_every_band(problem, *way)) for way in ways]
    best = rounds.anneal(symmetry, [(start, _no_steps(rounds)) for start in starts])
    if in_bands:
        more = [division_of(symmetry, *way) for way in _ways_in_bands(problem, rounds)]
        best = rounds.anneal(symmetry, [(start, _no_steps(rounds)) for start in more], best)
        starts += more
    divisions: list[Division] = []
    if problem.modelling.slices > 1:
        best, divisions = _of_whole_layers(problem, symmetry, rounds, ways, best)
    divisions = [annealed.division for annealed in best[:KEPT]] + divisions
    steps = _at_effort(BAND_STEPS if in_bands else STEPS, rounds)
    for most_rows, temperatures in BAND_ROUNDS if in_bands else ROUNDS:
        if not rounds.has_time(len(divisions) * len(temperatures)):
            break
        chains = [
            (division, rounds.schedule(steps, hottest, COLDEST, PRICE, most_rows))
            for division in divisions
            for hottest in temperatures
        ]
        best = rounds.anneal(symmetry, chains, best)
        divisions = [annealed.division for annealed in best[:KEPT]]
    if not problem.objective.is_volume:
        toward_objective(problem, rounds, symmetry, starts + divisions, steps)


def _ways_in_bands(problem: Problem, rounds: Rounds) -> Iterator[Parts]:
    """Known ways by rows, then what KaHyPar finds, in a share of the time that is left."""
    rest = max(0.0, (1 - SHARE_OF_WAYS) * rounds.clock.left)
    by_others = _by_kahypar(problem, rounds)
    for way in chain(stages_of_rooms(problem), rows_then_filters(problem), by_others):
        yield way
        if rounds.clock.left < rest:
            return


def _by_kahypar(problem: Problem, rounds: Rounds) -> Iterator[Parts]:
    """What KaHyPar finds for blocks of the tiles, or for whole tiles, if these are few enough."""
    room, seed = problem.capacities, rounds.search.seed
    steps = min(MOST_KAHYPAR_STEPS, SHARE_OF_KAHYPAR * rounds.clock.left * STEPS_A_SECOND)
    asked = rounds.clock, seed, steps, MOST_RUNS, SHARE_OF_KAHYPAR
    for count in dict.fromkeys((tile_blocks(problem), 1)):
        divided = divide(problem.graph, problem.work, problem.modelling, count)
        model = problem.hypergraph(cut_at_runs(problem, divided))
        if (parts := by_kahypar(problem, model, *asked)) is not None:
            may_lie = rounds.obeying.may_lie(model, parts)
            left = rounds.clock.left
            yield model, _native.refine(model.hypergraph, parts, room, seed, left, may_lie)
            return


def _of_whole_layers(
    problem: Problem, symmetry: Symmetry, rounds: Rounds, ways: Sequence[Parts], best: list[Found]
) -> tuple[list[Found], list[Division]]:
    """What counts of slices of whole layers find: with that the best so far, and looser ones."""
    layers = layer_model(problem.in_bands(1))
    by_counts = [division_of(symmetry, *way) for way in _by_counts(problem, rounds, layers, ways)]
    best = rounds.anneal(symmetry, [(division, _no_steps(rounds)) for division in by_counts], best)
    largest = float(layers.loads.max()) / layers.slices  # of a layer's slices
    if largest <= COARSE * layers.capacities.min():
        rounds.done += 1 + len(COUNT_ROUNDS)
        return best, []
    # Counts alone hardly balance; dividing filters makes up for what is too much.
    room = np.floor(layers.capacities * (1 + SLACK)).astype(np.int64)
    loose = _by_counts(problem, rounds, replace(layers, capacities=room), ways)
    return best, [division_of(symmetry, *way) for way in loose]


def _excess_and_value(problem: Problem, model: CnnHypergraph, parts: Int32) -> tuple[int, float]:
    """Sort key: work above the capacities, then the objective."""
    evaluation = evaluate_parts(model, parts, problem.k)
    excess = int(np.maximum(evaluation.loads - problem.capacities, 0).sum())
    value = problem.objective.value(evaluation.traffic, work_of_layers(model, parts, problem.k))
    return excess, value


def _no_steps(rounds: Rounds) -> Cooling:
    """Cooling of a chain that only evaluates its start."""
    return rounds.schedule(0, COLDEST, COLDEST, PRICE, 1)


def _at_effort(steps: int, rounds: Rounds) -> int:
    """Steps at this effort; `steps` are for a model of MANY_LAYERS layers on PARTS devices."""
    problem = rounds.problem
    size = min(LARGEST, max(1 / LARGEST, math.sqrt(problem.k / PARTS)))
    size *= min(1.0, MANY_LAYERS / len(problem.graph.layers))
    return max(1, round(steps * size * rounds.search.effort))


def _by_counts(
    problem: Problem, rounds: Rounds, layers: LayerModel, ways: Sequence[Parts]
) -> Iterator[Parts]:
    """The best that is found of whole layers, from the counts of ways that are known."""
    chains = [CountsChain(counts_of(*way, problem.k), _no_steps(rounds)) for way in ways]
    steps = _at_effort(COUNT_STEPS, rounds)
    best, interrupted = anneal_counts(layers, chains, rounds.clock.left)
    rounds.count_round()
    for temperatures in COUNT_ROUNDS:
        chains = [
            CountsChain(annealed.counts, rounds.schedule(steps, hottest, COLDEST, PRICE, 1))
            for annealed in best[:KEPT]
            for hottest in temperatures
        ]
        if not interrupted:
            left = rounds.clock.left
            best, interrupted = anneal_counts(layers, chains, left, on_progress=rounds.tell)
            rounds.count_round()
    if interrupted:
        rounds.clock.interrupt()
    flat = problem.in_bands(1)
    model = flat.hypergraph(layer_blocks(flat.views))
    for annealed in best[:KEPT]:
        yield in_every_band(problem, model, parts_of_counts(layers, annealed.counts).ravel())


def _ways(problem: Problem, whole: Solution) -> Iterator[Parts]:
    yield in_every_slice(problem, whole.model, whole.parts)
    yield from known_ways(problem)


def in_every_band(
    problem: Problem, model: CnnHypergraph, parts: Int32
) -> tuple[CnnHypergraph, Int32]:
    """A partition of the model without bands, the same for each band."""
    columns = zip(model.blocks.columns, problem.views, strict=True)
    blocks = Blocks(
        model.blocks.rows,
        tuple(cuts if view.split is not None else np.array([0, 1]) for cuts, view in columns),
    )
    banded = problem.hypergraph(blocks)
    return banded, project(parts, model, banded)
