"""ChannelGraph -> FusedTiles: leading layers in bands of rows, with borders computed, not sent.

Each process computes a band of the last fused maps from a crop of the input: the rows that a band
needs of a layer are told by the windows of its readers, so that neighbours compute some rows both.
Nothing travels before the end of the fused layers. J. Zhao, K. M. Barijough, A. Gerstlauer,
"DeepThings: Distributed Adaptive Deep Learning Inference on Resource-Constrained IoT Edge
Clusters", IEEE TCAD 37(11), 2018, section III: fused tile partitioning, here of rows alone.

Some rows are computed by several processes, so this is no partition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from hgpart.arrays import Int64
from hgpart.errors import ArgumentError
from hgpart.layers.channel_graph import INPUT, OUTPUT, PARAMETER, ChannelGraph
from hgpart.work.figures import Work, flops

# What a byte costs, in multiply-accumulates: a core does about 50 in the time in which another
# process of the machine gets a byte.
MACS_OF_A_BYTE = 50
NO_ROWS: Int64 = np.zeros(0, np.int64)


@dataclass(frozen=True, eq=False)
class FusedTiles:
    """Leading layers that are computed in tiles, and who computes which rows.

    Attributes
    ----------
    fused : int
        Number of fused layers: the first ones of the graph.
    layers : tuple of int
        How many of these compute, and how many of all layers do.
    last : str
        Name of the last one.
    own : tuple of mapping of int to int64 array
        For each process, the rows that it has to make of each layer that others read.
    computed : tuple of mapping of int to int64 array
        For each process, the rows that it computes of each layer for that, if the layer has rows.
    work : int64 array, shape (processes,)
        Work a sample of the rows that each process needs. (It computes up to two more of a layer
        that pools, to begin where a window does.)
    once : int
        Work a sample of the fused layers in one process.
    rest : int
        Work a sample of the other layers, which the first process computes.
    sent_bytes : int
        Bytes of a batch that the first process gets from the others.
    cost : float
        Work of a batch that is done one after the other: the most of a process, that of the rest,
        and what the bytes count as.
    """

    fused: int
    layers: tuple[int, int]
    last: str
    own: tuple[Mapping[int, Int64], ...]
    computed: tuple[Mapping[int, Int64], ...]
    work: Int64
    once: int
    rest: int
    sent_bytes: int
    cost: float

    @property
    def repeated(self) -> float:
        """Work that is done once more than needed, as a share of the model's."""
        return (int(self.work.sum()) - self.once) / max(1, self.once + self.rest)

    @property
    def words(self) -> str:
        """What is fused of a model, and what that costs."""
        fused, all_layers = self.layers
        return (
            f"{fused} of {all_layers} layers fused, to {self.last}, in {len(self.own)} bands; "
            f"{100 * self.repeated:.1f} % of the model's work is done again"
        )


def fused_tiles(
    graph: ChannelGraph,
    work: Work,
    shares: Sequence[float],
    batch_size: int,
    fused: int | None = None,
) -> FusedTiles:
    """Find where to stop fusing.

    The depth with the least sum of three: the most work of a process, the work behind the fused
    layers, and the bytes that are sent, each as `MACS_OF_A_BYTE` multiply-accumulates of the model.

    Parameters
    ----------
    work : Work
        Work of the tasks.
    shares : sequence of float
        The share of the rows of each process.
    fused : int, optional
        A number of layers to fuse instead.

    Raises
    ------
    ArgumentError
        If the first layer has no rows, or so many layers have not.

    >>> from torch import nn
    >>> from hgpart import channel_graph, example_inputs, flops, trace
    >>> model = nn.Sequential(*(nn.Conv2d(4, 4, 3, padding=1) for _ in range(3)), nn.Flatten())
    >>> graph = channel_graph(trace(model, example_inputs(model, (4, 8, 8))))
    >>> tiles = fused_tiles(graph, flops(graph), [1, 1], batch_size=1)
    >>> [rows.tolist() for rows in tiles.computed[0].values()]
    [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4], [0, 1, 2, 3]]
    >>> tiles.words
    "3 of 3 layers fused, to 2, in 2 bands; 25.0 % of the model's work is done again"
    """
    depths = [*_depths(graph)]
    if (why := nothing_to_fuse(graph)) is not None:
        raise ArgumentError(why)
    if fused is not None:
        if fused not in depths:
            raise ArgumentError(f"{fused} fused layers: accepted are {', '.join(map(str, depths))}")
        depths = [fused]
    given = work, shares, batch_size
    return min((_tiles(graph, depth, *given) for depth in depths), key=attrgetter("cost"))


def nothing_to_fuse(graph: ChannelGraph) -> str | None:
    """Why no layers can be fused; None where some can."""
    if any(True for _ in _depths(graph)):
        return None
    return "no leading layer of the model has rows to divide (hgpart trace --rows says why)"


def _depths(graph: ChannelGraph) -> Iterator[int]:
    """Numbers of leading layers of which all that compute have rows."""
    for at, (layer, rows) in enumerate(zip(graph.layers, graph.layer_rows, strict=True)):
        if layer.kind in (INPUT, PARAMETER):
            continue
        if layer.kind == OUTPUT or not rows.is_banded:
            return
        yield at + 1


def _tiles(
    graph: ChannelGraph, fused: int, work: Work, shares: Sequence[float], batch_size: int
) -> FusedTiles:
    read = {source for layer in graph.layers[fused:] for source in graph.sources(layer)}
    given = (INPUT, PARAMETER)
    ends = [at for at in sorted(read) if at < fused and graph.layers[at].kind not in given]
    own = [dict[int, Int64]() for _ in shares]
    for at in ends:
        height = graph.layer_rows[at].height
        assert height is not None
        cuts = np.rint(height * np.cumsum([0, *shares]) / sum(shares)).astype(np.int64)
        for part, rows in enumerate(own):
            rows[at] = np.arange(cuts[part], cuts[part + 1])
    computed = [_computed(graph, fused, rows) for rows in own]
    tasks = np.array([layer.tasks for layer in graph.layers])
    per_layer, macs = work.per_task * tasks, int((flops(graph).per_task * tasks).sum())
    of_tiles = np.array([_work(graph, rows, per_layer) for rows in computed])
    once, rest = int(per_layer[:fused].sum()), int(per_layer[fused:].sum())
    sent = sum(_bytes_of(graph, at, len(rows[at]), batch_size) for rows in own[1:] for at in ends)
    computing = [layer.kind not in (INPUT, PARAMETER, OUTPUT) for layer in graph.layers]
    return FusedTiles(
        fused,
        (sum(computing[:fused]), sum(computing)),
        graph.layers[fused - 1].name,
        tuple(own),
        tuple(computed),
        of_tiles,
        once,
        rest,
        sent,
        batch_size * (int(of_tiles.max()) + rest)
        + MACS_OF_A_BYTE * sent * (once + rest) / max(1, macs),
    )


def _computed(graph: ChannelGraph, fused: int, own: Mapping[int, Int64]) -> dict[int, Int64]:
    """The rows of each fused layer that some rows of the last ones need, in order of layers."""
    needed: dict[int, list[Int64]] = {at: [rows] for at, rows in own.items()}
    computed: dict[int, Int64] = {}
    for at in reversed(range(fused)):
        if not graph.layer_rows[at].is_banded:
            continue
        computed[at] = _run_of(np.concatenate([NO_ROWS, *needed.get(at, [])]))
        if graph.layers[at].kind == INPUT:
            continue
        for source in graph.layer_rows[at].reads:
            rows = source.windows.reads.take(computed[at]).values
            needed.setdefault(source.source, []).append(rows)
    return {at: computed[at] for at in sorted(computed) if graph.layers[at].kind != INPUT}


def _run_of(rows: Int64) -> Int64:
    """The rows from the first to the last of some; operators make those between as well."""
    return np.arange(rows.min(), rows.max() + 1) if len(rows) else NO_ROWS


def _work(graph: ChannelGraph, computed: Mapping[int, Int64], per_layer: Int64) -> int:
    """Work of some rows: those of a layer's head count, before any pooling."""
    work = 0.0
    for at, rows in computed.items():
        head, height = graph.layer_rows[at].head, graph.layer_rows[at].height
        if head is not None:
            rows, height = _run_of(head.reads.take(rows).values), head.height
        work += int(per_layer[at]) * len(rows) / (height or 1)
    return round(work)


def _bytes_of(graph: ChannelGraph, at: int, rows: int, batch_size: int) -> int:
    """Bytes of some rows of a layer's maps."""
    layer = graph.layers[at]
    height = graph.layer_rows[at].height or 1
    return layer.tasks * graph.map_bytes(layer, batch_size, None) * rows // height
