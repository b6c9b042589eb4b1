"""The torch.fx graph of one part under construction: receive, steps, pack, send."""

from __future__ import annotations

import operator
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
from torch import fx

from hgpart.arrays import Int64
from hgpart.execution import program
from hgpart.execution.program import Transfer
from hgpart.placement.cutting.growing_module import GrowingModule
from hgpart.placement.cutting.steps import Step


@dataclass(eq=False)
class PartGraph(GrowingModule):
    """The nodes of a part's program; its values are known by their names in steps.

    Attributes
    ----------
    values : dict of str to fx.Node
        Nodes of values that were received or computed, by name.
    waiting : dict of str to (Transfer, str)
        Values that are still to be received: their transfer, and the name of its first tensor.
    used : dict of int to Transfer
        Transfers that are received or sent, by number.
    joined : dict of (str, ...) to str
        Name of a value of several shares together, by its names in each.
    steps : dict of str to (str, ...)
        Names that a step of several shares would have in each, by its name.
    """

    values: dict[str, fx.Node] = field(default_factory=dict)
    waiting: dict[str, tuple[Transfer, str]] = field(default_factory=dict)
    used: dict[int, Transfer] = field(default_factory=dict)
    joined: dict[tuple[str, ...], str] = field(default_factory=dict)
    steps: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def add(self, step: Step, name: str, prefix: str = "") -> tuple[fx.Node, ...]:
        """Call a step, after receiving what it waits for.

        Operands that are neither computed nor received are inputs of the program, with names that
        begin with `prefix`.
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
            results = tuple(operands[str(node.target)] for node in chosen)
        else:
            self.root.add_module(name, step.module)
            call = self.fx_graph.call_module(name, tuple(operands.values()))
            results = (call,)
            if step.outputs != 1:
                results = tuple(
                    self.call(operator.getitem, call, index) for index in range(step.outputs)
                )
        for index, node in enumerate(results):
            self.values[numbered(name, index)] = node
        return results

    def receive(self, name: str) -> None:
        """Receive a value, and all that comes with it, if it is still to arrive."""
        if name not in self.waiting:
            return
        transfer, first = self.waiting[name]
        self.used[transfer.number] = transfer
        shown: dict[str, Any] = {"layer": transfer.layer, "sender": transfer.sender}
        number = (transfer.number,)
        arrived = self.fx_graph.create_node("call_function", program.receive, number, shown, first)
        is_several = len(transfer.tensors) > 1
        for index in range(len(transfer.tensors)):
            key = numbered(first, index)
            del self.waiting[key]
            self.values[key] = (
                self.call(operator.getitem, arrived, index) if is_several else arrived
            )

    def send(self, transfer: Transfer, tensors: Sequence[fx.Node]) -> None:
        """Send values."""
        self.used[transfer.number] = transfer
        self.fx_graph.call_function(
            program.send, (transfer.number, *tensors), {"receiver": transfer.receiver}
        )

    def send_early(self) -> None:
        """Put what is sent, and what that needs, before all else that follows the same receives.

        In a plan over bands, borders then travel while insides are computed.
        """
        nodes = [*self.fx_graph.nodes]
        for receives, stretch in groupby(nodes, key=lambda node: node.target is program.receive):
            if not receives:
                _sends_first([*stretch])

    def leave_out_unread(self, names: Set[str]) -> None:
        """Take the steps of these names out of the program, unless their results are read."""
        for node in reversed(self.fx_graph.nodes):
            made_by = node.args[0] if node.target is operator.getitem else node
            if not node.users and made_by.op == "call_module" and made_by.target in names:
                self.fx_graph.erase_node(node)
                if node is made_by:
                    delattr(self.root, node.target)
                    self.steps.pop(node.target, None)

    def packed(self, name: str, cuts: Sequence[tuple[int, Int64, int]]) -> fx.Node:
        """Some places of a value along some dimensions, as one contiguous tensor.

        The cuts are dimensions, the places taken of each, and its size.
        """
        result = self.values[name]
        for axis, places, size in cuts:
            if not np.array_equal(places, np.arange(size)):
                result = self.call(program.pack, result, axis, self.index(places, "channels_0"))
        return result


def _sends_first(stretch: Sequence[fx.Node]) -> None:
    """Order consecutive nodes anew: first those that sends need."""
    needed = set[fx.Node]()
    for node in reversed(stretch):
        if node.op == "placeholder" or node.target is program.send or node in needed:
            needed.update((node, *node.all_input_nodes))
    before = stretch[0].prev
    for node in sorted(stretch, key=lambda node: node not in needed):  # stable
        before.append(node)
        before = node


def numbered(name: str, index: int) -> str:
    """Name of one of several tensors."""
    return name if index == 0 else f"{name}_{index}"
