"""A state -> whether a placement serves for it that was traced with the values of another.

An index in a buffer says which channels are read, and a mask how many: a placement has the parts
hold and send these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor, fx

from hgpart.errors import PlacementError, TraceError
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.layers.layering import channel_graph
from hgpart.tracing.traced_model import TracedModel


def check_values(traced: TracedModel, graph: ChannelGraph, state: Mapping[str, Tensor]) -> None:
    """Raise a PlacementError if with a state the model would read other channels.

    Parameters
    ----------
    traced, graph : TracedModel, ChannelGraph
        Of the model as it was placed.
    state : mapping
        By name in the model's state_dict, what is to be loaded.
    """
    made = [node for node in traced.graph_module.graph.nodes if node.op == "call_function"]
    sized = _behind(node for node in made if node.name in traced.values)
    others: dict[str, Tensor] = {}
    for placeholder, name in traced.buffers.items():
        known = traced.values.get(placeholder)
        if known is None or name not in state or placeholder in traced.updated:
            continue
        if placeholder in sized or not known.is_floating_point():
            value = state[name].to(known)
            if not torch.equal(value, known):
                others[placeholder] = value
    if others and (others.keys() & sized or not _reads_alike(traced, graph, others)):
        raise PlacementError(
            f"{traced.buffers[min(others)]} has other values than the model was placed with, which "
            "say who reads which channels: accepted is placing the model after its state is loaded"
        )


def _behind(nodes: Iterable[fx.Node]) -> set[str]:
    """Names of the placeholders that nodes depend on."""
    waiting = list(nodes)
    seen: set[fx.Node] = set()
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting.extend(node.all_input_nodes)
    return {node.name for node in seen if node.op == "placeholder"}


def _reads_alike(traced: TracedModel, graph: ChannelGraph, values: Mapping[str, Tensor]) -> bool:
    try:
        other = channel_graph(replace(traced, values={**traced.values, **values}))
    except TraceError:
        return False
    return other.fingerprint == graph.fingerprint and all(
        one.keys() == found.keys() and all(torch.equal(one[name], found[name]) for name in one)
        for one, found in ((graph.ids, other.ids), (graph.rows, other.rows))
    )
