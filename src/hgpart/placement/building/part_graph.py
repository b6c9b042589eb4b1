"""The torch.fx graph of one part under construction: receive, steps, pack, send."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import fx

from hgpart.arrays import Int64
from hgpart.execution import program
from hgpart.execution.transfers import Transfer
from hgpart.placement.cutting.growing_module import GrowingModule
from hgpart.placement.cutting.steps import Step


@dataclass(eq=False)
class PartGraph(GrowingModule):
    """The nodes of a part's program; its values are known by the names that steps have for them.

    Attributes
    ----------
    values : dict of str to fx.Node
        What was received, or made.
    waiting : dict of str to (Transfer, str)
        What is yet to be received: the transfer, and the name of its first tensor.
    used : dict of int to Transfer
        What is received and sent, by number.
    joined : dict of (str, ...) to str
        By the names of what several shares of the batch have, that of all of it together.
    steps : dict of str to (str, ...)
        By the name of a step of several shares, what it would be called in each.
    """

    values: dict[str, fx.Node] = field(default_factory=dict)
    waiting: dict[str, tuple[Transfer, str]] = field(default_factory=dict)
    used: dict[int, Transfer] = field(default_factory=dict)
    joined: dict[tuple[str, ...], str] = field(default_factory=dict)
    steps: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def add(self, step: Step, name: str, prefix: str = "") -> tuple[fx.Node, ...]:
        """Call a step, after what it waits for has been received.

        What is neither made nor received is an operand of the program, under a name that begins
        with `prefix`.
        """
        for operand in step.operands:
            self.receive(operand)
        operands = {
            operand: self.values.get(operand) or self.placeholder(f"{prefix}{operand}")
            for operand in step.operands
        }
        nodes = list(step.module.graph.nodes)
        if all(node.op in ("placeholder", "output") for node in nodes):  # nothing to compute
            returned = nodes[-1].args[0]
            chosen = returned if isinstance(returned, (tuple, list)) else (returned,)
            made = tuple(operands[str(node.target)] for node in chosen)
        else:
            self.root.add_module(name, step.module)
            called = self.fx_graph.call_module(name, tuple(operands.values()))
            made = (called,)
            if step.outputs != 1:
                made = tuple(
                    self.call(operator.getitem, called, index) for index in range(step.outputs)
                )
        for index, node in enumerate(made):
            self.values[numbered(name, index)] = node
        return made

    def receive(self, name: str) -> None:
        """Wait for a value, and what comes with it, if it is one that is yet to arrive."""
        if name not in self.waiting:
            return
        transfer, first = self.waiting[name]
        self.used[transfer.number] = transfer
        said: dict[str, Any] = {"layer": transfer.layer, "sender": transfer.sender}
        number = (transfer.number,)
        arrived = self.fx_graph.create_node("call_function", program.receive, number, said, first)
        several = len(transfer.tensors) > 1
        for index in range(len(transfer.tensors)):
            one = numbered(first, index)
            del self.waiting[one]
            self.values[one] = self.call(operator.getitem, arrived, index) if several else arrived

    def send(self, transfer: Transfer, tensors: Sequence[fx.Node]) -> None:
        """Let values depart."""
        self.used[transfer.number] = transfer
        self.fx_graph.call_function(
            program.send, (transfer.number, *tensors), {"receiver": transfer.receiver}
        )

    def packed(self, name: str, axis: int, places: Int64, size: int) -> fx.Node:
        """Some places of a value, of `size` along a dimension, in one contiguous tensor."""
        if np.array_equal(places, np.arange(size)):
            return self.values[name]
        return self.call(program.pack, self.values[name], axis, self.index(places, "channels_0"))


def numbered(name: str, index: int) -> str:
    """The name of one of several tensors."""
    return name if index == 0 else f"{name}_{index}"
