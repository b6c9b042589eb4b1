"""Slow, obvious proof of a graph's rows: differentiate each row of a layer by its sources' rows.

It knows no windows: it runs the operators of a layer from the maps of its sources, all positive so
that no terms cancel, and asks autograd which rows of these each row of the result depends on. What
hides a dependence (the smaller elements that a maximum leaves out) is tried with other numbers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from perturbation import LayerRun
from torch import fx, nn

from hgpart.layers.channel_graph import ChannelGraph, LayerRows
from hgpart.layers.layering import channel_graph
from hgpart.tracing.traced_model import TracedModel, trace

TRIES = 40
aten = torch.ops.aten


class Calls(nn.Module):
    """A model that is a function of one map."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.function(image)


def traced_graph(model: nn.Module, *shape: int) -> tuple[TracedModel, ChannelGraph]:
    traced = trace(model.double().eval(), torch.zeros(2, *shape, dtype=torch.float64))
    return traced, channel_graph(traced)


def rows_of(
    function: Callable[..., torch.Tensor], *shape: int
) -> tuple[tuple[LayerRows, ...], TracedModel, ChannelGraph]:
    traced, graph = traced_graph(Calls(function), *shape)
    return graph.layer_rows, traced, graph


def said(rows: LayerRows) -> dict[int, list[list[int]]]:
    """For each source, the rows of it that each row of a layer reads."""
    union: dict[int, list[set[int]]] = {}
    for item in rows.reads:
        known = union.setdefault(item.source, [set() for _ in range(len(item.windows))])
        for row, own in enumerate(known):
            own |= set(item.windows.reads[row].tolist())
    return {source: [*map(sorted, own)] for source, own in union.items()}


Seen = dict[tuple[int, bytes | None], list[set[int]]]  # by source, and channels that are read alike


def seen(traced: TracedModel, graph: ChannelGraph, at: int, seed: int) -> Seen:
    """For each source, the rows of it that each row of a layer reads, as autograd finds them.

    It does so for one choice of numbers.
    """
    run, own = LayerRun(traced, graph, at), graph.layer_rows[at]
    values = {node: _positive(value) for node, value in run.values(seed).items()}
    sources = {}
    for node in run.sources:
        if node.name in graph.ids and values[node].is_floating_point():
            values[node].requires_grad_()
            sources[node] = _layer_of(run, node)
    for step in run.steps:
        args, kwargs = fx.map_arg((step.args, dict(step.kwargs)), values.__getitem__)
        is_view = step.target is aten.view.default  # of values in another order in memory
        values[step] = (aten.reshape.default if is_view else step.target)(*args, **kwargs)
    dependence: Seen = {}
    result = values[run.ends[0]]
    lines = result.flatten()[None] if own.dim is None else result.movedim(own.dim, 0)
    for line in lines:
        gradients = [None] * len(sources)
        if line.requires_grad:
            weights = torch.rand_like(line) + 0.5
            total = (line * weights).sum()
            gradients = torch.autograd.grad(
                total, [values[node] for node in sources], retain_graph=True, allow_unused=True
            )
        for (node, source), gradient in zip(sources.items(), gradients, strict=True):
            gradient = torch.zeros_like(values[node]) if gradient is None else gradient
            dim = graph.layer_rows[source].dim
            for item in own.reads:
                if item.source != source:
                    continue
                met, key = gradient != 0, None
                if item.channels is not None:
                    key = item.channels.tobytes()
                    channels = torch.from_numpy(item.channels + graph.first_channel[source])
                    met = met & torch.isin(graph.ids[node.name], channels)
                rows = met.flatten()[None] if dim is None else met.movedim(dim, 0).flatten(1)
                read = set(torch.nonzero(rows.any(1)).flatten().tolist())
                dependence.setdefault((source, key), []).append(read)
    return dependence


def check_rows(traced: TracedModel, graph: ChannelGraph) -> None:
    """For every layer, each row depends on exactly the rows that are said."""
    for at, layer in enumerate(graph.layers):
        if not layer.operators:
            continue
        expected: Seen = {
            (item.source, None if item.channels is None else item.channels.tobytes()): [
                set(item.windows.reads[row].tolist()) for row in range(len(item.windows))
            ]
            for item in graph.layer_rows[at].reads
            if graph.layers[item.source].kind != "parameter"
        }
        union: Seen = {}
        for attempt in range(TRIES):
            now = seen(traced, graph, at, attempt)
            for read, rows in now.items():
                known = union.setdefault(read, [set() for _ in rows])
                for before, more in zip(known, rows, strict=True):
                    before |= more
            nonempty = {read: rows for read, rows in union.items() if any(rows)}
            if nonempty == expected:
                break
        assert nonempty == expected, (layer.name, layer.operators)


def _layer_of(run: LayerRun, node: fx.Node) -> int:
    while node.name not in run.makers and node.op != "placeholder":
        node = node.all_input_nodes[0]
    if node.op == "placeholder":
        inputs = [at for at, layer in enumerate(run.graph.layers) if layer.kind == "input"]
        return inputs[run.traced.inputs.index(node.name)]
    return run.makers[node.name]


def _positive(value: object) -> object:
    floating = isinstance(value, torch.Tensor) and value.is_floating_point()
    return (value.double().abs() + 0.1).contiguous() if floating else value
