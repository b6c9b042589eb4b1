"""Ownership of the graph of one mode -> that of the other mode (training, evaluation)."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import nn

from hgpart.graph import ChannelGraph, Layer
from hgpart.hypergraph import Int64
from hgpart.placement.ownership import Ownership


def skeleton(model: nn.Module) -> nn.Module:
    """A copy of a model without its weights: floating tensors are on the meta device."""
    tensors = [*model.parameters(), *model.buffers()]
    kept = {
        id(tensor): _without_storage(tensor) for tensor in tensors if tensor.is_floating_point()
    }
    return copy.deepcopy(model, dict(kept))


def _without_storage(tensor: torch.Tensor) -> torch.Tensor:
    empty = tensor.detach().to("meta")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(empty, requires_grad=tensor.requires_grad)
    return empty


def carried_over(owners: Ownership, graph: ChannelGraph, other: ChannelGraph) -> Ownership:
    """Give each layer of another graph of the same model to those who have it in this one.

    Layers are known by their names; one that only the other graph has goes with the first layer
    that it reads: task by task where that makes as many channels as it has tasks, else whole.
    """
    index = {layer.name: at for at, layer in enumerate(graph.layers)}
    finish: list[Int64 | None] = []
    cells = []
    splits = []
    for layer in other.layers:
        at = index.get(layer.name)
        if at is not None and _alike(graph.layers[at], layer):
            split = owners.splits[at]
            reads = [read for read in layer.reads if read.partial]
            finish.append(owners.finish[at])
            cells.append(owners.cells[at])
            splits.append(reads[0] if split is not None else None)
            continue
        finish.append(_with_its_source(other, layer, finish))
        cells.append(None)
        splits.append(None)
    return Ownership(owners.k, tuple(finish), tuple(cells), tuple(splits))


def _alike(first: Layer, second: Layer) -> bool:
    def split(layer: Layer) -> list[tuple[int, int]]:
        return [(len(read.channels), read.groups) for read in layer.reads if read.partial]

    return (first.kind, first.tasks, split(first)) == (second.kind, second.tasks, split(second))


def _with_its_source(graph: ChannelGraph, layer: Layer, finish: list[Int64 | None]) -> Int64:
    for source in graph.sources(layer):
        parts = finish[source]
        if parts is not None:
            same = len(parts) == layer.tasks
            return parts if same else np.full(layer.tasks, parts[0])
    return np.zeros(layer.tasks, dtype=np.int64)
