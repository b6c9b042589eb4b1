"""A step under construction, as the rules that cut operators see it.

A step computes one layer's share in one part. It consists of nodes of the traced graph that are cut
down to a *box*: the wanted positions along some dimensions.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import fx

from hgpart.arrays import Bool, Float64, Int64
from hgpart.errors import PlacementError
from hgpart.layers.channel_graph import ChannelGraph, Layer
from hgpart.operators.table import operator_of
from hgpart.placement.cutting.growing_module import GrowingModule
from hgpart.placement.cutting.layouts import ChannelLayout, weighted
from hgpart.placement.cutting.node_facts import NodeFacts
from hgpart.placement.cutting.slices import Slice
from hgpart.tracing.batches import SYMBOLIC, evenly, size_said
from hgpart.tracing.programs.divisible import quotable
from hgpart.tracing.traced_model import TracedModel
from hgpart.tracing.traced_nodes import first_tensor, holds_tensors

aten = torch.ops.aten

Box = Mapping[int, Int64]
WHOLE: Box = {}
NOTHING: Mapping[str, Any] = {}


@dataclass(frozen=True, eq=False)
class SourcePiece:
    """Some channels and rows of a tensor of another layer.

    Attributes
    ----------
    name : str
        Its placeholder.
    channels : int64 array
        Its channels, numbered within the layer, ascending.
    rows : int64 array or None
        Its rows, ascending; None for all.
    """

    name: str
    channels: Int64
    rows: Int64 | None = None

    @property
    def key(self) -> tuple[bytes, bytes | None]:
        """Equal for pieces of the same channels and rows."""
        return self.channels.tobytes(), None if self.rows is None else self.rows.tobytes()


@dataclass(frozen=True, eq=False)
class Source:
    """A tensor of another layer, as the part has it.

    Attributes
    ----------
    pieces : tuple of SourcePiece
        The pieces that the part has, which do not overlap.
    row_dim : int or None
        Dimension of the rows; None if all pieces have all rows.
    is_held : bool
        Whether it is a parameter that the part holds whole; then there are no pieces.
    is_alone : bool
        Whether the part makes itself all that it has of it, and all sums in it.
    """

    layout: ChannelLayout
    pieces: tuple[SourcePiece, ...]
    row_dim: int | None = None
    is_held: bool = False
    is_alone: bool = False


@dataclass(frozen=True, eq=False)
class GivenNorm:
    """A norm that a step begins with, whose statistics are those of the whole batch.

    Attributes
    ----------
    operand : str
        Placeholder of the norm's operand.
    channels : int64 array
        Channels of the norm in this step.
    statistics : tuple of (str, int64 array)
        Placeholder of each piece of the statistics, and the channels in it, ascending.
    rows : int64 array or None
        Rows of the operand in this step, ascending; None for all.
    """

    operand: str
    channels: Int64
    statistics: tuple[tuple[str, Int64], ...]
    rows: Int64 | None = None


@dataclass(frozen=True, eq=False)
class RowCut:
    """How an operator makes some rows of its result.

    Attributes
    ----------
    dim : int
        Dimension of the result's rows.
    asked : mapping of fx.Node to Box
        The rows that it is given of each operand with rows.
    pads : tuple of int
        Rows of zeros in front of those of its operand and behind them; negative ones are cut off.
    changed : mapping of str to Any
        Arguments of the call that are not those of the node.
    made : int
        Number of rows that the call makes.
    wanted : int64 array
        The wanted rows among these.
    taken : mapping of fx.Node to Box
        The rows with which it is called of operands that parts have whole, such as constants.
    spans : tuple of (int, int)
        Rows of those that it is given for each of several calls, which make a row each; empty if
        it is called once.
    weights : float64 array, shape (terms, rows), or None
        If given, `wanted` has this shape, too: a row is the sum of rows that the call makes, each
        times its weight.
    mask : bool array, shape (rows, rows of keys), or None
        If given, the mask of the attention that is called.
    """

    dim: int
    asked: Mapping[fx.Node, Box]
    made: int
    wanted: Int64
    pads: tuple[int, int] = (0, 0)
    changed: Mapping[str, Any] = field(default_factory=dict)
    taken: Mapping[fx.Node, Box] = field(default_factory=dict)
    spans: tuple[tuple[int, int], ...] = ()
    weights: Float64 | None = None
    mask: Bool | None = None

    def emit(
        self,
        step: StepGraph,
        node: fx.Node,
        operands: Mapping[fx.Node, fx.Node],
        changed: Mapping[str, Any] = NOTHING,
    ) -> fx.Node:
        """Call a node's operator on operands that are cut as asked, for the wanted rows."""
        if any(self.pads):
            ((operand, box),) = self.asked.items()
            (dim,) = box
            rank = len(step.facts.shape(operand))
            operands = {**operands, operand: _padded(step, operands[operand], dim, rank, self.pads)}
        for whole, box in self.taken.items():
            operands = {**operands, whole: step.select(operands[whole], whole, box)}
        changed = {**self.changed, **changed}
        if self.mask is not None:
            changed["attn_mask"] = step.mask(self.mask)
        if not self.spans:
            made = self._first_result(step, node, step.emit(node, operands, changed))
            if self.weights is None:
                result = step.take(made, self.dim, self.wanted, self.made)
            else:
                index = step.index(self.wanted)
                result = step.call(weighted, made, self.dim, index, step.weights(self.weights))
        else:
            ((operand, box),) = self.asked.items()
            ((dim, rows),) = box.items()
            made = operands[operand]
            spans = [np.arange(first, last) for first, last in self.spans]
            windows = [step.take(made, dim, span, len(rows)) for span in spans]
            calls = [step.emit(node, {**operands, operand: own}, changed) for own in windows]
            made_rows = [self._first_result(step, node, call) for call in calls]
            result = step.call(aten.cat.default, made_rows, self.dim)
        if isinstance(node.meta["val"], (tuple, list)):
            step.single.add(result)
        return result

    def _first_result(self, step: StepGraph, node: fx.Node, call: fx.Node) -> fx.Node:
        several = isinstance(node.meta["val"], (tuple, list))
        return step.call(operator.getitem, call, 0) if several else call


def _padded(step: StepGraph, rows: fx.Node, dim: int, rank: int, pads: tuple[int, int]) -> fx.Node:
    """Rows with zeros in front and behind, or without some of them.

    Zeros are joined to rows, as these may be joined themselves: a step joins all of them at once.
    """
    beside = [0, 0] * (rank - 1 - dim)
    if min(pads) < 0:
        return step.call(aten.constant_pad_nd.default, rows, [*beside, *pads])
    are_joined = operator_of(rows).cut == "join" and rows.args[1:] == (dim,)
    pieces: Any = rows.args[0] if are_joined else [rows]
    no_rows = step.call(aten.narrow.default, pieces[0], dim, 0, 0)
    front, behind = (
        [step.call(aten.constant_pad_nd.default, no_rows, [*beside, width, 0])] if width else []
        for width in pads
    )
    return step.call(aten.cat.default, [*front, rows, *behind], dim)


@dataclass(eq=False)
class StepGraph(GrowingModule, ABC):
    """A step under construction, as the rules that cut operators see it.

    Attributes
    ----------
    facts : NodeFacts
        Facts about the traced graph.
    at : int
        Index of the layer.
    tasks : int64 array
        Tasks of the layer that the step computes, ascending.
    sources : mapping of fx.Node to Source
        Nodes of the traced graph whose values come from outside.
    draws : mapping of fx.Node to str
        Random nodes, and the placeholder of their draws.
    given : dict of fx.Node to GivenNorm
        The norm that the step begins with, if another step computes its operand.
    rows : int64 array or None
        Rows of the layer's maps that the step computes, ascending; None for all.
    """

    facts: NodeFacts
    at: int
    tasks: Int64
    sources: Mapping[fx.Node, Source]
    draws: Mapping[fx.Node, str]
    given: dict[fx.Node, GivenNorm] = field(default_factory=dict)
    rows: Int64 | None = None
    slices: dict[str, Slice] = field(default_factory=dict)
    single: set[fx.Node] = field(default_factory=set)  # stand for an operator's first result
    _held: dict[object, str] = field(default_factory=dict)

    # -------------------------------------------------------------- facts of the traced graph

    @property
    def traced(self) -> TracedModel:
        """The traced model."""
        return self.facts.traced

    @property
    def graph(self) -> ChannelGraph:
        """Layers of the traced model."""
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

    def is_sent(self, node: fx.Node) -> bool:
        """Whether a node is a parameter that a task of another layer holds and sends."""
        held_here = self.traced.parameters.get(node.name) in self.layer.parameter_names
        return node.name in self.facts.sent_parameters and not held_here

    def rows_in(self, node: fx.Node, box: Box) -> Box:
        """The rows in a box of an operator of the step's layer; none if they are not cut."""
        if self.rows is None or not box:
            return WHOLE
        maker = node.all_input_nodes[0] if node.target is operator.getitem else node
        rows = self.facts.operator_rows.get(maker)
        return {rows.dim: box[rows.dim]} if rows is not None and rows.dim in box else WHOLE

    @property
    def own_rows(self) -> Box:
        """The rows of the layer's result that the step computes; none if it computes all."""
        dim = None if self.rows is None else self.graph.layer_rows[self.at].dim
        return WHOLE if dim is None or self.rows is None else {dim: self.rows}

    @property
    def own_channels(self) -> Int64:
        """Channels of the step's tasks."""
        channels: Int64 = self.graph.first_channel[self.at] + self.tasks
        return channels

    # -------------------------------------------------------------- values

    @abstractmethod
    def value(self, node: fx.Node, box: Box = WHOLE) -> fx.Node:
        """A node of the traced graph, cut down to a box, as a node of the step's graph."""

    @abstractmethod
    def of_rows(self, node: fx.Node, rows: Int64) -> fx.Node:
        """A constant for whose parameters only some rows are held, the others being zero."""

    @abstractmethod
    def copy(
        self,
        node: fx.Node,
        boxes: Mapping[fx.Node, Box] | None = None,
        rows: RowCut | None = None,
    ) -> fx.Node:
        """Call a node's operator on operands that are cut to boxes (whole without a box).

        If it is cut by rows, `boxes` has the rows that are asked.
        """

    @abstractmethod
    def places(self, result: fx.Node, axis: int, have: Int64, box: Box, size: int) -> fx.Node:
        """Take the positions that are wanted along a dimension from those that a value has."""

    @abstractmethod
    def joined(
        self, pieces: Sequence[tuple[str, Int64]], axis: int, wanted: Int64, size: int
    ) -> fx.Node:
        """Join placeholders that hold some positions of a dimension of `size` each."""

    @abstractmethod
    def emit(
        self,
        node: fx.Node,
        operands: Mapping[fx.Node, fx.Node],
        changed: Mapping[str, Any] = NOTHING,
    ) -> fx.Node:
        """Call a node's operator on operands of the step's graph, some arguments being others."""

    # -------------------------------------------------------------- state that the part holds

    def name_of(self, node: fx.Node) -> str:
        """Name of a parameter, buffer or constant in the model's state."""
        traced = self.traced
        for names in (traced.parameters, traced.buffers):
            if node.name in names:
                return names[node.name]
        if node.name not in traced.constants:
            raise PlacementError(f"{self.layer.name} takes {node.name}, which no part has")
        return node.name

    def whole(self, node: fx.Node) -> fx.Node:
        """A whole buffer of the part, which the step may change."""
        return self.hold(node, Slice(self.traced.buffers[node.name], self.facts.shape(node)))

    def hold(self, node: fx.Node, held: Slice) -> fx.Node:
        """A slice that the part holds, as an attribute of the step."""
        if held.key not in self._held:
            attribute = self.free_name(quotable(held.name.rpartition(".")[2]))
            self._held[held.key] = attribute
            self.slices[attribute] = held
            is_parameter = node.name in self.traced.parameters
            self.register(attribute, held.local_shape, node.meta["val"].dtype, is_parameter)
        return self.fx_graph.get_attr(self._held[held.key])

    # -------------------------------------------------------------- boxes and sizes

    def in_part(self, node: fx.Node, box: Box) -> Box:
        """The dimensions of a box that are cut."""
        shape = self.facts.shape(node) if box else ()
        return {
            dim: kept
            for dim, kept in box.items()
            if not np.array_equal(kept, np.arange(shape[dim]))
        }

    def select(self, result: fx.Node, node: fx.Node, box: Box) -> fx.Node:
        """Take a box out of the whole value of a node."""
        for dim, kept in self.in_part(node, box).items():
            result = self.take(result, dim, kept, self.facts.shape(node)[dim])
        return result

    def operands(self, node: fx.Node) -> Sequence[fx.Node]:
        """Operands of a node that are tensors."""
        return [operand for operand in node.all_input_nodes if holds_tensors(operand)]

    def number(self, node: fx.Node) -> Any:
        """A size, or a number computed from sizes."""
        return self.at_any_batch(node.meta["val"])

    def at_any_batch(self, value: Any) -> Any:
        """A size of the traced graph, for any batch that the step is given."""
        if not isinstance(value, SYMBOLIC):
            return value
        grows = evenly(value)
        if grows is None:
            raise PlacementError(
                f"{self.layer.name} computes {size_said(value)} with the batch size: accepted are "
                "sizes that grow evenly with it"
            )
        per_sample, fixed = grows
        if per_sample == 0:
            return fixed
        size = self.placeholder("batch_size")
        size = size if per_sample == 1 else self.call(operator.mul, size, per_sample)
        return size if fixed == 0 else self.call(operator.add, size, fixed)

    def sizes(self, node: fx.Node, box: Box) -> list[Any]:
        """Shape of a node's value, cut to a box, for any batch."""
        shape = first_tensor(node.meta["val"]).shape
        return [
            len(box[dim]) if dim in box else self.at_any_batch(size)
            for dim, size in enumerate(shape)
        ]
