"""Blueprint -> the program of one part."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from hgpart.execution.program import PartProgram, pack, receive, send
from hgpart.execution.transfers import Transfer
from hgpart.hypergraph.hypergraph import Int64
from hgpart.layers.channel_graph import INPUT, OUTPUT
from hgpart.placement.blueprint import CARRY, Blueprint
from hgpart.placement.cutting.products import product_of
from hgpart.placement.cutting.slices import Slice, overlap, slice_of
from hgpart.placement.cutting.step_graph import Source, StepGraph
from hgpart.placement.cutting.steps import Step, finishing_step, partial_step
from hgpart.tracing.traced_nodes import live_nodes


@dataclass(eq=False)
class PartBuilder:
    """The program of one part, under construction; `build` does it all.

    Attributes
    ----------
    blueprint : Blueprint
    part : int
    united : mapping of str to Slice
        By parameter, what the part holds as one tensor, though steps take parts of it.
    slices : dict of str to Slice
        By dotted attribute of the program's module, what the part holds of the model's state.
    """

    blueprint: Blueprint
    part: int
    united: Mapping[str, Slice] = field(default_factory=dict)
    slices: dict[str, Slice] = field(default_factory=dict)
    fx_graph: fx.Graph = field(default_factory=fx.Graph)
    root: nn.Module = field(default_factory=nn.Module)
    values: dict[str, fx.Node] = field(default_factory=dict)
    waiting: dict[str, tuple[Transfer, str]] = field(default_factory=dict)  # not yet received
    used: dict[int, Transfer] = field(default_factory=dict)
    _indices: dict[bytes, str] = field(default_factory=dict)

    def build(self) -> PartProgram:
        """Go through the layers in the global order."""
        plan = self.blueprint
        self._expect()
        results: tuple[fx.Node, ...] = ()
        for at, layer in enumerate(plan.graph.layers):
            tasks = plan.finishes(at, self.part)
            self._partial(at)
            if not len(tasks):
                continue
            made = self._finish(at, tasks)
            if layer.kind == OUTPUT:
                results = made
            else:
                self._send_maps(at, tasks)
        for name in list(self.waiting):  # the table counts them, though no operator wants them
            self._receive(name)
        self._carry()
        self.fx_graph.output(results)
        united = self._united()
        if united:
            again = PartBuilder(plan, self.part, united)
            program, self.slices = again.build(), again.slices
            return program
        module = fx.GraphModule(self.root, self.fx_graph, class_name=f"Part{self.part}")
        return PartProgram(self.part, module, self.used)

    def _carry(self) -> None:
        """Give the buffers that the part has read the values that its next pass is to find."""
        facts = self.blueprint.facts
        names = {held.name for held in self.slices.values()}
        waiting = [node for node in facts.carried if facts.traced.buffers[node.name] in names]
        needed = set(waiting)
        while waiting:
            read = live_nodes([facts.carried[waiting.pop()]]) & facts.carried.keys()
            waiting.extend(read - needed)
            needed |= read
        updates = {node: new for node, new in facts.carried.items() if node in needed}
        if updates:
            last = len(self.blueprint.graph.layers) - 1
            nobody, draws = np.zeros(0, np.int64), self.blueprint.draws
            step = StepGraph(facts, last, nobody, {}, draws, self.united)
            self._add(finishing_step(step, (), updates), CARRY)

    def _united(self) -> dict[str, Slice]:
        """Of each parameter whose elements several slices share, all that the part needs."""
        parameters = {*self.blueprint.traced.parameters.values()}
        needed: dict[str, dict[object, Slice]] = {}
        for held in self.slices.values():
            if held.name in parameters:
                needed.setdefault(held.name, {})[held.key] = held
        found = {}
        for name, several in needed.items():
            slices = [*several.values()]
            if len(slices) > 1 and overlap(slices):
                numbers = np.concatenate([one.numbers.ravel() for one in slices])
                found[name] = slice_of(name, slices[0].shape, numbers)
        return found

    def _expect(self) -> None:
        """Name what will arrive."""
        for transfer, item in zip(self.blueprint.transfers, self.blueprint.shipments, strict=True):
            if item.receiver == self.part:
                name = self._name(item.layer, item.partial, item.sender)
                for tensor in range(len(transfer.tensors)):
                    self.waiting[_numbered(name, tensor)] = (transfer, name)

    def _name(self, at: int, partial: bool, sender: int | None) -> str:
        name = self.blueprint.names[at] + ("_partial" if partial else "")
        return name if sender is None else f"{name}_from_{sender}"

    # -------------------------------------------------------------- the layers

    def _sources(self, at: int) -> dict[fx.Node, Source]:
        plan = self.blueprint
        found: dict[fx.Node, Source] = {}
        for source in plan.graph.sources(plan.graph.layers[at]):
            pieces = []
            own = plan.finishes(source, self.part)
            if len(own):
                pieces.append((self._name(source, False, None), plan.channels(source, own)))
            for item in plan.arriving.get((source, False, self.part), []):
                pieces.append((self._name(source, False, item.sender), item.members))
            if plan.graph.layers[source].tasks == 1:
                pieces = pieces[:1]
            for index, node in enumerate(plan.results[source]):
                named = tuple((_numbered(name, index), members) for name, members in pieces)
                found[node] = Source(plan.layouts[node], named)
        return found

    def _begin(self, at: int, tasks: Int64) -> StepGraph:
        plan = self.blueprint
        sources = self._sources(at)
        return StepGraph(plan.facts, at, tasks, sources, plan.draws, self.united)

    def _partial(self, at: int) -> None:
        """Compute what the part's cells add to their tasks, and send it where they are summed."""
        plan = self.blueprint
        cells, read = plan.owners.cells[at], plan.owners.splits[at]
        if cells is None or read is None or not cells[self.part]:
            return
        tasks = np.sort(np.concatenate([rectangle.tasks for rectangle in cells[self.part]]))
        step = self._begin(at, tasks)
        name = self._name(at, True, None)
        self._add(partial_step(step, read, cells[self.part]), name)
        head = plan.nodes[plan.graph.layers[at].operators[0]]
        product = product_of(step, head)
        assert product is not None
        for transfer, item in plan.departing.get((at, True, self.part), []):
            places = np.searchsorted(tasks, item.members)
            self._send(transfer, [self._packed(name, product.axis, places, len(tasks))])

    def _finish(self, at: int, tasks: Int64) -> tuple[fx.Node, ...]:
        plan = self.blueprint
        layer = plan.graph.layers[at]
        if layer.kind == INPUT:
            node = plan.results[at][0] if plan.results[at] else None
            if node is not None:
                self.values[self._name(at, False, None)] = self._placeholder(node.name)
            return ()
        step = self._begin(at, tasks)
        updates = plan.buffer_updates.get(at, {})
        made = finishing_step(step, plan.results[at], updates, self._sums(at, tasks))
        return self._add(made, self._name(at, False, None))

    def _sums(self, at: int, tasks: Int64) -> list[tuple[str, Int64]] | None:
        """The partial sums of tasks: names, and which tasks each is for."""
        cells = self.blueprint.owners.cells[at]
        if cells is None:
            return None
        found = []
        if cells[self.part]:
            own = np.sort(np.concatenate([rectangle.tasks for rectangle in cells[self.part]]))
            mine = np.isin(own, tasks)
            if mine.any():
                found.append((self._own_sums(at, own, mine), own[mine]))
        for item in self.blueprint.arriving.get((at, True, self.part), []):
            found.append((self._name(at, True, item.sender), item.members))
        return found

    def _own_sums(self, at: int, own: Int64, mine: np.ndarray) -> str:
        """The part's partial sums of the tasks that it finishes itself."""
        name = self._name(at, True, None)
        if mine.all():
            return name
        plan = self.blueprint
        step = self._begin(at, own)
        product = product_of(step, plan.nodes[plan.graph.layers[at].operators[0]])
        assert product is not None
        kept = f"{name}_kept"
        self.values[kept] = self._packed(name, product.axis, np.flatnonzero(mine), len(own))
        return kept

    def _send_maps(self, at: int, tasks: Int64) -> None:
        plan = self.blueprint
        own = plan.channels(at, tasks)
        for transfer, item in plan.departing.get((at, False, self.part), []):
            tensors = []
            for index, node in enumerate(plan.results[at]):
                name, layout = _numbered(self._name(at, False, None), index), plan.layouts[node]
                if layout.axes:
                    have, want = layout.positions(own), layout.positions(item.members)
                    places = np.searchsorted(have, want)
                    tensors.append(self._packed(name, layout.axes[0], places, len(have)))
                else:
                    tensors.append(self.values[name])
            self._send(transfer, tensors)

    # -------------------------------------------------------------- the program's nodes

    def _add(self, step: Step, name: str) -> tuple[fx.Node, ...]:
        """Call a step, after what it waits for has been received."""
        for operand in step.operands:
            self._receive(operand)
        operands = {
            operand: self.values[operand] if operand in self.values else self._placeholder(operand)
            for operand in step.operands
        }
        nodes = list(step.module.graph.nodes)
        if all(node.op in ("placeholder", "output") for node in nodes):  # nothing to compute
            returned = nodes[-1].args[0]
            chosen = returned if isinstance(returned, (tuple, list)) else (returned,)
            made = tuple(operands[str(node.target)] for node in chosen)
        else:
            self.root.add_module(name, step.module)
            self.slices.update({f"{name}.{at}": held for at, held in step.slices.items()})
            called = self.fx_graph.call_module(name, tuple(operands.values()))
            made = (called,)
            if step.outputs != 1:
                made = tuple(
                    self.fx_graph.call_function(operator.getitem, (called, index))
                    for index in range(step.outputs)
                )
        for index, node in enumerate(made):
            self.values[_numbered(name, index)] = node
        return made

    def _receive(self, name: str) -> None:
        if name not in self.waiting:
            return
        transfer, first = self.waiting[name]
        self.used[transfer.number] = transfer
        said: dict[str, Any] = {"layer": transfer.layer, "sender": transfer.sender}
        number = (transfer.number,)
        arrived = self.fx_graph.create_node("call_function", receive, number, said, first)
        several = len(transfer.tensors) > 1
        for index in range(len(transfer.tensors)):
            one = _numbered(first, index)
            del self.waiting[one]
            self.values[one] = (
                self.fx_graph.call_function(operator.getitem, (arrived, index))
                if several
                else arrived
            )

    def _send(self, transfer: Transfer, tensors: Sequence[fx.Node]) -> None:
        self.used[transfer.number] = transfer
        self.fx_graph.call_function(
            send, (transfer.number, *tensors), {"receiver": transfer.receiver}
        )

    def _packed(self, name: str, axis: int, places: Int64, size: int) -> fx.Node:
        if np.array_equal(places, np.arange(size)):
            return self.values[name]
        key = places.tobytes()
        if key not in self._indices:
            self._indices[key] = f"channels_{len(self._indices)}"
            self.root.register_buffer(
                self._indices[key], torch.from_numpy(places.astype(np.int64)), persistent=False
            )
        index = self.fx_graph.get_attr(self._indices[key])
        return self.fx_graph.call_function(pack, (self.values[name], axis, index))

    def _placeholder(self, name: str) -> fx.Node:
        nodes: Sequence[fx.Node] = list(self.fx_graph.nodes)
        for node in nodes:
            if node.op == "placeholder" and node.target == name:
                return node
        first = next((node for node in nodes if node.op != "placeholder"), None)
        if first is None:
            return self.fx_graph.placeholder(name)
        with self.fx_graph.inserting_before(first):
            return self.fx_graph.placeholder(name)


def _numbered(name: str, index: int) -> str:
    return name if index == 0 else f"{name}_{index}"
