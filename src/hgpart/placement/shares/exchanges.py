"""What parts hold -> Exchanges: the elements of a part's state that another part has copies of.

An element of the model's state belongs to one part (see `owners`); other parts that need it have
copies.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import torch

from hgpart.execution.weights.exchanges import EVERY, Copied, Exchange, Key, Places, SharedElements
from hgpart.placement.cutting.slices import Slice, slice_of
from hgpart.placement.shares.messages import is_large


@dataclass(frozen=True, eq=False)
class Holding:
    """What a part holds of the model's state.

    Attributes
    ----------
    own : mapping of Key to Slice
        Slices that belong to the part, by the key of their tensor.
    copies : mapping of Key to Slice
        Copies of other slices, by the key of their tensor.
    """

    own: Mapping[Key, Slice]
    copies: Mapping[Key, Slice]


def together(holdings: Iterable[Holding]) -> Holding:
    """What a part holds for several programs."""
    first, *more = holdings
    copies = dict(first.copies)
    for holding in more:
        copies.update(holding.copies)
    return Holding(first.own, copies)


def exchanges(holdings: Mapping[int, Holding], layers: Mapping[str, str]) -> tuple[Exchange, ...]:
    """Find what parts have copies of.

    Parameters
    ----------
    holdings : mapping of int to Holding
        Holdings of all parts.
    layers : mapping of str to str
        Layer that a parameter or buffer travels with, by its name in the model's state, in the
        order of computation. Other names are ignored.

    Returns
    -------
    tuple of Exchange
        Exchanges in the order of layers; those within a part come before those with other parts.
    """
    by_ends: dict[tuple[str, int, int], list[SharedElements]] = {}
    owners: dict[str, list[tuple[int, Key, Slice]]] = {}
    for part, holding in sorted(holdings.items()):
        for key, own in holding.own.items():
            owners.setdefault(own.name, []).append((part, key, own))
    for holder, holding in sorted(holdings.items()):
        by_name: dict[str, list[tuple[Key, Slice]]] = {}
        for key, copy in holding.copies.items():
            by_name.setdefault(copy.name, []).append((key, copy))
        for name, copies in by_name.items():
            for owner, key, own in owners.get(name, []) if name in layers else []:
                elements = _elements(key, own, copies)
                if elements is not None:
                    by_ends.setdefault((layers[name], owner, holder), []).append(elements)
    order = {layer: at for at, layer in enumerate(dict.fromkeys(layers.values()))}
    ends = sorted(by_ends, key=lambda end: (order[end[0]], end[1], end[1] != end[2], end[2]))
    return tuple(Exchange(*end, together) for end in ends for together in _together(by_ends[end]))


def _together(elements: Sequence[SharedElements]) -> list[tuple[SharedElements, ...]]:
    """Elements that travel in one message: large tensors travel alone."""
    messages: dict[str, list[SharedElements]] = {}
    for item in elements:
        messages.setdefault(item.name if is_large(item.shape) else "", []).append(item)
    return [tuple(items) for items in messages.values()]


def _elements(key: Key, own: Slice, copies: Sequence[tuple[Key, Slice]]) -> SharedElements | None:
    common = [(copy_key, copy, _common(own, copy)) for copy_key, copy in copies]
    some = [(copy_key, copy, both) for copy_key, copy, both in common if both is not None]
    if not some:
        return None
    travelling = reduce(_united, (both for _, _, both in some))
    return SharedElements(
        own.name,
        own.shape,
        key,
        _places(own, travelling),
        math.prod(travelling.local_shape),
        tuple(
            Copied(copy_key, _places(copy, both), _places(travelling, both))
            for copy_key, copy, both in some
        ),
    )


def _common(first: Slice, second: Slice) -> Slice | None:
    """The elements that are in both slices."""
    if first.key == second.key:
        return first
    if first.elements is None and second.elements is None:
        positions = dict(first.positions)
        for dim, kept in second.positions.items():
            positions[dim] = np.intersect1d(positions[dim], kept) if dim in positions else kept
        common = Slice(first.name, first.shape, positions)
    else:
        numbers = np.intersect1d(first.numbers, second.numbers)
        common = slice_of(first.name, first.shape, numbers)
    return common if math.prod(common.local_shape) else None


def _united(first: Slice, second: Slice) -> Slice:
    """The elements that are in either slice."""
    if first.key == second.key:
        return first
    numbers = np.concatenate([first.numbers.ravel(), second.numbers.ravel()])
    return slice_of(first.name, first.shape, numbers)


def _places(held: Slice, some: Slice) -> Places:
    """Where some elements are in the flattened tensor of a slice that holds them."""
    if held.key == some.key:
        return EVERY
    rows = {*held.positions, *some.positions} == {0} and some.elements is None
    if rows and held.elements is None:
        have = held.positions.get(0, np.arange(held.shape[0]))
        at = np.searchsorted(have, some.positions.get(0, have))
        if at[-1] - at[0] + 1 == len(at):
            row = math.prod(held.shape[1:])
            return slice(int(at[0]) * row, (int(at[-1]) + 1) * row)
    have, want = held.numbers.ravel(), some.numbers.ravel()
    order = np.argsort(have, kind="stable")
    at = order[np.searchsorted(have[order], want)]
    if (np.diff(at) == 1).all():  # a list would take twice the memory of the elements
        return slice(int(at[0]), int(at[-1]) + 1)
    return torch.from_numpy(at)


def window(held: Slice, some: Slice) -> tuple[slice, ...] | None:
    """Where some elements are in the tensor of a slice with all of them; None if not in one box.

    >>> rows = Slice("weight", (8, 2), {0: np.array([1, 2, 5, 7])})
    >>> window(rows, Slice("weight", (8, 2), {0: np.array([2, 5])}))
    (slice(1, 3, None), slice(0, 2, None))
    """
    if held.name != some.name or held.elements is not None or some.elements is not None:
        return None
    axes = []
    for dim, size in enumerate(held.shape):
        have = held.positions.get(dim, np.arange(size))
        want = some.positions.get(dim, np.arange(size))
        first = int(np.searchsorted(have, want[0])) if len(want) else 0
        if not len(want) or not np.array_equal(have[first : first + len(want)], want):
            return None
        axes.append(slice(first, first + len(want)))
    return tuple(axes)
