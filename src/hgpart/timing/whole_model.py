"""A model in one part -> seconds of its layers where a step computes them: among all others.

A layer on its own finds its operands in caches, and memory that was given back a moment ago; a
layer in a step does not. So what shares of layers take on their own says how a layer's time grows
with shares, and these steps say what it is.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from hgpart.arrays import Float64
from hgpart.execution.engine import PartRun
from hgpart.execution.instructions import Compute, Instruction, prepare
from hgpart.execution.program import PartProgram
from hgpart.execution.threads.local_channel import LocalChannel
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.partition import partition_graph
from hgpart.partitioned_model import PartitionedModel
from hgpart.placement import Placement, place
from hgpart.placement.accounting import known_peak_bytes
from hgpart.placement.as_module.original_modules import skeleton
from hgpart.timing.made_up import drawn, weight
from hgpart.timing.passes import clock_of
from hgpart.tracing.batches import at_batch
from hgpart.tracing.traced_model import TracedModel
from hgpart.work.devices import memory_left
from hgpart.work.figures import flops

GRADIENTS = 3  # times the bytes of the weights: they, their gradients, and what optimizers keep


@dataclass(frozen=True, eq=False)
class WholeModel:
    """A program that computes all of a model, and batches of made up inputs for it.

    Attributes
    ----------
    program : PartProgram
        With made up weights.
    layers : mapping of str to int
        Of its steps by name.
    batches : mapping of int to mapping
        By the number of samples, values of its placeholders.
    device : torch.device
    """

    program: PartProgram
    layers: Mapping[str, int]
    batches: Mapping[int, Mapping[str, Any]]
    device: torch.device

    def step(self, samples: int, *, apart: bool = False) -> Float64:
        """Go through it once, forward and backward, as the runtime of a part does.

        Parameters
        ----------
        samples : int
            One of those of `batches`.
        apart : bool
            Whether gradients of weights are computed when all those of maps are there, as in a
            backward pass in halves.

        Returns
        -------
        float64 array, shape (layers, 3)
            Seconds of forward, backward and update; or `apart` of forward, maps and weights. At
            once, layers that follow one another are computed together (see `together`): each gets
            an equal share of what they take.
        """
        prepared, now = prepare(self.program, joined=not apart), clock_of(self.device)
        steps = [one for one, _ in prepared.instructions]
        rows = [self._layers(one) for one in steps]
        found = np.zeros((max(self.layers.values()) + 1, 3))
        run = PartRun(self.program, LocalChannel([self.device]), self.device, 1, not apart)
        with torch.enable_grad():
            run.begin(self.batches[samples])
            for layers, (step, finished) in zip(rows, prepared.instructions, strict=True):
                begin = now()
                step.forward(run)
                for slot in finished:
                    run.values[slot] = None
                found[layers, 0] += (now() - begin) / max(1, len(layers))
            results = run.results()
        run.begin_backward([torch.ones_like(one) if one.requires_grad else None for one in results])
        with torch.no_grad():
            for layers, step in zip(reversed(rows), reversed(steps), strict=True):
                begin = now()
                step.backward(run, not apart)
                found[layers, 1] += (now() - begin) / max(1, len(layers))
            for layers, step in zip(reversed(rows), reversed(steps), strict=True):
                if isinstance(step, Compute):
                    begin = now()
                    if apart:
                        step.backward_weights(run)
                    else:
                        for module in step.modules(self.program.module):
                            _update(module)
                    found[layers, 2] += (now() - begin) / len(layers)
        run.end_backward()
        self.program.module.zero_grad()
        return found

    @property
    def together(self) -> list[list[int]]:
        """Layers that are computed together where gradients are not computed apart."""
        return [self._layers(one) for one, _ in prepare(self.program, joined=True).instructions]

    def _layers(self, instruction: Instruction) -> list[int]:
        steps = instruction.steps if isinstance(instruction, Compute) else ()
        return [self.layers[step.name] for step in steps]

    def to_bytes(self) -> bytes:
        """What `from_bytes` makes the same of, in another process; weights are not in it."""
        module = self.program.module
        bare = replace(self.program, module=skeleton(module))
        return pickle.dumps((bare, self.layers, self.batches, self.device))

    @staticmethod
    def from_bytes(text: bytes) -> WholeModel:
        """Make one with other weights."""
        whole = WholeModel(*pickle.loads(text))
        for module in whole.program.module.modules():
            for name, value in module.named_parameters(recurse=False):
                if value.is_meta:
                    made = weight(value).to(whole.device)
                    setattr(module, name, nn.Parameter(made, value.requires_grad))
            for name, buffer in module.named_buffers(recurse=False):
                if buffer.is_meta:
                    setattr(module, name, weight(buffer).to(whole.device))
        return whole


def _update(step: nn.Module) -> None:
    """Gradient descent, by as much as nothing."""
    for parameter in step.parameters():
        if parameter.grad is not None:
            parameter.add_(parameter.grad, alpha=0.0)


def whole_model(
    model: nn.Module,
    traced: TracedModel,
    graph: ChannelGraph,
    samples: Sequence[int],
    device: torch.device,
) -> WholeModel | None:
    """Place a model in one part, for batches of some numbers of samples.

    Of these, as many are there as memory has room for; None if it has none for one of them.

    Raises
    ------
    PlacementError
        If it can't be placed.
    """
    work = flops(graph)
    alone = partition_graph(graph, work, 1, 0)
    described = PartitionedModel(traced, graph, work, alone, alone.evaluation, {})
    placement = place(skeleton(model), described, [device])
    state = model.state_dict()
    nbytes = sum(value.nbytes for value in state.values())
    left = memory_left(device) - GRADIENTS * nbytes
    fitting = []
    for size in samples:
        (peak,) = known_peak_bytes(placement, placement.runtime.whole_batch, size)
        if peak is not None and peak <= left:
            fitting.append(size)
    if not fitting:
        return None
    placement.for_batch(fitting[-1])  # a model may compute a single sample by another program
    fitting = [size for size in fitting if placement.forms.takes(size)]
    placement.load_state_dict({name: weight(value) for name, value in state.items()})
    return WholeModel(
        program=placement.programs.parts[0],
        layers={name: at for at, name in enumerate(placement.programs.blueprint.names)},
        batches={size: _batch(placement, size, device) for size in fitting},
        device=device,
    )


def _batch(placement: Placement, samples: int, device: torch.device) -> Mapping[str, Any]:
    traced = placement.programs.blueprint.traced
    nodes = {node.name: node for node in traced.graph_module.graph.nodes}
    inputs = [nodes[name].meta["val"] for name in traced.inputs]
    made = [
        drawn([at_batch(size, samples) for size in one.shape], one.dtype, device) for one in inputs
    ]
    return placement.passes.batches(made, [samples])[0]
