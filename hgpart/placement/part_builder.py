"""Blueprints of all shares -> the program of one part."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

import numpy as np
from torch import fx

from hgpart.arrays import Int64
from hgpart.execution.program import CARRY, PartProgram
from hgpart.execution.transfers import Transfer
from hgpart.hypergraph.shares import part_shares
from hgpart.layers.channel_graph import INPUT, OUTPUT, PARAMETER
from hgpart.placement.blueprint import Blueprint
from hgpart.placement.cutting.cut_graph import CutGraph
from hgpart.placement.cutting.products import product_of
from hgpart.placement.cutting.slices import Slice, overlap, slice_of
from hgpart.placement.cutting.step_graph import GivenNorm, Source
from hgpart.placement.cutting.steps import Step, finishing_step, partial_step, statistics_step
from hgpart.placement.part_graph import PartGraph, numbered
from hgpart.placement.shares.interleaving import Unit
from hgpart.placement.shares.joined_graph import Join, JoinedGraph
from hgpart.placement.shares.joining import joined
from hgpart.placement.shares.samples import dimension, dimension_of_piece, keeps_apart
from hgpart.placement.shares.statistics import (
    NormOfBatch,
    SharedStatistics,
    Taken,
    combining_step,
)
from hgpart.schedules.costs import Costs
from hgpart.tracing.traced_nodes import live_nodes

# Seconds of a parameter in a step, besides those of its samples: measured on VGG16, which takes 6,
# 10 and 15 % longer a sample in batches of 4, 2 and 1 than of 16.
SECONDS_A_PARAMETER = 2e-10


class Piece(NamedTuple):
    """What a part does of a layer, for shares of the batch: partial sums, or what ends tasks."""

    shares: tuple[int, ...]
    layer: int
    partial: bool
    norms: int = 0  # of the batch, that come before it in the layer


class Sums(NamedTuple):
    """What a part does of the statistics of a norm of the batch: those of its samples, or all."""

    norm: NormOfBatch
    whole: bool


Order = Sequence[Piece | Sums]


def order_of_layers(
    blueprints: Sequence[Blueprint], statistics: SharedStatistics
) -> tuple[Order, ...]:
    """For each part, in which order it goes through the layers of all shares of the batch."""
    layers, k = range(len(blueprints[0].graph.layers)), blueprints[0].partition.k
    if len(blueprints) == 1:
        return (tuple(Piece((0,), at, partial) for at in layers for partial in (True, False)),) * k
    units = _Units(blueprints, statistics)
    order: list[list[Piece | Sums]] = [[] for _ in range(k)]
    for group in joined(units.all):
        first, *others = (units.pieces[number] for number in group)
        if isinstance(first, Piece):
            together = (first, *(one for one in others if isinstance(one, Piece)))
            shares = chain.from_iterable(one.shares for one in together)
            first = first._replace(shares=tuple(shares))
        order[units.all[group[0]].part].append(first)
    return tuple(order)


class _Units:
    """What parts do of the layers of all shares, by estimated costs."""

    def __init__(self, blueprints: Sequence[Blueprint], statistics: SharedStatistics) -> None:
        self.all: list[Unit] = []
        self.pieces: list[Piece | Sums] = []
        self._blueprints, self._statistics = blueprints, statistics
        self._samples = blueprints[0].partition.modelling.batch_size
        self._k, self._costs = blueprints[0].partition.k, Costs()
        self._work = [self._work_of(one) for one in blueprints]
        self._each = [self._seconds_of_work(one) for one in blueprints]
        first = blueprints[0]
        self._apart = [
            at not in statistics.norms and _keeps_apart(first, at)
            for at in range(len(first.graph.layers))
        ]
        self._coming = [self._coming_of(one) for one in blueprints]
        self._made: dict[tuple[int, int, bool, int], int] = {}  # share, layer, partial, part
        self._last: dict[tuple[int, int], int] = {}  # by share and part
        for at in range(len(blueprints[0].graph.layers)):
            for share in range(len(blueprints)):
                for partial in (True, False):
                    self._add_layer(share, at, partial)
            for norm in statistics.norms.get(at, ()):
                self._add_norm(norm)

    def _work_of(self, blueprint: Blueprint) -> np.ndarray:
        partition = blueprint.partition
        return part_shares(partition.model, partition.parts, self._k).layer_work

    def _seconds_of_work(self, blueprint: Blueprint) -> float:
        work = blueprint.work
        each = (1.0 if work.unit == "s" else self._costs.work) / work.units
        return each * blueprint.share.samples(self._samples)

    def _coming_of(
        self, blueprint: Blueprint
    ) -> Mapping[tuple[int, bool, int], Sequence[tuple[int, float]]]:
        """By layer, whether it is partial sums, and receiver: from whom, and how long it takes."""
        coming: dict[tuple[int, bool, int], list[tuple[int, float]]] = {}
        for transfer, item in zip(blueprint.transfers, blueprint.shipments, strict=True):
            key = item.layer, item.partial, item.receiver
            coming.setdefault(key, []).append((item.sender, self._travel(transfer)))
        return coming

    def _travel(self, transfer: Transfer) -> float:
        return self._costs.message + self._costs.byte * transfer.nbytes(self._samples)

    def _add(self, unit: Unit, piece: Piece | Sums) -> int:
        self.all.append(unit)
        self.pieces.append(piece)
        return len(self.all) - 1

    def _add_layer(self, share: int, at: int, partial: bool) -> None:
        blueprint = self._blueprints[share]
        layer, cells = blueprint.graph.layers[at], blueprint.owners.cells[at]
        read = [(source, False) for source in blueprint.graph.sources(layer)]
        works = self._work[share][layer.tied_to]
        parameters = blueprint.graph.layers[layer.tied_to].parameters / max(1, int(works.sum()))
        for part in range(self._k):
            own = cells[part] if cells is not None else ()
            if not len(own if partial else blueprint.finishes(at, part)):
                continue
            last = self._last.get((share, part))
            needs = {} if last is None else {last: 0.0}
            for source, sums in read if partial else [*read, (at, True)]:
                for sender, travel in self._coming[share].get((source, sums, part), ()):
                    needs[self._made[share, source, sums, sender]] = travel
            # The products, where they are apart.
            done = float(works[part]) if partial == (cells is not None) else 0.0
            alike = _alike(blueprint, at, partial, part) if self._apart[at] else None
            once = done * parameters * SECONDS_A_PARAMETER
            unit = Unit(part, done * self._each[share], needs, once, alike)
            number = self._add(unit, Piece((share,), at, partial))
            self._made[share, at, partial, part] = self._last[share, part] = number

    def _add_norm(self, norm: NormOfBatch) -> None:
        """Statistics of the samples of each part, those of the batch, and what comes behind."""
        at, made = norm.layer, dict[tuple[bool, int], int]()
        finish = self._statistics.finish(at)
        for whole in (False, True):
            for part in np.unique(finish).tolist():
                here = np.flatnonzero((finish == part).any(axis=1)).tolist()
                needs = {self._last[share, part]: 0.0 for share in here}
                if whole:
                    for one in self._statistics.coming(norm, False, part):
                        needs[made[False, one.sender]] = self._travel(one.transfer)
                    works = len(self._statistics.owned(at, part))
                else:
                    works = len(self._statistics.leaving(norm, False, part))
                if works:
                    made[whole, part] = self._add(Unit(part, 0.0, needs), Sums(norm, whole))
        for share, own in enumerate(finish):
            for part in np.unique(own).tolist():
                needs = {self._last[share, part]: 0.0}
                if (True, part) in made:
                    needs[made[True, part]] = 0.0
                for one in self._statistics.coming(norm, True, part):
                    if (own[one.tasks] == part).any():
                        needs[made[True, one.sender]] = self._travel(one.transfer)
                piece = Piece((share,), at, False, norm.number + 1)
                number = self._add(Unit(part, 0.0, needs), piece)
                self._made[share, at, False, part] = self._last[share, part] = number


def _keeps_apart(blueprint: Blueprint, at: int) -> bool:
    """Whether a layer can be computed for several shares of the batch at once."""
    layer, results = blueprint.graph.layers[at], blueprint.results
    if layer.kind in (INPUT, OUTPUT, PARAMETER) or at in blueprint.buffer_updates:
        return False
    sources = {node for source in blueprint.graph.sources(layer) for node in results[source]}
    return keeps_apart(blueprint.facts, results[at], sources, blueprint.draws)


def _alike(blueprint: Blueprint, at: int, partial: bool, part: int) -> Hashable:
    """What has to be the same in shares of which a part does something at once."""
    layer, found = blueprint.graph.layers[at], [f"{at} {partial}".encode()]
    for source in blueprint.graph.sources(layer):
        pieces = [blueprint.channels(source, blueprint.finishes(source, part))]
        pieces += [item.members for item in blueprint.arriving.get((source, False, part), [])]
        found.append(np.unique(np.concatenate(pieces)).tobytes())
    cells = blueprint.owners.cells[at]
    if partial and cells is not None:
        found += [array.tobytes() for one in cells[part] for array in (one.tasks, one.positions)]
    else:
        tasks = blueprint.finishes(at, part)
        found.append(tasks.tobytes())
        if cells is not None:
            own = np.concatenate([np.zeros(0, np.int64), *(one.tasks for one in cells[part])])
            sums = [item.members for item in blueprint.arriving.get((at, True, part), [])]
            pieces = [np.sort(own[np.isin(own, tasks)]), *sums]
            found += sorted(piece.tobytes() for piece in pieces if len(piece))
    return tuple(found)


def build_part(
    blueprints: Sequence[Blueprint], part: int, order: Order, statistics: SharedStatistics
) -> tuple[PartProgram, tuple[Mapping[str, Slice], ...]]:
    """Go through the layers of all shares of the batch in an order of `order_of_layers`.

    Returns
    -------
    PartProgram and tuple of mappings of str to Slice
        What the steps of each share hold of the model's state, by dotted attribute; those of
        several shares are the first one's.
    """
    united: list[dict[str, Slice]] = [{} for _ in blueprints]
    while True:
        made = PartGraph()
        single = [
            PartBuilder(blueprint, part, held, made, statistics)
            for blueprint, held in zip(blueprints, united, strict=True)
        ]
        builders: dict[tuple[int, ...], PartBuilder] = {
            (share,): builder for share, builder in enumerate(single)
        }
        between = StatisticsBuilder(single)
        for builder in single:
            builder.expect()
        between.expect()
        for piece in order:
            if isinstance(piece, Sums):
                between.add(*piece)
                continue
            shares, at, partial, norms = piece
            if shares not in builders:
                builders[shares] = JoinedBuilder.of(shares, [single[share] for share in shares])
            builders[shares].add(at, partial, norms)
        for name in list(made.waiting):  # the table counts them, though no operator wants them
            made.receive(name)
        single[0].carry()
        needed = [builder.united_slices() for builder in single]
        if not any(needed):
            break
        united = needed
    made.fx_graph.output(tuple(chain.from_iterable(builder.results for builder in single)))
    module = fx.GraphModule(made.root, made.fx_graph, class_name=f"Part{part}")
    program = PartProgram(part, module, made.used, made.steps)
    return program, tuple(builder.slices for builder in single)


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
    statistics : SharedStatistics
    slices : dict of str to Slice
        What the steps hold of the model's state, by dotted attribute.
    results : tuple of fx.Node
        What the model returns, if the part has it.
    """

    blueprint: Blueprint
    part: int
    united: Mapping[str, Slice]
    program: PartGraph
    statistics: SharedStatistics
    slices: dict[str, Slice] = field(default_factory=dict)
    results: tuple[fx.Node, ...] = ()
    _operands: dict[int, str] = field(default_factory=dict)  # by layer: of its norm of the batch

    def add(self, at: int, partial: bool, norms: int) -> None:
        """Add what the part does of a layer: its partial sums, or what finishes its tasks.

        Where there are norms of the batch, what comes behind so many of them, up to the next.
        """
        tasks = self.blueprint.finishes(at, self.part)
        if partial:
            self._partial(at)
        if partial or not len(tasks):
            return
        own = self.statistics.norms.get(at, ())
        if norms < len(own):
            self._before(own[norms], tasks)
            return
        finished = self._finish(at, tasks)
        if self.blueprint.graph.layers[at].kind == OUTPUT:
            self.results = finished
        else:
            self._send_maps(at, tasks)

    def _add(self, step: Step, name: str) -> tuple[fx.Node, ...]:
        made = self.program.add(step, name, self.blueprint.prefix)
        self.hold(step, name)
        return made

    def hold(self, step: Step, name: str) -> None:
        """Note what a step that was added has of the model's state."""
        if hasattr(self.program.root, name):
            self.slices.update({f"{name}.{at}": held for at, held in step.slices.items()})

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

    def begin(self, at: int, tasks: Int64) -> CutGraph:
        """A step of a layer, of some of its tasks."""
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
        step, read = self.begin(at, tasks), plan.graph.layers[at].reads[split]
        self._add(partial_step(step, read, cells[self.part]), self._name(at, True, None))
        self._send_sums(at, tasks)

    def _send_sums(self, at: int, tasks: Int64) -> None:
        departing = self.blueprint.departing.get((at, True, self.part), [])
        name, axis = self._name(at, True, None), self._axis_of_sums(at, tasks)
        for transfer, item in departing:
            places = np.searchsorted(tasks, item.members)
            self.program.send(transfer, [self.program.packed(name, axis, places, len(tasks))])

    def _axis_of_sums(self, at: int, tasks: Int64) -> int:
        """The dimension of tasks in their partial sums."""
        plan = self.blueprint
        head = plan.nodes[plan.graph.layers[at].operators[0]]
        product = product_of(self.begin(at, tasks), head)
        assert product is not None
        return product.axis

    def _finish(self, at: int, tasks: Int64) -> tuple[fx.Node, ...]:
        plan = self.blueprint
        layer = plan.graph.layers[at]
        if layer.kind == INPUT:
            node = plan.results[at][0] if plan.results[at] else None
            if node is not None:
                operand = self.program.placeholder(f"{plan.prefix}{node.name}")
                self.program.values[self._name(at, False, None)] = operand
            return ()
        updates, norms = plan.buffer_updates.get(at, {}), self.statistics.norms.get(at, ())
        step, sums = self._behind(norms, at, tasks)
        made = finishing_step(step, plan.results[at], updates, sums)
        return self._add(made, self._name(at, False, None))

    def _before(self, norm: NormOfBatch, tasks: Int64) -> None:
        """Compute what a norm of the batch is given, and the statistics of it."""
        at = norm.layer
        step, sums = self._behind(self.statistics.norms[at][: norm.number], at, tasks)
        made, given = statistics_step(step, norm.operand, norm.box(tasks), sums)
        name = self.statistics_of(norm)
        self._add(made, name)
        self._operands[at] = numbered(name, 1) if given is None else given

    def _behind(
        self, norms: Sequence[NormOfBatch], at: int, tasks: Int64
    ) -> tuple[CutGraph, list[tuple[str, Int64]] | None]:
        """Begin a step of a layer behind some of its norms, or else with the tasks' partial sums.

        What the last of these norms is given, and the statistics of the batch, are there.
        """
        step = self.begin(at, tasks)
        if not norms:
            return step, self._sums(at, tasks)
        norm = norms[-1]
        pieces = [
            (self.statistics.name(norm, True, f"_from_{one.sender}"), norm.positions(one.tasks))
            for one in self.statistics.coming(norm, True, self.part)
        ]
        if len(own := self.statistics.owned(at, self.part)):
            pieces.append((self.statistics.name(norm, True), norm.positions(own)))
        channels = norm.positions(tasks)
        step.given[norm.node] = GivenNorm(self._operands[at], channels, tuple(pieces))
        return step, None

    def statistics_of(self, norm: NormOfBatch) -> str:
        """What the statistics of the share's own samples are called."""
        return f"{self.blueprint.names[norm.layer]}_before_{norm.number}"

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
        kept = f"{name}_kept"
        self.program.values[kept] = self.program.packed(
            name, self._axis_of_sums(at, own), np.flatnonzero(mine), len(own)
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


@dataclass(eq=False)
class StatisticsBuilder:
    """What one part does with statistics of norms of the batch, under construction.

    Attributes
    ----------
    builders : sequence of PartBuilder
        Of each share of the batch.
    """

    builders: Sequence[PartBuilder]

    @property
    def _statistics(self) -> SharedStatistics:
        return self.builders[0].statistics

    @property
    def _part(self) -> int:
        return self.builders[0].part

    @property
    def _program(self) -> PartGraph:
        return self.builders[0].program

    def expect(self) -> None:
        """Name what will arrive."""
        for one in self._statistics.travelling:
            if one.receiver == self._part:
                name = self._statistics.name(one.norm, one.whole, f"_from_{one.sender}")
                self._program.waiting[name] = (one.transfer, name)

    def add(self, norm: NormOfBatch, whole: bool) -> None:
        """Put together those of the part's samples for others, or those of the batch for all."""
        statistics, part = self._statistics, self._part
        sources = self._own(norm)
        if not whole:
            for one in statistics.leaving(norm, False, part):
                name = statistics.name(norm, False, f"_to_{one.receiver}")
                (made,) = self._add(name, norm, one.tasks, sources, updates=False)
                self._program.send(one.transfer, [made])
            return
        finish, own = statistics.finish(norm.layer), statistics.owned(norm.layer, part)
        for one in statistics.coming(norm, False, part):
            name = statistics.name(norm, False, f"_from_{one.sender}")
            sources.append(Taken(name, one.tasks, finish == one.sender))
        name, have = statistics.name(norm, True), norm.positions(own)
        self._add(name, norm, own, sources, updates=True)
        for one in statistics.leaving(norm, True, part):
            places = np.searchsorted(have, norm.positions(one.tasks))
            self._program.send(one.transfer, [self._program.packed(name, 1, places, len(have))])

    def _add(
        self,
        name: str,
        norm: NormOfBatch,
        tasks: Int64,
        sources: Sequence[Taken],
        updates: bool,
    ) -> tuple[fx.Node, ...]:
        samples = [f"{one.blueprint.prefix}batch_size" for one in self.builders]
        begun = self.builders[0].begin(norm.layer, tasks)
        step = combining_step(begun, norm, sources, samples, updates)
        made = self._program.add(step, name)
        self.builders[0].hold(step, name)
        return made

    def _own(self, norm: NormOfBatch) -> list[Taken]:
        """Statistics of the samples that the part has, share by share."""
        finish, found = self._statistics.finish(norm.layer), []
        for share, builder in enumerate(self.builders):
            tasks = np.flatnonzero(finish[share] == self._part)
            if len(tasks):
                own = np.zeros(finish.shape, dtype=np.bool_)
                own[share, tasks] = True
                found.append(Taken(builder.statistics_of(norm), tasks, own))
        return found


@dataclass(eq=False, kw_only=True)
class JoinedBuilder(PartBuilder):
    """What one part does with several shares of the batch at once.

    The blueprint, and what steps hold, are those of the first of them.

    Attributes
    ----------
    prefix : str
        What the names of all that is made at once begin with.
    members : sequence of PartBuilder
        Of each share.
    """

    prefix: str
    members: Sequence[PartBuilder]
    _joins: dict[str, Join] = field(default_factory=dict)

    @classmethod
    def of(cls, shares: Sequence[int], members: Sequence[PartBuilder]) -> JoinedBuilder:
        """Of several shares by their numbers."""
        first = members[0]
        made = cls(
            first.blueprint,
            first.part,
            first.united,
            first.program,
            first.statistics,
            first.slices,
            prefix=f"shares{'_'.join(map(str, shares))}_",
            members=members,
        )
        draws = {name: dimension(node) for node, name in first.blueprint.draws.items()}
        for name, dim in {"batch_size": None, **draws}.items():
            names = tuple(f"{one.blueprint.prefix}{name}" for one in members)
            made._joins[name] = Join(names, dim)
        return made

    def _name(self, at: int, partial: bool, sender: int | None) -> str:
        name = super()._name(at, partial, sender)
        return f"{self.prefix}{name.removeprefix(self.blueprint.prefix)}"

    def _add(self, step: Step, name: str) -> tuple[fx.Node, ...]:
        """Add a step, whose results are known by the names of each share from then on."""
        made = self.program.add(step, name)
        self.slices.update({f"{name}.{at}": held for at, held in step.slices.items()})
        bare = name.removeprefix(self.prefix)
        names = tuple(f"{one.blueprint.prefix}{bare}" for one in self.members)
        self.program.steps[name] = names
        count = len(made) // (1 + len(names))
        by_share = iter(made[count:])
        for index in range(count):
            each = tuple(numbered(one, index) for one in names)
            self.program.joined[each] = numbered(name, index)
            self.program.values.update(zip(each, by_share, strict=False))
        return made[:count]

    def begin(self, at: int, tasks: Int64) -> JoinedGraph:
        """A step of all of them."""
        plan = self.blueprint
        of_shares = [one._sources(at) for one in self.members]
        sources, apart = dict[fx.Node, Source](), dict[fx.Node, list[Source]]()
        for node in of_shares[0]:
            each = [one[node] for one in of_shares]
            sources[node] = self._together(node, each) or each[0]
            if sources[node] is each[0]:
                apart[node] = each
        return JoinedGraph(
            *(plan.facts, at, tasks, sources, plan.draws, self.united),
            joins=self._joins,
            apart=apart,
        )

    def _together(self, node: fx.Node, each: Sequence[Source]) -> Source | None:
        """Pieces of all shares, if these have the same channels each."""
        layout, dim = each[0].layout, dimension_of_piece(node, each[0].layout)
        names = [{members.tobytes(): name for name, members in one.pieces} for one in each]
        if dim is None or any(one.keys() != names[0].keys() for one in names):
            return None
        pieces = [
            (self._joined([one[members.tobytes()] for one in names], dim), members)
            for _, members in each[0].pieces
        ]
        return Source(layout, tuple(pieces))

    def _joined(self, names: Sequence[str], dim: int | None) -> str:
        """The operand that several are together."""
        found = self.program.joined.get(tuple(names), " ".join(names))
        if found not in self.program.values:
            self._joins[found] = Join(tuple(names), dim)
        return found

    def _sums(self, at: int, tasks: Int64) -> list[tuple[str, Int64]] | None:
        first, *others = (one._sums(at, tasks) for one in self.members)
        if first is None:
            return None
        dim = dimension(self.blueprint.nodes[self.blueprint.graph.layers[at].operators[0]])
        # Those of the same tasks, which several parts may have; in any order, as they are added up.
        names: list[dict[bytes, list[str]]] = [{} for _ in self.members]
        for found, own in zip(names, (first, *others), strict=True):
            for name, some in own or ():
                found.setdefault(some.tobytes(), []).append(name)
        return [
            (self._joined([found[some.tobytes()].pop(0) for found in names], dim), some)
            for _, some in first
        ]

    def _send_sums(self, at: int, tasks: Int64) -> None:
        for one in self.members:
            one._send_sums(at, tasks)

    def _send_maps(self, at: int, tasks: Int64) -> None:
        for one in self.members:
            one._send_maps(at, tasks)
