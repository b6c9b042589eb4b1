"""A state -> whether a placement that was traced with other values can take it.

An index in a buffer may say which channels are read, and a mask how many: a placement's parts hold
and send exactly these.
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
    """Raise a PlacementError if the model would read other channels with this state.

    Parameters
    ----------
    traced : TracedModel
        The model as it was placed.
    graph : ChannelGraph
        Its channels.
    state : mapping
        Values to be loaded, by their names in the model's state_dict.
    """
    calls = [node for node in traced.graph_module.graph.nodes if node.op == "call_function"]
    sized = _behind(node for node in calls if node.name in traced.values)
    changed: dict[str, Tensor] = {}
    for placeholder, name in traced.buffers.items():
        known = traced.values.get(placeholder)
        if known is None or name not in state or placeholder in traced.updated:
            continue
        if placeholder in sized or not known.is_floating_point():
            value = state[name].to(known)
            if not torch.equal(value, known):
                changed[placeholder] = value
    if changed and (changed.keys() & sized or not _reads_alike(traced, graph, changed)):
        raise PlacementError(
            f"{traced.buffers[min(changed)]} has other values than the model was placed with, "
            "which say who reads which channels: accepted is placing the model after its state is "
            "loaded"
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
        new_ids.keys() == ids.keys() and all(torch.equal(new_ids[name], ids[name]) for name in ids)
        for ids, new_ids in ((graph.ids, other.ids), (graph.rows, other.rows))
    )
