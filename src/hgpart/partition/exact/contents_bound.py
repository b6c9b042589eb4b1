"""Symmetry + capacities -> a volume below which none can be, by what a single part can hold.

A volume is what the nets that touch each part cost, summed over the parts, less what all nets cost
once. The *contents* of a part are how many vertices of each type it holds, within its capacity;
they touch at least some nets. The contents of all parts add up to all vertices, and each group of
layers lies in at least as many parts as its work needs. With a price on each of these demands,

    volume >= k min(touched - prices of what is met) + prices of all demands - all nets once

whatever the prices are. Good ones are those of the linear program over the contents that were
found so far; the least contents for them are an integer program that does not grow with k, and are
found next (column generation: Gilmore and Gomory, 1961; Lagrange's bound and smoothed prices:
Wentges, 1997). It is strong where parts are small, as the counts program is where they are few.
"""

from __future__ import annotations

import itertools
import math
import operator
import time
from collections import Counter
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hgpart.arrays import Int64
from hgpart.partition.exact.counts import LARGEST_SUM
from hgpart.partition.exact.cp_sat import Solver
from hgpart.partition.exact.net_pins import nets_by_pins
from hgpart.partition.symmetry.divisions import Division
from hgpart.partition.symmetry.symmetry import Symmetry

LONGEST_GROUP = 2  # types of work, one after the other, the parts of which are counted together
FINEST_PRICE = 1000  # prices are multiples of so small a share of the unit of costs
WEIGHT_OF_BEST = 0.7  # of the best prices so far, in the next ones
STEP_GAP = 0.1  # of what is open, that one search for the cheapest contents may leave open
CLOSE = 1e-3  # ends where better prices can't raise the bound by more than this share

Contents = tuple[int, ...]  # vertices of each type


def contents_bound(
    symmetry: Symmetry,
    capacities: Int64,
    start: Division,
    volume: int,
    bound: int,
    *,
    seed: int,
    deadline: float,
) -> tuple[int, bool]:
    """Raise a lower bound of the volume, until the deadline (of `time.monotonic`) or Ctrl-C.

    Parameters
    ----------
    symmetry : Symmetry
        Every type has a single class.
    capacities : int64 array, shape (k,)
        Largest work of each part; the bound allows the largest of them in every part.
    start : Division
        Within the capacities; its parts are the first contents.
    volume : int
        Bytes that it sends: the search ends where the bound is no less.
    bound : int
        Bytes that are known to be sent at least.

    Returns
    -------
    int and bool
        Bytes that every division within the capacities sends at least; whether Ctrl-C ended it.
    """
    if not nets_by_pins(symmetry) or time.monotonic() >= deadline:
        return bound, False
    covering = _Covering(symmetry, capacities, start)
    if covering.scale == 0:  # the sums are too large for CP-SAT
        return bound, False
    with Solver() as solver:
        cheapest = _Cheapest(covering, solver, seed)
        return _raised(covering, cheapest, volume, bound, deadline)


def _raised(
    covering: _Covering, cheapest: _Cheapest, volume: int, bound: int, deadline: float
) -> tuple[int, bool]:
    k, once, scale, unit = covering.k, covering.once, covering.scale, covering.cost_unit
    known = _Prices(covering)
    known.learn(list(covering.first))
    best, best_prices = -math.inf, covering.first_prices()
    weight_of_best = 1.0
    interrupted = False
    try:
        while not interrupted and bound < volume:
            solved = known.volume_and_prices(deadline)
            if solved is None:
                break
            reachable, newest = solved
            missing = reachable - bound / unit
            if missing <= CLOSE * reachable:
                break
            mixed = weight_of_best * best_prices + (1 - weight_of_best) * newest
            prices = np.rint(mixed * scale).astype(np.int64).tolist()
            slack = STEP_GAP * missing / k
            least, contents, interrupted = cheapest.contents(prices, slack * scale, deadline)
            if least is None:
                break
            reached = k * least + sum(map(operator.mul, prices, covering.demands)) - once * scale
            bound = max(bound, -(-reached // scale) * unit)
            is_better = reached > best
            if is_better:
                best, best_prices = reached, np.array(prices) / scale
            if known.learn(contents) or is_better:
                weight_of_best = WEIGHT_OF_BEST
            elif weight_of_best > 0:
                weight_of_best = 0.0  # the newest prices themselves bring either
            else:
                break
    except KeyboardInterrupt:  # outside of CP-SAT
        interrupted = True
    return bound, interrupted


class _Covering:
    """Costs of the nets that contents touch, and the demands that all parts' contents must meet."""

    def __init__(self, symmetry: Symmetry, capacities: Int64, start: Division) -> None:
        self.k = len(capacities)
        self.units: list[int] = symmetry.class_units[symmetry.type_classes[:, 0]].tolist()
        self.weights: list[int] = symmetry.type_weights.tolist()
        self.largest = sorted(capacities.tolist(), reverse=True)
        nets = nets_by_pins(symmetry)
        self.cost_unit = math.gcd(*nets.values())
        self.nets = {net: cost // self.cost_unit for net, cost in nets.items()}
        self.once = sum(cost * self.units[pins[0]] for (pins, _), cost in self.nets.items())
        self.sets = {
            number: symmetry.set_members(number)
            for number in sorted({number for _, number in self.nets} - {0})
        }
        self.groups = self._groups()
        self.demands = [*self.units, *(parts for _, parts in self.groups)]
        sums = self.once * self.k * len(self.demands)
        self.scale = min(FINEST_PRICE, LARGEST_SUM // sums)
        self.first = self._contents(symmetry, start)

    def _groups(self) -> list[tuple[list[int], int]]:
        """Types with numbers that follow each other, and in how many parts they lie at least."""
        heavy = [kind for kind, weight in enumerate(self.weights) if weight > 0]
        reach = [0, *itertools.accumulate(self.largest)]
        groups = []
        for size in range(1, LONGEST_GROUP + 1):
            for at in range(len(heavy) - size + 1):
                group = heavy[at : at + size]
                load = sum(self.weights[kind] * self.units[kind] for kind in group)
                parts = next((n for n, room in enumerate(reach) if room >= load), self.k)
                if parts > 1:
                    groups.append((group, parts))
        return groups

    def _contents(self, symmetry: Symmetry, start: Division) -> Counter[Contents]:
        """Contents of the parts, with the number of parts that hold each."""
        held = np.zeros((self.k, len(self.units)), dtype=np.int64)
        for kind, number in enumerate(symmetry.type_classes[:, 0].tolist()):
            np.add.at(held[:, kind], start.parts[kind], start.sizes[number])
        return Counter(map(tuple, held.tolist()))

    def touched(self, contents: Contents) -> int:
        """Least cost of the nets that contents touch."""
        return sum(cost for cost, _ in self._touches(contents))

    def _touches(self, contents: Contents) -> Iterator[tuple[int, list[int]]]:
        """The costs of the nets touched, each with the types that touch them."""
        for (pins, number), cost in self.nets.items():
            readers = [kind for kind in self.sets.get(number, ()) if contents[kind]]
            count = self.units[pins[0]] if readers else max(contents[kind] for kind in pins)
            if count:
                yield cost * count, readers + [kind for kind in pins if contents[kind]]

    def first_prices(self) -> NDArray[np.float64]:
        """Prices by which the types that touch a net share its cost in proportion to their work."""
        paid = np.zeros(len(self.demands))
        for contents, parts in self.first.items():
            for cost, kinds in self._touches(contents):
                # At least 1, for types without work.
                work = np.array([max(1, self.weights[kind] * contents[kind]) for kind in kinds])
                np.add.at(paid, kinds, parts * cost * work / work.sum())
        prices: NDArray[np.float64] = paid / self.demands
        return prices

    def met(self, contents: Contents) -> list[int]:
        """Amount of each demand that contents meet."""
        present = (int(any(contents[kind] for kind in group)) for group, _ in self.groups)
        return [*contents, *present]


class _Prices:
    """The linear program over contents that are known, and the prices that it puts on demands.

    Demands are in shares of all vertices of a type, costs in shares of what all nets cost once:
    with the plain numbers GLOP gives up on some models.
    """

    def __init__(self, covering: _Covering) -> None:
        self.covering = covering
        self.known: set[Contents] = set()
        self._begin()

    def _begin(self) -> None:
        from ortools.linear_solver import pywraplp

        self.optimal = pywraplp.Solver.OPTIMAL
        self.program = pywraplp.Solver.CreateSolver("GLOP")
        infinity = self.program.infinity()
        self.rows = [self.program.Constraint(1, infinity) for _ in self.covering.demands]
        self.parts = self.program.Constraint(-infinity, self.covering.k)
        self.objective = self.program.Objective()
        self.objective.SetMinimization()
        for contents in sorted(self.known):
            self._add(contents)

    def _add(self, contents: Contents) -> None:
        times = self.program.NumVar(0, self.program.infinity(), "")
        self.objective.SetCoefficient(times, self.covering.touched(contents) / self.covering.once)
        self.parts.SetCoefficient(times, 1)
        met = self.covering.met(contents)
        for row, held, demand in zip(self.rows, met, self.covering.demands, strict=True):
            if held:
                row.SetCoefficient(times, held / demand)

    def learn(self, contents_list: list[Contents]) -> bool:
        """Add contents; return whether any are new."""
        new = set(contents_list) - self.known
        self.known |= new
        for contents in sorted(new):
            self._add(contents)
        return bool(new)

    def volume_and_prices(self, deadline: float) -> tuple[float, NDArray[np.float64]] | None:
        """The least volume, were shares of contents allowed, in units of cost; and the prices.

        Returns None when time is up, or when numbers are too far apart for the linear program.
        """
        left = deadline - time.monotonic()
        if left <= 0:
            return None
        if left < math.inf:
            self.program.SetTimeLimit(math.ceil(1000 * left))
        if self.program.Solve() != self.optimal:
            self._begin()  # from where it ended last, GLOP fails at times
            if self.program.Solve() != self.optimal:
                return None
        once = self.covering.once
        # No price is so high that a sum is too large for CP-SAT.
        shares = np.clip([row.dual_value() for row in self.rows], 0, self.covering.k)
        return (self.objective.Value() - 1) * once, shares * once / self.covering.demands


class _Cheapest:
    """The integer program of one part: what it touches, less the prices of what it meets."""

    def __init__(self, covering: _Covering, solver: Solver, seed: int) -> None:
        from ortools.sat.python import cp_model

        self.cp_model, self.solver, self.seed = cp_model, solver, seed
        self.model = model = cp_model.CpModel()
        room = covering.largest[0]
        weight_unit = math.gcd(*covering.weights) or 1
        most = [
            min(units, room // weight) if weight else units
            for units, weight in zip(covering.units, covering.weights, strict=True)
        ]
        self.held = [model.new_int_var(0, count, "") for count in most]
        model.add(
            sum(
                w // weight_unit * held for w, held in zip(covering.weights, self.held, strict=True)
            )
            <= room // weight_unit
        )
        present = {}
        for number, kinds in covering.sets.items():
            present[number] = model.new_bool_var("")
            for kind in kinds:
                model.add(self.held[kind] <= most[kind] * present[number])
        touched = []
        for (pins, number), cost in covering.nets.items():
            units = covering.units[pins[0]]
            nets = model.new_int_var(0, units, "")
            for kind in pins:
                model.add(nets >= self.held[kind])
            if number:
                model.add(nets >= units * present[number])
            touched.append(cost * covering.scale * nets)
        self.touched = sum(touched)
        groups = []
        for group, _ in covering.groups:
            groups.append(lies := model.new_bool_var(""))
            model.add(lies <= sum(self.held[kind] for kind in group))
        self.met = [*self.held, *groups]

    def contents(
        self, prices: list[int], slack: float, deadline: float
    ) -> tuple[int | None, list[Contents], bool]:
        """A lower bound of the least, contents that come near, and whether Ctrl-C ended it.

        Prices, slack and bound are `scale` times as large as in units of cost. The bound is None
        where no contents were found in time, CP-SAT refuses weights as large as these, or it ended.
        """
        paid = sum(price * met for price, met in zip(prices, self.met, strict=True) if price)
        self.model.minimize(self.touched - paid)
        settings = self.cp_model.SatParameters()
        settings.random_seed = self.seed % 2**31
        settings.num_workers = 1
        settings.linearization_level = 2  # ten times as fast as the default here
        settings.absolute_gap_limit = slack
        answer = self.solver.solve(self.model, settings, deadline)
        contents = [
            tuple(values[variable.index] for variable in self.held) for values in answer.solutions
        ]
        return answer.bound if contents else None, contents, answer.interrupted
