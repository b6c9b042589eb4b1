"""Problem -> a volume that no partition is below, by what a single part can hold.

A volume is what the nets that touch each part cost, summed over the parts, less what all nets cost
once. What a part holds is within its capacity, and all parts together hold everything. With a price
on each layer's work,

    volume >= sum over parts of min(cost of nets touched - prices of what is held)
              + all prices - all nets once

whatever the prices are. `native/contents.cpp` finds good ones, and `native/cheapest_contents.cpp`
the least for them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hgpart import _native
from hgpart.arrays import Float64, Int32, Int64
from hgpart.partition.problem.problem import Problem
from hgpart.partition.symmetry.finding import symmetry_of
from hgpart.partition.symmetry.symmetry import Symmetry

# Of the search for good prices, some seconds at most. It ends before where little is to be gained.
OPERATIONS_PER_ITEM, MOST_OPERATIONS = 7e7, 4e9
MOST_ITEMS = 400  # of more it would take too long
# Nets that are followed from item to item: as many as make no more states in all than that, as each
# is touched in three ways. Of others some pins are left out.
MOST_FOLLOWED, FEWEST_FOLLOWED, MOST_STATES = 6, 3, 4000
# Nets that begin, end or go on at an item; `kMostAtItem` of native/cheapest_contents.hpp.
MOST_AT_ITEM = 9
SLACK = 1e-9  # of the bound, for rounding


@dataclass(frozen=True, eq=False)
class PartModel:
    """What a part can hold, and the nets that it then touches.

    An item is all that has the work of one layer's tasks; a part has some of them, of some samples.

    Attributes
    ----------
    work : float64 array, shape (items,)
        Share of all work.
    parameters : float64 array, shape (items,)
        Cost of the nets that a part touches if it has any sample of a task, of all tasks.
    classes : int32 array, shape (items,)
        Class of the tasks: those of the same class with the same index share nets.
    costs : float64 array, shape (nets,)
        The nets of all units together, as a share of what all nets and parameters cost.
    pointers, nets, dense : int64, int32 and bool arrays
        CSR by item: nets, and whether a part with any of the item's tasks touches all of the net.
    capacities : float64 array, shape (k,)
        Shares of all work, the largest first.
    sliced : bool
        Whether a part can have some samples of a task.
    once : float
        Bytes that all nets and parameters cost.
    """

    work: Float64
    parameters: Float64
    classes: Int32
    costs: Float64
    pointers: Int64
    nets: Int32
    dense: NDArray[np.bool_]
    capacities: Float64
    sliced: bool
    once: float


def part_bound(
    problem: Problem, seconds: float = math.inf, effort: float = 1.0
) -> tuple[int, bool]:
    """Bytes that every partition within the problem's capacities sends at least, or 0.

    It is of coarse-grain partitions without bands of rows. With slices of the batch, their number
    does not matter: a part may have any share of the samples. `effort` is the most operations of
    the search, as a share of its default.

    Returns
    -------
    int and bool
        The bound, and whether Ctrl-C ended the search for it.
    """
    modelling = problem.modelling
    if modelling.grain != "coarse" or modelling.bands > 1 or problem.k == 1:
        return 0, False
    if not problem.total or not problem.capacities.any():
        return 0, False
    model = part_model(problem)
    if model is None:
        return 0, False
    operations = min(MOST_OPERATIONS, OPERATIONS_PER_ITEM * len(model.work))
    bound, interrupted = _native.contents_bound(model, effort * operations, seconds)
    if bound <= 0:
        return 0, interrupted
    return max(0, math.ceil(bound * model.once * (1 - SLACK) - 1)), interrupted


def part_model(problem: Problem) -> PartModel | None:
    """What a part can hold; None for a model with too many layers, or none that cost anything.

    Nets are left out, and pins of nets, where too many nets would have to be followed from layer
    to layer: that only lowers the volume. So are nets over slices of parameters that
    tasks read.
    """
    is_sliced = problem.modelling.slices > 1
    # All slices are alike, so that two are as good as any number.
    symmetry = symmetry_of(problem.in_slices(2) if is_sliced else problem)
    count = symmetry.tiles.shape[2]
    if count > MOST_ITEMS:
        return None
    order = np.lexsort((np.arange(count), symmetry.type_layers[:count]))
    place = np.empty(count, dtype=np.int64)
    place[order] = np.arange(count)
    parameters = np.zeros(count)
    nets = Counter[tuple[tuple[int, bool], ...]]()
    for cost, own, in_set in _nets(symmetry):
        of_slices = {kind // count for kind in (*own, *in_set)}
        items = {int(place[kind % count]): False for kind in own}
        items |= {int(place[kind % count]): True for kind in in_set}
        if len(of_slices) == 1:
            nets[tuple(sorted(items.items()))] += cost
        elif not in_set and len(items) == 1:
            parameters[next(iter(items))] += cost
    followed = _followed(nets, count)
    once = float(sum(cost for cost, _ in followed) + parameters.sum())
    if once == 0:
        return None
    touched = sorted(
        (item, net, dense) for net, (_, items) in enumerate(followed) for item, dense in items
    )
    classes = symmetry.type_classes[:count, 0]
    units = symmetry.class_units[classes]
    slice_types = symmetry.type_weights.reshape(symmetry.slices, count)
    work = slice_types[0] * units / int(slice_types[0] @ units)
    return PartModel(
        work=work[order],
        parameters=parameters / once,
        classes=classes[order].astype(np.int32),
        costs=np.array([cost / once for cost, _ in followed], dtype=np.float64),
        pointers=np.searchsorted([item for item, _, _ in touched], np.arange(count + 1)).astype(
            np.int64
        ),
        nets=np.array([net for _, net, _ in touched], dtype=np.int32),
        dense=np.array([dense for _, _, dense in touched], dtype=np.bool_),
        capacities=np.sort(problem.capacities / problem.total)[::-1].copy(),
        sliced=is_sliced,
        once=once,
    )


def _nets(symmetry: Symmetry) -> Iterator[tuple[int, list[int], list[int]]]:
    """The cost of each net, in all units, and its pins: types of a unit, and types of the set."""
    for net, number in enumerate(symmetry.net_sets.tolist()):
        start, end = symmetry.net_pointers[net : net + 2].tolist()
        own = (symmetry.net_pins[start:end] // 2).tolist()
        units = int(symmetry.class_units[symmetry.net_classes[net]])
        yield int(symmetry.net_costs[net]) * units, own, symmetry.set_members(number)


def _followed(
    nets: Counter[tuple[tuple[int, bool], ...]], count: int
) -> list[tuple[int, list[tuple[int, bool]]]]:
    """Nets of at least two items, of which not too many are at an item or go on behind it."""
    for most in range(MOST_FOLLOWED, FEWEST_FOLLOWED - 1, -1):
        followed = [(cost, [*items]) for items, cost in nets.items() if len(items) > 1]
        states = 0
        for at in range(count - 1):
            going_on = [net for net in followed if net[1][0][0] <= at < net[1][-1][0]]
            going_on.sort(key=lambda net: net[0], reverse=True)
            for net in going_on[most:]:
                net[1][:] = [pin for pin in net[1] if pin[0] <= at]
            states += 3 ** min(most, len(going_on))
        for at in range(count):
            _limit_nets_at(followed, at)
        if states <= MOST_STATES:
            break
    return [net for net in followed if len(net[1]) > 1]


def _limit_nets_at(nets: list[tuple[int, list[tuple[int, bool]]]], item: int) -> None:
    """Let the cheapest of too many nets that begin, end or go on at an item end before it.

    Those that begin there begin behind it.
    """
    there = [net for net in nets if len(net[1]) > 1 and net[1][0][0] <= item <= net[1][-1][0]]
    there.sort(key=lambda net: net[0], reverse=True)
    for _, pins in there[MOST_AT_ITEM:]:
        before = [pin for pin in pins if pin[0] < item]
        pins[:] = before if len(before) > 1 else [pin for pin in pins if pin[0] > item]
