"""What is known of a traced graph's nodes, whatever the part: worked out once for all steps."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import fx

from hgpart.channels import Call, Channels, Constant, SameIndex, constant_along, core, effect_of
from hgpart.errors import TraceError
from hgpart.graph import ChannelGraph
from hgpart.hypergraph import Int64
from hgpart.placement.layouts import ChannelLayout, channel_layout, varying_axes
from hgpart.traced_nodes import concrete, first_tensor, holds_tensors, is_tensor
from hgpart.tracing import TracedModel

_STRIDE = 2**24  # numbers of one operand's positions


@dataclass(frozen=True, eq=False)
class Aligned:
    """How a same-index operator's operands line up with its result along one dimension.

    Attributes
    ----------
    maps : tuple of (fx.Node, int, int64 array)
        Operands with channels: the dimension along which these change, and the position there
        for each position of the result (one for all, where the operand is the same everywhere).
    constants : tuple of (fx.Node, array)
        Operands without: numbers of the elements that each position of the result meets, shape
        (positions or 1, elements).
    """

    maps: tuple[tuple[fx.Node, int, Int64], ...]
    constants: tuple[tuple[fx.Node, NDArray[np.int32]], ...]


@dataclass(eq=False)
class NodeFacts:
    """Facts of a traced model's nodes.

    Attributes
    ----------
    traced, graph : TracedModel, ChannelGraph
    """

    traced: TracedModel
    graph: ChannelGraph
    _varying: dict[fx.Node, tuple[int, ...]] = field(default_factory=dict)
    _aligned: dict[tuple[fx.Node, int], Aligned | None] = field(default_factory=dict)
    _layouts: dict[fx.Node, ChannelLayout] = field(default_factory=dict)

    @cached_property
    def makers(self) -> dict[fx.Node, int]:
        """The operators of layers, and the results of those with several: the layer of each."""
        names = {name: at for at, layer in enumerate(self.graph.layers) for name in layer.operators}
        found = {}
        for node in self.traced.graph_module.graph.nodes:
            maker = node.all_input_nodes[0] if node.target is operator.getitem else node
            if maker.name in names:
                found[node] = names[maker.name]
        return found

    def shape(self, node: fx.Node) -> tuple[int, ...]:
        """Shape of a node's (first) tensor at the traced batch size."""
        return concrete(first_tensor(node.meta["val"]).shape)

    def varying(self, node: fx.Node) -> tuple[int, ...]:
        """Dimensions along which the channels, or rows of parameters, of a node change."""
        if node not in self._varying:
            ids = self.graph.ids.get(node.name)
            ids = self.graph.rows.get(node.name) if ids is None else ids
            self._varying[node] = () if ids is None else varying_axes(ids)
        return self._varying[node]

    def layout(self, at: int, node: fx.Node) -> ChannelLayout:
        """Where the channels of a layer lie in a tensor that one of its operators makes."""
        if node not in self._layouts:
            if self.graph.layers[at].tasks == 1:
                found = ChannelLayout(self.shape(node), (), np.zeros(0, np.int64))
            else:
                first = int(self.graph.first_channel[at])
                found = channel_layout(self.graph.ids[node.name], self.varying(node), first)
            self._layouts[node] = found
        return self._layouts[node]

    def aligned(self, node: fx.Node, axis: int) -> Aligned | None:
        """How a node's operands line up along a dimension; None if it is no same-index operator.

        Nor if an operand's channels change along another dimension as well.
        """
        if (node, axis) not in self._aligned:
            self._aligned[node, axis] = self._align(node, axis)
        return self._aligned[node, axis]

    def _align(self, node: fx.Node, axis: int) -> Aligned | None:
        shape = self.shape(node)
        effect, origins = self.effect(node)
        if not isinstance(effect, SameIndex):
            return None
        maps, constants = [], []
        for ids in effect.operands:
            along = _along(ids.expand(shape), axis)
            if along is None:
                return None
            operand = origins[str(int(along[0]) // _STRIDE)]
            axes, same = self.varying(operand), axis - len(shape) + len(self.shape(operand))
            if axes:
                maps.append((operand, axes[0], along % _STRIDE))
            elif (
                same >= 0 and self.shape(operand)[same] == shape[axis] > 1
            ):  # one channel, expanded
                maps.append((operand, same, np.arange(shape[axis])))
        for constant, elements in effect.constants:
            moved = core(elements.expand(shape).movedim(axis, 0))
            numbers = moved.reshape(moved.shape[0], -1).numpy()
            constants.append((origins[min(constant.origins)], numbers))
        return Aligned(tuple(maps), tuple(constants))

    def effect(self, node: fx.Node) -> tuple[Any, dict[str, fx.Node]]:
        """The effect of an operator on operands whose ids are positions, each with own numbers.

        Operands without channels are constants that count their elements. Also returns the
        operand of each number and of each constant's origin.
        """
        origins: dict[str, fx.Node] = {}
        has_maps = any(operand.name in self.graph.ids for operand in node.all_input_nodes)

        def value_of(operand: fx.Node) -> Any:
            value = operand.meta.get("val")
            if not holds_tensors(operand):
                return concrete((value,))[0] if isinstance(value, torch.SymInt) else value
            if not is_tensor(value):
                return None
            number = str(len(origins))
            origins[number] = operand
            known = operand.name in (self.graph.ids if has_maps else self.graph.rows)
            if not known:
                return Constant(self.shape(operand), frozenset({number}))
            return Channels(self._positions(operand, int(number)))

        try:
            args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), value_of)
            return effect_of(Call(node, args, kwargs, self.shape(node))), origins
        except (_SeveralAxesError, TraceError):
            return None, origins

    def _positions(self, operand: fx.Node, number: int) -> torch.Tensor:
        shape, axes = self.shape(operand), self.varying(operand)
        if len(axes) > 1:
            raise _SeveralAxesError
        ids = torch.full((), number * _STRIDE, dtype=torch.int32)
        if axes:
            view = [1] * len(shape)
            view[axes[0]] = -1
            ids = ids + torch.arange(shape[axes[0]], dtype=torch.int32).reshape(view)
        return ids.expand(shape)


class _SeveralAxesError(Exception):
    """An operand's channels change along several dimensions: no box holds some of them."""


def _along(ids: torch.Tensor, axis: int) -> Int64 | None:
    """Ids along a dimension (one number if they do not change), if they change along no other."""
    for dim in range(ids.dim()):
        if dim != axis and not constant_along(ids, dim):
            return None
    same = constant_along(ids, axis)
    for dim in reversed(range(ids.dim())):
        if dim != axis or same:
            ids = ids.select(dim, 0)
    return np.atleast_1d(ids.numpy().astype(np.int64))
