"""Parameters of layers -> which of them travel in one message, and a graph with these alone."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from hgpart.layers.channel_graph import ChannelGraph

SMALL = 2**16  # elements: what has less goes with others, for which it is copied
BUCKET = 2**20  # elements of small ones, whole, of layers in a row that go together

Shapes = Mapping[str, Sequence[int]]  # of parameters, whole, by name


def is_large(shape: Sequence[int]) -> bool:
    """Whether what travels of a tensor of such a shape, whole, travels by itself."""
    return math.prod(shape) >= SMALL


def layers_of(graph: ChannelGraph, names: Collection[str]) -> dict[str, str]:
    """The layer that some parameters travel with, by name, in the order of the layers.

    That is the first that makes use of it, or of what it shares with others.
    """
    found: dict[str, str] = {}
    for layer in graph.layers:
        for name in layer.parameter_names:
            if name in names:
                found.setdefault(name, graph.layers[layer.tied_to].name)
    return found


def buckets_of(graph: ChannelGraph, shapes: Shapes, names: Collection[str]) -> dict[str, str]:
    """The same, but of small ones the first of some layers in a row, which go together.

    A message costs as much as many bytes do, and gradients of a bucket depart together: so there
    are neither many messages nor is all left for the end.
    """
    layers = layers_of(graph, names)
    found, bucket_of = dict[str, str](), dict[str, str]()  # of layers, those before with tied ones
    bucket, size = "", BUCKET
    for name, layer in layers.items():
        found[name] = layer
        if not is_large(shapes[name]):
            if layer not in bucket_of:
                if size >= BUCKET:
                    bucket, size = layer, 0
                bucket_of[layer] = bucket
            found[name] = bucket_of[layer]
            size += math.prod(shapes[name])
    order = {layer: at for at, layer in enumerate(dict.fromkeys(layers.values()))}
    return dict(sorted(found.items(), key=lambda item: order[item[1]]))


def messages(
    graph: ChannelGraph, shapes: Shapes, names: Collection[str]
) -> Iterator[tuple[set[str], bool]]:
    """Divide parameters, so that from part to part there is one message of a set, or of its layers.

    The latter are said to be False: large ones, one of each layer.
    """
    large: dict[str, list[str]] = {}
    small: dict[str, set[str]] = {}
    for name, layer in buckets_of(graph, shapes, names).items():
        if is_large(shapes[name]):
            large.setdefault(layer, []).append(name)
        else:
            small.setdefault(layer, set()).add(name)
    for at in range(max(map(len, large.values()), default=0 if small else 1)):
        yield {several[at] for several in large.values() if at < len(several)}, False
    for bucket in small.values():
        yield bucket, True


def with_parameters(graph: ChannelGraph, names: Collection[str]) -> ChannelGraph:
    """The graph whose layers have some of their parameters only."""
    layers = []
    for layer in graph.layers:
        chosen = tuple(one for one in layer.own_parameters if one.name in names)
        weights = layer.weights if layer.weight in chosen else 0
        layers.append(replace(layer, own_parameters=chosen, weights=weights))
    return replace(graph, layers=tuple(layers))
