"""ChannelGraph: layers, their feature maps, and who reads which channel."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import networkx as nx
import numpy as np

from hgpart.arrays import Int64
from hgpart.errors import ArgumentError
from hgpart.operators.windows import Windows

if TYPE_CHECKING:
    import torch

INPUT, PARAMETER, LINEAR, WHOLE, OUTPUT = "input", "parameter", "linear", "whole", "output"
MATRICES, STATISTICS = "matrices", "statistics"


@dataclass(frozen=True)
class Read:
    """The channels that a layer's tasks read through one operand of one of its operators.

    Of T tasks, task j reads ``channels[g * C // groups : (g + 1) * C // groups]`` with
    ``g = j * groups // T``. One group is a dense layer, as many groups as tasks and channels is
    same-index (residual add, scale), and anything between is a grouped convolution.

    Attributes
    ----------
    channels : int64 array, shape (C,)
        Channel numbers in the ChannelGraph; -1 where the operand is a constant.
    sizes : int64 array, shape (C,)
        Number of input features of each channel (49 where a 7 x 7 map was flattened).
    partial : bool
        Whether a task is a sum with one term per channel, and each term has columns of the weight
        that no other term needs. Fine-grain can then split it.
    is_statistic : bool
        Whether a task needs no more than a statistic of the channels, which follows from those of
        some channels each. Each part then sends one of what it makes, as large as a task's map.
    """

    channels: Int64
    sizes: Int64
    groups: int = 1
    partial: bool = False
    is_statistic: bool = False

    @property
    def kind(self) -> str:
        """One of "all", "same index" and "group"."""
        if self.groups == 1:
            return "all"
        return "same index" if self.groups == len(self.channels) else "group"


@dataclass(frozen=True)
class OwnParameter:
    """A parameter of a layer that no layer before it has.

    Attributes
    ----------
    name : str
        Name in the model's ``state_dict``.
    elements : int
        Number of its elements that the model needs.
    element_bytes : int
        Size of an element.
    """

    name: str
    elements: int
    element_bytes: int


@dataclass(frozen=True)
class Layer:
    """A group of equal tasks, one per output channel.

    Attributes
    ----------
    name : str
        Unique: the module path of the first operator.
    kind : str
        input, parameter, dense, linear, grouped, depthwise, same index, matrices, statistics,
        reduce, whole or output.
    operators : tuple of str
        Names of the graph nodes that the layer computes, in order; the first is its head, the
        others are fused into it.
    operations : tuple of str
        The layer's computation as text, with the re-indexing in front of it: operators, numbers,
        parameters and layers, but neither graph nodes nor the batch size.
    channels : int
        Output channels: one per task, or all those that a layer's only task makes.
    map_elements : int
        Elements per sample of one task's feature map as it is sent (for a parameter: in total).
        For an operator with several results, those that are read count, in elements as large as
        the first one's, rounded up: a float32 value with its int64 index is 3 elements.
    partial_elements : int
        Elements per sample of what the head computes for one task (before pooling).
    bytes_per_element : int
        Bytes of an element of the (first) tensor that is sent.
    macs : int
        Multiply-accumulates per task and sample.
    own_parameters : tuple of OwnParameter
        The layer's parameters; one that several layers share is listed in the first of them.
    weights : int
        Number of their elements that multiply the channels read (no bias).
    parameter_names : tuple of str
        Names of its parameters in the model's ``state_dict``, including those that it shares.
    tied_to : int
        Index of the first layer that shares a parameter (or the running statistics of a norm)
        with this one; its own index if none does. Task j of both layers is one vertex.
    fixed_elements : int
        Elements of a map that do not depend on the batch size: everything made from an input
        without a batch, or from a mean over the batch. A batch of n samples less its first has
        -1 per element.
    batch_statistics : int
        Channels that batch norms of the layer normalise by a mean and a variance over the batch,
        in training mode.
    """

    name: str
    kind: str
    operators: tuple[str, ...]
    operations: tuple[str, ...]
    tasks: int
    channels: int
    map_elements: int
    partial_elements: int
    bytes_per_element: int
    macs: int
    own_parameters: tuple[OwnParameter, ...]
    weights: int
    parameter_names: tuple[str, ...]
    reads: tuple[Read, ...]
    tied_to: int
    fixed_elements: int = 0
    batch_statistics: int = 0

    @property
    def parameters(self) -> int:
        """Parameter elements of the layer; those that it shares count in the first layer."""
        return sum(parameter.elements for parameter in self.own_parameters)

    @property
    def weight(self) -> OwnParameter | None:
        """The parameter whose elements `weights` counts: the one of that size, else the largest."""
        largest_first = sorted(self.own_parameters, key=lambda parameter: -parameter.elements)
        exact = (parameter for parameter in largest_first if parameter.elements == self.weights)
        return next(exact, next(iter(largest_first), None))


@dataclass(frozen=True)
class Mixing:
    """What keeps a model's batch from being divided, each as a clause; "" if nothing does.

    Attributes
    ----------
    operator : str
        The first operator that computes a sample from others.
    norm : str
        The first batch norm without running statistics: it takes those of the batch in evaluation
        as well.
    ignored : tuple of (str, int)
        Placeholders of inputs, and the target in each that a mean over targets ignores. If a
        step finds no such target, the mean is a mean over samples.
    """

    operator: str = ""
    norm: str = ""
    ignored: tuple[tuple[str, int], ...] = ()

    def of_norms(self, norms: str) -> str:
        """The obstacle where norms take their statistics of each "slice", or of the "batch"."""
        return self.operator or (self.norm if norms != "batch" else "")


@dataclass(frozen=True, eq=False)
class SourceRows:
    """The rows of another layer's maps that a layer's rows are computed from.

    Attributes
    ----------
    source : int
        Index of the other layer.
    windows : Windows
        For each row of the layer, exactly the rows of the source. A layer or source without bands
        counts as one row.
    is_summed : bool
        Whether the layer needs no more of the source than a sum of its rows; see `RowSum`.
    channels : int64 array or None
        The channels of the source that are read so, numbered within it, ascending; None for all.
        Attention reads queries row by row, and keys and values in all rows, though one layer may
        make all three. Channels are told apart where the source has a task for each and the layer
        has neither tied weights nor batch norms; in `RowSum` they never are.
    """

    source: int
    windows: Windows
    is_summed: bool = False
    channels: Int64 | None = None


@dataclass(frozen=True, eq=False)
class RowSum:
    """A sum or mean over rows that ends a layer's bands: partial sums of rows can travel.

    Attributes
    ----------
    operator : str
        The graph node that sums. What the layer computes before has rows, what it computes behind
        has none.
    height : int
        Number of rows that are summed.
    elements : int
        Elements of a task's sum, and so of each partial sum, per sample.
    ends : bool
        Whether nothing but the sum is left of any source, and the layer has neither weights nor
        norms. A task can then be computed as a partial sum of each band.
    reads : tuple of SourceRows
        The rows of each source that each summed row is computed from.
    """

    operator: str
    height: int
    elements: int
    ends: bool
    reads: tuple[SourceRows, ...]


@dataclass(frozen=True, eq=False)
class LayerRows:
    """The rows of a layer's maps, and what each of them is computed from.

    Attributes
    ----------
    height : int or None
        Number of rows; None if the layer has one band, whatever the rows of its maps.
    dim : int or None
        Dimension of the rows in the layer's result.
    reads : tuple of SourceRows
        One for each layer that this one reads, in ascending order; several if it reads different
        rows of different channels.
    head : Windows or None
        For each row, the rows that it is computed from of what the layer's head computes, before
        pooling; None if that has no rows.
    total : RowSum or None
        The sum over rows that ends the bands, if one does.
    ended_by : str
        The graph node that ends the bands: it needs all rows of a map that has several. Empty if
        the layer has rows, or reads none.
    reason : str
        Why the layer has one band, in words; empty if it has rows.
    """

    height: int | None = None
    dim: int | None = None
    reads: tuple[SourceRows, ...] = ()
    head: Windows | None = None
    total: RowSum | None = None
    ended_by: str = ""
    reason: str = ""

    @property
    def is_banded(self) -> bool:
        """Whether there are rows to divide."""
        return self.height is not None and self.height > 1

    def read_in_bands(self, *, of_partial_sums: bool) -> tuple[SourceRows, ...]:
        """What each row of the layer reads, or each row that a partial sum adds up."""
        return self.total.reads if of_partial_sums and self.total is not None else self.reads


def _rows_left_behind(graph: ChannelGraph) -> tuple[LayerRows, ...]:
    raise ArgumentError(
        "rows of a graph from another process, which were not known when it was sent: accepted is "
        "to ask for layer_rows before"
    )


def _without_rows(graph: ChannelGraph) -> tuple[LayerRows, ...]:
    return tuple(LayerRows() for _ in graph.layers)


@dataclass(frozen=True)
class ChannelGraph:
    """What a model does, per channel.

    Channels and tasks are numbered through all layers in order. `ids` holds, for each node of the
    traced graph, the channel of each element of its result (-1 for constants). `rows` holds, for
    each node that is computed from parameters with every element made from one row (dimension 0),
    that row: a tensor of the node's shape, parameters included. `mixing` says what computes a
    sample of the batch from others. `find_rows` is asked for `layer_rows` once these are wanted.
    """

    layers: tuple[Layer, ...]
    ids: Mapping[str, torch.Tensor]
    rows: Mapping[str, torch.Tensor] = field(default_factory=dict)
    mixing: Mixing = Mixing()
    find_rows: Callable[[ChannelGraph], tuple[LayerRows, ...]] = field(
        default=_without_rows, repr=False, compare=False
    )

    @cached_property
    def layer_rows(self) -> tuple[LayerRows, ...]:
        """The rows of each layer's maps, and what they are computed from."""
        return self.find_rows(self)

    @property
    def has_heads(self) -> bool:
        """Whether a layer multiplies several matrices, as attention in heads does."""
        return any(layer.kind == MATRICES for layer in self.layers)

    @property
    def most_rows(self) -> int:
        """Rows of the tallest maps that can be divided; 1 if none can."""
        return max(rows.height or 1 for rows in self.layer_rows)

    def __getstate__(self) -> dict[str, Any]:
        """What travels to another process: no traced model, and rows if they are known by then."""
        return {**vars(self), "find_rows": _rows_left_behind}

    @cached_property
    def tied_layers(self) -> frozenset[int]:
        """Layers whose weights others share."""
        return frozenset(
            layer.tied_to for at, layer in enumerate(self.layers) if layer.tied_to != at
        )

    def layers_tied_to(self, at: int) -> tuple[int, ...]:
        """A layer, with those that share a weight with it, if any do."""
        first = self.layers[at].tied_to
        if first == at and at not in self.tied_layers:
            return (at,)
        return tuple(other for other, layer in enumerate(self.layers) if layer.tied_to == first)

    @cached_property
    def first_channel(self) -> Int64:
        """Number of each layer's first channel, and the number of channels last."""
        return np.cumsum([0, *(layer.channels for layer in self.layers)], dtype=np.int64)

    @cached_property
    def first_task(self) -> Int64:
        """Number of each layer's first task, and the number of tasks last."""
        return np.cumsum([0, *(layer.tasks for layer in self.layers)], dtype=np.int64)

    @cached_property
    def task_of_channel(self) -> Int64:
        """The task that makes each channel."""
        return np.concatenate(
            [
                first + (np.arange(layer.channels) if layer.tasks > 1 else np.zeros(layer.channels))
                for first, layer in zip(self.first_task[:-1], self.layers, strict=True)
            ]
        ).astype(np.int64)

    def layer_of_channel(self, channels: Int64) -> Int64:
        """Index of the layer that makes each of `channels`."""
        return np.searchsorted(self.first_channel, channels, side="right") - 1

    def map_bytes(self, layer: Layer, batch_size: int, bytes_per_element: int | None) -> int:
        """Bytes of one task's feature map; a parameter is sent once, whatever the batch."""
        samples = 1 if layer.kind == PARAMETER else batch_size
        elements = layer.map_elements * samples + layer.fixed_elements
        return elements * (bytes_per_element or layer.bytes_per_element)

    def sources(self, layer: Layer) -> tuple[int, ...]:
        """Indices of the layers that a layer reads, in ascending order."""
        read = [item.channels[item.channels >= 0] for item in layer.reads]
        sources = {
            int(layer) for channels in read for layer in np.unique(self.layer_of_channel(channels))
        }
        return tuple(sorted(sources))

    def to_networkx(self) -> nx.DiGraph:
        """Layers as a DiGraph in topological order: nodes are names with the layer's fields.

        An edge runs from a layer to each layer that reads it; `channels` counts the channels read.
        """
        graph = nx.DiGraph()
        for layer in self.layers:
            graph.add_node(
                layer.name,
                kind=layer.kind,
                operators=layer.operators,
                tasks=layer.tasks,
                map_elements=layer.map_elements,
                macs=layer.macs * layer.tasks,
                parameters=layer.parameters,
            )
        for layer in self.layers:
            read = [item.channels[item.channels >= 0] for item in layer.reads]
            channels = np.unique(np.concatenate([np.zeros(0, np.int64), *read]))
            sources, counts = np.unique(self.layer_of_channel(channels), return_counts=True)
            for source, count in zip(sources.tolist(), counts.tolist(), strict=True):
                graph.add_edge(self.layers[source].name, layer.name, channels=count)
        return graph

    @cached_property
    def fingerprint(self) -> str:
        """A digest of what the layers compute and read: equal for equal models.

        It depends neither on the weights nor on the batch size that was traced (unless the model
        fixes it), but it does depend on the mode, training or evaluation.
        """
        digest = hashlib.sha256()
        # What the operations already tell is left out, and of parameters all but their number.
        left_out = ("operators", "reads", "fixed_elements", "batch_statistics")
        facts = [fact.name for fact in fields(Layer) if fact.name not in left_out]
        facts[facts.index("own_parameters")] = "parameters"
        for layer in self.layers:
            known = [getattr(layer, fact) for fact in facts]
            known += [layer.fixed_elements] if layer.fixed_elements else []
            sizes = [parameter.element_bytes for parameter in layer.own_parameters]
            known += [sizes] if {*sizes} - {layer.bytes_per_element} else []
            digest.update(repr(known).encode())
            for read in layer.reads:
                known = [read.groups, read.partial]
                known += [read.is_statistic] if read.is_statistic else []
                digest.update(repr(tuple(known)).encode())
                digest.update(read.channels.tobytes())
                digest.update(read.sizes.tobytes())
        return digest.hexdigest()[:16]
