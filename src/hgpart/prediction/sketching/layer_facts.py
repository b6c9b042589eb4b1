"""TracedModel + ChannelGraph -> LayerFacts: what is simulated of each layer, whatever the plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from torch import fx

from hgpart.arrays import Int64
from hgpart.execution.program import Share, TransferredTensor
from hgpart.layers.channel_graph import OUTPUT, PARAMETER, ChannelGraph, Layer
from hgpart.partition import Partition
from hgpart.placement.building.blueprint import Blueprint, tensor_of
from hgpart.placement.building.order import keeps_layer_apart
from hgpart.placement.cutting.node_facts import NodeFacts
from hgpart.tracing.traced_model import TracedModel


class Edge(NamedTuple):
    """Channels of a layer that another one reads through one operand.

    Attributes
    ----------
    reader : int
        Index of the layer that reads.
    channels : int64 array
        Channels, numbered within the layer that is read.
    groups : int64 array or None
        The group of tasks that reads each of them; None if all tasks do.
    total : int
        Number of groups.
    is_once : bool
        Whether each of the channels is there once.
    """

    reader: int
    channels: Int64
    groups: Int64 | None
    total: int
    is_once: bool = True


class SentTensor(NamedTuple):
    """A tensor in which channels of a layer travel.

    Attributes
    ----------
    places : int64 array or None
        Places of each channel along the dimension that is cut; None if all of it is sent.
    unit : TransferredTensor
        One such place, or all.
    """

    places: Int64 | None
    unit: TransferredTensor

    def nbytes(self, share: Share, batch_size: int) -> int:
        """Bytes of a place, or of all, for the samples that a share has of a batch."""
        return replace(self.unit, share=share).nbytes(batch_size)


class LayerFact(NamedTuple):
    """A layer, as far as it is simulated.

    Attributes
    ----------
    edges : tuple of Edge
        Its readers, ascending.
    tensors : tuple of SentTensor
        The tensors that it sends.
    returned : bool
        Whether a gradient of what it sends comes back.
    trains, returns, multiplies : bool
        See `LayerShare`.
    computes : bool
        Whether it has operators.
    sources : tuple of int
        The layers that it reads, in the order of its operands.
    is_apart : bool
        Whether it can be computed for several shares of the batch at once.
    matrices : tuple of (int, int, int)
        Rows, columns and bytes of an element of each matrix whose gradient is a product.
    """

    layer: Layer
    edges: tuple[Edge, ...]
    tensors: tuple[SentTensor, ...]
    returned: bool
    trains: bool
    returns: bool
    multiplies: bool
    computes: bool
    sources: tuple[int, ...]
    is_apart: bool
    matrices: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, eq=False)
class LayerFacts:
    """Facts about all layers of a model.

    Attributes
    ----------
    trainable : frozenset of str
        Names of the parameters that need gradients.
    blueprint : Blueprint
        The blueprint of the whole model, which knows its parameters.
    trains : bool
        Whether a step has a backward pass; if not, norms take no statistics.
    """

    graph: ChannelGraph
    layers: tuple[LayerFact, ...]
    trainable: frozenset[str]
    blueprint: Blueprint
    trains: bool = True

    @classmethod
    def of(
        cls,
        traced: TracedModel,
        partition: Partition,
        trainable: frozenset[str],
        trains: bool = True,
    ) -> LayerFacts:
        """Find the facts; of the partition its graph and work count alone."""
        facts = NodeFacts(traced, partition.problem.graph)
        blueprint = Blueprint(facts, partition, partition.problem.work, trainable)
        return cls.of_blueprint(blueprint, trains)

    @classmethod
    def of_blueprint(cls, blueprint: Blueprint, trains: bool = True) -> LayerFacts:
        """The facts of a blueprint's model."""
        graph, learns = blueprint.graph, blueprint.learns(inputs=False)
        edges = _edges(graph)
        count = len(graph.layers)
        layers = tuple(
            LayerFact(
                layer=layer,
                edges=tuple(edges[at]),
                tensors=() if layer.kind == OUTPUT else tuple(_tensors(blueprint, at)),
                returned=blueprint.returned[:count][at],
                trains=not blueprint.trainable.isdisjoint(layer.parameter_names),
                returns=any(learns[source] for source in graph.sources(layer)),
                multiplies=layer.macs > 0,
                computes=bool(layer.operators) or layer.kind == PARAMETER,
                sources=tuple(_sources(blueprint, at)),
                is_apart=keeps_layer_apart(blueprint, at),
                matrices=tuple(_matrices(blueprint, layer)),
            )
            for at, layer in enumerate(graph.layers)
        )
        return cls(graph, layers, blueprint.trainable, blueprint, trains)


def _edges(graph: ChannelGraph) -> list[list[Edge]]:
    """The readers of each layer."""
    edges: list[list[Edge]] = [[] for _ in graph.layers]
    for at, layer in enumerate(graph.layers):
        for read in layer.reads:
            known = np.flatnonzero(read.channels >= 0)
            channels = read.channels[known]
            groups = known * read.groups // max(1, len(read.channels))
            sources = graph.layer_of_channel(channels)
            for source in np.unique(sources).tolist():
                of_source = sources == source
                local = channels[of_source] - graph.first_channel[source]
                if read.groups == 1:
                    edges[source].append(Edge(at, np.unique(local), None, 1))
                else:
                    is_once = len(np.unique(local)) == len(local)
                    edge = Edge(at, local, groups[of_source], read.groups, is_once)
                    edges[source].append(edge)
    return edges


def _sources(blueprint: Blueprint, at: int) -> list[int]:
    """The layers that a layer reads, in the order in which its step gets to them."""
    layer = blueprint.graph.layers[at]
    sources = blueprint.graph.sources(layer)
    of_nodes = {node: source for source in sources for node in blueprint.results[source]}
    read, seen, waiting = dict[int, None](), set[fx.Node](), [*reversed(blueprint.results[at])]
    while waiting:
        node = waiting.pop()
        if node in of_nodes:
            read[of_nodes[node]] = None
        elif node not in seen:
            seen.add(node)
            waiting += reversed(node.all_input_nodes)
    return [*read, *(source for source in sources if source not in read)]


def _tensors(blueprint: Blueprint, at: int) -> list[SentTensor]:
    layer, tensors = blueprint.graph.layers[at], []
    for node in blueprint.results[at]:
        layout = blueprint.layouts[node]
        unit = tensor_of(node, layout.apart(node.meta["val"].shape), layout.axes, 1, Share())
        places = np.bincount(layout.channels, minlength=layer.channels) if layout.axes else None
        tensors.append(SentTensor(places, unit))
    return tensors


def _matrices(blueprint: Blueprint, layer: Layer) -> list[tuple[int, int, int]]:
    matrices = []
    for placeholder, name in blueprint.traced.parameters.items():
        if name in layer.parameter_names and name in blueprint.trainable:
            value = blueprint.nodes[placeholder].meta["val"]
            if value.dim() == 2:
                matrices.append((*map(int, value.shape), value.element_size()))
    return matrices
