"""Symmetry -> the own pins of the nets of each class, and whether counts tell what they touch."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence

from hgpart.partition.symmetry.symmetry import Symmetry

Pins = tuple[int, ...]  # types of one class


def nets_by_pins(symmetry: Symmetry) -> dict[tuple[Pins, int], int]:
    """Cost of the nets of one unit, by their own pins and their set.

    Nets that are never cut are left out.
    """
    costs: dict[tuple[Pins, int], int] = defaultdict(int)
    for net, entry_set in enumerate(symmetry.net_sets.tolist()):
        own = symmetry.net_pins[symmetry.net_pointers[net] : symmetry.net_pointers[net + 1]] // 2
        pins = tuple(sorted(set(own.tolist())))
        if len(pins) > 1 or entry_set:
            costs[pins, entry_set] += int(symmetry.net_costs[net])
    return dict(costs)


def pin_sets_of(symmetry: Symmetry) -> dict[int, list[Pins]]:
    """The sets of two or more pins of each class's nets."""
    result: dict[int, list[Pins]] = defaultdict(list)
    for pins in sorted({pins for pins, _ in nets_by_pins(symmetry) if len(pins) > 1}):
        result[int(symmetry.type_classes[pins[0], 0])].append(pins)
    return result


def is_forest(pin_sets: Sequence[Pins]) -> bool:
    """Whether sets meet in single types only and form no cycle."""
    joined: dict[int, int] = {}  # a type of the same tree

    def root(kind: int) -> int:
        while kind in joined:
            kind = joined[kind]
        return kind

    for pins in pin_sets:
        roots = [root(kind) for kind in pins]
        if len(set(roots)) < len(roots):
            return False
        joined.update((merged, roots[0]) for merged in roots[1:])
    return True


def is_loose(pins: Pins, k: int) -> bool:
    """Whether counts alone say how many nets touch a part, at best."""
    return len(pins) <= 2 or k <= 2


def class_variables(symmetry: Symmetry, k: int) -> list[int]:
    """Count the variables that say how the units of each class lie, and what that costs."""
    sizes = [0] * len(symmetry.class_units)
    for number in symmetry.type_classes[:, 0].tolist():
        sizes[number] += 2 * k
    for pins, _ in nets_by_pins(symmetry):
        sizes[int(symmetry.type_classes[pins[0], 0])] += 2 * k
    for number, pin_sets in pin_sets_of(symmetry).items():
        if not is_forest(pin_sets):
            sizes[number] += k ** len(set(itertools.chain(*pin_sets)))
            continue
        for pins in pin_sets:
            if not is_loose(pins, k):
                sizes[number] += (2**k - 1) + len(pins) * k * 2 ** (k - 1)
    return sizes
