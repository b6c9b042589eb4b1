"""TracedModel + ChannelGraph -> LayerRows: which rows of a layer depend on which of its sources.

The walk follows rows through the graph as `layering` follows channels. Every operator that
computes makes rows of its own, and each element carries the number of the row that it belongs to;
operators that only move elements move these numbers. At the next operator that computes, numbers
along the dimension of rows say what it reads, and its rule in the operator table says which of
them each row of the result needs. Then windows are composed along the operators of each layer.

Rows are told from columns as well: where a reshape merges a map's rows with its columns or with
samples, no dimension counts rows any more, and the bands end. Merged with channels, as by a pixel
shuffle, they go on. A convolution, pooling or interpolation of a map without bands begins new ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.utils import _pytree as pytree

from hgpart.errors import TraceError
from hgpart.layers.channel_graph import (
    INPUT,
    OUTPUT,
    PARAMETER,
    ChannelGraph,
    LayerRows,
    RowSum,
    SourceRows,
)
from hgpart.layers.constants import constant_of, integers
from hgpart.operators.calls import only_updated
from hgpart.operators.effects import Call, Channels, Constant, Reindex, SameIndex
from hgpart.operators.ids import NO_CHANNEL, constant_along, core
from hgpart.operators.rows import (
    AllRows,
    Local,
    RowEffect,
    Summed,
    rows_in,
    windows_along,
)
from hgpart.operators.table import effect_of, effect_on_rows, keeps_rows, operator_of, short_name
from hgpart.operators.windows import Windows
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


@dataclass(eq=False)
class _Maker:
    """A node that computes: its rows, numbered through all makers, and what they read.

    `dim` is None where the result has no rows; then it counts as one row. `layer` is None for an
    operator that only moves elements, by a rule for rows of a user.
    """

    node: fx.Node
    layer: int | None
    start: int
    height: int
    dim: int | None
    reads: dict[_Maker, Windows] = field(default_factory=dict)
    summed: dict[_Maker, Windows] | None = None


@dataclass(eq=False)
class _Map:
    """A tensor: the row and the column of each element; `lost` says what merged rows with columns.

    Rows are numbers through all makers, -1 for constants. Columns differ between places of a row
    that are no channels, and between samples.
    """

    rows: torch.Tensor
    columns: torch.Tensor
    makers: tuple[_Maker, ...]
    lost: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.rows.shape)

    @cached_property
    def dims(self) -> list[int]:
        """Dimensions along which rows differ, of any one maker."""
        varying = [
            dim
            for dim in range(self.rows.dim())
            if self.rows.shape[dim] > 1 and self.rows.stride(dim) != 0
        ]
        if len(self.makers) == 1 or not varying:
            return [dim for dim in varying if _differs(self.rows, self.makers, dim)]
        return [
            dim for dim in varying if any(_differs(self.rows, (own,), dim) for own in self.makers)
        ]

    @cached_property
    def keeps_rows(self) -> bool:
        """Whether a dimension still counts rows, if there are any.

        It holds no columns. Where another one holds both, as channels do behind a pixel unshuffle,
        rows that come together there have been next to each other.
        """
        apart = [dim for dim in self.dims if constant_along(self.columns, dim)]
        if len(apart) == len(self.dims):
            return True
        if not apart or self.rows_along is None:
            return False
        return all(map(_in_order, self.rows_along[1].values()))

    def windows(self, dim: int) -> dict[_Maker, Windows]:
        """What the places along a dimension read."""
        numbered = [(maker.start, maker.height) for maker in self.makers]
        return dict(zip(self.makers, windows_along([self.rows], dim, numbered), strict=True))

    @cached_property
    def all_read(self) -> dict[_Maker, Windows]:
        """The rows that are in it at all, read by a single row."""
        numbers = np.unique(core(self.rows).numpy())
        reads = {}
        for maker in self.makers:
            own = numbers[(numbers >= maker.start) & (numbers < maker.start + maker.height)]
            places = np.zeros(len(own), np.int64)
            reads[maker] = Windows.of_pairs(places, own - maker.start, 1, maker.height)
        return reads

    @cached_property
    def rows_along(self) -> tuple[int, dict[_Maker, Windows]] | None:
        """The dimension that counts rows, and what each row reads; None without rows.

        Where rows lie along several, as in a pixel unshuffle, it is the one with least windows.
        """
        apart = (dim for dim in self.dims if constant_along(self.columns, dim))
        choices = [(dim, self.windows(dim)) for dim in apart]
        if len(choices) <= 1:
            return choices[0] if choices else None

        def size(choice: tuple[int, dict[_Maker, Windows]]) -> tuple[int, int]:
            windows = choice[1].values()
            most = max(reads.widest for reads in windows)
            return most, sum(len(reads.reads.values) for reads in windows)

        return min(choices, key=size)


def _differs(rows: torch.Tensor, makers: Iterable[_Maker], dim: int) -> bool:
    """Whether rows of these makers differ along a dimension."""
    numbers = core(rows).numpy()
    own = np.zeros(numbers.shape, dtype=np.bool_)
    for maker in makers:
        own |= (numbers >= maker.start) & (numbers < maker.start + maker.height)
    least = np.where(own, numbers, np.iinfo(numbers.dtype).max).min(axis=dim)
    most = np.where(own, numbers, NO_CHANNEL).max(axis=dim)
    return bool((least < most).any())


def _in_order(windows: Windows) -> bool:
    """Whether no window reaches into another."""
    reads = windows.reads
    filled = np.flatnonzero(reads.lengths)
    first, last = reads.values[reads.pointers[filled]], reads.values[reads.pointers[filled + 1] - 1]
    order = np.argsort(first)
    return bool((first[order][1:] > last[order][:-1]).all())


def row_windows(traced: TracedModel, graph: ChannelGraph) -> tuple[LayerRows, ...]:
    """The rows of each layer of a graph, and what they are computed from.

    >>> from torch import nn
    >>> from hgpart.layers.layering import channel_graph
    >>> from hgpart.tracing.traced_model import example_inputs, trace
    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.Flatten(), nn.Linear(392, 4))
    >>> traced = trace(model, example_inputs(model, (3, 16, 16)))
    >>> rows = row_windows(traced, channel_graph(traced))
    >>> [layer.height for layer in rows], rows[2].reason
    ([16, 7, None, None], 'flatten merges rows with other dimensions')
    >>> rows[1].reads[0].windows.reads[2].tolist()
    [4, 5, 6]
    """
    walk = _RowWalk(traced, graph)
    walk.run()
    return tuple(map(walk.of_layer, range(len(graph.layers))))


class _RowWalk:
    def __init__(self, traced: TracedModel, graph: ChannelGraph) -> None:
        self.traced = traced
        self.graph = graph
        self.values: dict[fx.Node, Any] = {}
        self.next_row = 0
        self.makers: dict[str, _Maker] = {}  # those of nodes that layers compute
        self.finals: dict[int, _Maker] = {}  # the last one of each layer
        self.layer_of = {
            name: at for at, layer in enumerate(graph.layers) for name in layer.operators
        }
        self.inputs = iter(at for at, layer in enumerate(graph.layers) if layer.kind == INPUT)
        self.ends: dict[int, tuple[fx.Node, str]] = {}  # what ends the bands of a layer, and why
        self.outer: dict[_Maker, dict[int, Windows]] = {}
        self.unsummed: dict[_Maker, set[int]] = {}

    # -------------------------------------------------------------- the walk over the graph

    def run(self) -> None:
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
    ) -> _Maker:
        maker = _Maker(node, layer, self.next_row, 1 if dim is None else shape[dim], dim)
        self.next_row += maker.height
        return maker

    def _map(self, maker: _Maker, shape: tuple[int, ...]) -> _Map:
        """The result of a node that computes."""
        nothing = torch.zeros((), dtype=torch.int32).expand(shape)
        if maker.dim is None:
            return _Map(nothing + maker.start, nothing, (maker,))
        ids = self._channels(maker.node)
        apart = [
            dim
            for dim in range(len(shape))
            if dim != maker.dim
            and not (ids is not None and dim < ids.dim() and ids.stride(dim) and ids.shape[dim] > 1)
        ]
        sizes = [size if dim in apart else 1 for dim, size in enumerate(shape)]
        columns = torch.arange(int(np.prod(sizes)), dtype=torch.int32).reshape(sizes).expand(shape)
        value = _Map(rows_in(shape, maker.dim, maker.start).ids, columns, (maker,))
        several = maker.height > 1
        value.dims = [maker.dim] if several else []
        own = {maker: Windows.identity(maker.height)}
        value.rows_along = (maker.dim, own) if several else None
        return value

    def _channels(self, node: fx.Node) -> torch.Tensor | None:
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
        maps = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, _Map)]
        if operator_of(node).makes or not maps:
            return constant_of(call, self.traced.values.get(node.name))
        if node.name in self.layer_of or operator_of(node).rows is not None:
            return self._computed(call, maps)
        return self._moved(call, maps)

    # -------------------------------------------------------------- operators that move elements

    def _moved(self, call: Call, maps: list[_Map]) -> Any:
        flattens = len(call.shape) < len(maps[0].shape)
        name = "flatten" if flattens else short_name(call.node)
        merged = f"{name} merges rows with other dimensions"
        rows = _reindexed(call, "rows") if keeps_rows(call.node) else None
        columns = _reindexed(call, "columns") if rows is not None else None
        makers = tuple(dict.fromkeys(maker for value in maps for maker in value.makers))
        reason = next((value.lost for value in maps if value.lost), "")
        if rows is None or columns is None:
            reason = reason or f"no rule for {short_name(call.node)}"
            return self._results(call.node, lambda shape: _lost(shape, makers, reason))
        keeps = self._keeps_order(call, maps)
        moved = []
        for own, own_columns in zip(rows, columns, strict=True):
            value = _Map(own, own_columns, makers)
            if not (keeps and value.keeps_rows):
                value.lost = reason or merged
            moved.append(value)
        return moved if isinstance(call.node.meta["val"], (list, tuple)) else moved[0]

    def _keeps_order(self, call: Call, maps: list[_Map]) -> bool:
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

    def _computed(self, call: Call, maps: list[_Map]) -> Any:
        node, layer = call.node, self.layer_of.get(call.node.name)
        maps = [*dict.fromkeys(maps)]
        along = {value: value.rows_along for value in maps if not value.lost}
        lost = next((value.lost for value in maps if value.lost), "")
        effect: RowEffect | None = None
        if layer not in self.ends and not lost:
            effect = self._effect(call, along) if any(along.values()) else None
            if effect is None and all(maker.height == 1 for v in maps for maker in v.makers):
                effect = self._begun(call, along)
        shape = first_tensor(node.meta["val"]).shape
        dim = effect.dim % len(shape) if isinstance(effect, Local) else None
        maker = self._maker(node, layer, concrete(shape), dim)
        if isinstance(effect, Local):
            windows = iter(effect.windows)
            for value in _leaves(call):
                rows = along[value]
                if rows is None:
                    _add(maker.reads, value.all_read, Windows.all_rows(maker.height, 1))
                else:
                    _add(maker.reads, rows[1], next(windows))
        else:
            for value in maps:
                _add(maker.reads, value.all_read)
            self._end(call, effect, lost, along, maker)
        if layer is not None:
            self.makers[node.name] = self.finals[layer] = maker
        return self._results(node, lambda size: self._part(maker, size))

    def _effect(self, call: Call, along: Mapping[_Map, Any]) -> RowEffect:
        """What the operator does to the rows of its operands, which are numbered one by one."""
        first = 0

        def numbered(value: _Map) -> Channels | Constant:
            nonlocal first
            rows = along[value]
            if rows is None:
                return Constant(value.shape)
            operand = rows_in(value.shape, rows[0], first)
            first += operand.height
            return operand

        return effect_on_rows(_with(call, numbered))

    def _begun(self, call: Call, along: dict[_Map, Any]) -> Local | None:
        """Rows of a result whose operands have none, if the operator has windows."""
        value = call.args[0] if call.args else None
        begins = isinstance(value, _Map) and len(value.shape) > FIRST_SPATIAL
        if not begins or operator_of(call.node).rows is None:
            return None
        given = {**along, value: (FIRST_SPATIAL, value.windows(FIRST_SPATIAL))}
        effect = self._effect(call, given)
        if not isinstance(effect, Local) or call.shape[effect.dim] < 2:
            return None
        along.update(given)
        return effect

    def _end(
        self, call: Call, effect: Any, lost: str, along: Mapping[_Map, Any], maker: _Maker
    ) -> None:
        """Note what ends the bands of a layer that reads rows."""
        layer = maker.layer
        if layer in self.ends or not (lost or any(along.values())):
            return
        if isinstance(effect, Summed):
            maker.summed = {}
            for rows in filter(None, along.values()):
                _add(maker.summed, rows[1])
        reason = effect.reason if isinstance(effect, AllRows) else lost
        if isinstance(effect, Summed):
            reason = f"{short_name(call.node)} sums all rows"
        if layer is not None:
            self.ends[layer] = call.node, reason

    def _part(self, maker: _Maker, shape: tuple[int, ...]) -> _Map:
        """One of the results of a node: those without its rows are computed from all of them."""
        dim = maker.dim
        if dim is None or (dim < len(shape) and shape[dim] == maker.height):
            return self._map(maker, shape)
        whole = self._maker(maker.node, None, shape, None)
        whole.reads[maker] = Windows.all_rows(1, maker.height)
        return self._map(whole, shape)

    # -------------------------------------------------------------- windows of layers

    def of_layer(self, at: int) -> LayerRows:
        layer = self.graph.layers[at]
        if layer.kind == OUTPUT:
            return self._output(at)
        if layer.kind == PARAMETER or at not in self.finals:
            return LayerRows(reason="a parameter", reads=self._sources(at, 1, {}, set()))
        final = self.finals[at]
        own = [self.makers[name] for name in layer.operators if name in self.makers]
        reads: dict[int, Windows] = {}
        for maker in own:
            self._compose(maker)
        if own:
            reads = self.outer[final]
        sources = self._sources(at, final.height, reads, self.unsummed.get(final, set()))
        if final.dim is not None:
            return LayerRows(final.height, final.dim, sources)
        total = next((self._total(at, maker) for maker in own if maker.summed is not None), None)
        node, reason = self.ends.get(at, (None, ""))
        return LayerRows(
            None, None, sources, total, node.name if node else "", reason or self._inherited(at)
        )

    def _inherited(self, at: int) -> str:
        """Why a layer has one band where none of its operators ends any."""
        kinds = [self.graph.layers[source] for source in self.graph.sources(self.graph.layers[at])]
        if not kinds:
            return "its maps have no rows"
        return f"reads {', '.join(layer.name for layer in kinds[:2])}, without bands"

    def _output(self, at: int) -> LayerRows:
        final = {}
        for value in (self.values[node] for node in dict.fromkeys(self.traced.results)):
            if isinstance(value, _Map):
                _add(final, value.all_read)
        maker = _Maker(self.traced.results[-1], at, -1, 1, None, final)
        self._compose(maker)
        reads = self._sources(at, 1, self.outer[maker], self.unsummed[maker])
        return LayerRows(reads=reads, reason="the model's result")

    def _total(self, at: int, maker: _Maker) -> RowSum:
        summed = maker.summed or {}
        height = len(next(iter(summed.values())))
        before = _Maker(maker.node, at, -1, height, None, summed)
        self._compose(before)
        sources = self._of(self.outer[before], set(self.outer[before]))
        return RowSum(maker.node.name, height, sources)

    def _compose(self, maker: _Maker) -> None:
        """Windows of a maker's rows on other layers."""
        if maker in self.outer:
            return
        reads: dict[int, Windows] = {}
        self.outer[maker], unsummed = reads, self.unsummed.setdefault(maker, set())
        for source, windows in maker.reads.items():
            if source.layer is None or source.layer == maker.layer:
                self._compose(source)
                inner = self.outer[source]
                met = self.unsummed[source]
            else:
                final = self.finals[source.layer]
                same = source is final
                whole = Windows.all_rows(source.height, final.height)
                inner = {source.layer: Windows.identity(final.height) if same else whole}
                met = {source.layer}
            if maker.summed is None:
                unsummed |= met
            for layer, own in inner.items():
                composed = windows.compose(own)
                reads[layer] = reads[layer].union(composed) if layer in reads else composed

    def _sources(
        self, at: int, height: int, reads: Mapping[int, Windows], unsummed: set[int]
    ) -> tuple[SourceRows, ...]:
        """What a layer reads, with all of each parameter among it."""
        others = set(self.graph.sources(self.graph.layers[at])) - reads.keys()
        rows = {source: self.finals.get(source) for source in others}
        whole = {
            source: Windows.all_rows(height, 1 if maker is None else maker.height)
            for source, maker in rows.items()
        }
        return self._of({**reads, **whole}, unsummed | others)

    def _of(self, reads: Mapping[int, Windows], unsummed: set[int]) -> tuple[SourceRows, ...]:
        return tuple(
            SourceRows(source, windows, source not in unsummed)
            for source, windows in sorted(reads.items(), key=lambda item: item[0])
            if len(windows.reads.values)
        )


def _leaves(call: Call) -> list[_Map]:
    leaves = pytree.tree_leaves((call.args, call.kwargs))
    return [leaf for leaf in leaves if isinstance(leaf, _Map)]


def _with(call: Call, given: Any) -> Call:
    """A call with something else in place of each map."""
    args, kwargs = pytree.tree_map(
        lambda leaf: given(leaf) if isinstance(leaf, _Map) else leaf, (call.args, call.kwargs)
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


def _lost(shape: tuple[int, ...], makers: tuple[_Maker, ...], reason: str) -> _Map:
    """A map of which only the makers are known, not which of their rows are where."""
    nothing = torch.full((), NO_CHANNEL, dtype=torch.int32).expand(shape)
    value = _Map(nothing, nothing, makers, reason)
    value.all_read = {maker: Windows.all_rows(1, maker.height) for maker in makers}
    return value


def _add(
    reads: dict[_Maker, Windows], inner: Mapping[_Maker, Windows], windows: Windows | None = None
) -> None:
    """Add what an operand is computed from, by windows of the rows that read it."""
    for maker, own in inner.items():
        composed = own if windows is None else windows.compose(own)
        reads[maker] = reads[maker].union(composed) if maker in reads else composed
