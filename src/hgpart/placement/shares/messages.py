"""Parameters of layers -> which of them travel in one message, and a graph with only these."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from hgpart.layers.channel_graph import ChannelGraph

SMALL = 2**16  # elements: smaller tensors travel together, for which they are copied
BUCKET = 2**20  # elements of small tensors (counted whole) of consecutive layers that go together

Shapes = Mapping[str, Sequence[int]]  # of whole parameters, by name


def is_large(shape: Sequence[int]) -> bool:
    """Whether the elements of a tensor with this shape travel alone."""
    return math.prod(shape) >= SMALL


def layers_of(graph: ChannelGraph, names: Collection[str]) -> dict[str, str]:
    """The layer that each parameter travels with, by name, in the order of the layers.

    It is the first layer that uses the parameter, or one tied to it.
    """
    by_name: dict[str, str] = {}
    for layer in graph.layers:
        for name in layer.parameter_names:
            if name in names:
                by_name.setdefault(name, graph.layers[layer.tied_to].name)
    return by_name


def buckets_of(graph: ChannelGraph, shapes: Shapes, names: Collection[str]) -> dict[str, str]:
    """The same, but small parameters travel with the first of some consecutive layers.

    A message costs as much as many bytes, and the gradients of a bucket depart together: so there
    are not many messages, and not everything is left for the end.
    """
    layers = layers_of(graph, names)
    by_name = dict[str, str]()
    bucket_of = dict[str, str]()  # by layer; it may come before the last one, by a tied layer
    bucket, size = "", BUCKET
    for name, layer in layers.items():
        by_name[name] = layer
        if not is_large(shapes[name]):
            if layer not in bucket_of:
                if size >= BUCKET:
                    bucket, size = layer, 0
                bucket_of[layer] = bucket
            by_name[name] = bucket_of[layer]
            size += math.prod(shapes[name])
    order = {layer: at for at, layer in enumerate(dict.fromkeys(layers.values()))}
    return dict(sorted(by_name.items(), key=lambda item: order[item[1]]))


def messages(
    graph: ChannelGraph, shapes: Shapes, names: Collection[str]
) -> Iterator[tuple[set[str], bool]]:
    """Divide parameters into sets that need one message from part to part, or one per layer.

    The flag is False for the latter: large parameters, one of each layer.
    """
    large: dict[str, list[str]] = {}
    small: dict[str, set[str]] = {}
    for name, layer in buckets_of(graph, shapes, names).items():
        if is_large(shapes[name]):
            large.setdefault(layer, []).append(name)
        else:
            small.setdefault(layer, set()).add(name)
    for at in range(max(map(len, large.values()), default=0 if small else 1)):
        yield {of_layer[at] for of_layer in large.values() if at < len(of_layer)}, False
    for bucket in small.values():
        yield bucket, True


def with_parameters(graph: ChannelGraph, names: Collection[str]) -> ChannelGraph:
    """The graph with only some of the layers' parameters."""
    layers = []
    for layer in graph.layers:
        chosen = tuple(parameter for parameter in layer.own_parameters if parameter.name in names)
        weights = layer.weights if layer.weight in chosen else 0
        layers.append(replace(layer, own_parameters=chosen, weights=weights))
    return replace(graph, layers=tuple(layers))
