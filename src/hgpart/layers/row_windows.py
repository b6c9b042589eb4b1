"""RowWalk -> LayerRows: which rows of a layer depend on which of its sources.

Windows of operators are composed along those of each layer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import chain

import numpy as np
from torch import fx

from hgpart.arrays import Int64
from hgpart.layers.channel_graph import (
    OUTPUT,
    PARAMETER,
    ChannelGraph,
    LayerRows,
    RowSum,
    SourceRows,
)
from hgpart.layers.row_walk import RowWalk
from hgpart.operators.ids import constant_along, core
from hgpart.operators.rows import NumberedRows, OperatorRows, RowMaker, add_windows
from hgpart.operators.table import operator_of
from hgpart.operators.windows import Windows
from hgpart.sequences import equal_rows
from hgpart.tracing.traced_model import TracedModel
from hgpart.tracing.traced_nodes import concrete, first_tensor


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
    layers = _LayerWindows(RowWalk(traced, graph))
    return tuple(map(layers.of_layer, range(len(graph.layers))))


class RowsInside:
    """The rows of the operators inside layers.

    Attributes
    ----------
    operators : mapping of fx.Node to OperatorRows
        The rows of each node that computes and has rows, and what they read of its operands.
    summed : mapping of fx.Node to (fx.Node, int, bool)
        For each node that sums all rows, its operand, the dimension of these, and whether the sum
        is divided by their number.
    """

    def __init__(self, traced: TracedModel, graph: ChannelGraph) -> None:
        walk = RowWalk(traced, graph)
        self._layers = _LayerWindows(walk)
        self.operators: Mapping[fx.Node, OperatorRows] = walk.local
        self.summed: Mapping[fx.Node, tuple[fx.Node, int, bool]] = walk.summed

    def read_by_results(self, at: int, node: fx.Node) -> Windows:
        """Windows of a layer's rows on those of one of its operators."""
        walk = self._layers.walk
        return self._layers.onto(walk.finals[at], walk.makers[node.name])

    def read_of_sources(self, at: int, node: fx.Node) -> tuple[SourceRows, ...]:
        """What the rows of one of a layer's operators are computed from."""
        return self._layers.sources_of(at, self._layers.walk.makers[node.name])


class _LayerWindows:
    def __init__(self, walk: RowWalk) -> None:
        self.walk, self.graph = walk, walk.graph
        self.by_operand: dict[RowMaker, dict[tuple[int, fx.Node], Windows]] = {}
        self.unsummed: dict[RowMaker, set[int]] = {}

    def of_layer(self, at: int) -> LayerRows:
        layer = self.graph.layers[at]
        if layer.kind == OUTPUT:
            return self._output(at)
        if layer.kind == PARAMETER or at not in self.walk.finals:
            return LayerRows(reason="a parameter", reads=self._sources(at))
        final = self.walk.finals[at]
        own = [self.walk.makers[name] for name in layer.operators if name in self.walk.makers]
        sources = self._sources(at, final)
        sources = tuple(chain.from_iterable(self._told_apart(at, final, own, sources)))
        if final.dim is not None and final.height > 1:
            return LayerRows(final.height, final.dim, sources, self._of_head(at, final))
        summing = next((maker for maker in own if maker.summed is not None), None)
        total = None if summing is None else self._total(at, summing, sources)
        node, reason = self.walk.ends.get(at) or self._without_end(at, own)
        return LayerRows(None, None, sources, None, total, node.name if node else "", reason)

    def _without_end(self, at: int, own: list[RowMaker]) -> tuple[fx.Node | None, str]:
        """What ends the bands, and why, where no operator needs all rows: shapes or sources do."""
        for maker in own:
            if maker.height == 1 and any(source.height > 1 for source in maker.reads):
                return maker.node, "its maps have one row"
        return None, self._inherited(at)

    def _inherited(self, at: int) -> str:
        """Why a layer has one band where none of its operators ends any."""
        kinds = [self.graph.layers[source] for source in self.graph.sources(self.graph.layers[at])]
        if not kinds:
            return "its maps have no rows"
        return f"reads {', '.join(layer.name for layer in kinds[:2])}, without bands"

    def _output(self, at: int) -> LayerRows:
        final: dict[RowMaker, Windows] = {}
        for value in (self.walk.values[node] for node in dict.fromkeys(self.walk.traced.results)):
            if isinstance(value, NumberedRows):
                add_windows(final, value.all_read)
        node = self.walk.traced.results[-1]
        maker = RowMaker(node, at, -1, 1, None, {node: final})
        return LayerRows(reads=self._sources(at, maker), reason="the model's result")

    def _is_task_by_task(self, at: int, node: fx.Node) -> bool:
        """Whether a dimension of an operator's result has the channels of a layer, in order."""
        ids = self.walk.channels_of(node)
        if ids is None:
            return False
        dims = [dim for dim in range(ids.dim()) if not constant_along(ids, dim)]
        if len(dims) != 1:
            return False
        first, layer = int(self.graph.first_channel[at]), self.graph.layers[at]
        own = core(ids.movedim(dims[0], 0).reshape(ids.shape[dims[0]], -1)[:, 0]).numpy()
        return np.array_equal(own, first + np.arange(layer.tasks))

    def _of_head(self, at: int, final: RowMaker) -> Windows | None:
        """Windows of a layer's rows on those of its first operator."""
        head = self.walk.makers.get(next(iter(self.graph.layers[at].operators), ""))
        return None if head is None or head.dim is None else self.onto(final, head)

    def _total(self, at: int, maker: RowMaker, sources: tuple[SourceRows, ...]) -> RowSum:
        summed = maker.summed or {}
        height = len(next(iter(summed.values())))
        before = self._outer(RowMaker(maker.node, at, -1, height, None, {maker.node: summed}))
        layer = self.graph.layers[at]
        makers = [self.walk.makers[name] for name in layer.operators if name in self.walk.makers]
        has_state = layer.parameter_names or any(
            operator_of(own.node).is_batch_norm for own in makers
        )
        ends = not has_state and all(source.is_summed for source in sources)
        ends &= layer.tasks == 1 or self._is_task_by_task(at, maker.node)
        shape = concrete(first_tensor(maker.node.meta["val"]).shape)
        elements = -(-math.prod(shape) // (self.walk.traced.batch_size * layer.tasks))
        reads = self._of(before, set(before))
        return RowSum(maker.node.name, height, elements, ends, reads)

    def onto(self, maker: RowMaker, inner: RowMaker) -> Windows:
        """Windows of a maker's rows on those of another one in its layer."""
        if maker is inner:
            return Windows.identity(maker.height)
        nothing = np.zeros(0, np.int64)
        read = Windows.of_pairs(nothing, nothing, maker.height, inner.height)
        for source, windows in maker.reads.items():
            if _is_inside(source, maker):
                read = read.union(windows.compose(self.onto(source, inner)))
        return read

    def sources_of(self, at: int, maker: RowMaker) -> tuple[SourceRows, ...]:
        """What the rows of a maker in a layer read of other layers."""
        return self._of(self._outer(maker), self._unsummed(maker))

    def _outer(self, maker: RowMaker) -> dict[int, Windows]:
        """Windows of a maker's rows on other layers."""
        united = dict[int, Windows]()
        for (layer, _), windows in self._by_operand(maker).items():
            united[layer] = united[layer].union(windows) if layer in united else windows
        return united

    def _by_operand(self, maker: RowMaker) -> dict[tuple[int, fx.Node], Windows]:
        """The same for each operand that is a map of another layer."""
        if maker not in self.by_operand:
            self.by_operand[maker] = united = dict[tuple[int, fx.Node], Windows]()
            for operand, reads in maker.by_operand.items():
                for source, windows in reads.items():
                    if _is_inside(source, maker):
                        inner = self._by_operand(source)
                    else:
                        assert source.layer is not None
                        inner = {(source.layer, operand): self._of_final(source)}
                    for key, own in inner.items():
                        composed = windows.compose(own)
                        united[key] = united[key].union(composed) if key in united else composed
        return self.by_operand[maker]

    def _unsummed(self, maker: RowMaker) -> set[int]:
        """Other layers of which more is read than a sum of their rows."""
        if maker not in self.unsummed:
            self.unsummed[maker] = met = set[int]()
            for source in maker.reads if maker.summed is None else ():
                if _is_inside(source, maker):
                    met |= self._unsummed(source)
                elif source.layer is not None:
                    met.add(source.layer)
        return self.unsummed[maker]

    def _told_apart(
        self, at: int, final: RowMaker, own: list[RowMaker], sources: Sequence[SourceRows]
    ) -> Iterator[list[SourceRows]]:
        """Divide what a layer reads of each source into channels that are read in the same rows."""
        operands = Counter(
            source.layer for maker in own for reads in maker.by_operand.values() for source in reads
        )
        has_norms = any(operator_of(maker.node).is_batch_norm for maker in own)
        can_be = len(self.graph.layers_tied_to(at)) == 1 and not has_norms
        several = {
            source.source
            for source in sources
            if can_be and operands[source.source] > 1 and self.graph.layers[source.source].tasks > 1
        }
        by_operand = self._by_operand(final) if several else {}
        for rows in sources:
            windows = {node: w for (layer, node), w in by_operand.items() if layer == rows.source}
            yield self._by_channels(at, rows, windows) if rows.source in several else [rows]

    def _by_channels(
        self, at: int, rows: SourceRows, by_operand: Mapping[fx.Node, Windows]
    ) -> list[SourceRows]:
        """What a layer reads of a source, for each group of channels that its operands have."""
        read = np.concatenate([read.channels for read in self.graph.layers[at].reads])
        first, end = self.graph.first_channel[rows.source : rows.source + 2]
        channels = np.unique(read[(read >= first) & (read < end)])
        named = [(self.graph.ids.get(operand.name), own) for operand, own in by_operand.items()]
        has = np.array(
            [
                np.full(len(channels), True) if ids is None else np.isin(channels, core(ids))
                for ids, _ in named
            ]
        )
        kinds, examples = equal_rows(has.T.astype(np.int64))
        groups = list[tuple[Windows, Int64]]()  # of channels that are read alike
        for kind, example in enumerate(examples.tolist()):
            met = [own for there, (_, own) in zip(has[:, example], named, strict=True) if there]
            windows = reduce(Windows.union, met) if met else rows.windows
            members = channels[kinds == kind] - first
            for number, (known, others) in enumerate(groups):
                if known.equals(windows):
                    groups[number] = known, np.union1d(others, members)
                    break
            else:
                groups.append((windows, members))
        if len(groups) == 1:
            return [rows]
        return [replace(rows, windows=windows, channels=own) for windows, own in groups]

    def _of_final(self, maker: RowMaker) -> Windows:
        """Windows of the rows of a layer's operator on those of its result."""
        assert maker.layer is not None
        final = self.walk.finals[maker.layer]
        if maker is final:
            return Windows.identity(final.height)
        return Windows.all_rows(maker.height, final.height)

    def _sources(self, at: int, maker: RowMaker | None = None) -> tuple[SourceRows, ...]:
        """What a layer with such results reads, with all of each parameter among it."""
        reads = {} if maker is None else self._outer(maker)
        unsummed = set[int]() if maker is None else self._unsummed(maker)
        height = 1 if maker is None else maker.height
        others = set(self.graph.sources(self.graph.layers[at])) - reads.keys()
        rows = {source: self.walk.finals.get(source) for source in others}
        whole = {
            source: Windows.all_rows(height, 1 if final is None else final.height)
            for source, final in rows.items()
        }
        return self._of({**reads, **whole}, unsummed | others)

    def _of(self, reads: Mapping[int, Windows], unsummed: set[int]) -> tuple[SourceRows, ...]:
        return tuple(
            SourceRows(source, windows, source not in unsummed)
            for source, windows in sorted(reads.items(), key=lambda item: item[0])
            if len(windows.reads.values)
        )


def _is_inside(source: RowMaker, maker: RowMaker) -> bool:
    """Whether what a maker reads is computed in the same layer."""
    return source.layer is None or source.layer == maker.layer
