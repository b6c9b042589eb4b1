"""Symmetry + capacities -> a volume that chains of dense layers need at least.

In a chain each layer reads all maps of the one before. Let C be what the maps of a layer cost,
s the parts that hold some of the next layer, and d C what these maps cost in traffic:

    d = s - (share of the maps that are made in one of these parts)

so that d < 1 only where the next layer lies in a single part. Two such steps in a row are in the
same part, and then the second costs nothing. A chain thus falls into runs: a step with d >= 1 leads
to each, all of its layers but the first lie in one part, and what does not fit there of the first
layer is sent there. The cheapest way to cut a chain into such runs is a dynamic program.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate

from hgpart.arrays import Int64
from hgpart.partition.symmetry.symmetry import Symmetry


@dataclass(frozen=True)
class _Link:
    """A step from a layer to the next one of a chain, and the cost of the maps between them."""

    cost: int
    before: int | None  # the layer before, as a type


def chain_bound(symmetry: Symmetry, capacities: Int64) -> int:
    """Bytes that every partition within the capacities sends at least along dense layers.

    The chains have no layer in common, so that their bounds add up.
    """
    loads = [
        int(weight) * int(symmetry.class_units[first]) if second < 0 else 0
        for weight, (first, second) in zip(
            symmetry.type_weights.tolist(), symmetry.type_classes.tolist(), strict=True
        )
    ]
    steps = _steps(symmetry, loads)
    largest = sorted(capacities.tolist(), reverse=True)
    bound = 0
    left = {kind for kind, load in enumerate(loads) if load > 0}
    while left:
        chain, costs = _heaviest_chain(steps, loads, left)
        left -= set(chain)
        if len(chain) == 1:
            break
        bound += _cheapest_runs([loads[kind] for kind in chain], costs, largest)
    return bound


def _steps(symmetry: Symmetry, loads: Sequence[int]) -> dict[int, dict[int, int]]:
    """The types that read all maps of each type, and the cost of these maps."""
    steps: dict[int, dict[int, int]] = {}
    for net, number in enumerate(symmetry.net_sets.tolist()):
        root = int(symmetry.net_pins[symmetry.net_pointers[net]]) // 2
        cost = int(symmetry.net_costs[net]) * int(symmetry.class_units[symmetry.net_classes[net]])
        for kind in symmetry.set_members(number):
            if kind != root and loads[kind] > 0 and loads[root] > 0:
                own = steps.setdefault(root, {})
                own[kind] = own.get(kind, 0) + cost
    return steps


def _heaviest_chain(
    steps: dict[int, dict[int, int]], loads: Sequence[int], left: set[int]
) -> tuple[list[int], list[int]]:
    """The chain of most work among the types that are left, and the costs of its steps."""
    most: dict[int, int] = {}
    link: dict[int, _Link] = {}
    for kind in _in_order(steps, left):
        most.setdefault(kind, 0)
        link.setdefault(kind, _Link(0, None))
        most[kind] += loads[kind]
        for reader, cost in steps.get(kind, {}).items():
            if reader in left and most[kind] > most.get(reader, -1):
                most[reader] = most[kind]
                link[reader] = _Link(cost, kind)
    at: int | None = max(most, key=lambda kind: most[kind])
    chain, costs = [], []
    while at is not None:
        chain.append(at)
        costs.append(link[at].cost)
        at = link[at].before
    return chain[::-1], costs[-2::-1]


def _in_order(steps: dict[int, dict[int, int]], left: set[int]) -> list[int]:
    """Types before those that read them; what lies on a cycle (a shared layer) is left out."""
    waiting = dict.fromkeys(left, 0)
    for kind in left:
        for reader in steps.get(kind, {}):
            if reader in left:
                waiting[reader] += 1
    ready = sorted((kind for kind in left if waiting[kind] == 0), reverse=True)
    order = []
    while ready:
        order.append(kind := ready.pop())
        for reader in steps.get(kind, {}):
            if reader in left:
                waiting[reader] -= 1
                if waiting[reader] == 0:
                    ready.append(reader)
    return order or [min(left)]


def _cheapest_runs(loads: Sequence[int], costs: Sequence[int], largest: Sequence[int]) -> int:
    """The least that a chain sends; `costs` are of the maps between its layers."""
    most = largest[0]
    reach = [0, *accumulate(largest)]
    best = [Fraction(0)]  # of the layers before each one
    for end in range(1, len(loads) + 1):
        values = []
        rest = 0  # of the run, without its first layer
        for first in range(end - 1, -1, -1):
            value = best[first]
            if first > 0:
                value += costs[first - 1] * _step(loads[first - 1], loads[first], reach)
            if first < end - 1:
                value += costs[first] * max(Fraction(0), 1 - Fraction(most - rest, loads[first]))
            values.append(value)
            rest += loads[first]
            if rest > most:
                break
        best.append(min(values))
    return math.ceil(best[-1])


def _step(before: int, load: int, reach: Sequence[int]) -> Fraction:
    """The least d >= 1 of the step to a layer: in how many parts it is, less what they make."""
    parts = next((count for count, room in enumerate(reach) if room >= load), len(reach) - 1)
    inside = Fraction(min(before, max(0, reach[parts] - load)), before)
    return max(Fraction(1), parts - inside)
