"""Exchange: which elements of one part's weights another has copies of, and how these travel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Key = tuple[object, ...]
Places = torch.Tensor | slice  # of a flattened tensor
EVERY = slice(None)


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
    shape : tuple of int
        Of it, whole.
    key : Key
        Of the owner's tensor.
    places : Places
        Of the elements in it.
    count : int
    copies : tuple of Copied
    """

    name: str
    shape: tuple[int, ...]
    key: Key
    places: Places
    count: int
    copies: tuple[Copied, ...]


@dataclass(frozen=True, eq=False)
class Exchange:
    """Elements that belong to one part and that another has copies of: one message.

    Attributes
    ----------
    layer : str
        That they are of, or the first of several; see `shares.messages`.
    owner, holder : int
        Parts; they are one where something is all of a part's parameter and some of its copy.
    elements : tuple of Elements
    """

    layer: str
    owner: int
    holder: int
    elements: tuple[Elements, ...]

    @property
    def copy_keys(self) -> list[Key]:
        """Of the copies that it is for, each once."""
        return [*dict.fromkeys(copy.key for each in self.elements for copy in each.copies)]


def is_every(places: Places) -> bool:
    """Whether they are all that a tensor has."""
    return isinstance(places, slice) and places == EVERY


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
    if isinstance(places, slice) and not is_every(places) and not tensor.is_contiguous():
        each = tensor.numel() // len(tensor)  # rows: no copy of all others
        return tensor.detach()[places.start // each : places.stop // each].reshape(-1)
    flat = tensor.detach().reshape(-1)
    return flat[places.to(flat.device) if isinstance(places, Tensor) else places]


def put(tensor: Tensor, places: Places, values: Tensor) -> None:
    """Write some elements."""
    tensor = tensor.detach()
    if is_every(places):
        tensor.copy_(values.view(tensor.shape))
        return
    flat = tensor.reshape(-1)
    flat[places.to(flat.device) if isinstance(places, Tensor) else places] = values
    if not tensor.is_contiguous():
        tensor.copy_(flat.view(tensor.shape))


def add(tensor: Tensor, places: Places, values: Tensor) -> None:
    """Add to some elements."""
    if isinstance(places, slice) and tensor.is_contiguous():
        tensor.detach().view(-1)[places].add_(values)
    else:
        put(tensor, places, taken(tensor, places) + values)
