"""What a part does, as a torch.fx GraphModule: it receives, computes its steps, packs and sends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from hgpart.errors import ArgumentError
from hgpart.execution.transfers import Transfer

CARRY = "carry"  # step of a part that gives buffers the values that the next pass finds


def receive(number: int, *, layer: str = "", sender: int | None = None) -> Any:
    """Stand for what arrives as transfer `number`; a runtime puts it there."""
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


for _said in (receive, pack, send):  # as the code of a program names them
    _said.__module__ = "hgpart"


@dataclass(frozen=True, eq=False)
class PartProgram:
    """One part of a placement.

    Attributes
    ----------
    part : int
    module : torch.fx.GraphModule
        Its nodes are placeholders (inputs of the model, random draws, the batch size), `receive`,
        steps (a layer's share each, GraphModules themselves), `pack`, `send` and the output.
    transfers : mapping of int to Transfer
        By number, all that the part sends or receives, in the global order.
    joined : mapping of str to tuple of str
        Steps of several shares of the batch, by name, and what they would be called in each.
    """

    part: int
    module: fx.GraphModule
    transfers: Mapping[int, Transfer]
    joined: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
