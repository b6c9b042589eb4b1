"""Parameters of layers -> which of them travel in one message, and a graph with these alone."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from hgpart.layers.channel_graph import ChannelGraph

SMALL = 2**14  # elements: what has less goes with others of its layer, for which it is copied

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


def messages(graph: ChannelGraph, shapes: Shapes, names: Collection[str]) -> Iterator[set[str]]:
    """Divide parameters, so that those of a layer among them travel in one message each time."""
    by_layer: dict[str, list[set[str]]] = {}
    small: dict[str, set[str]] = {}
    for name, layer in layers_of(graph, names).items():
        if is_large(shapes[name]):
            by_layer.setdefault(layer, []).append({name})
        else:
            small.setdefault(layer, set()).add(name)
    for layer, together in small.items():
        by_layer.setdefault(layer, []).append(together)
    for at in range(max(map(len, by_layer.values()), default=1)):
        yield set().union(*(several[at] for several in by_layer.values() if at < len(several)))


def with_parameters(graph: ChannelGraph, shapes: Shapes, names: Collection[str]) -> ChannelGraph:
    """The graph whose layers have some of their parameters only."""
    seen: set[str] = set()
    layers = []
    for layer in graph.layers:
        own = {name: math.prod(shapes[name]) for name in layer.parameter_names if name not in seen}
        seen |= own.keys()
        if own:  # of one the model may not need all
            largest = max(own, key=lambda name: own[name])
            own[largest] -= sum(own.values()) - layer.parameters
        # Of what the channels read are multiplied by, and no other, is there as much.
        weight = next((name for name, size in own.items() if size == layer.weights), None)
        chosen = {name: size for name, size in own.items() if name in names}
        weights = layer.weights if weight in chosen or chosen.keys() == own.keys() else 0
        layers.append(replace(layer, parameters=sum(chosen.values()), weights=weights))
    return replace(graph, layers=tuple(layers))
