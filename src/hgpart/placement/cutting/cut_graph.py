"""The torch.fx graph of one step, grown from its results back to what they need.

`CutGraph.value` answers for any node of the traced graph with a node of the step's graph, cut down
to a box. Operators that work channel by channel, and those that only move elements, are cut
themselves, so that only what is wanted is computed. An operator that can't be cut runs on whole
tensors, with zeros for the channels that the part does not have, and the wanted channels are taken
from its result.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.fx.node import map_aggregate

from hgpart.arrays import Int64
from hgpart.errors import PlacementError
from hgpart.operators.calls import with_arguments
from hgpart.operators.table import callable_of, operator_of
from hgpart.placement.cutting import held_constants, products, reindexing, replacements, same_index
from hgpart.placement.cutting.layouts import ChannelLayout, spread, together, unmerge
from hgpart.placement.cutting.row_cuts import row_cut
from hgpart.placement.cutting.slices import Slice
from hgpart.placement.cutting.step_graph import NOTHING, WHOLE, Box, RowCut, Source, StepGraph
from hgpart.tracing.traced_nodes import first_result

aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class CutValue:
    """A value in the step's graph that holds some positions of a dimension, or all (None)."""

    node: fx.Node
    axis: int | None = None
    positions: Int64 | None = None


@dataclass(eq=False)
class CutGraph(StepGraph):
    """A step under construction, which grows as values are requested.

    Attributes
    ----------
    cuts : dict of (fx.Node, bytes or None) to CutValue
        Results of the operators of the step's own layer, for some of their rows or for all (None).
    """

    cuts: dict[tuple[fx.Node, bytes | None], CutValue] = field(default_factory=dict)
    _known: dict[tuple[Any, ...], fx.Node] = field(default_factory=dict)
    _rows: Int64 | None = None  # rows of parameters that are not to be zeros

    def value(self, node: fx.Node, box: Box = WHOLE) -> fx.Node:
        """A node of the traced graph, cut down to a box, as a node of the step's graph."""
        box = self.in_part(node, box)
        of = None if self._rows is None else self._rows.tobytes()
        key = (node, of, *((dim, kept.tobytes()) for dim, kept in sorted(box.items())))
        if key not in self._known:
            self._known[key] = self._value(node, box)
        return self._known[key]

    def _value(self, node: fx.Node, box: Box) -> fx.Node:
        for dim, kept in box.items():
            distinct, places = np.unique(kept, return_inverse=True)
            if len(distinct) < len(kept):  # as heads of an attention share keys and values
                result = self.value(node, {**box, dim: distinct})
                return self.take(result, dim, places, len(distinct))
        if node in self.sources:
            return self._from_source(node, box)
        # Dropout takes a mask instead.
        if node in self.draws and operator_of(node).cut != "dropout":
            return self.select(self.placeholder(self.draws[node]), node, box)
        if self.is_own(node):
            rows = self.rows_in(node, box)
            others = {dim: kept for dim, kept in box.items() if dim not in rows}
            return self._recut(node, self.own(node, rows), others)
        if node in self.facts.makers or self.is_sent(node):  # and the step has no source of it
            return replacements.filled(self, node, aten.zeros.default, box)
        if node.op == "placeholder":
            return self._state(node, box)
        if box or reindexing.takes_some(node):
            under = self.under(node, box)
            if under is None and box and self.layer.tasks > 1 and self._rows is None:
                under = held_constants.under(self, node, box)
            if under is not None:
                return under
        if len(box) > 1 and self.rows is not None:
            return self._by_one(node, box)
        return self.select(self.value(node), node, box) if box else self.copy(node)

    def _by_one(self, node: fx.Node, box: Box) -> fx.Node:
        """A box of a node that can be cut along one of its dimensions at most, such as rows."""
        for dim in sorted(box, reverse=True):
            under = self.under(node, {dim: box[dim]})
            if under is not None:
                return self.select(under, node, {at: box[at] for at in box if at != dim})
        return self.select(self.value(node), node, box)

    def returned(self, results: Sequence[fx.Node], nodes: Sequence[fx.Node]) -> Sequence[fx.Node]:
        """Outputs of the step, given its own versions of some nodes of the traced graph."""
        return results

    def of_rows(self, node: fx.Node, rows: Int64) -> fx.Node:
        """A constant for whose parameters only some rows are held, the others being zero."""
        self._rows = rows
        result = self.value(node)
        self._rows = None
        return result

    def under(self, node: fx.Node, box: Box) -> fx.Node | None:
        """The operator on operands that are cut like its result, if it can be cut."""
        if node.target is operator.getitem:
            parent = node.all_input_nodes[0]
            if not reindexing.is_reindexing(parent):
                if self.facts.shape(parent) != self.facts.shape(node):
                    return None
                result = self.under(parent, box)
                return None if result is None else self.item(result, node)
        if operator_of(node).makes:
            return None
        moved = reindexing.under(self, node, box)
        return same_index.under(self, node, box) if moved is None else moved

    def item(self, result: fx.Node, node: fx.Node) -> fx.Node:
        """One result of an operator that returns several."""
        if result in self.single:
            if node.args[1] != 0:
                raise PlacementError(
                    f"{self.layer.name} reads result {node.args[1]} of {node.args[0]}, which parts "
                    "do not make: accepted is its first result"
                )
            return result
        return self.call(operator.getitem, result, node.args[1])

    def own(self, node: fx.Node, rows: Box = WHOLE) -> CutValue:
        """The step's result of an operator of its layer, or some rows of it."""
        key = node, next((kept.tobytes() for kept in rows.values()), None)
        if key not in self.cuts:
            self.cuts[key] = self._own(node, rows)
        return self.cuts[key]

    def asked_rows(self, node: fx.Node) -> list[Int64]:
        """The rows that were asked for of an operator of the step's layer, of each call."""
        height = self.facts.shape(first_result(node))[self.facts.operator_rows[node].dim]
        return [
            np.arange(height) if rows is None else np.frombuffer(rows, dtype=np.int64)
            for maker, rows in self.cuts
            if maker in (node, first_result(node))
        ]

    def _own(self, node: fx.Node, rows: Box) -> CutValue:
        self._check_given(node)
        cut = self._cut(node, rows)
        if cut is not None:
            return cut
        if rows:
            made = same_index.on_whole_tensors(self, node, rows) if self.layer.tasks > 1 else None
            if made is not None:
                return CutValue(made)
            whole = self.own(node)
            return replace(whole, node=self.select(whole.node, node, rows))
        if self.layer.tasks == 1:
            return CutValue(self.copy(node))
        if node.target is operator.getitem or operator_of(node).cut == "dropout":  # reads maps only
            return CutValue(self.copy(node))
        made = same_index.on_whole_tensors(self, node, WHOLE)
        assert made is not None  # it is not cut
        return CutValue(made)

    def _cut(self, node: fx.Node, rows: Box) -> CutValue | None:
        """The step's tasks and some rows of an operator's result alone; None if it can't be cut."""
        if self.layer.tasks == 1:
            under = self.under(node, rows) if rows else None
            return None if under is None else CutValue(under)
        axes = self.facts.varying(node)
        product = products.product_of(self, node) if self._is_head(node) else None
        if product is not None and axes == (product.axis,):
            cut = row_cut(self, node, next(iter(rows.values()))) if rows else None
            if rows and cut is None:
                return None
            result = products.filters(self, node, product, self.layer.reads[0], cut)
            return CutValue(result, product.axis, products.results_of_tasks(self, node, product))
        if not rows:
            cut_filters = products.filters_of_samples(self, node)
            if cut_filters is not None:
                return CutValue(*cut_filters)
            windows = products.windows_of_channels(self, node)
            if windows is not None:
                return CutValue(windows[0], axes[0], windows[1])
        if len(axes) == 1 and not self.facts.grows(node, axes[0]):
            positions = self.facts.layout(self.at, node).positions(self.tasks)
            under = self.under(node, {axes[0]: positions, **rows})
            if under is not None:
                return CutValue(under, axes[0], positions)
        return None

    def _check_given(self, node: fx.Node) -> None:
        """Raise a PlacementError if a node comes before the norm that the step begins with.

        A layer's operators are a chain: each reads only the result of the one before.
        """
        maker = node.all_input_nodes[0] if node.target is operator.getitem else node
        at = self.layer.operators.index
        for norm in self.given:
            if at(maker.name) < at(norm.name):
                raise PlacementError(
                    f"{self.layer.name} reads {node.name} after its norm {norm.name}: accepted in "
                    "norms over slices or bands are layers that read the norm alone"
                )

    def _is_head(self, node: fx.Node) -> bool:
        return node.name == self.layer.operators[0]

    def _recut(self, node: fx.Node, cut: CutValue, box: Box) -> fx.Node:
        if cut.axis is None or cut.positions is None:
            return self.select(cut.node, node, box)
        result = self.places(
            cut.node, cut.axis, cut.positions, box, self.facts.shape(node)[cut.axis]
        )
        return self.select(result, node, {dim: box[dim] for dim in box if dim != cut.axis})

    def places(self, result: fx.Node, axis: int, have: Int64, box: Box, size: int) -> fx.Node:
        """Take the positions that are wanted along a dimension from those that a value has."""
        want = box.get(axis, np.arange(size))
        if np.array_equal(want, have):
            return result
        order = np.argsort(have)
        at = np.minimum(np.searchsorted(have[order], want), len(have) - 1)
        if np.array_equal(have[order][at], want):
            return self.take(result, axis, order[at], len(have))
        result = self.call(spread, result, axis, self.index(have), size)
        return self.take(result, axis, want, size)

    def joined(
        self, pieces: Sequence[tuple[str, Int64]], axis: int, wanted: Int64, size: int
    ) -> fx.Node:
        """Join placeholders that hold some positions of a dimension of `size` each."""
        parts = [(self.placeholder(name), places) for name, places in pieces]
        return self._gathered(parts, axis, wanted, size)

    def _gathered(
        self, pieces: Sequence[tuple[fx.Node, Int64]], axis: int, wanted: Int64, size: int
    ) -> fx.Node:
        """Put wanted positions of a dimension of `size` together out of pieces with some of them.

        The wanted positions of each piece are taken before the pieces are joined, in the order of
        their first positions: nothing has to be reordered if each piece is a run of positions.
        """
        taken = []
        for piece, places in pieces:
            here = np.flatnonzero(np.isin(places, wanted))
            if len(here):
                taken.append((self.take(piece, axis, here, len(places)), places[here]))
        taken.sort(key=lambda piece: int(piece[1][0]))
        parts, have = zip(*taken, strict=True)
        result = parts[0] if len(parts) == 1 else self.call(aten.cat.default, [*parts], axis)
        return self.places(result, axis, np.concatenate(have), {axis: wanted}, size)

    def _from_source(self, node: fx.Node, box: Box) -> fx.Node:
        source = self.sources[node]
        layout = source.layout
        if source.is_held:
            whole = self.hold(node, Slice(self.name_of(node), self.facts.shape(node)))
            return self.select(whole, node, box)
        if source.row_dim is not None:
            return self._from_rows(node, source, source.row_dim, box)
        if not layout.axes and source.pieces:
            return self.select(self.placeholder(source.pieces[0].name), node, box)
        axis, size = (layout.axes or (0,))[0], len(layout.channels)
        wanted = np.arange(size) if layout.axis is None else box.get(axis, np.arange(size))
        pieces = []
        for piece in source.pieces:
            places = layout.positions(piece.channels)
            if np.isin(places, wanted).any():
                pieces.append((self.placeholder(piece.name), places))
        if not pieces:  # the part has none of it, and does not use it
            return replacements.filled(self, node, aten.zeros.default, box)
        result = self._gathered(pieces, axis, wanted, size)
        if layout.axis is not None:
            return self.select(result, node, {dim: box[dim] for dim in box if dim != axis})
        return self.select(self._unmerged(result, layout), node, box)

    def _unmerged(self, result: fx.Node, layout: ChannelLayout) -> fx.Node:
        """All channels of a source in the dimensions of its tensor."""
        if len(layout.axes) > 1:
            sizes = [layout.shape[dim] for dim in layout.axes]
            result = self.call(unmerge, result, list(layout.axes), sizes)
        return self.call(together, result, list(layout.merged)) if layout.merged else result

    def _from_rows(self, node: fx.Node, source: Source, dim: int, box: Box) -> fx.Node:
        """A source whose pieces have some rows each: rows with the same pieces are made at once."""
        height = self.facts.shape(node)[dim]
        wanted = box.get(dim, np.arange(height))
        others = {axis: kept for axis, kept in box.items() if axis != dim}
        layout = source.layout
        along, is_merged = layout.dim_of_piece(dim), len(layout.axes) > 1
        of_pieces = {} if is_merged else others
        pieces = self._pieces(source, of_pieces)
        has = np.array([np.isin(wanted, rows) for _, _, rows in pieces], dtype=np.bool_)
        has = has.reshape(len(pieces), len(wanted))
        there = np.flatnonzero(has.any(axis=0))
        if not len(there):  # the part has none of it, and does not use it
            return replacements.filled(self, node, aten.zeros.default, box)
        has, have = has[:, there], wanted[there]
        runs, changes = [], np.flatnonzero((has[:, 1:] != has[:, :-1]).any(axis=0)) + 1
        for run in np.split(np.arange(len(have)), changes):
            alike = [pieces[at] for at in np.flatnonzero(has[:, run[0]])]
            runs.append(self._of_pieces(node, layout, alike, along, have[run], of_pieces))
        result = runs[0] if len(runs) == 1 else self.call(aten.cat.default, runs, along)
        if is_merged:
            result = self.select(self._unmerged(result, layout), node, others)
        return self.places(result, dim, have, {dim: wanted}, height)

    def _pieces(self, source: Source, box: Box) -> list[tuple[str, Int64, Int64]]:
        """The names, places of channels, and rows of the pieces that have some of a box."""
        layout, pieces = source.layout, []
        wanted = box.get(layout.axis) if layout.axis is not None else None
        for piece in source.pieces:
            places = layout.positions(piece.channels)
            assert piece.rows is not None
            if wanted is None or np.isin(places, wanted).any():
                pieces.append((piece.name, places, piece.rows))
        return pieces

    def _of_pieces(
        self,
        node: fx.Node,
        layout: ChannelLayout,
        pieces: Sequence[tuple[str, Int64, Int64]],
        dim: int,
        rows: Int64,
        box: Box,
    ) -> fx.Node:
        """Some rows, along `dim` of all of these pieces, cut to a box of other dimensions."""
        parts = [
            self.take(self.placeholder(name), dim, np.searchsorted(have, rows), len(have))
            for name, _, have in pieces
        ]
        if not layout.axes:
            return self.select(parts[0], node, box)
        axis, size = layout.axes[0], len(layout.channels)
        wanted = box.get(axis, np.arange(size))
        channels = [places for _, places, _ in pieces]
        result = self._gathered([*zip(parts, channels, strict=True)], axis, wanted, size)
        return self.select(result, node, {other: box[other] for other in box if other != axis})

    def _state(self, node: fx.Node, box: Box) -> fx.Node:
        """A parameter, buffer or constant, as the slice of it that the part holds."""
        name, shape = self.name_of(node), self.facts.shape(node)
        if node in self.facts.carried:  # kept for backward as it is before its update
            return self.select(self.call(aten.clone.default, self.whole(node)), node, box)
        if self._rows is None or node.name not in self.traced.parameters or not shape:
            return self.hold(node, Slice(name, shape, dict(box)))
        rows = self.in_part(node, {0: self._rows})
        result = self.hold(node, Slice(name, shape, dict(rows)))
        if rows:
            result = self.call(spread, result, 0, self.index(self._rows), shape[0])
        return self.select(result, node, box)

    def copy(
        self,
        node: fx.Node,
        boxes: Mapping[fx.Node, Box] | None = None,
        rows: RowCut | None = None,
    ) -> fx.Node:
        """Call a node's operator on operands that are cut to boxes (whole without a box)."""
        boxes = boxes or {}
        if node.target is operator.getitem:
            return self.item(self.value(node.all_input_nodes[0]), node)
        taken = {} if rows is None else rows.taken
        whole = {whole: {**boxes.get(whole, {}), **box} for whole, box in taken.items()}
        replaced = replacements.replaced(self, node, {**boxes, **whole})
        if replaced is not None:
            return replaced
        operands = {n: self.value(n, boxes.get(n, WHOLE)) for n in self.operands(node)}
        return self.emit(node, operands) if rows is None else rows.emit(self, node, operands)

    def emit(
        self,
        node: fx.Node,
        operands: Mapping[fx.Node, fx.Node],
        changed: Mapping[str, Any] = NOTHING,
    ) -> fx.Node:
        """Call a node's operator on operands of the step's graph, some arguments being others."""
        if node in self.given:
            raise PlacementError(
                f"{self.layer.name} can't be cut by the channels of its norm {node.name}: accepted "
                "in norms over slices or bands are those that can"
            )

        def plain(value: Any) -> Any:
            if isinstance(value, fx.Node):
                return operands[value] if value in operands else self.number(value)
            return torch.device("cpu") if isinstance(value, torch.device) else value

        args, kwargs = map_aggregate(node.args, plain), map_aggregate(node.kwargs, plain)
        if changed:
            args, kwargs = with_arguments(node, args, kwargs, changed)
        if node.op == "get_attr":
            attribute = str(node.target)
            setattr(self.root, attribute, getattr(self.traced.graph_module, attribute))
            return self.fx_graph.get_attr(attribute)
        # A view of the whole need not be a view of a share.
        is_view = operator_of(node).cut == "view"
        target = aten.reshape.default if is_view else callable_of(node)
        return self.fx_graph.create_node("call_function", target, args, kwargs, node.name)
