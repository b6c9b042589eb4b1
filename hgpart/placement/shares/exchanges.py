"""What parts hold -> Exchanges: which elements one part has of another's state, to be kept alike.

An element of the model's state belongs to the part that has it in the first share of the batch; the
parts that need it in other shares have copies.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import torch
from torch import Tensor

from hgpart.placement.cutting.slices import Slice, slice_of

Key = tuple[object, ...]
Places = torch.Tensor | slice  # of a flattened tensor
EVERY = slice(None)
SMALL = 2**14  # elements: what is less goes with others, for which it is copied


@dataclass(frozen=True, eq=False)
class Holding:
    """What a part has of the model's state.

    Attributes
    ----------
    own : mapping of Key to Slice
        What belongs to it, by the key of its tensor.
    copies : mapping of Key to Slice
        What it has besides.
    """

    own: Mapping[Key, Slice]
    copies: Mapping[Key, Slice]


@dataclass(frozen=True, eq=False)
class Copied:
    """Where one copy has some elements.

    Attributes
    ----------
    key : Key
        Of the copy.
    places : Places
        Of these elements in it.
    among : Places
        Of these elements among all that travel.
    """

    key: Key
    places: Places
    among: Places


@dataclass(frozen=True, eq=False)
class Elements:
    """Elements of one tensor of the owner that a holder has copies of: each travels once.

    Attributes
    ----------
    name : str
        Of the parameter or buffer.
    key : Key
        Of the owner's tensor.
    places : Places
        Of the elements in it.
    count : int
    copies : tuple of Copied
    """

    name: str
    key: Key
    places: Places
    count: int
    copies: tuple[Copied, ...]


@dataclass(frozen=True, eq=False)
class Exchange:
    """Elements of a layer that belong to one part and that another has copies of.

    Attributes
    ----------
    layer : str
    owner, holder : int
        Parts; they are one where a part's shares need other elements each.
    elements : tuple of Elements
    first : bool
        Of those of the layer from this owner to this holder, which count as one message.
    """

    layer: str
    owner: int
    holder: int
    elements: tuple[Elements, ...]
    first: bool

    @property
    def copy_keys(self) -> list[Key]:
        """Of the copies that it is for, each once."""
        return [*dict.fromkeys(copy.key for each in self.elements for copy in each.copies)]


def exchanges(holdings: Mapping[int, Holding], layers: Mapping[str, str]) -> tuple[Exchange, ...]:
    """Find what each part has of each other's.

    Parameters
    ----------
    holdings : mapping of int to Holding
        Of all parts.
    layers : mapping of str to str
        By name in the model's state, the layer, in the order in which they are computed. What is
        not named is not looked at.
    """
    found: dict[tuple[str, int, int], list[Elements]] = {}
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
                    found.setdefault((layers[name], owner, holder), []).append(elements)
    order = {layer: at for at, layer in enumerate(dict.fromkeys(layers.values()))}
    ways = sorted(found, key=lambda way: (order[way[0]], way[1], way[2]))
    return tuple(
        Exchange(*way, together, first=not at)
        for way in ways
        for at, together in enumerate(_bodies(found[way]))
    )


def _bodies(elements: Sequence[Elements]) -> list[tuple[Elements, ...]]:
    """What travels in one piece: tensors that are large by themselves."""
    large = [(one,) for one in elements if one.count >= SMALL]
    small = tuple(one for one in elements if one.count < SMALL)
    return [*large, *([small] if small else [])]


def _elements(key: Key, own: Slice, copies: Sequence[tuple[Key, Slice]]) -> Elements | None:
    common = [(copy_key, copy, _common(own, copy)) for copy_key, copy in copies]
    some = [(copy_key, copy, both) for copy_key, copy, both in common if both is not None]
    if not some:
        return None
    travelling = reduce(_united, (both for _, _, both in some))
    return Elements(
        own.name,
        key,
        _places(own, travelling),
        math.prod(travelling.local_shape),
        tuple(
            Copied(copy_key, _places(copy, both), _places(travelling, both))
            for copy_key, copy, both in some
        ),
    )


def _common(first: Slice, second: Slice) -> Slice | None:
    """The elements that are in both."""
    if first.key == second.key:
        return first
    if first.elements is None and second.elements is None:
        positions = dict(first.positions)
        for dim, kept in second.positions.items():
            positions[dim] = np.intersect1d(positions[dim], kept) if dim in positions else kept
        found = Slice(first.name, first.shape, positions)
    else:
        numbers = np.intersect1d(first.numbers, second.numbers)
        found = slice_of(first.name, first.shape, numbers)
    return found if math.prod(found.local_shape) else None


def _united(first: Slice, second: Slice) -> Slice:
    """The elements that are in either."""
    if first.key == second.key:
        return first
    numbers = np.concatenate([first.numbers.ravel(), second.numbers.ravel()])
    return slice_of(first.name, first.shape, numbers)


def _places(held: Slice, some: Slice) -> Places:
    """Where elements are in the flattened tensor of a slice that has them."""
    if held.key == some.key:
        return EVERY
    rows = {*held.positions, *some.positions} == {0} and some.elements is None
    if rows and held.elements is None:
        have = held.positions.get(0, np.arange(held.shape[0]))
        at = np.searchsorted(have, some.positions.get(0, have))
        if at[-1] - at[0] + 1 == len(at):
            each = math.prod(held.shape[1:])
            return slice(int(at[0]) * each, (int(at[-1]) + 1) * each)
    have, want = held.numbers.ravel(), some.numbers.ravel()
    order = np.argsort(have, kind="stable")
    return torch.from_numpy(order[np.searchsorted(have[order], want)])


# ------------------------------------------------------------------ what travels


def packed(pieces: Sequence[Tensor]) -> Tensor:
    """Flat tensors as one, in bytes."""
    found = [piece.contiguous().view(torch.uint8) for piece in pieces]
    return found[0] if len(found) == 1 else torch.cat(found)


def unpacked(body: Tensor, exchange: Exchange, types: Sequence[torch.dtype]) -> Iterator[Tensor]:
    """The flat tensors of an exchange."""
    at = 0
    for elements, dtype in zip(exchange.elements, types, strict=True):
        piece = body[at : at + elements.count * dtype.itemsize]
        at += len(piece)
        if piece.storage_offset() % dtype.itemsize:
            piece = piece.clone()
        yield piece.view(dtype)


def taken(tensor: Tensor, places: Places) -> Tensor:
    """Some elements, flat."""
    flat = tensor.detach().reshape(-1)
    return flat[places.to(flat.device) if isinstance(places, Tensor) else places]


def put(tensor: Tensor, places: Places, values: Tensor) -> None:
    """Write some elements."""
    tensor = tensor.detach()
    if isinstance(places, slice) and places == EVERY:
        tensor.copy_(values.view(tensor.shape))
        return
    flat = tensor.reshape(-1)
    flat[places.to(flat.device) if isinstance(places, Tensor) else places] = values
    if not tensor.is_contiguous():
        tensor.copy_(flat.view(tensor.shape))


def add(tensor: Tensor, places: Places, values: Tensor) -> None:
    """Add to some elements."""
    if isinstance(places, slice) and places == EVERY:
        tensor.detach().add_(values.view(tensor.shape))
    else:
        put(tensor, places, taken(tensor, places) + values)
