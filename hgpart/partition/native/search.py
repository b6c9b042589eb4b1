"""ChannelGraph + work + capacities -> partition, by hgpart's own solver.

General partitioners see vertices and pins. This one sees classes of equal units (`symmetry`), of
which only the number in each part counts, so that a step of the search costs about a microsecond
whatever the number of tasks, and a layer's whole share can move at once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from hgpart import _native
from hgpart.errors import ArgumentError, BackendError, MissingPackageError
from hgpart.hypergraph.blocks import Blocks, Modelling, divide
from hgpart.hypergraph.building import CnnHypergraph, cnn_hypergraph, evaluate_parts
from hgpart.hypergraph.hypergraph import Hypergraph, Int32, Int64
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.partition.baselines.incremental import incremental
from hgpart.partition.baselines.layerwise import layerwise_within
from hgpart.partition.external.isolated import check
from hgpart.partition.external.kahypar import kahypar
from hgpart.partition.native.annealing import Found, Schedule, anneal
from hgpart.partition.native.divisions import Division, blocks_of, division_of
from hgpart.partition.native.grids import grid_start
from hgpart.partition.native.layer_shares import layer_shares
from hgpart.partition.native.symmetry import Symmetry, symmetry
from hgpart.partition.native.vertex_classes import (
    division_of_parts,
    parts_of_division,
    vertex_classes,
)
from hgpart.partition.problem.balance import pack
from hgpart.partition.problem.devices import cheapest_devices
from hgpart.partition.problem.goal import goal_of
from hgpart.partition.problem.memory import MemoryLimits
from hgpart.partition.problem.objectives import VOLUME, Objective
from hgpart.partition.problem.solution import Solution
from hgpart.work.figures import Work

Progress = Callable[[float, "int | None"], object]  # share done, volume of the best so far

STEPS = {
    "coarse": 500_000,
    "fine": 250_000,
    "hypergraph": 100_000,
}  # of each annealing of the first round, at effort 1
FULL_SIZE, LEAST_SIZE = 100, 0.03  # layers x parts that take so many; the least share of them
PATIENT_SIZE = 200  # layers x parts, from which on a round without success is not the last
MOST_PAIRS = 2**27  # sets of readers x parts x parts: 1 GiB a thread
MOST_ROWS = 16  # of a class, coarse-grain; more where a start has more
ROUNDS = {"coarse": 4, "fine": 3}
HOTTEST_TOWARD_OBJECTIVE = (3e-3, 3e-4)  # a round each, where that is not the volume
KEPT = 4  # divisions that go from one round to the next
SHARES_OF_EPS = (0.4, 0.6, 0.8, 1.0)  # of the room above the average, that grids may use
MOST_KAHYPAR_STEPS = 700_000  # k vertices + 4 pins, see `isolated`: about two seconds a run


def native(
    hypergraph: Hypergraph, capacities: Int64, *, seed: int = 0, time_limit: float | None = None
) -> Int32:
    """Partition any hypergraph by its classes of equal vertices; see `backends`.

    A model is better partitioned by `native_partition`, which knows more of it.
    """
    check(hypergraph, capacities, seed, time_limit)
    k, total = len(capacities), int(hypergraph.weights.sum())
    if k == 1 or total <= capacities.max():
        return np.full(hypergraph.vertices, capacities.argmax(), dtype=np.int32)
    counted = (np.diff(hypergraph.pointers) > 1) & (hypergraph.costs > 0)
    start = pack(hypergraph.weights, capacities)
    if k >= hypergraph.vertices or not counted.any():
        return start
    seed %= 2**62  # four chains of each in 64 bits
    deadline = math.inf if time_limit is None else time.monotonic() + time_limit
    found = vertex_classes(hypergraph)
    division = division_of_parts(found, start, k)
    chains = [
        (division, Schedule(4 * seed + chain, STEPS["hypergraph"], hottest, 1e-5, 4.0, 4 * k))
        for chain, hottest in enumerate((0.1, 0.03, 0.01, 0.003))
    ]
    results, interrupted = anneal(found, goal_of(capacities), chains, deadline - time.monotonic())
    if interrupted:
        raise KeyboardInterrupt
    best = min(results, key=lambda one: one.rank)
    parts = parts_of_division(found, best.division)
    return _native.refine(hypergraph, parts, capacities, seed, deadline - time.monotonic())


def native_partition(
    graph: ChannelGraph,
    work: Work,
    modelling: Modelling,
    capacities: Int64,
    bound: int,
    *,
    objective: Objective = VOLUME,
    memory: MemoryLimits | None = None,
    seed: int = 0,
    effort: float = 1.0,
    deadline: float = math.inf,
    on_progress: Progress | None = None,
) -> Solution:
    """Partition a model; what the parts may hold is exceeded where nothing better was found.

    The same seed and effort give the same partition, whatever the number of threads, unless the
    deadline (of `time.monotonic`) or Ctrl-C ends the search: the best by then is returned.
    It ends at the lower `bound` of the volume too. Several times a second `on_progress` gets the
    share of the search that is done, and the volume of the best partition that has been found,
    None at first.
    """
    return _Search(
        graph,
        work,
        modelling,
        capacities,
        bound,
        objective,
        memory,
        seed,
        effort,
        deadline,
        on_progress,
    ).run()


class _Search:
    def __init__(
        self,
        graph: ChannelGraph,
        work: Work,
        modelling: Modelling,
        capacities: Int64,
        bound: int,
        objective: Objective,
        memory: MemoryLimits | None,
        seed: int,
        effort: float,
        deadline: float,
        on_progress: Progress | None,
    ) -> None:
        self.graph, self.work, self.modelling = graph, work, modelling
        self.coarse = replace(modelling, grain="coarse")
        self.capacities, self.k = capacities, len(capacities)
        self.objective, self.memory = objective, memory
        self.copies = 0.0 if memory is None else memory.copies
        self.goal = goal_of(capacities, VOLUME, memory)
        self.seed, self.effort, self.deadline = seed, effort, deadline
        self.on_progress = on_progress
        self.chains = self.rounds = 0
        self.volume: int | None = None  # of the best so far
        self.by_coarse: Symmetry | None = None
        self.best: tuple[Symmetry, Division] | None = None
        self.interrupted = False
        self.size = 1.0
        self.bound = bound

    def run(self) -> Solution:
        """Search until all is done or time is up, or Ctrl-C, once there is something to return."""
        try:
            self._search()
        except KeyboardInterrupt:
            if self.best is None:
                raise
            self._interrupt()
        return Solution(*self._best_blocks(), self.bound, self.interrupted)

    def _interrupt(self) -> None:
        """Ctrl-C: nothing that takes long begins any more."""
        self.interrupted, self.deadline = True, -math.inf

    def _best_blocks(self) -> tuple[CnnHypergraph, Int32]:
        assert self.best is not None
        found, division = self.best
        if found is not self.by_coarse or self.modelling.grain == "coarse":
            return self._blocks(found, self.modelling, division)
        model, parts = self._blocks(found, self.coarse, division)
        found = symmetry(self.graph, self.work, self.modelling, self.copies)
        return self._blocks(found, self.modelling, self._strips(found, model, parts))

    def _search(self) -> None:
        found = self.by_coarse = symmetry(self.graph, self.work, self.coarse, self.copies)
        if self.memory is not None or self.objective.name != "volume":
            self._check_pairs(len(found.set_pointers) - 1)
        self.size = min(1.0, max(LEAST_SIZE, len(found.type_weights) * self.k / FULL_SIZE))
        best = self._coarse(found)
        if self.modelling.grain == "fine" and self._left() > 0:
            strips = [self._blocks(found, self.coarse, one.division) for one in best[:2]]
            found = symmetry(self.graph, self.work, self.modelling, self.copies)
            best = self._fine(found, strips)
        if self.objective.name != "volume" and self._left() > 0:
            self._toward_objective(found, best)
        if self.on_progress is not None:
            self.on_progress(1.0, self.volume)

    def _check_pairs(self, sets: int) -> None:
        """Refuse what the table of traffic between parts has no room for."""
        if sets * self.k**2 > MOST_PAIRS:
            most = math.isqrt(MOST_PAIRS // sets)
            raise ArgumentError(
                f"k is {self.k}, expected at most {most} for this model with a memory limit or an "
                "objective other than the volume"
            )

    def _blocks(
        self, found: Symmetry, modelling: Modelling, division: Division
    ) -> tuple[CnnHypergraph, Int32]:
        return blocks_of(self.graph, self.work, found, modelling, division)

    def _toward_objective(self, found: Symmetry, best: list[Found]) -> None:
        """Anneal what sends little in all until it also has little of what is asked for."""
        units = found.class_units[found.net_classes]
        most_bytes = int((found.net_costs * units).sum()) * self.k
        self.goal = goal_of(self.capacities, self.objective, self.memory, most_bytes)
        divisions = [one.division for one in best[:KEPT]]
        if self.objective.links is not None:
            divisions += [self._on_devices(found, division) for division in divisions]
        most_rows, coldest = (6, 1e-6) if self.modelling.grain == "fine" else (4 * self.k, 1e-5)
        steps = self._steps(self.modelling.grain)
        best = []
        for hottest in HOTTEST_TOWARD_OBJECTIVE:
            chains = [
                (division, self._schedule(steps, hottest, coldest, 4.0, most_rows))
                for division in divisions
            ]
            best = self._anneal(found, chains, best)
            divisions = [one.division for one in best[:KEPT]]

    def _on_devices(self, found: Symmetry, division: Division) -> Division:
        """Give each part the device that its traffic is cheapest from."""
        assert self.objective.links is not None
        model, parts = self._blocks(found, self.modelling, division)
        room = [self.capacities, *([] if self.memory is None else [np.array(self.memory.bytes)])]
        device = cheapest_devices(
            evaluate_parts(model, parts, self.k).traffic,
            self.objective.links,
            np.stack(room, axis=1),
            self.deadline,
        )
        return Division(division.sizes, [device[own] for own in division.parts])

    # -------------------------------------------------------------- coarse-grain

    def _coarse(self, found: Symmetry) -> list[Found]:
        """Anneal every start, then the best ones again."""
        steps = self._steps("coarse")
        if self.modelling.grain == "fine":
            steps //= 2  # it is only one of the starts
        chains = [
            (division, self._schedule(steps, hottest, min(hottest / 5, 5e-6), 4.0, MOST_ROWS))
            for division, temperatures in self._coarse_starts(found)
            for hottest in temperatures
        ]
        best = self._anneal(found, chains)
        for hottest in (3e-4, 1e-4, 3e-5):
            if self._optimal(best):
                break
            chains = [
                (one.division, self._schedule(3 * steps // 2, hottest, 3e-6, 4.0, MOST_ROWS))
                for one in best[:KEPT]
            ]
            before, best = best, self._anneal(found, chains, best)
            if best[0].rank == before[0].rank and len(found.type_weights) * self.k < PATIENT_SIZE:
                break  # where there is little to search, what one round misses the next does too
        return best

    def _coarse_starts(self, found: Symmetry) -> Iterator[tuple[Division, tuple[float, ...]]]:
        """Divisions to begin with, and how hot to begin."""
        model, parts = incremental(self.graph, self.work, self.coarse, self.k)
        yield self._division(found, model, parts), (0.003, 0.001)
        if self._left() <= 0:
            return
        yield self._runs(found, self.coarse, 1.0), (0.001, 0.0001)
        cut = layerwise_within(self.graph, self.work, self.coarse, self.capacities)
        for number, blocks_per_part in enumerate((8, 16)):
            model = self._divided(self.coarse, blocks_per_part)
            if cut is not None and number == 0:
                parts = cut.astype(np.int32)[model.vertex_layers]
                yield self._division(found, model, parts), (0.001, 0.0001)
            if (partition := self._by_kahypar(model)) is not None:
                yield self._division(found, model, partition), (0.0001, 0.00001)

    def _division(self, found: Symmetry, model: CnnHypergraph, parts: Int32) -> Division:
        return division_of(self.graph, found, self.coarse, model, parts)

    def _divided(self, modelling: Modelling, blocks_per_part: int) -> CnnHypergraph:
        blocks = divide(self.graph, self.work, modelling, blocks_per_part * self.k)
        return cnn_hypergraph(self.graph, self.work, blocks, modelling)

    def _by_kahypar(self, model: CnnHypergraph) -> Int32 | None:
        if self.k * model.vertices + 4 * int(model.nets.sizes().sum()) > MOST_KAHYPAR_STEPS:
            return None
        left = self._left()
        if left <= 0:
            return None
        limit = None if left == math.inf else left
        try:
            return kahypar(
                model.hypergraph, self.capacities, seed=self.seed, time_limit=limit, most_runs=1
            )
        except (BackendError, MissingPackageError):
            return None  # one start of several
        except KeyboardInterrupt:
            self._interrupt()
            return None

    # -------------------------------------------------------------- fine-grain

    def _fine(self, fine: Symmetry, strips: list[tuple[CnnHypergraph, Int32]]) -> list[Found]:
        """Anneal grids for several shares of the parts, and the strips of coarse-grain."""
        steps = self._steps("fine")
        starts = [
            (self._strips(fine, *one), hottest)
            for one, hottest in zip(strips, (1e-4, 3e-4), strict=False)
        ]
        for share in SHARES_OF_EPS:
            if self._left() <= 0:
                break
            runs = self._runs(fine, self.modelling, share)
            starts += [(runs, 3e-5), (runs, 3e-6)]
            if share == SHARES_OF_EPS[-1]:  # for small models, where a step changes much
                starts += [(runs, 1e-2), (runs, 1e-3)]
        model = self._divided(self.modelling, 16)
        if (parts := self._by_kahypar(model)) is not None:
            start = division_of(self.graph, fine, self.modelling, model, parts)
            starts += [(start, 3e-3), (start, 3e-5)]
        chains = [
            (start, self._schedule(steps, hottest, min(hottest / 5, 1e-6), 50.0, 6))
            for start, hottest in starts
        ]
        best = self._anneal(fine, chains)
        for hottest in (3e-5, 1e-5):
            if self._optimal(best):
                break
            chains = [
                (one.division, self._schedule(3 * steps, hottest, 1e-6, 50.0, 6))
                for one in best[:KEPT]
            ]
            best = self._anneal(fine, chains, best)
        return best

    def _strips(self, fine: Symmetry, model: CnnHypergraph, parts: Int32) -> Division:
        """A coarse-grain partition as a fine-grain one: all cells of a task in its part."""
        columns = tuple(
            np.array(
                [0, 1 if (read := self.modelling.split_read(layer)) is None else len(read.channels)]
            )
            for layer in self.graph.layers
        )
        whole = cnn_hypergraph(
            self.graph, self.work, Blocks(model.blocks.rows, columns), self.modelling
        )
        own = np.empty(whole.vertices, dtype=np.int32)
        for layout, coarse in zip(whole.layouts, model.layouts, strict=True):
            if layout is None or coarse is None:
                continue
            count = len(layout.row_columns)
            own[layout.finish : layout.finish + count] = parts[
                coarse.finish : coarse.finish + count
            ]
            if layout.row_starts[0] != layout.finish:
                own[layout.row_starts] = parts[coarse.finish : coarse.finish + count]
        return division_of(self.graph, fine, self.modelling, whole, own)

    # -------------------------------------------------------------- both

    def _runs(self, found: Symmetry, modelling: Modelling, share_of_eps: float) -> Division:
        """Runs of layers in parts of their own, as far as the parts go; fine-grain, as grids."""
        total = int(self.work.per_task @ [layer.tasks for layer in self.graph.layers])
        even = self.capacities * (total / max(1, int(self.capacities.sum())))
        rooms = even + share_of_eps * np.maximum(0, self.capacities - even)
        shares = layer_shares(self.graph, self.work, modelling, rooms)
        return grid_start(self.graph, found, modelling, shares.tasks, shares.parts)

    def _optimal(self, best: list[Found]) -> bool:
        return bool(best) and best[0].excess == 0 and best[0].cost <= self.bound

    def _steps(self, grain: str) -> int:
        return max(1, round(STEPS[grain] * self.effort * self.size))

    def _schedule(
        self, steps: int, hottest: float, coldest: float, price: float, most_rows: int
    ) -> Schedule:
        self.chains += 1
        seed = (self.seed * 1000 + self.chains) % 2**63
        return Schedule(seed, steps, hottest, coldest, price, most_rows)

    def _anneal(
        self,
        found: Symmetry,
        chains: list[tuple[Division, Schedule]],
        known: list[Found] | None = None,
    ) -> list[Found]:
        """What was known and is found now, best first."""
        results, interrupted = anneal(
            found, self.goal, chains, self._left(), on_progress=self._tell
        )
        if interrupted:
            self._interrupt()
        ranked = sorted([*(known or []), *results], key=lambda one: one.rank)
        different: list[Found] = []
        for one in ranked:
            if not different or one.rank != different[-1].rank:
                different.append(one)
        self.rounds += 1
        if different:
            self.best = found, different[0].division
            if self.goal.objective == 0 and different[0].excess == 0:
                self.volume = different[0].cost
        try:
            self._tell(0.0)
        except KeyboardInterrupt:  # the best so far is returned, wherever it comes
            self._interrupt()
        return different

    def _tell(self, done: float) -> None:
        if self.on_progress is not None:
            rounds = sum(ROUNDS[grain] for grain in {"coarse", self.modelling.grain})
            rounds += len(HOTTEST_TOWARD_OBJECTIVE) * (self.objective.name != "volume")
            self.on_progress((self.rounds + done) / rounds, self.volume)

    def _left(self) -> float:
        return self.deadline - time.monotonic()
