"""A part's torch.fx GraphModule: it receives, computes its steps, packs and sends."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from hgpart.errors import ArgumentError

CARRY = "carry"  # step of a part that hands values of buffers on to the next pass


@dataclass(frozen=True)
class Share:
    """Slices of the batch that have the same layout and are computed as one batch.

    Attributes
    ----------
    slices : tuple of int
        Numbers of the slices.
    of : int
        Number of slices of the whole batch.
    turn : int or None
        One of these slices, if it has batches of its own, whole ones, in turns with the others.
    """

    slices: tuple[int, ...] = (0,)
    of: int = 1
    turn: int | None = None

    def samples(self, batch_size: int) -> int:
        """Number of samples in these slices, counted as in `Modelling.samples`.

        >>> Share((1, 2), of=3).samples(batch_size=8)
        6
        >>> Share((1, 2), of=3, turn=2).samples(batch_size=8)
        8
        """
        if self.turn is not None:
            return batch_size
        firsts = (at * batch_size // self.of for at in self.slices)
        lasts = ((at + 1) * batch_size // self.of for at in self.slices)
        return sum(lasts) - sum(firsts)


WHOLE = Share()  # of a batch without slices


@dataclass(frozen=True)
class TransferredTensor:
    """A tensor that is sent, for any batch size.

    Attributes
    ----------
    per_sample, fixed : tuples of int
        Dimension d has ``per_sample[d] * samples + fixed[d]`` elements.
    share : Share
        Slices whose samples it has.
    """

    per_sample: tuple[int, ...]
    fixed: tuple[int, ...]
    dtype: torch.dtype
    share: Share = WHOLE

    def shape(self, batch_size: int) -> tuple[int, ...]:
        """Shape for a batch.

        >>> TransferredTensor((1, 0), (0, 8), torch.float32).shape(batch_size=5)
        (5, 8)
        """
        samples = self.share.samples(batch_size)
        sizes = zip(self.per_sample, self.fixed, strict=True)
        return tuple(variable * samples + fixed for variable, fixed in sizes)

    def nbytes(self, batch_size: int) -> int:
        """Bytes in a message, for a batch."""
        return math.prod(self.shape(batch_size)) * self.dtype.itemsize


@dataclass(frozen=True)
class Transfer:
    """The tensors that a layer sends from one part to another.

    Attributes
    ----------
    number : int
        Place in the one global order of all transfers of a placement; the tag of its message.
    layer : str
        Name of the layer whose maps travel.
    partial : bool
        Whether these are partial sums of the layer (fine-grain) on the way to its reduction.
    sender, receiver : int
        The two parts.
    tensors : tuple of TransferredTensor
        One for each output tensor of the layer.
    differentiable : bool
        Whether a gradient of the same size comes back.
    counted : bool
        Whether it is part of the partition's communication volume. Only results are not, where the
        plan leaves the output vertex out.
    at_once : bool
        Whether it leaves before anything else is computed, as a border of rows should: its chunk
        ends.
    """

    number: int
    layer: str
    partial: bool
    sender: int
    receiver: int
    tensors: tuple[TransferredTensor, ...]
    differentiable: bool
    counted: bool = True
    at_once: bool = False

    def nbytes(self, batch_size: int) -> int:
        """Bytes for a batch, one way."""
        return sum(tensor.nbytes(batch_size) for tensor in self.tensors)

    def in_dtype(self, old: torch.dtype, dtype: torch.dtype) -> Transfer:
        """The same transfer with tensors of one floating type in another type."""
        return replace(
            self,
            tensors=tuple(
                replace(tensor, dtype=dtype) if tensor.dtype == old else tensor
                for tensor in self.tensors
            ),
        )


def receive(number: int, *, layer: str = "", sender: int | None = None) -> Any:
    """Stand for the arrival of transfer `number`; a runtime supplies it."""
    raise ArgumentError(
        f"receive({number}): a part's program runs in a runtime, accepted is calling the placement"
    )


def pack(tensor: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    """Gather the channels that another part reads into one contiguous tensor."""
    return tensor.index_select(dim, index)


def send(number: int, *tensors: torch.Tensor, receiver: int | None = None) -> None:
    """Stand for the departure of transfer `number`; a runtime sends it."""
    raise ArgumentError(
        f"send({number}): a part's program runs in a runtime, accepted is calling the placement"
    )


for _call in (receive, pack, send):  # as the code of a program names them
    _call.__module__ = "hgpart"


@dataclass(frozen=True, eq=False)
class PartProgram:
    """The program of one part of a placement.

    Attributes
    ----------
    module : torch.fx.GraphModule
        Graph of placeholders (inputs of the model, random draws, the batch size), `receive`, steps
        (GraphModules too, each a layer's share), `pack`, `send` and the output.
    transfers : mapping of int to Transfer
        All transfers that the part sends or receives, by number, in the global order.
    joined : mapping of str to tuple of str
        Steps of several shares of the batch, by name, with the names that they would have in each.
    """

    part: int
    module: fx.GraphModule
    transfers: Mapping[int, Transfer]
    joined: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
