"""The torch.fx graph of one step, grown from its results back to what they need.

A step computes one layer's share in one part. `StepGraph.value` answers for any node of the
traced graph with a node of the step's graph, cut down to a *box*: the positions that are wanted
along some dimensions. Operators that work channel by channel, and those that only move elements
about, are cut themselves, so that nothing is computed that is not wanted; where an operator can't
be cut, it runs on whole tensors, with zeros for the channels that the part does not have, and the
wanted channels are taken from its result.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import fx, nn
from torch.fx.node import map_aggregate

from hgpart.errors import PlacementError
from hgpart.hypergraph.hypergraph import Int64
from hgpart.layers.channel_graph import ChannelGraph, Layer
from hgpart.operators.table import operator_of
from hgpart.placement.cutting import held_constants, products, reindexing, replacements, same_index
from hgpart.placement.cutting.layouts import ChannelLayout, spread, unmerge
from hgpart.placement.cutting.node_facts import NodeFacts
from hgpart.placement.cutting.slices import Slice
from hgpart.tracing.batches import evenly
from hgpart.tracing.traced_model import TracedModel, quotable
from hgpart.tracing.traced_nodes import first_tensor, holds_tensors

aten = torch.ops.aten

Box = Mapping[int, Int64]
WHOLE: Box = {}


@dataclass(frozen=True, eq=False)
class Source:
    """A tensor of another layer as a part has it.

    Attributes
    ----------
    layout : ChannelLayout
    pieces : tuple of (str, int64 array)
        Placeholder of each piece, and the channels that it holds, ascending.
    """

    layout: ChannelLayout
    pieces: tuple[tuple[str, Int64], ...]


@dataclass(frozen=True, eq=False)
class Cut:
    """A value in the step's graph that holds some positions of a dimension; all if None."""

    node: fx.Node
    axis: int | None = None
    positions: Int64 | None = None


@dataclass(eq=False)
class StepGraph:
    """A step under construction.

    Attributes
    ----------
    facts : NodeFacts
        Of the traced graph.
    at : int
        Index of the layer.
    tasks : int64 array
        Tasks of the layer that the step computes, ascending.
    sources : mapping of fx.Node to Source
        Nodes of the traced graph whose values come from outside.
    draws : mapping of fx.Node to str
        Random nodes, and the placeholder of what was drawn for them.
    united : mapping of str to Slice
        By parameter, what the part holds as one tensor, of which the step takes what it needs.
    """

    facts: NodeFacts
    at: int
    tasks: Int64
    sources: Mapping[fx.Node, Source]
    draws: Mapping[fx.Node, str]
    united: Mapping[str, Slice] = field(default_factory=dict)
    fx_graph: fx.Graph = field(default_factory=fx.Graph)
    root: nn.Module = field(default_factory=nn.Module)
    slices: dict[str, Slice] = field(default_factory=dict)
    cuts: dict[fx.Node, Cut] = field(default_factory=dict)  # what own operators made
    placeholders: dict[str, fx.Node] = field(default_factory=dict)
    single: set[fx.Node] = field(default_factory=set)  # that stand for an operator's first result
    _known: dict[tuple[Any, ...], fx.Node] = field(default_factory=dict)
    _attributes: dict[object, str] = field(default_factory=dict)
    _rows: Int64 | None = None  # of parameters, that are not to be zeros

    # -------------------------------------------------------------- facts of the traced graph

    @property
    def traced(self) -> TracedModel:
        """The traced model."""
        return self.facts.traced

    @property
    def graph(self) -> ChannelGraph:
        """Its layers."""
        return self.facts.graph

    @property
    def layer(self) -> Layer:
        """The layer that the step has a share of."""
        return self.graph.layers[self.at]

    def is_own(self, node: fx.Node) -> bool:
        """Whether a node is an operator of the layer, or one of an operator's results."""
        return node.name in self.layer.operators or (
            node.target is operator.getitem and self.is_own(node.all_input_nodes[0])
        )

    # -------------------------------------------------------------- values

    def value(self, node: fx.Node, box: Box = WHOLE) -> fx.Node:
        """A node of the traced graph, cut down to a box, as a node of the step's graph."""
        box = self._normal(node, box)
        of = None if self._rows is None else self._rows.tobytes()
        key = (node, of, *((dim, kept.tobytes()) for dim, kept in sorted(box.items())))
        if key not in self._known:
            self._known[key] = self._value(node, box)
        return self._known[key]

    def _normal(self, node: fx.Node, box: Box) -> Box:
        shape = self.facts.shape(node) if box else ()
        return {
            dim: kept
            for dim, kept in box.items()
            if not np.array_equal(kept, np.arange(shape[dim]))
        }

    def _value(self, node: fx.Node, box: Box) -> fx.Node:
        if node in self.sources:
            return self._from_source(node, box)
        if node in self.draws and operator_of(node).cut != "dropout":  # that has a mask
            return self.select(self.placeholder(self.draws[node]), node, box)
        if self.is_own(node):
            return self._recut(node, self.own(node), box)
        if node in self.facts.makers or self.is_sent(node):  # and the step reads nothing of it
            return replacements.filled(self, node, aten.zeros.default, box)
        if node.op == "placeholder":
            return self._held(node, box)
        if box or reindexing.takes_some(node):
            under = self.under(node, box)
            if under is None and box and self.layer.tasks > 1 and self._rows is None:
                under = held_constants.under(self, node, box)
            if under is not None:
                return under
        return self.select(self.value(node), node, box) if box else self.copy(node)

    def is_sent(self, node: fx.Node) -> bool:
        """Whether a node is a parameter that the task of another layer holds and sends."""
        held_here = self.traced.parameters.get(node.name) in self.layer.parameter_names
        return node.name in self.facts.sent_parameters and not held_here

    def of_rows(self, node: fx.Node, rows: Int64) -> fx.Node:
        """A constant, with zeros for the parameters that it is made of but for some rows."""
        self._rows = rows
        made = self.value(node)
        self._rows = None
        return made

    def under(self, node: fx.Node, box: Box) -> fx.Node | None:
        """An operator that is cut itself, if it can be."""
        if node.target is operator.getitem:
            parent = node.all_input_nodes[0]
            if not reindexing.is_reindexing(parent):
                if self.facts.shape(parent) != self.facts.shape(node):
                    return None
                made = self.under(parent, box)
                return None if made is None else self.item(made, node)
        if operator_of(node).makes:
            return None
        found = reindexing.under(self, node, box)
        return same_index.under(self, node, box) if found is None else found

    def item(self, made: fx.Node, node: fx.Node) -> fx.Node:
        """One result of an operator that returns several."""
        if made in self.single:
            if node.args[1] != 0:
                raise PlacementError(
                    f"{self.layer.name} reads result {node.args[1]} of {node.args[0]}, which parts "
                    "do not make: accepted is its first result"
                )
            return made
        return self.call(operator.getitem, made, node.args[1])

    def own(self, node: fx.Node) -> Cut:
        """What the step makes of an operator of its layer."""
        if node not in self.cuts:
            self.cuts[node] = self._own(node)
        return self.cuts[node]

    def _own(self, node: fx.Node) -> Cut:
        if self.layer.tasks == 1:
            return Cut(self.copy(node))
        product = products.product_of(self, node) if self._is_head(node) else None
        if product is not None:
            made = products.filters(self, node, product, self.layer.reads[0])
            return Cut(made, product.axis, self.tasks)
        axes = self.facts.varying(node)
        if len(axes) == 1:
            positions = self.facts.layout(self.at, node).positions(self.tasks)
            under = self.under(node, {axes[0]: positions})
            if under is not None:
                return Cut(under, axes[0], positions)
        return Cut(same_index.on_whole_tensors(self, node))

    def _is_head(self, node: fx.Node) -> bool:
        return node.name == self.layer.operators[0]

    @property
    def own_channels(self) -> Int64:
        """Channels that the step's tasks make."""
        channels: Int64 = self.graph.first_channel[self.at] + self.tasks
        return channels

    def _recut(self, node: fx.Node, cut: Cut, box: Box) -> fx.Node:
        if cut.axis is None or cut.positions is None:
            return self.select(cut.node, node, box)
        made = self._places(
            cut.node, cut.axis, cut.positions, box, self.facts.shape(node)[cut.axis]
        )
        return self.select(made, node, {dim: box[dim] for dim in box if dim != cut.axis})

    def _places(self, made: fx.Node, axis: int, have: Int64, box: Box, size: int) -> fx.Node:
        """From the positions that a value has along a dimension to those that are wanted."""
        want = box.get(axis, np.arange(size))
        if np.array_equal(want, have):
            return made
        order = np.argsort(have)
        at = np.minimum(np.searchsorted(have[order], want), len(have) - 1)
        if np.array_equal(have[order][at], want):
            return self.take(made, axis, order[at], len(have))
        made = self.call(spread, made, axis, self.index(have), size)
        return self.take(made, axis, want, size)

    def _from_source(self, node: fx.Node, box: Box) -> fx.Node:
        source = self.sources[node]
        layout = source.layout
        if not layout.axes and source.pieces:
            return self.select(self.placeholder(source.pieces[0][0]), node, box)
        if not source.pieces:  # the part has none of it, and so makes no use of it
            return replacements.filled(self, node, aten.zeros.default, box)
        axis, size = layout.axes[0], len(layout.channels)
        single = len(layout.axes) == 1
        wanted = box.get(axis) if single else None
        pieces = []
        for name, members in source.pieces:
            places = layout.positions(members)
            if wanted is None or np.isin(places, wanted).any():
                pieces.append((name, places))
        if not pieces:  # the part has none of it, and so makes no use of it
            return replacements.filled(self, node, aten.zeros.default, box)
        parts = [self.placeholder(name) for name, _ in pieces]
        made = parts[0] if len(parts) == 1 else self.call(aten.cat.default, parts, axis)
        have = np.concatenate([places for _, places in pieces])
        if single:
            made = self._places(made, axis, have, box, size)
            return self.select(made, node, {dim: box[dim] for dim in box if dim != axis})
        made = self._places(made, axis, have, WHOLE, size)
        sizes = [layout.shape[dim] for dim in layout.axes]
        return self.select(self.call(unmerge, made, list(layout.axes), sizes), node, box)

    def _held(self, node: fx.Node, box: Box) -> fx.Node:
        """A parameter, buffer or constant, as a slice that the part holds."""
        name, shape = self.name_of(node), self.facts.shape(node)
        if node in self.facts.carried:  # kept for the backward pass as it is before its update
            return self.select(self.call(aten.clone.default, self.whole(node)), node, box)
        if self._rows is None or node.name not in self.traced.parameters or not shape:
            return self.hold(node, Slice(name, shape, dict(box)))
        rows = self._normal(node, {0: self._rows})
        made = self.hold(node, Slice(name, shape, dict(rows)))
        if rows:
            made = self.call(spread, made, 0, self.index(self._rows), shape[0])
        return self.select(made, node, box)

    def name_of(self, node: fx.Node) -> str:
        """What a parameter, buffer or constant is called in the model's state."""
        traced = self.traced
        for names in (traced.parameters, traced.buffers):
            if node.name in names:
                return names[node.name]
        if node.name not in traced.constants:
            raise PlacementError(f"{self.layer.name} takes {node.name}, which no part has")
        return node.name

    def whole(self, node: fx.Node) -> fx.Node:
        """A buffer as the part holds it, to be changed."""
        return self.hold(node, Slice(self.traced.buffers[node.name], self.facts.shape(node)))

    def hold(self, node: fx.Node, held: Slice) -> fx.Node:
        """A slice that the part holds, as an attribute of the step, or part of one."""
        united = self.united.get(held.name, held)
        if united.key != held.key:
            return self._part_of(self.hold(node, united), united, held)
        if held.key not in self._attributes:
            attribute = self._free(quotable(held.name.rpartition(".")[2]))
            self._attributes[held.key] = attribute
            self.slices[attribute] = held
            value = torch.empty(held.local_shape, dtype=node.meta["val"].dtype, device="meta")
            if node.name in self.traced.parameters:
                self.root.register_parameter(
                    attribute, nn.Parameter(value, requires_grad=value.is_floating_point())
                )
            else:
                self.root.register_buffer(attribute, value)
        return self.fx_graph.get_attr(self._attributes[held.key])

    def _part_of(self, made: fx.Node, united: Slice, held: Slice) -> fx.Node:
        """Take a slice out of another."""
        if united.elements is None and held.elements is None:
            for dim, kept in held.positions.items():
                have = united.positions.get(dim, np.arange(united.shape[dim]))
                made = self.take(made, dim, np.searchsorted(have, kept), len(have))
            return made
        have = united.numbers.ravel()
        flat = self.call(aten.reshape.default, made, [-1])
        flat = self.take(flat, 0, np.searchsorted(have, held.numbers.ravel()), len(have))
        return self.call(aten.reshape.default, flat, list(held.local_shape))

    def _free(self, name: str) -> str:
        found = name
        while hasattr(self.root, found) or found in self.placeholders:
            stem, _, number = found.rpartition("_")
            found = f"{stem}_{int(number) + 1}" if stem and number.isdigit() else f"{found}_1"
        return found

    # -------------------------------------------------------------- nodes of the step's graph

    def placeholder(self, name: str) -> fx.Node:
        """An operand of the step."""
        if name not in self.placeholders:
            others = (node for node in self.fx_graph.nodes if node.op != "placeholder")
            first = next(others, None)
            with self.fx_graph.inserting_before(first) if first else nullcontext():
                self.placeholders[name] = self.fx_graph.placeholder(name)
        return self.placeholders[name]

    def call(self, target: Any, *args: Any) -> fx.Node:
        """Call a function."""
        return self.fx_graph.call_function(target, args)

    def index(self, positions: Int64) -> fx.Node:
        """A list of positions, as a buffer of the step."""
        key = ("index", positions.tobytes())
        if key not in self._attributes:
            self._attributes[key] = self._free("index")
            tensor = torch.from_numpy(np.ascontiguousarray(positions, dtype=np.int64))
            self.root.register_buffer(self._attributes[key], tensor, persistent=False)
        return self.fx_graph.get_attr(self._attributes[key])

    def take(self, made: fx.Node, axis: int, positions: Int64, size: int) -> fx.Node:
        """Take positions along a dimension of `size`."""
        if np.array_equal(positions, np.arange(size)):
            return made
        first, count = (int(positions[0]), len(positions)) if len(positions) else (0, 0)
        if np.array_equal(positions, np.arange(first, first + count)):
            return self.call(aten.narrow.default, made, axis, first, count)
        return self.call(aten.index_select.default, made, axis, self.index(positions))

    def select(self, made: fx.Node, node: fx.Node, box: Box) -> fx.Node:
        """Take a box out of the whole value of a node."""
        for dim, kept in self._normal(node, box).items():
            made = self.take(made, dim, kept, self.facts.shape(node)[dim])
        return made

    def operands(self, node: fx.Node) -> Sequence[fx.Node]:
        """The operands of a node that are tensors."""
        return [operand for operand in node.all_input_nodes if holds_tensors(operand)]

    def copy(self, node: fx.Node, boxes: Mapping[fx.Node, Box] | None = None) -> fx.Node:
        """Call a node's operator on operands that are cut to boxes (whole, if there is none)."""
        boxes = boxes or {}
        if node.target is operator.getitem:
            return self.item(self.value(node.all_input_nodes[0]), node)
        replaced = replacements.replaced(self, node, boxes)
        if replaced is not None:
            return replaced
        return self.emit(node, {n: self.value(n, boxes.get(n, WHOLE)) for n in self.operands(node)})

    def emit(self, node: fx.Node, operands: Mapping[fx.Node, fx.Node]) -> fx.Node:
        """Call a node's operator on operands of the step's graph."""

        def plain(value: Any) -> Any:
            if isinstance(value, fx.Node):
                return operands[value] if value in operands else self.number(value)
            return torch.device("cpu") if isinstance(value, torch.device) else value

        args, kwargs = map_aggregate(node.args, plain), map_aggregate(node.kwargs, plain)
        if node.op == "get_attr":
            attribute = str(node.target)
            setattr(self.root, attribute, getattr(self.traced.graph_module, attribute))
            return self.fx_graph.get_attr(attribute)
        # What was a view of the whole need not be one of a share.
        is_view = operator_of(node).cut == "view"
        target = aten.reshape.default if is_view else node.target
        return self.fx_graph.create_node("call_function", target, args, kwargs, node.name)

    def number(self, node: fx.Node) -> Any:
        """A size, or a number computed from sizes."""
        return self.at_any_batch(node.meta["val"])

    def at_any_batch(self, value: Any) -> Any:
        """A size of the traced graph for whatever batch the step is given."""
        if not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return value
        grows = evenly(value)
        if grows is None or (grows[0] and not isinstance(value, torch.SymInt)):
            raise PlacementError(
                f"{self.layer.name} computes {value} with the batch size: accepted are sizes that "
                "grow evenly with it"
            )
        each, fixed = grows
        if each == 0:
            return fixed
        found = self.placeholder("batch_size")
        found = found if each == 1 else self.call(operator.mul, found, each)
        return found if fixed == 0 else self.call(operator.add, found, fixed)

    def sizes(self, node: fx.Node, box: Box) -> list[Any]:
        """Shape of a node's value, cut to a box, for whatever batch."""
        shape = first_tensor(node.meta["val"]).shape
        return [
            len(box[dim]) if dim in box else self.at_any_batch(size)
            for dim, size in enumerate(shape)
        ]
