"""A model in one part + some tasks of a layer -> what a part computes, alone, and its seconds.

It is the module that parts have, cut by `hgpart.placement.cutting`, with made-up operands: only one
layer's tensors exist at a time, and a model on the meta device can be measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.autograd.graph import get_gradient_edge

from hgpart.arrays import Int64
from hgpart.execution.weights.gradients import map_gradients
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.operators.calls import has_gradients
from hgpart.partition import partition_graph
from hgpart.placement.building.blueprint import Blueprint
from hgpart.placement.cutting.cut_graph import CutGraph
from hgpart.placement.cutting.layouts import ChannelLayout
from hgpart.placement.cutting.node_facts import NodeFacts
from hgpart.placement.cutting.slices import Slice
from hgpart.placement.cutting.step_graph import Source, SourcePiece
from hgpart.placement.cutting.steps import Step, finishing_step
from hgpart.placement.mode_programs import make_on
from hgpart.timing.made_up import drawn
from hgpart.tracing.batches import at_batch
from hgpart.tracing.traced_model import TracedModel
from hgpart.tracing.traced_nodes import first_tensor
from hgpart.work.devices import clock_of
from hgpart.work.figures import flops


@dataclass(frozen=True, eq=False)
class Operand:
    """A tensor that a step reads.

    Attributes
    ----------
    like : torch.Tensor
        The whole tensor in the traced graph.
    sizes : sequence of sizes
        Its shape, with channels split apart from other dimensions.
    axes : tuple of int
        Dimensions of `sizes` that become one, with `count` places; empty for a whole tensor.
    learns : bool
        Whether a gradient goes back through it.
    """

    like: torch.Tensor
    sizes: Sequence[Any]
    axes: tuple[int, ...] = ()
    count: int = 0
    learns: bool = False

    def shape(self, samples: int) -> tuple[int, ...]:
        """Shape of the operand for `samples` samples."""
        return tuple(
            self.count if dim in self.axes else at_batch(size, samples)
            for dim, size in enumerate(self.sizes)
            if dim not in self.axes[1:]
        )

    def make(self, samples: int, device: torch.device) -> torch.Tensor:
        """A random tensor for the operand."""
        made = drawn(self.shape(samples), self.like.dtype, device)
        return made.requires_grad_(self.learns)


@dataclass(frozen=True, eq=False)
class ShareAlone:
    """The step that a part computes for its share of a layer.

    Attributes
    ----------
    step : Step
        The step; its weights are on the meta device until `LayerShares.fill`.
    operands : mapping of str to Operand
        Operands of the step that are tensors, by name; any other is the number of samples.
    """

    step: Step
    operands: Mapping[str, Operand]

    def values(self, samples: int, device: torch.device) -> list[torch.Tensor | int]:
        """The arguments of the module."""
        return [
            self.operands[name].make(samples, device) if name in self.operands else samples
            for name in self.step.operands
        ]

    def text(self, samples: int) -> tuple[str, ...]:
        """The computation as text without names: equal texts take equal time."""
        known: dict[fx.Node, str] = {}
        lines = []
        for node in self.step.module.graph.nodes:
            operands = fx.map_arg((node.args, dict(node.kwargs)), known.__getitem__)
            known[node] = f"%{len(known)}"
            lines.append(f"{self._called(node, samples)} {operands}")
        return tuple(lines)

    def _called(self, node: fx.Node, samples: int) -> str:
        if node.op == "placeholder" and node.target in self.operands:
            operand = self.operands[str(node.target)]
            return f"{operand.shape(samples)} {operand.like.dtype} {operand.learns}"
        if node.op == "get_attr":
            value = getattr(self.step.module, str(node.target))
            return f"{type(value)} {tuple(value.shape)} {value.dtype} {value.requires_grad}"
        return node.op if node.op in ("placeholder", "output") else str(node.target)


class LayerShares:
    """Makes shares of a model's layers.

    Parameters
    ----------
    model : nn.Module
        The traced model. Weights on the meta device are replaced by random ones, share by share.

    Raises
    ------
    PlacementError
        If the model can't be placed.
    """

    def __init__(
        self, model: nn.Module, traced: TracedModel, graph: ChannelGraph, device: torch.device
    ) -> None:
        work = flops(graph)
        trainable = {name for name, value in model.named_parameters() if value.requires_grad}
        alone = partition_graph(graph, work, 1, 0)
        facts = NodeFacts(traced, graph)
        self.graph, self._device = graph, device
        self._blueprint = Blueprint(facts, alone, work, frozenset(trainable))
        self._learns = self._blueprint.learns(inputs=False)
        named = chain(
            model.named_buffers(remove_duplicate=False),
            model.named_parameters(remove_duplicate=False),
        )
        fixed = {traced.buffers.get(name, name): value for name, value in traced.values.items()}
        self._state = {**fixed, **dict(named)}

    def share(self, at: int, count: int) -> ShareAlone:
        """The first `count` tasks of a layer, which has operators."""
        plan, tasks = self._blueprint, np.arange(count)
        sources, operands = {}, {}
        for source in self.graph.sources(self.graph.layers[at]):
            members = self._read(at, tasks, source)
            for node in plan.results[source]:
                layout = plan.layouts[node]
                name = f"from_{node.name}"
                if not len(members):  # few tasks may read nothing of a source
                    sources[node] = Source(layout, ())
                    continue
                piece = SourcePiece(name, members)
                sources[node] = Source(layout, (piece,), is_alone=True)
                operands[name] = _piece(node, layout, members, self._learns[source])
        for node, name in plan.draws.items():
            drawn_like = first_tensor(node.meta["val"])
            operands[name] = Operand(drawn_like, drawn_like.shape)
        step = CutGraph(plan.facts, at, tasks, sources, plan.draws)
        made = finishing_step(step, plan.results[at], plan.buffer_updates.get(at, {}))
        for attribute, held in made.slices.items():
            if isinstance(value := getattr(made.module, attribute), nn.Parameter):
                value.requires_grad_(held.name in plan.trainable)
        return ShareAlone(made, operands)

    def fill(self, share: ShareAlone) -> None:
        """Give a share its weights."""
        module = share.step.module
        for attribute, held in share.step.slices.items():
            setattr(module, attribute, self._filled(getattr(module, attribute), held))
        make_on(module.to(self._device), self._device)

    def _read(self, at: int, tasks: Int64, source: int) -> Int64:
        """The channels of a layer that tasks of another read, numbered within the layer."""
        layer, maker = self.graph.layers[at], self.graph.layers[source]
        if maker.tasks == 1:
            return np.arange(maker.channels)
        channels_read = []
        for read in layer.reads:
            groups = np.arange(len(read.channels)) * read.groups // max(1, len(read.channels))
            channels_read.append(read.channels[np.isin(groups, tasks * read.groups // layer.tasks)])
        first = self.graph.first_channel[source]
        channels: Int64 = np.unique(np.concatenate(channels_read)) - first
        return channels[(channels >= 0) & (channels < maker.channels)]

    def _filled(self, empty: torch.Tensor, held: Slice) -> torch.Tensor:
        full = self._state.get(held.name)
        if full is None or full.is_meta:
            value = drawn(held.local_shape, empty.dtype, self._device)
        else:
            value = held.take(full).to(self._device)
        if isinstance(empty, nn.Parameter):
            return nn.Parameter(value, empty.requires_grad)
        return value


def _piece(node: fx.Node, layout: ChannelLayout, members: Int64, learns: bool) -> Operand:
    like = first_tensor(node.meta["val"])
    count = len(layout.positions(members))
    learns = learns and has_gradients(like.dtype)
    return Operand(like, layout.apart(like.shape), layout.axes, count, learns)


class TimedShare:
    """A share of a layer with a batch of made-up operands, to be run repeatedly.

    The optimizer is plain gradient descent, by torch.

    Parameters
    ----------
    samples : int
        Samples in the batch.
    """

    def __init__(self, share: ShareAlone, samples: int, device: torch.device) -> None:
        self._module, self._now = share.step.module, clock_of(device)
        self._values = share.values(samples, device)
        self._operands = [
            get_gradient_edge(value)
            for value in self._values
            if isinstance(value, Tensor) and value.requires_grad
        ]
        learning = [parameter for parameter in self._module.parameters() if parameter.requires_grad]
        self._optimizer = torch.optim.SGD(learning, lr=0.0) if learning else None
        self._gradients: list[Tensor] = []  # of the results, the same in each run

    def run(self) -> tuple[float, ...]:
        """Run the share once; returns seconds of forward, maps, weights and update."""
        now = self._now
        begin = now()
        with torch.enable_grad():
            made = self._module(*self._values)
        forward = now() - begin
        outputs = made if isinstance(made, (tuple, list)) else (made,)
        heads = [get_gradient_edge(out) for out in outputs if out.requires_grad]
        if not heads:
            return forward, 0.0, 0.0, 0.0
        if not self._gradients:
            self._gradients = [torch.ones_like(out) for out in outputs if out.requires_grad]
        del made, outputs  # a runtime does not hold them either
        begin = now()
        _, left = map_gradients(heads, self._gradients, self._operands)
        maps = now()
        for product in left:
            product.add()
        weights = now()
        if self._optimizer is not None:
            self._optimizer.step()
        end = now()
        if self._optimizer is not None:
            self._optimizer.zero_grad()
        return forward, maps - begin, weights - maps, end - weights
