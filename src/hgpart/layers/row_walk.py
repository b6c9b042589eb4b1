"""TracedModel + ChannelGraph -> RowWalk: the rows of each operator that computes.

The walk follows rows through the graph as `layering` follows channels. Every operator that
computes makes rows of its own, and each element carries the number of the row that it belongs to;
operators that only move elements move these numbers. At the next operator that computes, numbers
along the dimension of rows say what it reads, and its rule in the operator table says which of
them each row of the result needs.

Rows are told from columns as well: where a reshape merges a map's rows with its columns or with
samples, no dimension counts rows any more, and the bands end. Merged with channels, as by a pixel
shuffle, they go on, but for what computes behind it on channels that lie along rows. An operator
on maps without rows, or whose rows are merged, may begin new ones, along their places: so the
patches of a transformer become rows, each of which reads a row of a map.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.utils import _pytree as pytree

from hgpart.errors import TraceError
from hgpart.layers.channel_graph import (
    INPUT,
    ChannelGraph,
)
from hgpart.layers.elements.constants import constant_of, integers
from hgpart.operators.calls import only_updated
from hgpart.operators.effects import Call, Channels, Constant, Reindex, SameIndex
from hgpart.operators.ids import constant_along, core
from hgpart.operators.rows import (
    AllRows,
    Local,
    NumberedRows,
    OperatorRows,
    RowEffect,
    RowMaker,
    Summed,
    add_windows,
    rows_in,
    unknown_rows,
)
from hgpart.operators.table import effect_of, effect_on_rows, keeps_rows, operator_of, short_name
from hgpart.operators.windows import Windows
from hgpart.tracing.batches import evenly
from hgpart.tracing.traced_model import TracedModel
from hgpart.tracing.traced_nodes import (
    computed_nodes,
    concrete,
    first_tensor,
    holds_tensors,
    is_tensor,
    shape_of,
)

FIRST_SPATIAL = 2  # dimension of the rows of a batch of maps


class RowWalk:
    """The rows of the operators of a graph, once its nodes have been walked through.

    Attributes
    ----------
    values : dict of fx.Node to NumberedRows, numbers, or lists of these
        The value that each node makes.
    makers : dict of str to RowMaker
        The rows of each node that a layer computes, by its name.
    local : dict of fx.Node to OperatorRows
        The rows of each node that computes and has rows, and what they read of its operands.
    summed : dict of fx.Node to (fx.Node, int, bool)
        See `RowsInside`.
    finals : dict of int to RowMaker
        The last maker of each layer.
    ends : dict of int to (fx.Node, str)
        The node that ends the bands of a layer, and the reason.
    """

    def __init__(self, traced: TracedModel, graph: ChannelGraph) -> None:
        self.traced = traced
        self.graph = graph
        self.values: dict[fx.Node, Any] = {}
        self.next_row = 0
        self.makers: dict[str, RowMaker] = {}
        self.local: dict[fx.Node, OperatorRows] = {}
        self.summed: dict[fx.Node, tuple[fx.Node, int, bool]] = {}
        self.finals: dict[int, RowMaker] = {}
        self.layer_of = {
            name: at for at, layer in enumerate(graph.layers) for name in layer.operators
        }
        self.inputs = iter(at for at, layer in enumerate(graph.layers) if layer.kind == INPUT)
        self.ends: dict[int, tuple[fx.Node, str]] = {}
        self._run()

    # -------------------------------------------------------------- the walk over the graph

    def _run(self) -> None:
        nodes = self.traced.graph_module.graph
        live = computed_nodes(nodes, self.traced.results)
        for node in nodes.nodes:
            if node.op == "placeholder":
                self.values[node] = self._given(node)
            elif node.op == "get_attr":
                self.values[node] = Constant(())
            elif node.op == "call_function" and node in live:
                self.values[node] = self._call(node)

    def _given(self, node: fx.Node) -> Any:
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor):
            return value
        shape = concrete(value.shape)
        if node.name in self.traced.inputs:
            layer = next(self.inputs)
            has_rows = len(shape) > FIRST_SPATIAL and shape[FIRST_SPATIAL] > 0
            maker = self._maker(node, layer, shape, FIRST_SPATIAL if has_rows else None)
            self.finals[layer] = maker
            return self._map(maker, shape)
        known = None if node.name in self.traced.updates else self.traced.values.get(node.name)
        return Constant(shape, value=integers(known))

    def _maker(
        self, node: fx.Node, layer: int | None, shape: tuple[int, ...], dim: int | None
    ) -> RowMaker:
        maker = RowMaker(node, layer, self.next_row, 1 if dim is None else shape[dim], dim)
        self.next_row += maker.height
        return maker

    def _map(self, maker: RowMaker, shape: tuple[int, ...]) -> NumberedRows:
        """The result of a node that computes."""
        nothing = torch.zeros((), dtype=torch.int32).expand(shape)
        if maker.dim is None:
            return NumberedRows(nothing + maker.start, nothing, (maker,))
        ids = self.channels_of(maker.node)
        apart = [
            dim
            for dim in range(len(shape))
            if dim != maker.dim
            and not (ids is not None and dim < ids.dim() and ids.stride(dim) and ids.shape[dim] > 1)
        ]
        sizes = [size if dim in apart else 1 for dim, size in enumerate(shape)]
        columns = torch.arange(int(np.prod(sizes)), dtype=torch.int32).reshape(sizes).expand(shape)
        value = NumberedRows(rows_in(shape, maker.dim, maker.start).ids, columns, (maker,))
        several = maker.height > 1
        value.dims = [maker.dim] if several else []
        own = {maker: Windows.identity(maker.height)}
        value.rows_along = (maker.dim, own) if several else None
        return value

    def channels_of(self, node: fx.Node) -> torch.Tensor | None:
        """The channel of each element of a node's (first) result."""
        names = (node.name, *(user.name for user in node.users))
        return next((self.graph.ids[name] for name in names if name in self.graph.ids), None)

    def _call(self, node: fx.Node) -> Any:
        unread = only_updated(node)

        def value_of(operand: fx.Node) -> Any:
            return None if operand in unread else self.values[operand]

        args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), value_of)
        if not isinstance(node.target, (torch._ops.OpOverload, torch._ops.HigherOrderOperator)):
            return node.target(*args, **kwargs)  # type: ignore[operator]
        if operator_of(node).is_size or not holds_tensors(node):
            return concrete((node.meta["val"],))[0]
        call = Call(node, args, kwargs, shape_of(node))
        maps = [
            leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, NumberedRows)
        ]
        if operator_of(node).makes or not maps:
            return constant_of(call, self.traced.values.get(node.name))
        has_rule = operator_of(node).rows is not None and not keeps_rows(node)  # one of a user
        if node.name in self.layer_of or has_rule:
            return self._computed(call, maps)
        return self._moved(call, maps)

    # -------------------------------------------------------------- operators that move elements

    def _moved(self, call: Call, maps: list[NumberedRows]) -> Any:
        flattens = len(call.shape) < len(maps[0].shape)
        name = "flatten" if flattens else short_name(call.node)
        merged = f"{name} merges rows with other dimensions"
        rows = _reindexed(call, "rows") if keeps_rows(call.node) else None
        columns = _reindexed(call, "columns") if rows is not None else None
        makers = tuple(dict.fromkeys(maker for value in maps for maker in value.makers))
        reason = next((value.lost for value in maps if value.lost), "")
        if rows is None or columns is None:
            reason = reason or f"no rule for {short_name(call.node)}"
            return self._results(call.node, lambda shape: unknown_rows(shape, makers, reason))
        keeps = self._keeps_order(call, maps)
        moved = []
        for own, own_columns in zip(rows, columns, strict=True):
            value = NumberedRows(own, own_columns, makers)
            if not (keeps and value.keeps_rows):
                value.lost = reason or merged
            moved.append(value)
        return moved if isinstance(call.node.meta["val"], (list, tuple)) else moved[0]

    def _keeps_order(self, call: Call, maps: list[NumberedRows]) -> bool:
        """Whether a view leaves rows in their order, with what they are merged with inside."""
        if operator_of(call.node).cut not in ("view", "reshape") or len(maps[0].dims) != 1:
            return True
        fresh = rows_in(maps[0].shape, maps[0].dims[0])
        effect = effect_of(_with(call, lambda value: Channels(fresh.ids)))
        if not isinstance(effect, Reindex) or not isinstance(effect.ids, torch.Tensor):
            return False
        dims = [dim for dim in range(effect.ids.dim()) if not constant_along(effect.ids, dim)]
        if len(dims) != 1:
            return True
        (dim,) = dims
        order = core(effect.ids).movedim(dim, 0).flatten(1)[:, 0]
        return bool((order.diff() >= 0).all())

    def _results(self, node: fx.Node, made: Any) -> Any:
        """A value for each result of a node, given a function of its shape."""
        value = node.meta["val"]
        if isinstance(value, torch.Tensor):
            return made(concrete(value.shape))
        return [made(concrete(part.shape)) if is_tensor(part) else part for part in value]

    # -------------------------------------------------------------- operators that compute

    def _computed(self, call: Call, maps: list[NumberedRows]) -> Any:
        node, layer = call.node, self.layer_of.get(call.node.name)
        maps = [*dict.fromkeys(maps)]
        along = {value: value.rows_along for value in maps if not value.lost}
        lost = next((value.lost for value in maps if value.lost), "")
        effect: RowEffect | None = None
        if layer not in self.ends:
            if any(along.values()) and not lost:
                effect = self._effect(call, along)
            if not isinstance(effect, Local | Summed) and (begun := self._begun(call, maps)):
                along, effect = begun
            if isinstance(effect, Local):
                effect = self._if_told_apart(node, effect)
        shape = first_tensor(node.meta["val"]).shape
        dim = effect.dim % len(shape) if isinstance(effect, Local) else None
        maker = self._maker(node, layer, concrete(shape), dim)
        given = {operand: self.values.get(operand) for operand in node.all_input_nodes}
        operand_of = {
            value: operand
            for operand, values in given.items()
            for value in pytree.tree_leaves(values)
            if isinstance(value, NumberedRows)
        }
        if isinstance(effect, Local):
            windows, read = iter(effect.windows), dict[NumberedRows, tuple[int, Windows]]()
            by = effect.by
            for value in _operands(call):
                rows = along[value]
                operand = operand_of[value]
                if rows is None:
                    maker.read(operand, value.all_read, Windows.all_rows(maker.height, 1))
                else:
                    own = next(windows)
                    maker.read(operand, rows[1], own)
                    known = read.get(value, (rows[0], own))[1]
                    united = known.union(own)
                    sizes = {len(reads.reads.values) for reads in (known, own, united)}
                    if len(sizes) > 1:
                        by = None  # one operand, read in two ways
                    read[value] = rows[0], united
            operands = {
                operand: read[value]
                for operand, value in given.items()
                if isinstance(value, NumberedRows) and value in read
            }
            assert dim is not None
            self.local[node] = OperatorRows(dim, operands, by)
        else:
            for value in maps:
                maker.read(operand_of[value], value.all_read)
            reason = self._end(call, effect, lost, along, maker)
            if layer is None and reason:
                makers = tuple(maker.reads)
                return self._results(node, lambda size: unknown_rows(size, makers, reason))
        if layer is not None:
            self.makers[node.name] = self.finals[layer] = maker
        return self._results(node, lambda size: self._part(maker, size))

    def _effect(self, call: Call, along: Mapping[NumberedRows, Any]) -> RowEffect:
        """What the operator does to the rows of its operands, which are numbered one by one."""
        first = 0

        def numbered(value: NumberedRows) -> Channels | Constant:
            nonlocal first
            rows = along[value]
            if rows is None:
                return Constant(value.shape)
            operand = rows_in(value.shape, rows[0], first)
            first += operand.height
            return operand

        return effect_on_rows(_with(call, numbered))

    def _begun(
        self, call: Call, maps: list[NumberedRows]
    ) -> tuple[dict[NumberedRows, Any], Local] | None:
        """New rows, where operands have none that stay apart: along places, such as tokens.

        The answer is the rows along each operand that has any, and what the operator does to them.
        """
        places = dict[NumberedRows, int]()
        for node in call.node.all_input_nodes:
            value = self.values.get(node)
            if isinstance(value, NumberedRows):
                dim = self._first_place(value, node)
                if dim is not None:
                    places[value] = dim
        begun = self._local_along(call, maps, places)
        if begun is None and operator_of(call.node).rows and len(maps[0].shape) > FIRST_SPATIAL:
            begun = self._local_along(call, maps, {maps[0]: FIRST_SPATIAL})
        return begun

    def _local_along(
        self, call: Call, maps: list[NumberedRows], dims: Mapping[NumberedRows, int]
    ) -> tuple[dict[NumberedRows, Any], Local] | None:
        """The same for rows along some dimensions of operands; None if they do not stay apart."""
        joins = operator_of(call.node).cut == "join"  # one place, such as a class token, is a row
        given: dict[NumberedRows, Any] = dict.fromkeys(maps)
        for value, dim in dims.items():
            if value.shape[dim] > 1 or joins:
                given[value] = dim, value.windows(dim)
        effect = self._effect(call, given) if any(given.values()) else None
        if isinstance(effect, Local) and call.shape[effect.dim] > 1:
            return given, effect
        return None

    def _if_told_apart(self, node: fx.Node, local: Local) -> RowEffect:
        """What an operator does to rows, unless its channels lie along these or beside samples."""
        ids, sizes = self.channels_of(node), first_tensor(node.meta["val"]).shape
        varying = [] if ids is None else [d for d in range(ids.dim()) if not constant_along(ids, d)]
        if local.dim % len(sizes) in varying:
            return AllRows("its channels lie along its rows")
        if self.traced.has_dynamic_batch:
            are_merged = any(evenly(sizes[dim]) != (0, sizes[dim]) for dim in varying)
        else:
            are_merged = 0 in varying and self.traced.batch_size not in sizes
        if are_merged:
            return AllRows("its channels lie beside samples in one dimension")
        return local

    def _first_place(self, value: NumberedRows, node: fx.Node) -> int | None:
        """The first dimension of an operand that tells neither its samples nor its channels."""
        ids = self.graph.ids.get(node.name)
        if ids is None:
            return None
        shape, batch = first_tensor(node.meta["val"]).shape, self.traced.batch_size
        sizes = [evenly(size) for size in shape]
        if not self.traced.has_dynamic_batch and batch in shape:
            sizes[[*shape].index(batch)] = (1, 0)
        same = [dim for dim in range(ids.dim()) if constant_along(ids, dim)]
        places = [dim for dim in same if sizes[dim] == (0, value.shape[dim])]
        apart = sizes.count((1, 0)) == 1 and len(same) < len(sizes) == len(value.shape)
        return places[0] if apart and places else None

    def _end(
        self,
        call: Call,
        effect: RowEffect | None,
        lost: str,
        along: Mapping[NumberedRows, Any],
        maker: RowMaker,
    ) -> str:
        """Note what ends the bands of a layer that reads rows, and say why."""
        layer = maker.layer
        if layer in self.ends or not (lost or any(along.values())):
            return ""
        reason = lost
        if isinstance(effect, AllRows):
            reason = effect.reason
        elif isinstance(effect, Summed):
            reason = f"{short_name(call.node)} sums all rows, so partial sums can travel"
            maker.summed = {}
            for rows in filter(None, along.values()):
                add_windows(maker.summed, rows[1])
            ((value, rows),) = ((value, own) for value, own in along.items() if own is not None)
            nodes = call.node.all_input_nodes
            operand = next(node for node in nodes if self.values.get(node) is value)
            self.summed[call.node] = operand, rows[0], effect.averages
        if layer is not None:
            self.ends[layer] = call.node, reason
        return reason

    def _part(self, maker: RowMaker, shape: tuple[int, ...]) -> NumberedRows:
        """One of the results of a node: those without its rows are computed from all of them."""
        dim = maker.dim
        if dim is None or (dim < len(shape) and shape[dim] == maker.height):
            return self._map(maker, shape)
        whole = self._maker(maker.node, None, shape, None)
        whole.read(maker.node, {maker: Windows.all_rows(1, maker.height)})
        return self._map(whole, shape)


def _operands(call: Call) -> list[NumberedRows]:
    leaves = pytree.tree_leaves((call.args, call.kwargs))
    return [leaf for leaf in leaves if isinstance(leaf, NumberedRows)]


def _with(call: Call, given: Any) -> Call:
    """A call with something else in place of each map."""
    args, kwargs = pytree.tree_map(
        lambda leaf: given(leaf) if isinstance(leaf, NumberedRows) else leaf,
        (call.args, call.kwargs),
    )
    return Call(call.node, args, kwargs, call.shape)


def _reindexed(call: Call, which: str) -> list[torch.Tensor] | None:
    """Rows, or columns, of the results of an operator that moves elements; None if not known."""
    try:
        effect = effect_of(_with(call, lambda value: Channels(getattr(value, which))))
    except TraceError:
        return None
    if isinstance(effect, Reindex):
        return list(effect.ids) if isinstance(effect.ids, tuple) else [effect.ids]
    if isinstance(effect, SameIndex) and len(effect.operands) == 1:
        return [effect.operands[0].expand(call.shape)]
    return None
