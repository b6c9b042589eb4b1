"""Divisions -> better ones, a round of annealings after the other; the best so far is kept."""

from __future__ import annotations

import time
from collections.abc import Iterable

import numpy as np

from hgpart.partition.native.annealing import Cooling, Found, anneal
from hgpart.partition.native.clock import Clock
from hgpart.partition.native.goal import LayersOfTypes, goal_of
from hgpart.partition.problem.objectives import VOLUME
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.search import Search
from hgpart.partition.steering.obeying import Obeying
from hgpart.partition.symmetry.divisions import Division
from hgpart.partition.symmetry.symmetry import Symmetry

STEPS = {"coarse": 500_000, "fine": 250_000}  # of each chain of the first round, at effort 1
FULL_SIZE, LEAST_SIZE = 100, 0.03  # layers x parts that take so many; the least share of them
# How hot the rounds of a grain begin after the first, and those for another objective than volume.
HOTTEST = {"coarse": (3e-4, 1e-4, 3e-5), "fine": (3e-5, 1e-5)}
HOTTEST_TOWARD_OBJECTIVE = (3e-3, 3e-4)


class Rounds:
    """Anneals by rounds, and keeps the best of all of them.

    Attributes
    ----------
    count, done : int
        Number of all rounds of the search, and of those that are over.
    goal : Goal
        Goal of the next round.
    best : tuple of Symmetry and Division, or None
        Best division of the last round that found any.
    volume : int or None
        Volume of the best division within the limits, from rounds whose goal is the volume.
    """

    def __init__(self, problem: Problem, search: Search, bound: int, count: int) -> None:
        self.problem, self.search, self.bound = problem, search, bound
        self.goal = goal_of(problem.capacities, VOLUME, problem.memory)
        self.obeying = Obeying(problem)
        self.clock = Clock(search.deadline)
        self.count, self.chains, self.done = count, 0, 0
        self.best: tuple[Symmetry, Division] | None = None
        self.volume: int | None = None
        self.size = 1.0
        self.start_seconds = 0.0  # of a chain that only evaluates its start

    def toward_objective(self, symmetry: Symmetry) -> None:
        """Make the next rounds for what is asked for, whatever it is."""
        units = symmetry.class_units[symmetry.net_classes]
        units = units * np.append(symmetry.class_units, 1)[symmetry.net_crossings]
        most_bytes = int((symmetry.net_costs * units).sum()) * self.problem.k
        self.goal = goal_of(
            self.problem.capacities,
            self.problem.objective,
            self.problem.memory,
            most_bytes,
            LayersOfTypes(symmetry.type_layers, self.problem.total),
        )

    def steps(self, grain: str) -> int:
        """Steps of each chain of a grain's first round."""
        return max(1, round(STEPS[grain] * self.search.effort * self.size))

    def schedule(
        self, steps: int, hottest: float, coldest: float, price: float, most_rows: int
    ) -> Cooling:
        """The schedule of the next chain, with a seed of its own."""
        self.chains += 1
        seed = (self.search.seed * 1000 + self.chains) % 2**63
        return Cooling(seed, steps, hottest, coldest, price, most_rows)

    def anneal(
        self,
        symmetry: Symmetry,
        chains: list[tuple[Division, Cooling]],
        known: Iterable[Found] = (),
    ) -> list[Found]:
        """Anneal chains, and return what they find with what was known, best first.

        Starts that break constraints are mended first.
        """
        chains = [
            (self.obeying.division(symmetry, division), cooling) for division, cooling in chains
        ]
        began, left = time.monotonic(), self.clock.left - len(chains) * self.start_seconds
        results, interrupted = anneal(symmetry, self.goal, chains, left, on_progress=self.tell)
        if chains and not any(cooling.steps for _, cooling in chains):
            self.start_seconds = (time.monotonic() - began) / len(chains)
        if interrupted:
            self.clock.interrupt()
        different: list[Found] = []
        for result in sorted([*known, *results], key=lambda result: result.rank):
            if not different or result.rank != different[-1].rank:
                different.append(result)
        if different:
            self.best = symmetry, different[0].division
            is_volume = self.goal.objective == 0 and not symmetry.limits.prices.size
            if is_volume and different[0].excess == 0:
                self.volume = different[0].cost
        self.count_round()
        return different

    def count_round(self) -> None:
        """Say that a round is over."""
        self.done += 1
        try:
            self.tell(0.0)
        except KeyboardInterrupt:  # the best so far is returned, wherever it comes
            self.clock.interrupt()

    def has_time(self, chains: int) -> bool:
        """Whether so many chains may find more than their starts before time is up."""
        return self.clock.left > chains * self.start_seconds

    def is_optimal(self, best: list[Found]) -> bool:
        """Whether nothing can be better than the first of them."""
        return bool(best) and best[0].excess == 0 and best[0].cost <= self.bound

    def end(self) -> None:
        """Say that nothing more is searched."""
        if self.search.on_progress is not None:
            self.search.on_progress(1.0, self.volume)

    def tell(self, done: float) -> None:
        """Say which share of a round is done."""
        if self.search.on_progress is not None:
            self.search.on_progress(min(1.0, (self.done + done) / self.count), self.volume)
