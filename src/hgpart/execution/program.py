"""A part's torch.fx GraphModule: it receives, computes its steps, packs and sends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from hgpart.errors import ArgumentError
from hgpart.execution.transfers import Transfer

CARRY = "carry"  # step of a part that hands values of buffers on to the next pass


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
