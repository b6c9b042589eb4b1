"""A model in one part -> seconds of its layers where a step computes them: among all others.

A layer alone finds its operands in caches, and memory that was freed a moment ago; a layer in a
step does not. So shares of layers measured alone tell how a layer's time grows with its share, and
these steps tell what the time is.
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
from hgpart.tracing.batches import at_batch
from hgpart.tracing.traced_model import TracedModel
from hgpart.work.devices import clock_of, memory_left
from hgpart.work.figures import flops

GRADIENTS = 3  # times the bytes of the weights: weights, gradients, and the optimizer's state


@dataclass(frozen=True, eq=False)
class WholeModel:
    """A program that computes all of a model, and batches of made-up inputs for it.

    Attributes
    ----------
    program : PartProgram
        The program, with made-up weights.
    layers : mapping of str to int
        Layers of its steps, by the steps' names.
    batches : mapping of int to mapping
        For numbers of samples, the values of the program's placeholders.
    """

    program: PartProgram
    layers: Mapping[str, int]
    batches: Mapping[int, Mapping[str, Any]]
    device: torch.device

    def step(self, samples: int, *, apart: bool = False) -> Float64:
        """Run the program once, forward and backward, as the runtime of a part does.

        Parameters
        ----------
        samples : int
            One of the keys of `batches`.
        apart : bool
            Whether gradients of weights are computed after all those of maps, as in a backward
            pass in halves.

        Returns
        -------
        float64 array, shape (layers, 3)
            Seconds of forward, backward and update; with `apart`, of forward, maps and weights.
            Without it, consecutive layers are computed together (see `together`), and each gets an
            equal share of their time.
        """
        prepared, now = prepare(self.program, joined=not apart), clock_of(self.device)
        steps = [instruction for instruction, _ in prepared.instructions]
        rows = [self._layers(step) for step in steps]
        seconds = np.zeros((max(self.layers.values()) + 1, 3))
        run = PartRun(self.program, LocalChannel([self.device]), self.device, 1, not apart)
        with torch.enable_grad():
            run.begin(self.batches[samples])
            for layers, (step, finished) in zip(rows, prepared.instructions, strict=True):
                begin = now()
                step.forward(run)
                for slot in finished:
                    run.values[slot] = None
                seconds[layers, 0] += (now() - begin) / max(1, len(layers))
            results = run.results()
        run.begin_backward(
            [torch.ones_like(result) if result.requires_grad else None for result in results]
        )
        with torch.no_grad():
            for layers, step in zip(reversed(rows), reversed(steps), strict=True):
                begin = now()
                step.backward(run, not apart)
                seconds[layers, 1] += (now() - begin) / max(1, len(layers))
            for layers, step in zip(reversed(rows), reversed(steps), strict=True):
                if isinstance(step, Compute):
                    begin = now()
                    if apart:
                        step.backward_weights(run)
                    else:
                        for module in step.modules(self.program.module):
                            _update(module)
                    seconds[layers, 2] += (now() - begin) / len(layers)
        run.end_backward()
        self.program.module.zero_grad()
        return seconds

    @property
    def together(self) -> list[list[int]]:
        """Groups of layers that are computed together unless gradients are computed apart."""
        return [self._layers(step) for step, _ in prepare(self.program, joined=True).instructions]

    def _layers(self, instruction: Instruction) -> list[int]:
        steps = instruction.steps if isinstance(instruction, Compute) else ()
        return [self.layers[step.name] for step in steps]

    def to_bytes(self) -> bytes:
        """The model, without weights, for `from_bytes` in another process."""
        module = self.program.module
        bare = replace(self.program, module=skeleton(module))
        return pickle.dumps((bare, self.layers, self.batches, self.device))

    @staticmethod
    def from_bytes(text: bytes) -> WholeModel:
        """The model of `to_bytes`, with other weights."""
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
    """Gradient descent with step size 0."""
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
    """Place a model in one part, with batches of the given numbers of samples.

    Numbers of samples for which memory has no room are left out; None if it has room for none.

    Raises
    ------
    PlacementError
        If the model can't be placed.
    """
    alone = partition_graph(graph, flops(graph), 1, 0)
    described = PartitionedModel(traced, alone, alone.evaluation, {})
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
    names = enumerate(placement.programs.blueprint.names)
    return WholeModel(
        program=placement.programs.parts[0],
        layers={step: at for at, name in names for step in (name, f"{name}_partial")},
        batches={size: _batch(placement, size, device) for size in fitting},
        device=device,
    )


def _batch(placement: Placement, samples: int, device: torch.device) -> Mapping[str, Any]:
    traced = placement.programs.blueprint.traced
    nodes = {node.name: node for node in traced.graph_module.graph.nodes}
    inputs = [nodes[name].meta["val"] for name in traced.inputs]
    made = [
        drawn([at_batch(size, samples) for size in value.shape], value.dtype, device)
        for value in inputs
    ]
    return placement.passes.batches(made, [samples])[0]
