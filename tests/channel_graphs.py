"""Hypothesis strategies: small ChannelGraphs of all kinds, modellings, and blocks."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from hgpart.hypergraph.blocks import Blocks
from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.channel_graph import ChannelGraph, Layer, OwnParameter, Read

KINDS = ("dense", "grouped", "linear", "norm", "same index", "whole")

small = st.integers(1, 4)


@st.composite
def channel_graphs(
    draw: st.DrawFn,
    min_layers: int = 0,
    max_layers: int = 5,
    kinds: tuple[str, ...] = KINDS,
    max_tasks: int = 4,
) -> ChannelGraph:
    """Dense, grouped, depthwise, linear, same-index and whole layers; shared weights; constants."""
    layers: list[Layer] = []
    for _ in range(draw(st.integers(1, 2))):
        layers.append(_layer(draw, layers, "input", 1, draw(small)))
    if draw(st.booleans()):
        layers.append(_layer(draw, layers, "parameter", 1, 1))
    for _ in range(draw(st.integers(min_layers, max_layers))):
        layers.append(_computing_layer(draw, layers, kinds, max_tasks))
    count = sum(layer.channels for layer in layers)
    read = draw(st.lists(st.integers(0, count - 1), unique=True))
    layers.append(_layer(draw, layers, "output", 1, 0, (_read(read, 1, False),)))
    return ChannelGraph(tuple(layers), {})


def _computing_layer(
    draw: st.DrawFn, layers: list[Layer], kinds: tuple[str, ...], max_tasks: int
) -> Layer:
    channels = sum(layer.channels for layer in layers)
    known = st.integers(0, channels - 1)
    some = st.lists(known, min_size=1, max_size=5, unique=True)
    maybe = st.one_of(known, st.just(-1))
    alike = [at for at, layer in enumerate(layers) if layer.kind in ("dense", "grouped", "linear")]
    kind = draw(st.sampled_from([*kinds, "tied"] if alike else kinds))
    tasks = draw(st.integers(1, max_tasks))
    tied_to = len(layers)
    if kind == "tied":
        tied_to = layers[draw(st.sampled_from(alike))].tied_to
        first = layers[tied_to]
        kind, tasks, old = first.kind, first.tasks, first.reads[0]
        count = len(old.channels)
        numbers = draw(st.lists(maybe, min_size=count, max_size=count))
        reads = [Read(np.array(numbers, dtype=np.int64), old.sizes, old.groups, True)]
    elif kind in ("dense", "linear"):
        numbers = draw(some)
        reads = [_read(numbers, 1, True, draw(_sizes(len(numbers))))]
    elif kind == "grouped":
        groups = draw(st.integers(2, 3))
        tasks = groups * draw(st.integers(1, 3))
        count = groups * draw(st.integers(1, 3))
        numbers = draw(st.lists(maybe, min_size=count, max_size=count))
        sizes = draw(_sizes(count // groups)) * groups
        reads = [_read(numbers, groups, True, sizes)]
    elif kind == "norm":
        reads = [_read(draw(some), 1, False)]
    elif kind == "same index":
        numbers = draw(st.lists(maybe, min_size=tasks, max_size=tasks))
        reads = [_read(numbers, tasks, False)]
    else:
        reads = [_read(draw(some), 1, False) for _ in range(draw(st.integers(1, 2)))]
        return _layer(draw, layers, "whole", 1, draw(small), tuple(reads))
    if draw(st.booleans()):  # a fused residual add
        numbers = draw(st.lists(maybe, min_size=tasks, max_size=tasks))
        reads.append(_read(numbers, tasks, False))
    return _layer(draw, layers, kind, tasks, tasks, tuple(reads), tied_to)


def _sizes(count: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(1, 3), min_size=count, max_size=count)


def _read(numbers: list[int], groups: int, partial: bool, sizes: list[int] | None = None) -> Read:
    ones = [1] * len(numbers)
    return Read(np.array(numbers, np.int64), np.array(sizes or ones, np.int64), groups, partial)


def _layer(
    draw: st.DrawFn,
    layers: list[Layer],
    kind: str,
    tasks: int,
    channels: int,
    reads: tuple[Read, ...] = (),
    tied_to: int | None = None,
) -> Layer:
    computes = kind not in ("input", "parameter", "output")
    owns = computes and tied_to in (None, len(layers))
    features = sum(int(read.sizes.sum()) // read.groups for read in reads if read.partial)
    weights = tasks * features if owns else 0
    return Layer(
        name=f"{kind} {len(layers)}",
        kind=kind,
        operators=(),
        operations=(),
        tasks=tasks,
        channels=channels,
        map_elements=draw(st.integers(1, 9)),
        partial_elements=draw(st.integers(1, 9)),
        bytes_per_element=draw(st.sampled_from([2, 4])),
        macs=draw(st.integers(0, 50)) if computes else 0,
        own_parameters=_own_parameters(draw, tasks, weights) if owns else (),
        weights=weights,
        parameter_names=(),
        reads=reads,
        tied_to=len(layers) if tied_to is None else tied_to,
        fixed_elements=draw(st.sampled_from([0, 0, 0, 5])),
        batch_statistics=tasks * draw(st.sampled_from([0, 1, 3])) if computes else 0,
    )


def _own_parameters(draw: st.DrawFn, tasks: int, weights: int) -> tuple[OwnParameter, ...]:
    """A weight and a bias, of which one may be complex or of a half."""
    found = ("weight", weights), ("bias", tasks * draw(st.integers(0, 2)))
    sizes = st.sampled_from([2, 4, 8])
    return tuple(OwnParameter(name, count, draw(sizes)) for name, count in found if count)


@st.composite
def modellings(draw: st.DrawFn) -> Modelling:
    return Modelling(
        grain=draw(st.sampled_from(["coarse", "fine"])),
        linear=draw(st.sampled_from(["neuron", "layer"])),
        batch_size=draw(st.integers(1, 3)),
        bytes_per_element=draw(st.sampled_from([None, 1])),
        input_vertex=draw(st.booleans()),
        output_vertex=draw(st.booleans()),
    )


@st.composite
def divisions(draw: st.DrawFn, graph: ChannelGraph, modelling: Modelling) -> Blocks:
    """Any blocks whatever, the same in layers that share a weight."""

    def cuts(count: int) -> np.ndarray:
        inner = draw(st.sets(st.integers(1, count - 1))) if count > 1 else ()
        return np.array(sorted({0, count, *inner}), dtype=np.int64)

    rows: list[np.ndarray] = []
    columns: list[np.ndarray] = []
    for at, layer in enumerate(graph.layers):
        if layer.tied_to != at:
            rows.append(rows[layer.tied_to])
            columns.append(columns[layer.tied_to])
            continue
        solid = modelling.is_solid(layer)
        read = modelling.split_read(layer)
        rows.append(np.array([0, layer.tasks]) if solid else cuts(layer.tasks))
        columns.append(cuts(1 if read is None else len(read.channels)))
    return Blocks(tuple(rows), tuple(columns))
