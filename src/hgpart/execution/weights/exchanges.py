"""Exchange: which elements of one part's weights another has copies of, and how these travel."""

from __future__ import annotations

from collections.abc import Sequence
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
        The key of the copy.
    places : Places
        Where these elements are in the copy.
    among : Places
        Where they are among all that travel.
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
        The name of the parameter or buffer.
    shape : tuple of int
        Its whole shape.
    key : Key
        The key of the owner's tensor.
    places : Places
        Where the elements are in the owner's tensor.
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
        The layer that they are of, or the first of several; see `shares.messages`.
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
    if len(pieces) == 1:
        return pieces[0].contiguous().view(torch.uint8)
    if len({piece.dtype for piece in pieces}) == 1:
        return torch.cat([*pieces]).view(torch.uint8)
    return torch.cat([piece.contiguous().view(torch.uint8) for piece in pieces])


def unpacked(body: Tensor, exchange: Exchange, types: Sequence[torch.dtype]) -> Sequence[Tensor]:
    """The flat tensors of an exchange."""
    counts = [elements.count for elements in exchange.elements]
    if len({*types}) == 1 and body.storage_offset() % types[0].itemsize == 0:
        return torch.split(body.view(types[0]), counts)
    sizes = [count * dtype.itemsize for count, dtype in zip(counts, types, strict=True)]
    pieces = zip(torch.split(body, sizes), types, strict=True)
    return [
        (piece.clone() if piece.storage_offset() % dtype.itemsize else piece).view(dtype)
        for piece, dtype in pieces
    ]


def taken(tensor: Tensor, places: Places) -> Tensor:
    """Some elements, flat."""
    if isinstance(places, slice) and not is_every(places) and not tensor.is_contiguous():
        each = tensor.numel() // len(tensor)  # rows: no copy of all others
        return tensor.detach()[places.start // each : places.stop // each].reshape(-1)
    flat = tensor.detach().reshape(-1)
    return flat[places.to(flat.device) if isinstance(places, Tensor) else places]


Pair = tuple[Tensor, Places, Tensor]  # a tensor, some places in it, and values for these


def put_if_other(pairs: Sequence[Pair]) -> None:
    """Write some elements, if any of them is another: all at once, as each call of torch costs.

    On a GPU they are written anyway: to compare them the host would have to wait.
    """
    views, values = list[Tensor](), list[Tensor]()
    for tensor, places, given in pairs:
        given, view = given.to(tensor.device), _view(tensor, places)
        if view is None:
            if _are_other([taken(tensor, places)], [given]):  # as NaN always is
                put(tensor, places, given.clone())  # which may lie within the tensor
        elif view.data_ptr() != given.data_ptr():  # else it is where it belongs
            views.append(view)
            values.append(given)
    if views and _are_other(views, values):
        torch._foreach_copy_(views, values)


def _are_other(views: Sequence[Tensor], values: Sequence[Tensor]) -> bool:
    """Whether some tensors differ, as far as that is known at once."""
    if any(view.device.type != "cpu" for view in views):
        return True
    return not all(map(torch.equal, views, values))  # after an update the first ones differ


def add_all(pairs: Sequence[Pair]) -> None:
    """Add to some elements, as `add`, all at once."""
    views, values = list[Tensor](), list[Tensor]()
    for tensor, places, given in pairs:
        view = _view(tensor, places)
        if view is None:
            add(tensor, places, given)
        else:
            views.append(view)
            values.append(given)
    if views:
        torch._foreach_add_(views, values)


def _view(tensor: Tensor, places: Places) -> Tensor | None:
    """Some elements, flat, in the tensor's own memory, where they lie so."""
    if not isinstance(places, slice) or not tensor.is_contiguous():
        return None
    flat = tensor.detach().view(-1)
    return flat if is_every(places) else flat[places]


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
