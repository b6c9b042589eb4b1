"""Blueprint of a share -> what one part computes of it, layer by layer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, product

import numpy as np
from torch import fx

from hgpart.arrays import Int64
from hgpart.execution.program import CARRY
from hgpart.layers.channel_graph import INPUT, OUTPUT, STATISTICS
from hgpart.placement.building.blueprint import Blueprint
from hgpart.placement.building.held_together import hold_together, united_slices
from hgpart.placement.building.part_graph import PartGraph, numbered
from hgpart.placement.cutting.cut_graph import CutGraph
from hgpart.placement.cutting.slices import Slice
from hgpart.placement.cutting.step_graph import WHOLE, Box, GivenNorm, Source, SourcePiece
from hgpart.placement.cutting.steps import (
    PartialSum,
    Step,
    finishing_step,
    own_results,
    partial_step,
    statistics_step,
    summing_of,
    sums_of_rows_step,
)
from hgpart.placement.shares.ownership import Tile
from hgpart.placement.shares.statistics import NormOfBatch, SharedStatistics
from hgpart.tracing.traced_nodes import live_nodes


@dataclass(eq=False)
class PartBuilder:
    """One part's work on one share of the batch, under construction.

    Attributes
    ----------
    program : PartGraph
        The part's program, the same for all shares.
    slices : dict of str to Slice
        Slices of the model's state that the steps hold, by dotted attribute.
    later_slices : dict of str to Slice
        The same of steps whose rows are not in the first band.
    results : tuple of fx.Node
        The model's results, if the part has them.
    """

    blueprint: Blueprint
    part: int
    program: PartGraph
    statistics: SharedStatistics
    slices: dict[str, Slice] = field(default_factory=dict)
    later_slices: dict[str, Slice] = field(default_factory=dict)
    results: tuple[fx.Node, ...] = ()
    # Operands of a norm over several tiles, by layer and number of the tile.
    _operands: dict[tuple[int, int], str] = field(default_factory=dict)
    _known_rows: dict[tuple[NormOfBatch, range], tuple[Box, Box]] = field(default_factory=dict)
    _known_sources: dict[int, dict[fx.Node, Source]] = field(default_factory=dict)

    def add(self, at: int, partial: bool, norms: int) -> None:
        """Add the part's work on a layer: its partial sums, or what finishes its tasks.

        In a layer with norms of the batch: the work after the first `norms` of them, up to the next
        one.
        """
        tasks = self.blueprint.finishes(at, self.part)
        if partial:
            self._partial(at)
        if partial or not len(tasks):
            return
        own = self.statistics.norms.get(at, ())
        if norms < len(own):
            self._before(own[norms])
            return
        finished = self._finish(at)
        if self.blueprint.graph.layers[at].kind == OUTPUT:
            self.results = finished

    def _add(self, step: Step, name: str, band: int = 0) -> tuple[fx.Node, ...]:
        results = self.program.add(step, name, self.blueprint.prefix)
        self.hold(step, name, band)
        return results

    def hold(self, step: Step, name: str, band: int = 0) -> None:
        """Note the slices that a step holds, once it was added; `band` is the first of its rows."""
        if hasattr(self.program.root, name):
            slices = self.later_slices if band else self.slices
            slices.update({f"{name}.{at}": held for at, held in step.slices.items()})

    def carry(self, shares: Iterable[PartBuilder]) -> None:
        """Write to the buffers that shares have read the values for the part's next pass.

        The first share also writes those that it computes from parameters, whether read or not.
        """
        facts, carriers = self.blueprint.facts, self.blueprint.carriers
        is_first = 0 in self.blueprint.share.slices
        names = {
            held.name
            for share in shares
            for held in chain(share.slices.values(), share.later_slices.values())
        }
        waiting = [
            node
            for node in facts.carried
            if facts.traced.buffers[node.name] in names
            or (is_first and carriers.get(node) == self.part)
        ]
        needed = set(waiting)
        while waiting:
            read = live_nodes([facts.carried[waiting.pop()]]) & facts.carried.keys()
            waiting.extend(read - needed)
            needed |= read
        updates = {node: new for node, new in facts.carried.items() if node in needed}
        if updates:
            last = len(self.blueprint.graph.layers) - 1
            nobody, draws = np.zeros(0, np.int64), self.blueprint.draws
            step = CutGraph(facts, last, nobody, {}, draws)
            self._add(finishing_step(step, (), updates), f"{self.blueprint.prefix}{CARRY}")

    def hold_together(self) -> None:
        """Let steps take slices of a parameter that overlap out of one that the part holds."""
        parameters = {*self.blueprint.traced.parameters.values()}
        of_steps = self.slices, self.later_slices
        held = chain.from_iterable(slices.values() for slices in of_steps)
        whole = united_slices(own for own in held if own.name in parameters)
        for slices in of_steps:
            by_step: dict[str, dict[str, Slice]] = {}
            for name, own in slices.items():
                step, _, attribute = name.rpartition(".")
                by_step.setdefault(step, {})[attribute] = own
            slices.clear()
            for step, own_slices in by_step.items():
                if any(own.name in whole for own in own_slices.values()):
                    module = self.program.root.get_submodule(step)
                    assert isinstance(module, fx.GraphModule)
                    own_slices = hold_together(module, own_slices, whole)
                slices.update((f"{step}.{at}", own) for at, own in own_slices.items())

    def expect(self) -> None:
        """Note the names of all that will arrive."""
        plan = self.blueprint
        for transfer, item in zip(plan.transfers, plan.channel_transfers, strict=True):
            if item.receiver == self.part:
                name = self._name(item.layer, item.partial, item.sender)
                for tensor in range(len(transfer.tensors)):
                    self.program.waiting[numbered(name, tensor)] = (transfer, name)

    def _name(self, at: int, partial: bool, sender: int | None, tile: int = 0) -> str:
        name = self.blueprint.names[at] + ("_partial" if partial else "")
        if tile:
            return f"{name}_tile_{tile}"
        return name if sender is None else f"{name}_from_{sender}"

    def statistics_steps(self) -> Iterator[str]:
        """Names of steps for statistics of channels, which a norm of them all takes for itself."""
        for at, layer in enumerate(self.blueprint.graph.layers):
            if layer.kind == STATISTICS:
                yield self._name(at, True, None)
                for number in range(len(self.blueprint.tiles(at, self.part))):
                    yield self._name(at, False, None, number)

    # -------------------------------------------------------------- the layers

    def _sources(self, at: int) -> dict[fx.Node, Source]:
        if at not in self._known_sources:
            self._known_sources[at] = self._sources_of(at)
        return self._known_sources[at]

    def _sources_of(self, at: int) -> dict[fx.Node, Source]:
        plan = self.blueprint
        sources: dict[fx.Node, Source] = {}
        for source in plan.graph.sources(plan.graph.layers[at]):
            if (source, self.part) in plan.copied:
                for node in plan.results[source]:
                    sources[node] = Source(plan.layouts[node], (), is_held=True)
                continue
            count, dim = len(plan.results[source]), plan.row_dim(source)
            pieces: list[tuple[str, int, Int64, Int64 | None]] = []  # name, number of its tensor
            for number, tile in enumerate(plan.tiles(source, self.part)):
                name = self._name(source, False, None, number)
                pieces.append((name, 0, plan.channels(source, tile.tasks), tile.rows))
            for item in plan.arriving.get((source, False, self.part), []):
                name = self._name(source, False, item.sender)
                for number, piece in enumerate(item.pieces):
                    pieces.append((name, number * count, piece.members, piece.rows))
            if plan.graph.layers[source].tasks == 1 and dim is None:
                pieces = pieces[:1]
            for index, node in enumerate(plan.results[source]):
                named = tuple(
                    SourcePiece(numbered(name, first + index), members, rows)
                    for name, first, members, rows in pieces
                )
                is_alone = plan.makes_alone(source, self.part)
                sources[node] = Source(plan.layouts[node], named, dim, is_alone=is_alone)
        return sources

    def begin(self, at: int, tasks: Int64, rows: Int64 | None = None) -> CutGraph:
        """Begin a step of a layer for some of its tasks and rows."""
        plan = self.blueprint
        sources = self._sources(at)
        return CutGraph(plan.facts, at, tasks, sources, plan.draws, rows=rows)

    def _partial(self, at: int) -> None:
        """Compute what the part's cells add to their tasks, and send it to where it is summed."""
        plan = self.blueprint
        cells, split = plan.owners.cells[at], plan.owners.splits[at]
        if cells is None or not cells[self.part]:
            return
        tasks = np.sort(np.concatenate([rectangle.tasks for rectangle in cells[self.part]]))
        if split is None:
            rows = np.unique(np.concatenate([own.positions for own in cells[self.part]]))
            step, band = sums_of_rows_step(self.begin(at, tasks, rows), cells[self.part]), rows[0]
        else:
            read = plan.graph.layers[at].reads[split]
            step, band = partial_step(self.begin(at, tasks), read, cells[self.part]), 0
        self._add(step, self._name(at, True, None), int(band))
        self._send_sums(at, tasks)

    def _send_sums(self, at: int, tasks: Int64) -> None:
        departing = self.blueprint.departing.get((at, True, self.part), [])
        name, axis = self._name(at, True, None), self._axis_of_sums(at, tasks)
        for transfer, item in departing:
            places = np.searchsorted(tasks, item.members)
            self.program.send(transfer, [self.program.packed(name, [(axis, places, len(tasks))])])

    def _axis_of_sums(self, at: int, tasks: Int64) -> int:
        """The dimension of their partial sums along which tasks lie."""
        return summing_of(self.begin(at, tasks))[1]

    def _finish(self, at: int) -> tuple[fx.Node, ...]:
        plan = self.blueprint
        if plan.graph.layers[at].kind == INPUT:
            self._take_input(at)
            for number in range(len(plan.tiles(at, self.part))):
                self._send_maps(at, number)
            return ()
        updates, finished = plan.buffer_updates.get(at, {}), list[fx.Node]()
        norms = self.statistics.norms.get(at, ())
        for number, tile in enumerate(plan.tiles(at, self.part)):
            step, sums = self._after(norms, at, tile, number)
            finishing = finishing_step(step, plan.results[at], {} if number else updates, sums)
            finished += self._add(finishing, self._name(at, False, None, number), tile.bands.start)
            self._send_maps(at, number)
        return tuple(finished)

    def _take_input(self, at: int) -> None:
        """Name the part's tiles of an input, which it is given whole."""
        plan = self.blueprint
        for node in plan.results[at]:
            whole, dim = f"{plan.prefix}{node.name}", plan.row_dim(at)
            operand = self.program.placeholder(whole)
            for number, tile in enumerate(plan.tiles(at, self.part)):
                name = self._name(at, False, None, number)
                self.program.values[name] = operand
                if dim is not None and tile.rows is not None:
                    height = plan.owners.height(at)
                    self.program.values[name] = self.program.packed(
                        name, [(dim, tile.rows, height)]
                    )

    def _before(self, norm: NormOfBatch) -> None:
        """Compute the operand of a norm over several tiles, and its statistics."""
        at = norm.layer
        earlier = self.statistics.norms[at][: norm.number]
        for number, tile in enumerate(self.blueprint.tiles(at, self.part)):
            step, sums = self._after(earlier, at, tile, number)
            rows, counted = self._rows_of(norm, tile)
            box = norm.box(tile.tasks, rows)
            statistics, given = statistics_step(step, norm.operand, box, counted, sums)
            name = self.statistics_of(norm, number)
            self._add(statistics, name, tile.bands.start)
            self._operands[at, number] = numbered(name, 1) if given is None else given

    def _after(
        self, norms: Sequence[NormOfBatch], at: int, tile: Tile, number: int
    ) -> tuple[CutGraph, list[PartialSum] | None]:
        """Begin a step of a tile after some of its norms, or else with the tasks' partial sums.

        The operand of the last of these norms is there, and so are its statistics.
        """
        step = self.begin(at, tile.tasks, tile.rows)
        if not norms:
            return step, self._sums(at, tile.tasks)
        norm = norms[-1]
        pieces = [
            (
                self.statistics.name(norm, True, f"_from_{incoming.sender}"),
                norm.positions(incoming.tasks),
            )
            for incoming in self.statistics.coming(norm, True, self.part)
        ]
        if len(own := self.statistics.owned(at, self.part)):
            pieces.append((self.statistics.name(norm, True), norm.positions(own)))
        channels, (rows, _) = norm.positions(tile.tasks), self._rows_of(norm, tile)
        step.given[norm.node] = GivenNorm(
            self._operands[at, number], channels, tuple(pieces), next(iter(rows.values()), None)
        )
        return step, None

    def _rows_of(self, norm: NormOfBatch, tile: Tile) -> tuple[Box, Box]:
        """The rows of a norm that a tile computes, and those that count in its statistics.

        None if the layer is in one band. A step that computes what comes after the norm says which
        rows it asks for.
        """
        if len(norm.row_cuts) == 2:
            return WHOLE, WHOLE
        key = norm, tile.bands
        if key not in self._known_rows:
            self._known_rows[key] = self._find_rows_of(norm, tile)
        return self._known_rows[key]

    def _find_rows_of(self, norm: NormOfBatch, tile: Tile) -> tuple[Box, Box]:
        plan, at = self.blueprint, norm.layer
        operator_rows = plan.facts.operator_rows.get(norm.node)
        if operator_rows is None:  # maps of one row, made taller by what comes after
            return WHOLE, WHOLE
        dim = operator_rows.dim
        counted = np.arange(norm.row_cuts[tile.bands.start], norm.row_cuts[tile.bands.stop])
        step = self.begin(at, tile.tasks, tile.rows)
        channels = norm.positions(tile.tasks)
        step.given[norm.node] = GivenNorm("operand", channels, (("statistics", channels),))
        later = self.statistics.norms[at][norm.number + 1 :]
        if later:
            rows, _ = self._rows_of(later[0], tile)
            step.value(later[0].operand, later[0].box(tile.tasks, rows))
        else:
            own_results(step, plan.results[at])
        asked = [counted, *step.asked_rows(norm.node)]
        rows_asked = np.concatenate(asked)
        rows_computed = np.arange(rows_asked.min(), rows_asked.max() + 1)
        return {dim: rows_computed}, {dim: counted if len(counted) else rows_computed[:1]}

    def statistics_of(self, norm: NormOfBatch, tile: int = 0) -> str:
        """Name of the statistics of one of the part's tiles."""
        name = f"{self.blueprint.names[norm.layer]}_before_{norm.number}"
        return f"{name}_tile_{tile}" if tile else name

    def _sums(self, at: int, tasks: Int64) -> list[PartialSum] | None:
        """Partial sums of tasks, or statistics of their channels: own ones, and those received."""
        cells = self.blueprint.owners.cells[at]
        if cells is None:
            return None
        sums, counts = list[PartialSum](), self.blueprint.statistic_counts
        if cells[self.part]:
            own = np.sort(np.concatenate([rectangle.tasks for rectangle in cells[self.part]]))
            finished_here = np.isin(own, tasks)
            if finished_here.any():
                name, own = self._own_sums(at, own, finished_here), own[finished_here]
                sums.append(PartialSum(name, own, counts(at, self.part, own)))
        for item in self.blueprint.arriving.get((at, True, self.part), []):
            name, own = self._name(at, True, item.sender), item.members
            sums.append(PartialSum(name, own, counts(at, item.sender, own)))
        return sums

    def _own_sums(self, at: int, own: Int64, finished_here: np.ndarray) -> str:
        """The part's partial sums of the tasks that it finishes itself."""
        name = self._name(at, True, None)
        if finished_here.all():
            return name
        kept = f"{name}_kept"
        self.program.values[kept] = self.program.packed(
            name, [(self._axis_of_sums(at, own), np.flatnonzero(finished_here), len(own))]
        )
        return kept

    def _send_maps(self, at: int, last: int) -> None:
        """Send what is there once a tile is, given by its number."""
        plan = self.blueprint
        tiles, dim = plan.tiles(at, self.part), plan.row_dim(at)
        for transfer, item in plan.departing.get((at, False, self.part), []):
            if max(piece.tile for piece in item.pieces) != last:
                continue
            tensors = []
            for piece, (index, node) in product(item.pieces, enumerate(plan.results[at])):
                name, layout = self._name(at, False, None, piece.tile), plan.layouts[node]
                tile, cuts = tiles[piece.tile], list[tuple[int, Int64, int]]()
                if layout.axes:
                    own = plan.channels(at, tile.tasks)
                    have, want = layout.positions(own), layout.positions(piece.members)
                    cuts.append((layout.axes[0], np.searchsorted(have, want), len(have)))
                if dim is not None and tile.rows is not None and piece.rows is not None:
                    along = layout.dim_of_piece(dim)
                    cuts.append((along, piece.rows - tile.rows[0], len(tile.rows)))
                tensors.append(self.program.packed(numbered(name, index), cuts))
            self.program.send(transfer, tensors)
