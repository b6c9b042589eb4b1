"""Problem -> PartModel: what a single part can hold, and the nets that it then touches."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hgpart.arrays import Float64, Int32, Int64
from hgpart.partition.problem.problem import Problem
from hgpart.partition.symmetry.finding import symmetry_of
from hgpart.partition.symmetry.symmetry import Symmetry

MOST_ITEMS = 400  # of more it would take too long
# Nets that are followed from item to item: as many as make no more states in all than that, as each
# is touched in three ways. Of others some pins are left out.
MOST_FOLLOWED, FEWEST_FOLLOWED, MOST_STATES = 6, 3, 4000
# Nets that begin, end or go on at an item; `kMostAtItem` of native/cheapest_contents.hpp.
MOST_AT_ITEM = 9


@dataclass(frozen=True, eq=False)
class PartModel:
    """What a part can hold, and the nets that it then touches.

    An item is all that has the work of one layer's tasks; a part has some of them, of some samples.
    Or it is a *reading*: the share of the samples of which a part may read what some layers read as
    a whole. The nets that they read are touched by the reading in their place. A part gets a credit
    for the share, which a net from the reading to what reads, a *link*, costs again: it costs more
    only where a part reads of more samples than that.

    Attributes
    ----------
    work : float64 array, shape (items,)
        Share of all work.
    parameters : float64 array, shape (items,)
        Cost of the nets that a part touches if it has any sample of a task, of all tasks.
    demands : float64 array, shape (items,)
        How much of an item all parts together have: 1, of a reading 0.
    credits : float64 array, shape (items,)
        How much less each part pays that has all of an item.
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
    demands: Float64
    credits: Float64
    classes: Int32
    costs: Float64
    pointers: Int64
    nets: Int32
    dense: NDArray[np.bool_]
    capacities: Float64
    sliced: bool
    once: float


# Of an item its number; of a reading that of the item that it stands behind, 1 and its own number.
Key = tuple[int, ...]


@dataclass
class _Net:
    """What a net of all units costs, and its pins: whether each touches all of it, as dense."""

    cost: int
    pins: dict[Key, bool]
    is_link: bool = False  # from a reading to what reads

    @property
    def last_own(self) -> Key | None:
        """The last item that touches it filter by filter."""
        return max((key for key, dense in self.pins.items() if not dense), default=None)

    @property
    def readers(self) -> tuple[Key, ...]:
        """The items behind that one, which touch all of it."""
        last = self.last_own
        return () if last is None else tuple(sorted(key for key in self.pins if key > last))


def part_model(problem: Problem) -> PartModel | None:
    """What a part can hold; None for a model with too many layers, or none that cost anything.

    Nets are left out, and pins of nets, where too many nets would have to be followed from layer
    to layer: that only lowers the volume. So are nets over slices of parameters that
    tasks read, and tasks without work that hand one map on.
    """
    is_sliced = problem.modelling.slices > 1
    # All slices are alike, so that two are as good as any number.
    symmetry = symmetry_of(problem.in_slices(2) if is_sliced else problem)
    count = symmetry.tiles.shape[2]
    order = np.lexsort((np.arange(count), symmetry.type_layers[:count]))
    units = symmetry.class_units[symmetry.type_classes[:count, 0]]
    loads = (symmetry.type_weights.reshape(symmetry.slices, count)[0] * units)[order]
    nets, parameters = _nets_of_items(symmetry, np.argsort(order))
    nets, dropped = _without_handing_on(nets, np.flatnonzero(loads == 0).tolist())
    nets = _through_readings([net for net in nets if len(net.pins) > 1])
    readings = {key for net in nets for key in net.pins if len(key) > 1}
    keys = sorted(readings | {(item,) for item in range(count) if item not in dropped})
    if len(keys) > MOST_ITEMS:
        return None
    nets = _followed(nets, keys)
    parameters[[*dropped]] = 0.0
    once = float(sum(net.cost for net in nets if not net.is_link) + parameters.sum())
    if once == 0:
        return None
    place = {key: at for at, key in enumerate(keys)}
    touched = sorted(
        (place[key], number, dense)
        for number, net in enumerate(nets)
        for key, dense in net.pins.items()
    )
    items = np.array([key[0] for key in keys])
    is_item = np.array([len(key) == 1 for key in keys])
    credits = np.zeros(len(keys))
    for net in nets:
        if net.is_link:
            credits[place[min(net.pins)]] += net.cost / once
    own_classes = symmetry.type_classes[:count, 0][order[items]]
    # A reading has a class of its own.
    own_classes = np.where(is_item, own_classes, own_classes.max() + 1 + np.arange(len(keys)))
    classes = np.unique(own_classes, return_inverse=True)[1]
    return PartModel(
        work=np.where(is_item, loads[items] / int(loads.sum()), 0.0),
        parameters=np.where(is_item, parameters[items] / once, 0.0),
        demands=is_item.astype(np.float64),
        credits=credits,
        classes=classes.astype(np.int32),
        costs=np.array([net.cost / once for net in nets], dtype=np.float64),
        pointers=np.searchsorted([item for item, _, _ in touched], np.arange(len(keys) + 1)).astype(
            np.int64
        ),
        nets=np.array([net for _, net, _ in touched], dtype=np.int32),
        dense=np.array([dense for _, _, dense in touched], dtype=np.bool_),
        capacities=np.sort(problem.capacities / problem.total)[::-1].copy(),
        sliced=is_sliced,
        once=once,
    )


def _nets_of_items(symmetry: Symmetry, place: Int64) -> tuple[list[_Net], Float64]:
    """The nets, by places of the items, and what parameters of each item cost."""
    count = len(place)
    parameters = np.zeros(count)
    costs = Counter[tuple[tuple[Key, bool], ...]]()
    for cost, own, in_set in _nets(symmetry):
        of_slices = {kind // count for kind in (*own, *in_set)}
        items = {int(place[kind % count]): False for kind in own}
        items |= {int(place[kind % count]): True for kind in in_set}
        if len(of_slices) == 1:
            costs[tuple(((item,), items[item]) for item in sorted(items))] += cost
        elif not in_set and len(items) == 1:
            parameters[next(iter(items))] += cost
    return [_Net(cost, dict(pins)) for pins, cost in costs.items()], parameters


def _nets(symmetry: Symmetry) -> Iterator[tuple[int, list[int], list[int]]]:
    """The cost of each net, in all units, and its pins: types of a unit, and types of the set."""
    for net, number in enumerate(symmetry.net_sets.tolist()):
        start, end = symmetry.net_pointers[net : net + 2].tolist()
        own = (symmetry.net_pins[start:end] // 2).tolist()
        units = int(symmetry.class_units[symmetry.net_classes[net]])
        yield int(symmetry.net_costs[net]) * units, own, symmetry.set_members(number)


def _without_handing_on(nets: list[_Net], idle: list[int]) -> tuple[list[_Net], set[int]]:
    """Join nets at items without work that touch two nets, filter by filter; drop these items.

    Nets with a vertex in common lie together in no more parts than each by itself, less one for
    each net but one. A norm over channels of a concatenation is such an item.
    """
    touching = defaultdict[Key, list[int]](list)
    for number, net in enumerate(nets):
        for key in net.pins:
            touching[key].append(number)
    dropped = {
        item
        for item in idle
        if len(touching[item,]) == 2 and not any(nets[at].pins[item,] for at in touching[item,])
    }
    root = list(range(len(nets)))

    def find(number: int) -> int:
        while root[number] != number:
            number = root[number]
        return number

    for item in sorted(dropped):
        first, second = map(find, touching[item,])
        root[max(first, second)] = min(first, second)
    joined = defaultdict[int, list[_Net]](list)
    for number, net in enumerate(nets):
        joined[find(number)].append(net)
    kept: list[_Net] = []
    for together in joined.values():
        least = min(net.cost for net in together)
        pins: dict[Key, bool] = {}
        for net in together:
            own = {key: dense for key, dense in net.pins.items() if key[0] not in dropped}
            pins |= {key: dense or pins.get(key, False) for key, dense in own.items()}
            if net.cost > least:
                kept.append(_Net(net.cost - least, own))
        kept.append(_Net(least, pins))
    return kept, dropped


def _through_readings(nets: list[_Net]) -> list[_Net]:
    """Let nets with the same readers end at a reading, and link this to the readers.

    A reading stands behind the last item of each net that touches it filter by filter. It is linked
    to the next one, and the last to the readers; where others read the last of them only, to these
    others' reading in their place. So one link is followed in place of many nets.

    This costs no part more: let each reading be the largest share that is read behind it. Then
    readings touch of each net what its readers do, and each link costs as much as its credit.
    """
    last_readers = Counter(net.readers[-1] for net in nets if net.readers)
    by_readers = defaultdict[tuple[Key, ...], list[_Net]](list)
    for net in nets:
        if net.readers and last_readers[net.readers[-1]] > 1:
            by_readers[net.readers].append(net)
    ending = defaultdict[tuple[Key, ...], list[tuple[int, _Net]]](list)
    for readers, own in by_readers.items():
        ending[readers] = [(net.last_own[0], net) for net in own if net.last_own is not None]
    links: list[_Net] = []
    for number, readers in enumerate(sorted(by_readers, key=lambda own: (-len(own), own))):
        link = None
        cost = 0
        for item in sorted({item for item, _ in ending[readers]}):
            reading = (item, 1, number)
            for at, net in ending[readers]:
                if at == item:
                    net.pins = {key: own for key, own in net.pins.items() if key not in readers}
                    net.pins[reading] = True
                    cost += net.cost
            if link is not None:
                link.pins[reading] = True
            link = _Net(cost, {reading: True}, is_link=True)
            links.append(link)
        rests = (readers[at:] for at in range(1, len(readers)))
        rest = next((own for own in rests if own in by_readers), ())
        before = readers[: len(readers) - len(rest)]
        if link is not None:
            link.pins |= dict.fromkeys(before, True)
            if rest:
                ending[rest].append((before[-1][0], link))
    return [*nets, *links]


def _followed(nets: list[_Net], keys: list[Key]) -> list[_Net]:
    """Nets of at least two items, of which not too many are at an item or go on behind it."""
    for most in range(MOST_FOLLOWED, FEWEST_FOLLOWED - 1, -1):
        followed = [_Net(net.cost, dict(net.pins), net.is_link) for net in nets]
        states = 0
        for key in keys[:-1]:
            going_on = [net for net in followed if min(net.pins) <= key < max(net.pins)]
            going_on.sort(key=lambda net: net.cost, reverse=True)
            for net in going_on[most:]:
                net.pins = {pin: dense for pin, dense in net.pins.items() if pin <= key}
            states += 3 ** min(most, len(going_on))
        for key in keys:
            followed = _limited_at(followed, key)
        if states <= MOST_STATES:
            break
    return [net for net in followed if len(net.pins) > 1]


def _limited_at(nets: list[_Net], item: Key) -> list[_Net]:
    """Let the cheapest of too many nets that begin, end or go on at an item end before it.

    Those that begin there begin behind it, but links, which end.
    """
    there = [net for net in nets if len(net.pins) > 1 and min(net.pins) <= item <= max(net.pins)]
    there.sort(key=lambda net: net.cost, reverse=True)
    for net in there[MOST_AT_ITEM:]:
        before = {pin: dense for pin, dense in net.pins.items() if pin < item}
        behind = {pin: dense for pin, dense in net.pins.items() if pin > item}
        net.pins = before if len(before) > 1 or net.is_link else behind
    return [net for net in nets if net.pins]
