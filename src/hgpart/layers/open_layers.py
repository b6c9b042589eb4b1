"""The layers of a ChannelGraph while operators may still join them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import fx

from hgpart.arrays import Int64
from hgpart.layers.channel_graph import INPUT, PARAMETER, STATISTICS, Read
from hgpart.layers.elements.holdings import Use, tasks_of_channels
from hgpart.operators.calls import argument, module_of
from hgpart.operators.effects import Constant
from hgpart.operators.table import operator_of
from hgpart.sequences import distinct
from hgpart.tracing.batches import elements_of_shape
from hgpart.tracing.traced_model import TracedModel
from hgpart.tracing.traced_nodes import (
    computed_nodes,
    concrete,
    elements_of,
    first_result,
    first_tensor,
    results_read,
    updated_buffers,
)


@dataclass
class OpenLayer:
    """A layer while operators may still join it."""

    name: str
    kind: str
    start: int  # id of its first channel
    channels: int
    single: bool  # one task makes all the channels
    position: int
    output: fx.Node
    map_elements: int
    partial_elements: int
    bytes_per_element: int
    fixed_elements: int = 0
    batch_statistics: int = 0
    sum_bytes: int = 0  # bytes of an element that the head computes
    of_inputs: bool = False  # its channels are those of inputs, or computed from each of these
    macs: int = 0
    weights: int = 0
    weight_names: frozenset[str] = frozenset()  # parameters that make up these weights
    columns: bytes = b""  # tells which columns of these weights multiply the same channel
    operators: list[str] = field(default_factory=list)
    # For each parameter, and each buffer that the layer updates.
    uses: dict[str, list[Use]] = field(default_factory=dict)
    fused: dict[str, str] = field(default_factory=dict)  # those of them that a fused operator needs
    reads: list[Read] = field(default_factory=list)

    @property
    def tasks(self) -> int:
        """Number of tasks that make its channels."""
        return 1 if self.single else self.channels


class OpenLayers:
    """The layers so far, in the order in which they were opened, and the channels they make.

    Attributes
    ----------
    values : dict
        What each node met so far makes: `Channels`, a `Constant`, a list of them, or a number.
    moved : set of fx.Node
        Nodes that only pass on what they read.
    width : int
        Number of channels so far.
    position : int
        Place in the graph of the node that is looked at.
    """

    def __init__(self, traced: TracedModel) -> None:
        self.traced = traced
        self.batch = traced.batch_size
        self.any_batch = traced.has_dynamic_batch
        self.values: dict[fx.Node, Any] = {}
        self.moved: set[fx.Node] = set()
        self.all: list[OpenLayer] = []
        self.width = self.position = 0
        self.starts: list[int] = []  # first channels, ascending, and the layers that make them
        self.makers: list[OpenLayer] = []
        self.names: dict[str, int] = {}
        self.live = computed_nodes(traced.graph_module.graph, traced.results)
        self.placeholders = {
            node.name: node for node in traced.graph_module.graph.find_nodes(op="placeholder")
        }

    def join(
        self, node: fx.Node, tuples: Int64, sets: Mapping[int, tuple[Int64, Int64]]
    ) -> tuple[OpenLayer, int] | None:
        """The layer that an operator joins, and the operand that is that layer's map.

        A layer whose task j would read what task i makes is ruled out: another operand may be the
        map again, channel for channel as in ``x * x``, but not reordered as in ``x + x.flip(1)``.
        So is a layer of which a set of channels has any. Norms join the layer behind an operator
        that takes their statistics.
        """
        in_sets = np.concatenate(
            [np.zeros(0, np.int64), *(channels for channels, _ in sets.values())]
        )
        candidates = []
        for column in range(tuples.shape[1]):
            ids = tuples[:, column]
            owner = self.sole_owner(ids, node, self.norms_by(node))
            if owner is None or not len(ids) == owner.channels == len(distinct(ids)):
                continue
            if ((in_sets >= owner.start) & (in_sets < owner.start + owner.channels)).any():
                continue
            own = (tuples >= owner.start) & (tuples < owner.start + owner.channels)
            if (own <= (tuples == ids[:, None])).all():
                candidates.append((owner, column))
        return max(candidates, key=lambda pair: pair[0].position) if candidates else None

    def sole_owner(
        self, ids: Int64, node: fx.Node, beside: Iterable[fx.Node] = ()
    ) -> OpenLayer | None:
        """The layer that all ids belong to, if `node`, and others `beside`, alone read its map."""
        if len(ids) == 0 or ids.min() < 0:
            return None
        owner = self.maker(int(ids[0]))
        if not self.belongs(ids, owner) or owner.kind in (INPUT, PARAMETER):
            return None
        waiting, joining = [owner.output], {node, *beside}
        while waiting:
            value = waiting.pop()
            if value in self.traced.results:
                return None
            for user in value.users:
                if user in joining or user not in self.live:
                    continue
                if user not in self.moved:
                    return None
                waiting.append(user)
        return owner

    @staticmethod
    def norms_by(node: fx.Node) -> set[fx.Node]:
        """The nodes that normalise by the statistics that a node takes; none if it takes none."""
        norms, waiting = set[fx.Node](), [node] * operator_of(node).takes_statistics
        while waiting:
            users = set(waiting.pop().users)
            own = {user for user in users if operator_of(user).normalises}
            norms |= own
            waiting += users - own
        return norms

    def maker(self, channel: int) -> OpenLayer:
        """The layer that makes a channel."""
        return self.makers[bisect_right(self.starts, channel) - 1]

    @staticmethod
    def belongs(ids: Int64, layer: OpenLayer) -> bool:
        """Whether all of these channels belong to a layer."""
        return bool(len(ids)) and bool(
            ids.min() >= layer.start and ids.max() < layer.start + layer.channels
        )

    def begin(self, kind: str, node: fx.Node, channels: int, single: bool) -> OpenLayer:
        """Begin a layer with a node."""
        layer = OpenLayer(
            name=self.name(node, f".{STATISTICS}" * operator_of(node).takes_statistics),
            kind=kind,
            start=self.width,
            channels=channels,
            single=single,
            position=0 if kind in (INPUT, PARAMETER) else self.position,
            output=node,
            map_elements=0,
            partial_elements=0,
            bytes_per_element=first_tensor(node.meta["val"]).element_size(),
            of_inputs=kind == INPUT,
        )
        self.number(layer, channels)
        self.all.append(layer)
        return layer

    def append(
        self,
        layer: OpenLayer,
        node: fx.Node,
        held: Iterable[tuple[Constant, torch.Tensor | None]],
        ids: torch.Tensor,
    ) -> None:
        """Let a layer compute another operator, with its constants and their elements' tasks."""
        before = set(layer.uses)
        target = str(node.target)
        makers = {id(self.values.get(operand)): operand for operand in node.all_input_nodes}
        for constant, tasks in held:
            use = Use(constant, makers[id(constant)], target, tasks)
            for name in sorted(constant.origins & self.traced.parameters.keys()):
                layer.uses.setdefault(name, []).append(use)
        for buffer in updated_buffers(node):
            statistic = Constant(concrete(buffer.meta["val"].shape), frozenset({buffer.name}))
            tasks = None if layer.single else tasks_of_channels(ids, layer.start, statistic.shape)
            layer.uses[buffer.name] = [Use(statistic, buffer, target, tasks)]
        if layer.operators:
            layer.fused.update(dict.fromkeys(layer.uses.keys() - before, node.name))
        layer.operators.append(node.name)
        layer.batch_statistics += self._batch_statistics(node)
        layer.position = self.position
        layer.output = node
        results = results_read(node, self.traced.results)
        if not results:  # a norm of which only the statistics are read
            layer.map_elements = layer.fixed_elements = 0
            return
        sizes = [result.meta["val"].element_size() for result in results]
        layer.bytes_per_element = sizes[0]
        elements = np.array([self.elements(result, layer.tasks) for result in results])
        in_bytes = (elements * np.array(sizes)[:, None]).sum(axis=0).tolist()
        layer.map_elements, layer.fixed_elements = (-(-count // sizes[0]) for count in in_bytes)

    def _batch_statistics(self, node: fx.Node) -> int:
        """Number of channels for which an operator takes a mean and a variance over the batch.

        0 for a norm of weights, which have no batch, and where each sample has channels of its own.
        """
        if not (operator_of(node).is_batch_norm and argument(node, "training", True)):
            return 0
        result = first_result(node)
        channels = result.meta["val"].shape[1]
        is_of_batch = isinstance(channels, int) and self.elements(result, 1)[0] > 0
        return int(channels) if is_of_batch else 0

    def number(self, layer: OpenLayer, channels: int) -> None:
        """Give a layer new channels in place of those that it had."""
        layer.start, layer.channels = self.width, channels
        self.starts.append(layer.start)
        self.makers.append(layer)
        self.width += channels

    def name(self, node: fx.Node, suffix: str = "") -> str:
        """A unique name for the layer that a node begins."""
        name = (module_of(node) or self.traced.parameters.get(node.name, node.name)) + suffix
        self.names[name] = self.names.get(name, 0) + 1
        return name if self.names[name] == 1 else f"{name}#{self.names[name]}"

    def per_sample(self, elements: int) -> int:
        """Elements of one sample, given those of the batch."""
        return -(-elements // self.batch)

    def elements(self, node: fx.Node, tasks: int) -> tuple[int, int]:
        """Elements of a tensor that each task makes: per sample, and apart from samples."""
        counts = elements_of_shape(first_tensor(node.meta["val"]).shape) if self.any_batch else None
        if counts is None:  # as in the traced example
            return divmod(elements_of(node) // tasks, self.batch)
        per_sample, fixed = counts
        return per_sample // tasks, fixed // tasks

    def single_tasks(self, tuples: Int64) -> dict[int, Int64]:
        """Operands made by one task, whatever its channels: the channels that are met."""
        return {
            column: distinct(tuples[:, column])
            for column in range(tuples.shape[1])
            if tuples[:, column].min() >= 0
            and (maker := self.maker(int(tuples[0, column]))).single
            and self.belongs(tuples[:, column], maker)
        }

    def users(self) -> dict[str, list[OpenLayer]]:
        """The layers that have each parameter, and each buffer that they update."""
        users: dict[str, list[OpenLayer]] = {}
        for layer in self.all:
            for name in layer.uses:
                users.setdefault(name, []).append(layer)
        return users

    def origin(self, name: str) -> tuple[fx.Node, tuple[int, ...]]:
        """The placeholder of a parameter or buffer, and its shape."""
        node = self.placeholders[name]
        return node, concrete(node.meta["val"].shape)
