"""TracedModel + layers -> each layer's computation as text, for the fingerprint of a model."""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from hgpart.layers.channel_graph import OUTPUT
from hgpart.tracing.traced_model import TracedModel
from hgpart.tracing.traced_nodes import described, holds_tensors


def operations_of(
    traced: TracedModel, layers: Sequence[tuple[str, str, Sequence[str]]]
) -> list[tuple[str, ...]]:
    """The computation of each layer as text, with the re-indexing in front of it.

    `layers` has the name, the kind and the names of operators of each.
    """
    nodes = {node.name: node for node in traced.graph_module.graph.nodes}
    order = {name: at for at, name in enumerate(nodes)}
    makers = {operator: name for name, _, operators in layers for operator in operators}
    names = {**traced.buffers, **traced.parameters}
    names.update(dict.fromkeys(traced.constants, "constant"))
    result = []
    for layer, kind, operators in layers:
        inside: set[fx.Node] = set()
        waiting = list(traced.results) if kind == OUTPUT else [nodes[name] for name in operators]
        while waiting:
            node = waiting.pop()
            own = node.op == "call_function" and makers.get(node.name, layer) == layer
            if own and node not in inside and holds_tensors(node):
                inside.add(node)
                waiting.extend(node.all_input_nodes)
        ordered = sorted(inside, key=lambda node: order[node.name])
        local = {node: f"%{at}" for at, node in enumerate(ordered)}

        def reference(node: fx.Node, local: dict[fx.Node, str] = local) -> str:
            elsewhere = makers.get(node.name, names.get(node.name, node.name))
            return local.get(node, elsewhere)

        result.append(tuple(described(node, reference) for node in ordered))
    return result
