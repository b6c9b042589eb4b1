"""Facts about a traced graph's nodes, the same for all parts: found once for all steps."""

from __future__ import annotations

import math
import operator
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import fx

from hgpart.arrays import Int64
from hgpart.errors import TraceError
from hgpart.layers.channel_graph import PARAMETER, ChannelGraph, Mixing
from hgpart.layers.mixed_samples import numbers_of_samples
from hgpart.layers.row_windows import RowsInside
from hgpart.operators.effects import Call, Channels, Constant, Matrices, SameIndex
from hgpart.operators.ids import constant_along, core, in_order
from hgpart.operators.rows import OperatorRows
from hgpart.operators.table import effect_of
from hgpart.placement.cutting.layouts import ChannelLayout, apart, channel_layout, varying_axes
from hgpart.tracing.batches import BatchSizes, evenly
from hgpart.tracing.traced_model import TracedModel
from hgpart.tracing.traced_nodes import (
    computed_nodes,
    concrete,
    first_tensor,
    holds_tensors,
    is_norms_statistic,
    is_tensor,
    live_nodes,
)


@dataclass(frozen=True, eq=False)
class Aligned:
    """How a same-index operator's operands line up with its result along one dimension.

    Attributes
    ----------
    maps : tuple of (fx.Node, int, int64 array)
        Operands with channels: the dimension along which the channels change, and the position
        there for each position of the result (only one if the operand is the same everywhere).
    constants : tuple of (fx.Node, array)
        Operands without channels: numbers of the elements that each position of the result meets,
        shape (positions or 1, elements).
    """

    maps: tuple[tuple[fx.Node, int, Int64], ...]
    constants: tuple[tuple[fx.Node, NDArray[np.int32]], ...]


@dataclass(frozen=True, eq=False)
class _Numbering:
    """Numbers for the positions of several operands, in the order in which operands are added."""

    operands: list[fx.Node]
    ends: list[int]

    def add(self, operand: fx.Node, count: int) -> int:
        """Add an operand; return the number of its first position."""
        first = self.ends[-1] if self.ends else 0
        self.operands.append(operand)
        self.ends.append(first + count)
        return first

    def of(self, numbers: Int64) -> tuple[fx.Node, Int64]:
        """The one operand that these numbers belong to, and its positions."""
        at = bisect_right(self.ends, int(numbers[0]))
        return self.operands[at], numbers - (self.ends[at - 1] if at else 0)


@dataclass(eq=False)
class NodeFacts:
    """Facts about a traced model's nodes.

    Attributes
    ----------
    traced : TracedModel
        Traced model, fixed to its batch size if samples and channels of some layer can't be
        separated.
    graph : ChannelGraph
        Layers of the model, marked as mixing samples in that case.
    """

    traced: TracedModel
    graph: ChannelGraph
    _varying: dict[fx.Node, tuple[int, ...]] = field(default_factory=dict)
    _aligned: dict[tuple[fx.Node, int], Aligned | None] = field(default_factory=dict)
    _layouts: dict[fx.Node, ChannelLayout] = field(default_factory=dict)
    _by_matrix: dict[fx.Node, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Find out whether the results of layers can be cut in the same way for every batch."""
        for node, at in self.makers.items():
            layer = self.graph.layers[at]
            maker = node.all_input_nodes[0] if node.target is operator.getitem else node
            is_last = layer.tasks > 1 and maker.name == layer.operators[-1]
            if is_last and self._merged(node) is None:
                fixed = self.traced.batch_size
                reason = (
                    f"{layer.name} merges samples and channels into one dimension, and a batch of "
                    f"{fixed} alone says which are which"
                )
                self.traced = replace(self.traced, batch_sizes=BatchSizes(fixed=fixed))
                if not self.graph.mixing.operator:
                    self.graph = replace(self.graph, mixing=Mixing(reason))
                return

    @cached_property
    def makers(self) -> dict[fx.Node, int]:
        """Index of the layer of each operator, and of each result where there are several."""
        names = {name: at for at, layer in enumerate(self.graph.layers) for name in layer.operators}
        layers = {}
        for node in self.traced.graph_module.graph.nodes:
            maker = node.all_input_nodes[0] if node.target is operator.getitem else node
            if maker.name in names:
                layers[node] = names[maker.name]
        return layers

    @cached_property
    def rows_inside(self) -> RowsInside:
        """The rows of the operators inside layers."""
        return RowsInside(self.traced, self.graph)

    @property
    def operator_rows(self) -> Mapping[fx.Node, OperatorRows]:
        """The rows of each node that computes and has rows, and what they read."""
        return self.rows_inside.operators

    @property
    def summed_rows(self) -> Mapping[fx.Node, tuple[fx.Node, int, bool]]:
        """For each node that sums all rows: its operand, their dimension, and if it averages."""
        return self.rows_inside.summed

    @cached_property
    def sent_parameters(self) -> frozenset[str]:
        """Placeholders of parameters that are data: one task holds each of them and sends it."""
        parameter_layers = (layer for layer in self.graph.layers if layer.kind == PARAMETER)
        names = {name for layer in parameter_layers for name in layer.parameter_names}
        parameters = self.traced.parameters.items()
        return frozenset(placeholder for placeholder, name in parameters if name in names)

    @cached_property
    def carried(self) -> dict[fx.Node, fx.Node]:
        """Buffers whose new values the next pass needs, and these values.

        These are buffers that the pass reads, buffers whose new values it computes from parameters,
        such as the vectors of a spectral norm, and buffers from which these values are computed.
        """
        graph, new = self.traced.graph_module.graph, self.traced.updates
        buffers = {
            node: new[node.name]
            for node in graph.nodes
            if node.name in new and not is_norms_statistic(new[node.name])
        }
        read = computed_nodes(graph, self.traced.results)
        read |= {node for node, value in buffers.items() if self.parameters_of(value)}
        while more := {node for node in buffers if node in read and buffers[node] not in read}:
            read |= live_nodes(buffers[buffer] for buffer in more)
        return {node: value for node, value in buffers.items() if node in read}

    def parameters_of(self, node: fx.Node) -> set[fx.Node]:
        """Placeholders of the parameters that a node is computed from."""
        return {origin for origin in live_nodes([node]) if origin.name in self.traced.parameters}

    def shape(self, node: fx.Node) -> tuple[int, ...]:
        """Shape of a node's (first) tensor for the traced batch size."""
        return concrete(first_tensor(node.meta["val"]).shape)

    def varying(self, node: fx.Node) -> tuple[int, ...]:
        """Dimensions along which the channels of a node, or its rows of parameters, change."""
        if node not in self._varying:
            ids = self.graph.ids.get(node.name)
            ids = self.graph.rows.get(node.name) if ids is None else ids
            self._varying[node] = () if ids is None else varying_axes(ids)
        return self._varying[node]

    def grows(self, node: fx.Node, dim: int) -> bool:
        """Whether a dimension of a node's (first) tensor grows with the batch."""
        size = first_tensor(node.meta["val"]).shape[dim]
        return self.traced.has_dynamic_batch and evenly(size) != (0, self.shape(node)[dim])

    def _merged(self, node: fx.Node) -> Mapping[int, tuple[int, int]] | None:
        """Merged dimensions as in `ChannelLayout.merged`; None if samples can't be separated."""
        merged = {}
        for dim in self.varying(node):
            if self.grows(node, dim):
                sizes = self._apart(node, dim)
                if sizes is None:
                    return None
                merged[dim] = sizes
        return merged

    def _apart(self, node: fx.Node, dim: int) -> tuple[int, int] | None:
        """Sizes of the samples and channels that a dimension merges; None if they are not known."""
        grows, samples = evenly(node.meta["val"].shape[dim]), self._samples.get(node)
        if grows is None or grows[0] < 2 or grows[1] or samples is None:
            return None
        count, ids = grows[0], self.graph.ids[node.name]
        along = in_order(samples, dim)
        if along is None:
            return None
        for sizes, batch in (((-1, count), dim), ((count, -1), dim + 1)):
            numbers = np.arange(samples.shape[dim] // count)
            expected = np.repeat(numbers, count) if batch == dim else np.tile(numbers, count)
            if np.array_equal(along, expected) and constant_along(apart(ids, {dim: sizes}), batch):
                return sizes
        return None

    @cached_property
    def _samples(self) -> Mapping[fx.Node, torch.Tensor]:
        """The sample that each element of a node's value belongs to."""
        return numbers_of_samples(self.traced)

    def layout(self, at: int, node: fx.Node) -> ChannelLayout:
        """Where the channels of a layer lie in a result of one of its operators."""
        if node not in self._layouts:
            if self.graph.layers[at].tasks == 1:
                layout = ChannelLayout(self.shape(node), (), np.zeros(0, np.int64))
            else:
                first = int(self.graph.first_channel[at])
                merged = self._merged(node)
                assert merged is not None  # else the batch would be fixed, and nothing would grow
                ids = self.graph.ids[node.name]
                layout = channel_layout(ids, self.varying(node), first, merged)
            self._layouts[node] = layout
        return self._layouts[node]

    def aligned(self, node: fx.Node, axis: int) -> Aligned | None:
        """How a node's operands line up along a dimension of its result.

        None if it is not a same-index operator, or if the channels of an operand change along
        another dimension as well.
        """
        if (node, axis) not in self._aligned:
            self._aligned[node, axis] = self._align(node, axis)
        return self._aligned[node, axis]

    def _align(self, node: fx.Node, axis: int) -> Aligned | None:
        shape, numbering = self.shape(node), _Numbering([], [])
        effect, origins = self._position_effect(node, axis, numbering)
        if isinstance(effect, Matrices) and effect.places == tuple(range(len(shape) - 2)):
            if axis >= len(shape) - 2:
                return None
            operands = [ids[..., 0, 0] for ids in effect.operands]
        elif isinstance(effect, SameIndex):
            operands = [ids.expand(shape) for ids in effect.operands]
        else:
            return None
        maps, constants = [], []
        for ids in operands:
            along = _along(ids, axis)
            if along is None:
                return None
            operand, places = numbering.of(along)
            if axes := self._told_apart(operand, node, axis):
                maps.append((operand, axes[0], places))
        for constant, elements in effect.constants:
            if isinstance(effect, SameIndex):
                elements = elements.expand(shape)
            moved = core(elements.movedim(axis, 0))
            numbers = moved.reshape(moved.shape[0], -1).numpy()
            constants.append((origins[min(constant.origins)], numbers))
        places_of = [places for _, _, places in maps] + [numbers for _, numbers in constants]
        if not any(len(places) == shape[axis] for places in places_of):
            return None  # nothing that could be cut has this dimension
        return Aligned(tuple(maps), tuple(constants))

    def effect(self, node: fx.Node) -> tuple[Any, dict[str, fx.Node]]:
        """The effect of a layer's operator, in which constants have the numbers of their elements.

        The operand for each origin of a constant is returned, too.
        """
        ids = self.graph.ids
        return self.effect_on(node, lambda operand: ids.get(operand.name))

    def _position_effect(
        self, node: fx.Node, axis: int, numbering: _Numbering
    ) -> tuple[Any, dict[str, fx.Node]]:
        """The effect on operands whose ids are positions along a dimension, by `numbering`.

        Operands without channels are constants that have the numbers of their elements; if no
        operand has channels, rows of parameters take their place. The effect is None if an
        operand's channels change along several dimensions, so that no box holds some of them.
        """
        has_maps = any(operand.name in self.graph.ids for operand in node.all_input_nodes)
        known = self.graph.ids if has_maps else self.graph.rows
        operands = (operand for operand in node.all_input_nodes if operand.name in known)
        several = any(len(self.varying(operand)) > 1 for operand in operands)
        if several and not self._works_by_matrix(node):
            return None, {}

        def positions(operand: fx.Node) -> torch.Tensor | None:
            if operand.name not in known:
                return None
            shape, axes = self.shape(operand), self._told_apart(operand, node, axis)
            view = [shape[dim] if dim in axes else 1 for dim in range(len(shape))]
            ids = torch.arange(math.prod(view), dtype=torch.int32).reshape(view)
            return (ids + numbering.add(operand, ids.numel())).expand(shape)

        return self.effect_on(node, positions)

    def effect_on(
        self, node: fx.Node, ids_of: Callable[[fx.Node], torch.Tensor | None]
    ) -> tuple[Any, dict[str, fx.Node]]:
        """The effect on operands with the given ids; operands without ids are constants."""
        origins: dict[str, fx.Node] = {}

        def value_of(operand: fx.Node) -> Any:
            value = operand.meta.get("val")
            if not holds_tensors(operand):
                return concrete((value,))[0] if isinstance(value, torch.SymInt) else value
            if not is_tensor(value):
                return None
            ids = ids_of(operand)
            if ids is not None:
                return Channels(ids)
            number = str(len(origins))
            origins[number] = operand
            return Constant(self.shape(operand), frozenset({number}))

        try:
            args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), value_of)
            return effect_of(Call(node, args, kwargs, self.shape(node))), origins
        except TraceError:
            return None, origins

    def _told_apart(self, operand: fx.Node, node: fx.Node, axis: int) -> tuple[int, ...]:
        """The dimension of an operand that a box along `axis` of its reader could cut.

        That is the dimension along which its channels change, or else the one in the same place:
        then an operator that mixes along it is found to do so.
        """
        axes, shape = self.varying(operand), self.shape(operand)
        same = axis - len(self.shape(node)) + len(shape)
        if self._works_by_matrix(node):
            return (same,) if same >= 0 and shape[same] > 1 else ()
        if not axes and same >= 0 and shape[same] == self.shape(node)[axis] > 1:
            return (same,)
        return axes

    def _works_by_matrix(self, node: fx.Node) -> bool:
        """Whether an operator makes matrices, each from those at its own place."""
        if node not in self._by_matrix:
            self._by_matrix[node] = isinstance(self.effect(node)[0], Matrices)
        return self._by_matrix[node]


def _along(ids: torch.Tensor, axis: int) -> Int64 | None:
    """Ids along a dimension (one number if they are all equal), if they change along no other."""
    along = in_order(ids, axis)
    return along[:1] if along is not None and constant_along(ids, axis) else along
