"""Symmetry + capacities -> the counts program on OR-Tools CP-SAT, and a Division of its solution.

The variables are n[t, p], how many vertices of type t lie in part p, and reach[s, p], how many of
the nets of type s have a pin there, so that the volume is the sum over s of
``cost[s] * (sum of reach[s, p] over p - nets of s)``. All nets of a type reach the parts that hold
a vertex of its set; the others are those that its own pins touch.

How many nets touch a part is not said by the counts alone. One or two pins, or two parts: with as
many nets as can be wholly in one part, it is the largest n[t, p] of the pins. More pins: the units
are divided by the set of parts that their pins lie within (*covers*). Such choices can be made one
after the other where the sets of pins meet in single types and form no cycle; elsewhere the units
of a class are divided by the parts of all their vertices (*ways*).
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hgpart.arrays import Int64
from hgpart.errors import ArgumentError, BackendError
from hgpart.partition.exact.cp_sat import Solver
from hgpart.partition.exact.laying import Counted, Parts, division_of_counts
from hgpart.partition.exact.net_pins import Pins, is_forest, is_loose, nets_by_pins, pin_sets_of
from hgpart.partition.symmetry.divisions import Division
from hgpart.partition.symmetry.symmetry import Symmetry, TypeLimits

LARGEST_SUM = 2**60  # CP-SAT refuses expressions that may leave 62 bits

# Two that branch with the help of linear programs: they prove most. No local search (LNS, jumps):
# the native solver's start is seldom improved on, and what LNS finds is not always feasible.
SEARCHES = ("default_lp", "max_lp")


@dataclass(frozen=True)
class Solved:
    """Result of a counts program.

    Attributes
    ----------
    division : Division or None
        The best division within the capacities; None if none was symmetry.
    bound : int
        Bytes that every division within the capacities sends at least.
    interrupted : bool
        Whether Ctrl-C ended it.
    """

    division: Division | None
    bound: int
    interrupted: bool


def solve_counts(
    symmetry: Symmetry,
    capacities: Int64,
    start: Division,
    volume: int | None,
    bound: int,
    *,
    seed: int,
    deadline: float,
) -> Solved:
    """Solve the counts program of a hypergraph.

    The same seed gives the same division if it is proven optimal in time: the searches take turns,
    in an order that does not depend on the clock.

    Parameters
    ----------
    symmetry : Symmetry
        Every type has a single class.
    start : Division
        Division that the search begins with.
    volume : int, optional
        Bytes that the start sends, if it is within the capacities.
    bound : int
        Bytes that are known to be sent at least.
    deadline : float
        Time to stop, by `time.monotonic`.

    Raises
    ------
    ArgumentError
        If weights or costs are too large for CP-SAT.
    BackendError
        If CP-SAT contradicts what is known.
    """
    return _Program(symmetry, capacities, start).solve(volume, bound, seed, deadline)


def _subsets(k: int) -> list[Parts]:
    return [s for size in range(1, k + 1) for s in itertools.combinations(range(k), size)]


class _Program:
    """The program, and the hint of its start."""

    def __init__(self, symmetry: Symmetry, capacities: Int64, start: Division) -> None:
        from ortools.sat.python import cp_model

        self.symmetry, self.k, self.start = symmetry, len(capacities), start
        self.classes: list[int] = symmetry.type_classes[:, 0].tolist()
        self.units: list[int] = symmetry.class_units[self.classes].tolist()
        self.nets = nets_by_pins(symmetry)
        self.cost_unit = int(np.gcd.reduce(symmetry.net_costs)) or 1
        weight_unit = int(np.gcd.reduce(symmetry.type_weights)) or 1
        self.weights: list[int] = (symmetry.type_weights // weight_unit).tolist()
        self.load = sum(w * u for w, u in zip(self.weights, self.units, strict=True))
        self.room = [min(self.load, room // weight_unit) for room in capacities.tolist()]
        self._check_sums()
        self.model = cp_model.CpModel()
        self.hints: dict[int, int] = {}
        self.counts = self._counts()
        self._keep_to(symmetry.limits)
        self.sets = {
            entry_set: symmetry.set_members(entry_set)
            for entry_set in sorted({entry_set for _, entry_set in self.nets} - {0})
        }
        self.supports = self._supports()
        self.covers: dict[Pins, dict[tuple[int, Parts, int], Any]] = {}
        self.ways: dict[int, tuple[Pins, dict[Parts, Any]]] = {}
        self.touches = self._touches()
        self.once = 0
        self.reaches = self._reaches()
        self._order_equal_parts()

    def _check_sums(self) -> None:
        sums = {
            "weights": self.load,
            "costs": self.k
            * sum(
                cost // self.cost_unit * self.units[pins[0]]
                for (pins, _), cost in self.nets.items()
            ),
        }
        for name, total in sums.items():
            if total > LARGEST_SUM:
                raise ArgumentError(
                    f"the {name} add up to {total:.3g} times their greatest common divisor, "
                    f"expected at most {LARGEST_SUM:.3g} for backend exact: take backend native"
                )

    # -------------------------------------------------------------- variables and constraints

    def _variable(self, high: int, hint: int) -> Any:
        variable = self.model.new_int_var(0, high, "")
        self.model.add_hint(variable, hint)
        self.hints[variable.index] = hint
        return variable

    def _sum(self, high: int, terms: Sequence[Any]) -> Any:
        total = self._variable(high, sum(map(self._hint, terms)))
        self.model.add(sum(terms) == total)
        return total

    def _hint(self, variable: Any) -> int:
        """Value of a variable at the start."""
        return self.hints[variable.index]

    def _most(self, kind: int, part: int) -> int:
        """Vertices of a type that fit into a part."""
        weight = self.weights[kind]
        return min(self.units[kind], self.room[part] // weight if weight else self.units[kind])

    def _counts(self) -> list[list[Any]]:
        """n[t, p], within the capacities."""
        counts = []
        for kind, (number, units) in enumerate(zip(self.classes, self.units, strict=True)):
            held = np.zeros(self.k, dtype=np.int64)
            np.add.at(held, self.start.parts[kind], self.start.sizes[number])
            own = [
                self._variable(self._most(kind, part), hint)
                for part, hint in enumerate(held.tolist())
            ]
            self.model.add(sum(own) == units)
            counts.append(own)
        for part, room in enumerate(self.room):
            self.model.add(
                sum(w * own[part] for w, own in zip(self.weights, counts, strict=True)) <= room
            )
        return counts

    def _keep_to(self, limits: TypeLimits) -> None:
        """Vertices lie where they may: types of a group in one part, sides apart."""
        for kind, allowed in enumerate(limits.parts):
            for part in np.flatnonzero(~allowed).tolist():
                self.model.add(self.counts[kind][part] == 0)
        for group in range(int(limits.groups.max(initial=-1)) + 1):
            kinds = np.flatnonzero(limits.groups == group).tolist()
            own = [self._held_of(kinds, part) for part in range(self.k)]
            self.model.add(sum(own) == 1)
            for part, held in enumerate(own):
                for kind in kinds:
                    self.model.add(self.counts[kind][part] == self.units[kind] * held)
        sides = [np.flatnonzero(side).tolist() for side in limits.sides]
        for side, other in zip(sides[0::2], sides[1::2], strict=True):
            for part in range(self.k):
                held = [self._held_of(kinds, part) for kinds in (side, other)]
                for kinds, is_held in zip((side, other), held, strict=True):
                    for kind in kinds:
                        self.model.add(self.counts[kind][part] <= self.units[kind] * is_held)
                self.model.add(sum(held) <= 1)

    def _held_of(self, kinds: Sequence[int], part: int) -> Any:
        """A variable, 1 if a part holds vertices of any of some types."""
        return self._variable(1, int(any(self._hint(self.counts[kind][part]) for kind in kinds)))

    def _supports(self) -> dict[tuple[int, int], Any]:
        """Whether a part holds a vertex of a set."""
        used: dict[tuple[int, int], Any] = {}
        for kind in sorted(set(itertools.chain(*self.sets.values()))):
            own = self.counts[kind]
            for part, count in enumerate(own):
                if self.units[kind] == 1:
                    used[kind, part] = count
                    continue
                used[kind, part] = self._variable(1, int(self._hint(count) > 0))
                self.model.add(count <= self._most(kind, part) * used[kind, part])
                self.model.add(count >= used[kind, part])
            load = self.weights[kind] * self.units[kind]
            fewest = max(1, -(-load // max(1, *self.room)))
            self.model.add(sum(used[kind, part] for part in range(self.k)) >= fewest)
        supports = {}
        for entry_set, types in self.sets.items():
            for part in range(self.k):
                own = [used[kind, part] for kind in types]
                if len(own) == 1:
                    supports[entry_set, part] = own[0]
                    continue
                held = self._variable(1, max(map(self._hint, own)))
                supports[entry_set, part] = held
                for count in own:
                    self.model.add(held >= count)
                self.model.add(held <= sum(own))
        return supports

    def _touches(self) -> dict[tuple[Pins, int], Any]:
        """Number of nets with these own pins that have one of them in a part."""
        touches: dict[tuple[Pins, int], Any] = {}
        for (pins, _), part in itertools.product(self.nets, range(self.k)):
            if len(pins) == 1:
                touches[pins, part] = self.counts[pins[0]][part]
        for number, pin_sets in pin_sets_of(self.symmetry).items():
            if not is_forest(pin_sets):
                self._divide_by_ways(number, pin_sets, touches)
                continue
            for pins in pin_sets:
                if is_loose(pins, self.k):
                    for part in range(self.k):
                        own = [self.counts[kind][part] for kind in pins]
                        most = self._variable(self.units[pins[0]], max(map(self._hint, own)))
                        touches[pins, part] = most
                        for count in own:
                            self.model.add(most >= count)
                else:
                    self._divide_by_covers(number, pins, touches)
        return touches

    def _divide_by_covers(
        self, number: int, pins: Pins, touches: dict[tuple[Pins, int], Any]
    ) -> None:
        units = self.units[pins[0]]
        lying = np.stack([self.start.parts[kind] for kind in pins], axis=1).tolist()
        sizes = self.start.sizes[number].tolist()
        hints: dict[Parts, int] = defaultdict(int)
        placed: dict[tuple[int, Parts, int], int] = defaultdict(int)
        for parts, size in zip(lying, sizes, strict=True):
            cover = tuple(sorted(set(parts)))
            hints[cover] += size
            for kind, part in zip(pins, parts, strict=True):
                placed[kind, cover, part] += size
        subsets = _subsets(self.k)
        within = {cover: self._variable(units, hints[cover]) for cover in subsets}
        covers = self.covers[pins] = {}
        for kind in pins:
            for cover, size in within.items():
                for part in cover:
                    covers[kind, cover, part] = self._variable(units, placed[kind, cover, part])
                self.model.add(sum(covers[kind, cover, part] for part in cover) == size)
            for part in range(self.k):
                self.model.add(
                    sum(covers[kind, c, part] for c in subsets if part in c)
                    == self.counts[kind][part]
                )
        for part in range(self.k):
            own = [size for cover, size in within.items() if part in cover]
            touches[pins, part] = self._sum(units, own)

    def _divide_by_ways(
        self, number: int, pin_sets: list[Pins], touches: dict[tuple[Pins, int], Any]
    ) -> None:
        types = tuple(sorted(set(itertools.chain(*pin_sets))))
        lying = np.stack([self.start.parts[kind] for kind in types], axis=1).tolist()
        hints: dict[Parts, int] = defaultdict(int)
        for parts, size in zip(lying, self.start.sizes[number].tolist(), strict=True):
            hints[tuple(parts)] += size
        ways = {
            way: self._variable(self.units[types[0]], hints[way])
            for way in itertools.product(range(self.k), repeat=len(types))
        }
        self.ways[number] = types, ways
        for slot, kind in enumerate(types):
            for part, count in enumerate(self.counts[kind]):
                self.model.add(sum(v for way, v in ways.items() if way[slot] == part) == count)
        for pins in pin_sets:
            slots = [types.index(kind) for kind in pins]
            for part in range(self.k):
                own = [v for way, v in ways.items() if any(way[slot] == part for slot in slots)]
                touches[pins, part] = self._sum(self.units[types[0]], own)

    def _reaches(self) -> list[Any]:
        """Terms of the objective: the volume plus the cost of all nets once, in units of cost."""
        terms = []
        inside: dict[tuple[int, int], list[Any]] = defaultdict(list)
        claimed = {entry_set: set(types) for entry_set, types in self.sets.items()}
        for (pins, entry_set), cost in self.nets.items():
            units, price = self.units[pins[0]], cost // self.cost_unit
            self.once += price * units
            lightest = 0
            if entry_set and not claimed[entry_set] & set(pins):
                lightest = min(self.weights[kind] for kind in pins)
                claimed[entry_set] |= set(pins)
            for part in range(self.k):
                touch = self.touches[pins, part]
                if not entry_set:
                    terms.append(price * touch)
                    continue
                support = self.supports[entry_set, part]
                touched, held = self._hint(touch), self._hint(support)
                reach = self._variable(units, units if held else touched)
                terms.append(price * reach)
                self.model.add(reach >= touch)
                self.model.add(reach >= units * support)
                if lightest:
                    # Those that touch a part with readers need room beside them: with `room`
                    # below, it is this that the linear program knows of the balance.
                    near = self._variable(
                        min(units, self.room[part] // lightest), touched if held else 0
                    )
                    self.model.add(near <= touch)
                    self.model.add(reach >= touch + units * support - near)
                    inside[entry_set, part].append(lightest * near)
        for (entry_set, part), loads in inside.items():
            own = [self.weights[kind] * self.counts[kind][part] for kind in self.sets[entry_set]]
            room = self.room[part] * self.supports[entry_set, part]
            self.model.add(sum(loads) + sum(own) <= room)
        return terms

    def _order_equal_parts(self) -> None:
        """Parts with equal room are interchangeable: the type of most work decides their order.

        Unless constraints tell them apart.
        """
        heaviest = max(
            range(len(self.units)),
            key=lambda kind: (self.weights[kind] * self.units[kind], self.units[kind]),
        )
        counts = self.counts[heaviest]
        allowed = self.symmetry.limits.parts
        looks = [
            (room, allowed[:, part].tobytes() if allowed.size else b"")
            for part, room in enumerate(self.room)
        ]
        for look in sorted(set(looks)):
            alike = [part for part in range(self.k) if looks[part] == look]
            alike.sort(key=lambda part: -self._hint(counts[part]))
            for earlier, later in itertools.pairwise(alike):
                self.model.add(counts[earlier] >= counts[later])

    def solve(self, volume: int | None, bound: int, seed: int, deadline: float) -> Solved:
        from ortools.sat.python import cp_model

        if self.reaches:
            total = sum(self.reaches)
            self.model.minimize(total)
            self.model.add(total >= self._reached(bound))
            if volume is not None:
                self.model.add(total <= self._reached(volume))
        settings = cp_model.SatParameters()
        settings.num_workers = len(SEARCHES)
        settings.subsolvers.extend(SEARCHES)
        settings.interleave_search = True
        settings.use_lns = False
        settings.use_feasibility_jump = False
        settings.random_seed = seed % 2**31
        with Solver() as solver:
            answer = solver.solve(self.model, settings, deadline)
        if answer.status == "MODEL_INVALID":
            raise BackendError(f"CP-SAT refuses its program: {self.model.validate()}")
        if answer.status == "INFEASIBLE" and volume is not None:
            raise BackendError(
                "CP-SAT says that no division is within the capacities; one is known"
            )
        division = None
        if answer.solutions:
            division = division_of_counts(self.symmetry, self._counted(answer.solutions[-1]))
        if self.reaches and answer.bound is not None and answer.status != "INFEASIBLE":
            bound = max(bound, (answer.bound - self.once) * self.cost_unit)
        return Solved(division, bound, answer.interrupted)

    def _reached(self, volume: int) -> int:
        """Objective of a volume, or of the next larger one that is possible."""
        return -(-volume // self.cost_unit) + self.once

    def _counted(self, values: Sequence[int]) -> Counted:
        def value(variable: Any) -> int:
            index: int = variable.index
            return values[index]

        return Counted(
            held=[[value(count) for count in own] for own in self.counts],
            ways={
                number: (types, {way: value(count) for way, count in own.items()})
                for number, (types, own) in self.ways.items()
            },
            placed={
                pins: {key: value(count) for key, count in own.items()}
                for pins, own in self.covers.items()
            },
        )
