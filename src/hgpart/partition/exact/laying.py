"""Numbers of vertices of each type in each part -> Division: where each unit lies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hgpart.arrays import Int32, Int64
from hgpart.partition.exact.net_pins import Pins, pin_sets_of
from hgpart.partition.symmetry.divisions import Division
from hgpart.partition.symmetry.symmetry import Symmetry

Parts = tuple[int, ...]
Placed = Mapping[tuple[int, Parts, int], int]  # of a type, a cover and a part: how many vertices


@dataclass(frozen=True)
class Counted:
    """A solution of the counts program.

    Attributes
    ----------
    held : list of lists of int
        Per type its vertices in each part.
    ways : dict
        Per class that is divided by the parts of all its vertices: their types, and the units of
        each way.
    placed : dict
        Per set of pins that is divided by covers, how many vertices of a type, of the units whose
        pins lie within a cover, are in a part.
    """

    held: list[list[int]]
    ways: Mapping[int, tuple[Pins, Mapping[Parts, int]]]
    placed: Mapping[Pins, Placed]


def division_of_counts(symmetry: Symmetry, counted: Counted) -> Division:
    """Lay the units of each class so that as many vertices are in each part as was counted."""
    pin_sets = pin_sets_of(symmetry)
    parts: list[Int32] = [np.zeros(0, np.int32)] * len(counted.held)
    sizes: list[Int64] = []
    for number in range(len(symmetry.class_units)):
        types = np.flatnonzero(symmetry.type_classes[:, 0] == number).tolist()
        lying: dict[int, Int64] = {}  # part of each unit's vertex
        if number in counted.ways:
            own, ways = counted.ways[number]
            units = np.repeat(np.array(list(ways)), list(ways.values()), axis=0)
            lying = {kind: units[:, slot] for slot, kind in enumerate(own)}
        for kind in types:
            if kind not in lying:
                held = counted.held[kind]
                lying[kind] = np.repeat(np.arange(len(held)), held)
                _lay_tree(counted, kind, pin_sets.get(number, []), lying)
        rows, together = np.unique(
            np.stack([lying[kind] for kind in types], axis=1), axis=0, return_counts=True
        )
        sizes.append(together.astype(np.int64))
        for slot, kind in enumerate(types):
            parts[kind] = rows[:, slot].astype(np.int32)
    return Division(sizes, parts)


def _lay_tree(counted: Counted, first: int, pin_sets: list[Pins], lying: dict[int, Int64]) -> None:
    """Lay all types that are joined to one that lies, each set of pins as was counted."""
    waiting = [first]
    while waiting:
        kind = waiting.pop()
        for pins in pin_sets:
            unlaid = [joined for joined in pins if joined not in lying]
            if kind not in pins or not unlaid:
                continue
            placed = counted.placed.get(pins) or _together(counted, pins)
            numbers = {cover: at for at, cover in enumerate({cover for _, cover, _ in placed})}
            cover_of = np.empty(len(lying[kind]), dtype=np.int64)
            for part in range(len(counted.held[kind])):
                cover_of[lying[kind] == part] = [
                    numbers[cover]
                    for (own_kind, cover, at), times in placed.items()
                    if (own_kind, at) == (kind, part)
                    for _ in range(times)
                ]
            for joined in unlaid:
                lying[joined] = np.empty(len(cover_of), dtype=np.int64)
                for cover, number in numbers.items():
                    lying[joined][cover_of == number] = [
                        at
                        for (own_kind, within, at), times in placed.items()
                        if (own_kind, within) == (joined, cover)
                        for _ in range(times)
                    ]
            waiting += unlaid


def _together(counted: Counted, pins: Pins) -> Placed:
    """Put as many units as possible wholly in one part, and the rest anywhere."""
    everywhere = tuple(range(len(counted.held[pins[0]])))
    placed: dict[tuple[int, Parts, int], int] = {}
    for part in everywhere:
        values = {kind: counted.held[kind][part] for kind in pins}
        together = min(values.values())
        for kind, value in values.items():
            placed[kind, (part,), part] = together
            placed[kind, everywhere, part] = value - together
    return placed
