"""Exchange: elements of one part's weights that another part has copies of, and their bytes."""

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
    """Where a copy has some elements.

    Attributes
    ----------
    key : Key
        Key of the copy.
    places : Places
        Places of these elements in the copy.
    among : Places
        Places of these elements among all that travel.
    """

    key: Key
    places: Places
    among: Places


@dataclass(frozen=True, eq=False)
class SharedElements:
    """Elements of one tensor of the owner that a holder has copies of; each travels once.

    Attributes
    ----------
    name : str
        Name of the parameter or buffer.
    shape : tuple of int
        Shape of the whole parameter or buffer.
    key : Key
        Key of the owner's tensor.
    places : Places
        Places of the elements in the owner's tensor.
    """

    name: str
    shape: tuple[int, ...]
    key: Key
    places: Places
    count: int
    copies: tuple[Copied, ...]


@dataclass(frozen=True, eq=False)
class Exchange:
    """Elements that belong to one part and that another has copies of; they are one message.

    Attributes
    ----------
    layer : str
        Layer of the elements, or the first of several layers; see `shares.messages`.
    owner, holder : int
        The two parts. They are the same where a part's copy has elements of its own parameter.
    """

    layer: str
    owner: int
    holder: int
    elements: tuple[SharedElements, ...]

    @property
    def copy_keys(self) -> list[Key]:
        """Keys of the copies, each once."""
        return [*dict.fromkeys(copy.key for elements in self.elements for copy in elements.copies)]


def is_every(places: Places) -> bool:
    """Whether these are all elements of a tensor."""
    return isinstance(places, slice) and places == EVERY


def packed(pieces: Sequence[Tensor]) -> Tensor:
    """Join flat tensors to one, in bytes."""
    if len(pieces) == 1:
        return pieces[0].contiguous().view(torch.uint8)
    if len({piece.dtype for piece in pieces}) == 1:
        return torch.cat([*pieces]).view(torch.uint8)
    return torch.cat([piece.contiguous().view(torch.uint8) for piece in pieces])


def unpacked(body: Tensor, exchange: Exchange, types: Sequence[torch.dtype]) -> Sequence[Tensor]:
    """Cut the bytes of an exchange into its flat tensors."""
    counts = [elements.count for elements in exchange.elements]
    if len({*types}) == 1 and body.storage_offset() % types[0].itemsize == 0:
        return torch.split(body.view(types[0]), counts)
    sizes = [count * dtype.itemsize for count, dtype in zip(counts, types, strict=True)]
    pieces = zip(torch.split(body, sizes), types, strict=True)
    return [
        (piece.clone() if piece.storage_offset() % dtype.itemsize else piece).view(dtype)
        for piece, dtype in pieces
    ]


def absent(count: int, like: Tensor) -> Tensor:
    """What a message has in place of a gradient that the model would not have either, flat.

    Its bits are those of a NaN that no computation makes: optimizers do use gradients of 0.
    """
    nbytes = count * like.element_size()
    return torch.full((nbytes,), 255, dtype=torch.uint8, device=like.device).view(like.dtype)


def is_absent(values: Tensor) -> bool:
    """Whether these values of a message stand for no gradient.

    >>> [is_absent(values) for values in (absent(2, torch.ones(3)), torch.tensor([torch.nan, 0]))]
    [True, False]
    """
    return bool((values[:1].view(torch.uint8) == 255).all())


def taken(tensor: Tensor, places: Places) -> Tensor:
    """Some elements of a tensor, flat."""
    if isinstance(places, slice) and not is_every(places) and not tensor.is_contiguous():
        row = tensor.numel() // len(tensor)  # rows: no copy of all others
        return tensor.detach()[places.start // row : places.stop // row].reshape(-1)
    flat = tensor.detach().reshape(-1)
    return flat[places.to(flat.device) if isinstance(places, Tensor) else places]


Pair = tuple[Tensor, Places, Tensor]  # a tensor, some places in it, and values for these


def put_if_other(pairs: Sequence[Pair]) -> None:
    """Write elements where they differ, all at once, as each call of torch takes time.

    On a GPU they are always written: to compare them the host would have to wait.
    """
    views, values = list[Tensor](), list[Tensor]()
    for tensor, places, new in pairs:
        new, view = new.to(tensor.device), _view(tensor, places)
        if view is None:
            if _differ([taken(tensor, places)], [new]):  # as NaN always does
                put(tensor, places, new.clone())  # a clone, as `new` may lie within the tensor
        elif view.data_ptr() != new.data_ptr():  # else it is the same memory
            views.append(view)
            values.append(new)
    if views and _differ(views, values):
        torch._foreach_copy_(views, values)


def _differ(views: Sequence[Tensor], values: Sequence[Tensor]) -> bool:
    """Whether some tensors differ, or may differ on a GPU."""
    if any(view.device.type != "cpu" for view in views):
        return True
    return not all(map(torch.equal, views, values))  # after an update the first pair differs


def add_all(pairs: Sequence[Pair]) -> None:
    """Add to elements as `add` does, all at once."""
    views, values = list[Tensor](), list[Tensor]()
    for tensor, places, summand in pairs:
        view = _view(tensor, places)
        if view is None:
            add(tensor, places, summand)
        else:
            views.append(view)
            values.append(summand)
    if views:
        torch._foreach_add_(views, values)


def _view(tensor: Tensor, places: Places) -> Tensor | None:
    """Some elements as a flat view of the tensor's memory; None if there is no such view."""
    if not isinstance(places, slice) or not tensor.is_contiguous():
        return None
    flat = tensor.detach().view(-1)
    return flat if is_every(places) else flat[places]


def put(tensor: Tensor, places: Places, values: Tensor) -> None:
    """Write values to some elements."""
    tensor = tensor.detach()
    if is_every(places):
        tensor.copy_(values.view(tensor.shape))
        return
    flat = tensor.reshape(-1)
    flat[places.to(flat.device) if isinstance(places, Tensor) else places] = values
    if not tensor.is_contiguous():
        tensor.copy_(flat.view(tensor.shape))


def add(tensor: Tensor, places: Places, values: Tensor) -> None:
    """Add values to some elements."""
    if isinstance(places, slice) and tensor.is_contiguous():
        tensor.detach().view(-1)[places].add_(values)
    else:
        put(tensor, places, taken(tensor, places) + values)
