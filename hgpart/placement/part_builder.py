"""Blueprints of all shares -> the program of one part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

import numpy as np
from torch import fx

from hgpart.arrays import Int64
from hgpart.execution.program import CARRY, PartProgram
from hgpart.hypergraph.shares import part_shares
from hgpart.layers.channel_graph import INPUT, OUTPUT
from hgpart.placement.blueprint import Blueprint
from hgpart.placement.cutting.cut_graph import CutGraph
from hgpart.placement.cutting.products import product_of
from hgpart.placement.cutting.slices import Slice, overlap, slice_of
from hgpart.placement.cutting.step_graph import Source
from hgpart.placement.cutting.steps import Step, finishing_step, partial_step
from hgpart.placement.part_graph import PartGraph, numbered
from hgpart.placement.shares.interleaving import Unit, interleaved
from hgpart.schedules.costs import Costs
from hgpart.tracing.traced_nodes import live_nodes


class Piece(NamedTuple):
    """What a part does of a layer, for a share of the batch: partial sums, or what ends tasks."""

    share: int
    layer: int
    partial: bool


def order_of_layers(blueprints: Sequence[Blueprint]) -> tuple[tuple[Piece, ...], ...]:
    """For each part, in which order it goes through the layers of all shares of the batch."""
    layers, k = range(len(blueprints[0].graph.layers)), blueprints[0].partition.k
    if len(blueprints) == 1:
        return (tuple(Piece(0, at, partial) for at in layers for partial in (True, False)),) * k
    units: list[Unit] = []
    pieces: list[Piece] = []
    for share, one in enumerate(blueprints):
        for unit, at, partial in _units(one, len(units)):
            units.append(unit)
            pieces.append(Piece(share, at, partial))
    order: list[list[Piece]] = [[] for _ in range(k)]
    for number in interleaved(units):
        order[units[number].part].append(pieces[number])
    return tuple(map(tuple, order))


def _units(blueprint: Blueprint, first: int) -> Iterator[tuple[Unit, int, bool]]:
    """What parts do of a share's layers, numbered on from `first`, by estimated costs."""
    partition, work, costs = blueprint.partition, blueprint.work, Costs()
    samples, k = partition.modelling.batch_size, partition.k
    each = (1.0 if work.unit == "s" else costs.work) / work.units * blueprint.share.samples(samples)
    seconds = part_shares(partition.model, partition.parts, k).layer_work * each
    coming: dict[tuple[int, bool, int], list[tuple[int, float]]] = {}
    for transfer, item in zip(blueprint.transfers, blueprint.shipments, strict=True):
        travel = costs.message + costs.byte * transfer.nbytes(samples)
        key = item.layer, item.partial, item.receiver
        coming.setdefault(key, []).append((item.sender, travel))
    numbers: dict[tuple[int, bool, int], int] = {}
    last: dict[int, int] = {}
    for at, layer in enumerate(blueprint.graph.layers):
        read = [(source, False) for source in blueprint.graph.sources(layer)]
        cells = blueprint.owners.cells[at]
        for partial in (True, False):
            for part in range(k):
                own = cells[part] if cells is not None else ()
                if not len(own if partial else blueprint.finishes(at, part)):
                    continue
                needs = {last[part]: 0.0} if part in last else {}
                for source, sums in read if partial else [*read, (at, True)]:
                    for sender, travel in coming.get((source, sums, part), ()):
                        needs[numbers[source, sums, sender]] = travel
                numbers[at, partial, part] = last[part] = first + len(numbers)
                works = partial == (cells is not None)  # the products, where they are apart
                time = float(seconds[layer.tied_to, part]) if works else 0.0
                yield Unit(part, time, needs), at, partial


def build_part(
    blueprints: Sequence[Blueprint], part: int, order: Sequence[Piece]
) -> tuple[PartProgram, tuple[Mapping[str, Slice], ...]]:
    """Go through the layers of all shares of the batch in an order of `order_of_layers`.

    Returns
    -------
    PartProgram and tuple of mappings of str to Slice
        What the steps of each share hold of the model's state, by dotted attribute.
    """
    united: list[dict[str, Slice]] = [{} for _ in blueprints]
    while True:
        made = PartGraph()
        builders = [
            PartBuilder(blueprint, part, held, made)
            for blueprint, held in zip(blueprints, united, strict=True)
        ]
        for builder in builders:
            builder.expect()
        for share, at, partial in order:
            builders[share].add(at, partial)
        for name in list(made.waiting):  # the table counts them, though no operator wants them
            made.receive(name)
        builders[0].carry()
        needed = [builder.united_slices() for builder in builders]
        if not any(needed):
            break
        united = needed
    made.fx_graph.output(tuple(chain.from_iterable(builder.results for builder in builders)))
    module = fx.GraphModule(made.root, made.fx_graph, class_name=f"Part{part}")
    return PartProgram(part, module, made.used), tuple(builder.slices for builder in builders)


@dataclass(eq=False)
class PartBuilder:
    """What one part does with one share of the batch, under construction.

    Attributes
    ----------
    blueprint : Blueprint
    part : int
    united : mapping of str to Slice
        By parameter, what the part holds as one tensor, though steps take parts of it.
    program : PartGraph
        Of all shares.
    slices : dict of str to Slice
        What the steps hold of the model's state, by dotted attribute.
    results : tuple of fx.Node
        What the model returns, if the part has it.
    """

    blueprint: Blueprint
    part: int
    united: Mapping[str, Slice]
    program: PartGraph
    slices: dict[str, Slice] = field(default_factory=dict)
    results: tuple[fx.Node, ...] = ()

    def add(self, at: int, partial: bool) -> None:
        """Add what the part does of a layer: its partial sums, or what finishes its tasks."""
        tasks = self.blueprint.finishes(at, self.part)
        if partial:
            self._partial(at)
        if partial or not len(tasks):
            return
        finished = self._finish(at, tasks)
        if self.blueprint.graph.layers[at].kind == OUTPUT:
            self.results = finished
        else:
            self._send_maps(at, tasks)

    def _add(self, step: Step, name: str) -> tuple[fx.Node, ...]:
        made = self.program.add(step, name, self.blueprint.prefix)
        if hasattr(self.program.root, name):
            self.slices.update({f"{name}.{at}": held for at, held in step.slices.items()})
        return made

    def carry(self) -> None:
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
            step = CutGraph(facts, last, nobody, {}, draws, self.united)
            self._add(finishing_step(step, (), updates), CARRY)

    def united_slices(self) -> dict[str, Slice]:
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

    def expect(self) -> None:
        """Name what will arrive."""
        for transfer, item in zip(self.blueprint.transfers, self.blueprint.shipments, strict=True):
            if item.receiver == self.part:
                name = self._name(item.layer, item.partial, item.sender)
                for tensor in range(len(transfer.tensors)):
                    self.program.waiting[numbered(name, tensor)] = (transfer, name)

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
                named = tuple((numbered(name, index), members) for name, members in pieces)
                found[node] = Source(plan.layouts[node], named)
        return found

    def _begin(self, at: int, tasks: Int64) -> CutGraph:
        plan = self.blueprint
        sources = self._sources(at)
        return CutGraph(plan.facts, at, tasks, sources, plan.draws, self.united)

    def _partial(self, at: int) -> None:
        """Compute what the part's cells add to their tasks, and send it where they are summed."""
        plan = self.blueprint
        cells, split = plan.owners.cells[at], plan.owners.splits[at]
        if cells is None or split is None or not cells[self.part]:
            return
        tasks = np.sort(np.concatenate([rectangle.tasks for rectangle in cells[self.part]]))
        step = self._begin(at, tasks)
        name = self._name(at, True, None)
        self._add(partial_step(step, plan.graph.layers[at].reads[split], cells[self.part]), name)
        head = plan.nodes[plan.graph.layers[at].operators[0]]
        product = product_of(step, head)
        assert product is not None
        for transfer, item in plan.departing.get((at, True, self.part), []):
            places = np.searchsorted(tasks, item.members)
            self.program.send(
                transfer, [self.program.packed(name, product.axis, places, len(tasks))]
            )

    def _finish(self, at: int, tasks: Int64) -> tuple[fx.Node, ...]:
        plan = self.blueprint
        layer = plan.graph.layers[at]
        if layer.kind == INPUT:
            node = plan.results[at][0] if plan.results[at] else None
            if node is not None:
                operand = self.program.placeholder(f"{plan.prefix}{node.name}")
                self.program.values[self._name(at, False, None)] = operand
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
        self.program.values[kept] = self.program.packed(
            name, product.axis, np.flatnonzero(mine), len(own)
        )
        return kept

    def _send_maps(self, at: int, tasks: Int64) -> None:
        plan = self.blueprint
        own = plan.channels(at, tasks)
        for transfer, item in plan.departing.get((at, False, self.part), []):
            tensors = []
            for index, node in enumerate(plan.results[at]):
                name, layout = numbered(self._name(at, False, None), index), plan.layouts[node]
                if layout.axes:
                    have, want = layout.positions(own), layout.positions(item.members)
                    places = np.searchsorted(have, want)
                    tensors.append(self.program.packed(name, layout.axes[0], places, len(have)))
                else:
                    tensors.append(self.program.values[name])
            self.program.send(transfer, tensors)
