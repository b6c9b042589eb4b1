"""Problem -> Solution, by hgpart's own solver.

General partitioners see vertices and pins. This one sees classes of equal units (`symmetry`), of
which only the number in each part counts, so that a step of the search costs about a microsecond
whatever the number of tasks, and a layer's whole share can move at once.
"""

from __future__ import annotations

from hgpart.arrays import Int32
from hgpart.hypergraph.building import CnnHypergraph
from hgpart.partition.native.annealing import Found
from hgpart.partition.native.rounds import (
    FULL_SIZE,
    HOTTEST,
    LEAST_SIZE,
    Rounds,
)
from hgpart.partition.native.starts import coarse_starts, fine_starts, strips
from hgpart.partition.native.toward_objective import (
    KEPT,
    check_pairs,
    rounds_toward_objective,
    toward_objective,
)
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.problem.solution import Solution
from hgpart.partition.symmetry.divisions import Division, blocks_of
from hgpart.partition.symmetry.finding import symmetry_of
from hgpart.partition.symmetry.symmetry import Symmetry

PATIENT_SIZE = 200  # layers x parts, from which on a round without success is not the last
MOST_ROWS = 16  # of a class, coarse-grain; more where a start has more
HOTTEST_OF_STRIPS = (1e-4, 3e-4)  # the best coarse-grain ones, as starts of fine-grain


def native_partition(problem: Problem, search: Search, bound: int) -> Solution:
    """Partition a model; what the parts may hold is exceeded where nothing better was found.

    The same seed and effort give the same partition, whatever the number of threads, unless the
    deadline or Ctrl-C ends the search: the best by then is returned. It ends at the lower `bound`
    of the volume too.
    """
    return _NativeSearch(problem, search, bound).run()


class _NativeSearch:
    """Coarse-grain first; from the best of that fine-grain; then toward the objective."""

    def __init__(self, problem: Problem, search: Search, bound: int) -> None:
        self.problem, self.coarse, self.seed = problem, problem.coarse, search.seed
        count = sum(1 + len(HOTTEST[grain]) for grain in {"coarse", problem.modelling.grain})
        count += rounds_toward_objective(problem)
        self.rounds = Rounds(problem, search, bound, count)
        self.clock = self.rounds.clock
        self.by_coarse: Symmetry | None = None
        self.starts: list[Division] = []

    def run(self) -> Solution:
        """Search until all is done or time is up, or Ctrl-C, once there is something to return."""
        try:
            self._search()
        except KeyboardInterrupt:
            if self.rounds.best is None:
                raise
            self.clock.interrupt()
        return Solution(*self._best_blocks(), self.rounds.bound, self.clock.interrupted)

    def _best_blocks(self) -> tuple[CnnHypergraph, Int32]:
        assert self.rounds.best is not None
        symmetry, division = self.rounds.best
        if symmetry is not self.by_coarse or self.problem is self.coarse:
            return blocks_of(self.problem, symmetry, division)
        model, parts = blocks_of(self.coarse, symmetry, division)
        symmetry = symmetry_of(self.problem)
        return blocks_of(self.problem, symmetry, strips(self.problem, symmetry, model, parts))

    def _search(self) -> None:
        symmetry = self.by_coarse = symmetry_of(self.coarse)
        check_pairs(self.problem, symmetry)
        size = len(symmetry.type_weights) * self.problem.k
        self.rounds.size = min(1.0, max(LEAST_SIZE, size / FULL_SIZE))
        best = self._coarse(symmetry, patient=size >= PATIENT_SIZE)
        if self.problem is not self.coarse and self.clock.left > 0:
            whole = [blocks_of(self.coarse, symmetry, annealed.division) for annealed in best[:2]]
            symmetry = symmetry_of(self.problem)
            best = self._fine(symmetry, whole)
        if not self.problem.objective.is_volume and self.clock.left > 0:
            steps = self.rounds.steps(self.problem.modelling.grain)
            divisions = [annealed.division for annealed in best[:KEPT]]
            if self.problem.objective.in_seconds and symmetry is self.by_coarse:
                divisions += self.starts  # of more volume than the best, and maybe of less time
            toward_objective(self.problem, self.rounds, symmetry, divisions, steps)
        self.rounds.end()

    def _coarse(self, symmetry: Symmetry, patient: bool) -> list[Found]:
        """Anneal every start, then the best ones again."""
        rounds = self.rounds
        steps = rounds.steps("coarse")
        if self.problem is not self.coarse:
            steps //= 2  # it is only one of the starts
        chains = [
            (division, rounds.schedule(steps, hottest, min(hottest / 5, 5e-6), 4.0, MOST_ROWS))
            for division, temperatures in coarse_starts(
                self.coarse, symmetry, self.clock, self.seed
            )
            for hottest in temperatures
        ]
        self.starts = list({id(division): division for division, _ in chains}.values())
        best = rounds.anneal(symmetry, chains)
        for hottest in HOTTEST["coarse"]:
            if rounds.is_optimal(best):
                break
            chains = [
                (annealed.division, rounds.schedule(3 * steps // 2, hottest, 3e-6, 4.0, MOST_ROWS))
                for annealed in best[:KEPT]
            ]
            before, best = best, rounds.anneal(symmetry, chains, best)
            if best[0].rank == before[0].rank and not patient:
                break  # where there is little to search, what one round misses the next does too
        return best

    def _fine(self, symmetry: Symmetry, whole: list[tuple[CnnHypergraph, Int32]]) -> list[Found]:
        """Anneal the best coarse-grain partitions and other starts, then the best ones again."""
        rounds = self.rounds
        steps = rounds.steps("fine")
        starts = [
            (strips(self.problem, symmetry, *blocks), (hottest,))
            for blocks, hottest in zip(whole, HOTTEST_OF_STRIPS, strict=False)
        ]
        chains = [
            (division, rounds.schedule(steps, hottest, min(hottest / 5, 1e-6), 50.0, 6))
            for division, temperatures in (
                *starts,
                *fine_starts(self.problem, symmetry, self.clock, self.seed),
            )
            for hottest in temperatures
        ]
        best = rounds.anneal(symmetry, chains)
        for hottest in HOTTEST["fine"]:
            if rounds.is_optimal(best):
                break
            chains = [
                (annealed.division, rounds.schedule(3 * steps, hottest, 1e-6, 50.0, 6))
                for annealed in best[:KEPT]
            ]
            best = rounds.anneal(symmetry, chains, best)
        return best
