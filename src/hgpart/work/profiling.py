"""ChannelGraph + TracedModel -> Work: measured forward and backward seconds of each layer.

Each layer runs alone: a small GraphModule of its operators, on random operands with the shapes of
the model. So only one layer's tensors exist at a time, and a model on the meta device can be
profiled.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain

import torch
from rich.progress import TaskProgressColumn, TimeRemainingColumn
from torch import fx, nn

from hgpart.errors import ArgumentError, ModelError
from hgpart.layers.channel_graph import ChannelGraph, Layer
from hgpart.operators.calls import has_gradients, only_updated
from hgpart.terminal import progress_bar
from hgpart.tracing.batches import at_batch
from hgpart.tracing.traced_model import TracedModel
from hgpart.work.devices import clock_of, device_named, measured_on
from hgpart.work.figures import Work, measured
from hgpart.work.layer_module import LayerModule, layer_module
from hgpart.work.watching import Watch, with_note


def profile(
    model: nn.Module,
    traced: TracedModel,
    graph: ChannelGraph,
    *,
    batch_size: int = 32,
    device: str = "cpu",
    repeats: int = 5,
    warm_up: int = 2,
) -> Work:
    """Measure forward plus backward seconds of each layer, and divide them among its tasks.

    A layer's time (thesis 5.1) is the median over `repeats` of running all its operators, fused
    ones and the re-indexing in front of them included, and of computing the gradients that
    training needs: those of its parameters, and of the maps that depend on any parameter.
    Layers that compute nothing (inputs, parameters, the output) get 0.

    Parameters
    ----------
    model : nn.Module
        The traced model. Weights on the meta device are replaced by random ones, layer by layer.
    graph : ChannelGraph
        Channel graph of `traced`.
    batch_size : int
        Samples in a forward pass. A model that only runs with the batch size of its trace is
        measured with that, and its times are scaled; the work's `source` then says so.
    device : str
        "cpu", or an accelerator of this machine, such as "cuda" or "cuda:1".
    repeats, warm_up : int
        Number of measured runs, and of unmeasured runs before them.

    Raises
    ------
    ArgumentError
        If a number is out of range, or there is no such device.
    ModelError
        If a layer can't run on the device, for lack of memory for example.
    """
    for name, value, least in (
        ("batch size", batch_size, 1),
        ("repeats", repeats, 1),
        ("warm-up runs", warm_up, 0),
    ):
        if value < least:
            raise ArgumentError(f"{name} {value}: accepted is {least} or more")
    where = device_named(device)
    batch = batch_size if traced.has_dynamic_batch else traced.batch_size
    operands = _Operands(model, traced, batch, where)
    seconds, watch = [], Watch()
    with progress_bar(TaskProgressColumn(), TimeRemainingColumn()) as progress:
        bar = progress.add_task("profile", total=len(graph.layers))
        for layer in graph.layers:
            progress.update(bar, description=f"profile {layer.name}")
            median = 0.0
            if layer.operators:
                alone = layer_module(traced, graph, layer, batch, where)
                median = watch.measure(
                    partial(_median_seconds, layer, alone, operands, repeats, warm_up)
                )
            seconds.append(median * batch_size / batch)
            progress.advance(bar)
    source = with_note(_source(where, batch_size, batch), watch.disturbed)
    return measured(graph, seconds, source)


# ------------------------------------------------------------------ operands and time


class _Operands:
    """Makes the tensors that layers run on."""

    def __init__(
        self, model: nn.Module, traced: TracedModel, batch_size: int, device: torch.device
    ) -> None:
        self.batch_size = batch_size
        self.device = device
        self.needs_gradient: set[fx.Node] = set()
        for node in traced.graph_module.graph.nodes:
            if node.name in traced.parameters or self.needs_gradient.intersection(
                node.all_input_nodes
            ):
                self.needs_gradient.add(node)
            # A shared batch norm reads the statistics of its last call: these get no gradient.
            self.needs_gradient -= set(only_updated(node))
        tensors = dict(
            chain(
                model.named_parameters(remove_duplicate=False),
                model.named_buffers(remove_duplicate=False),
            )
        )
        self.own: Mapping[str, torch.Tensor] = {
            placeholder: tensors[name]
            for placeholder, name in (*traced.parameters.items(), *traced.buffers.items())
            if name in tensors and not tensors[name].is_meta
        }

    def make(self, node: fx.Node) -> torch.Tensor:
        """The model's own parameter or buffer, or a random tensor like the node's value."""
        tensor = self.own.get(node.name)
        made = self.random(node) if tensor is None else tensor.detach().to(self.device)
        return made.requires_grad_(has_gradients(made.dtype) and node in self.needs_gradient)

    def random(self, node: fx.Node) -> torch.Tensor:
        """Random numbers from 0 to 1, in the memory layout of the node's value; integers are 0.

        This makes roots, variances and indices (integers) valid.
        """
        value = node.meta["val"]
        shape = [at_batch(size, self.batch_size) for size in value.shape]
        strides = [at_batch(stride, self.batch_size) for stride in value.stride()]
        length = 1 + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
        draw = torch.rand if has_gradients(value.dtype) else torch.zeros
        flat = draw(max(length, 0), dtype=value.dtype, device=self.device)
        return flat.as_strided(shape, strides)


def _median_seconds(
    layer: Layer, alone: LayerModule, operands: _Operands, repeats: int, warm_up: int
) -> float:
    try:
        inputs = [operands.make(node) for node in alone.operands]
        gradients = [operands.random(node) for node in alone.results]
        seconds = [
            _seconds(alone.module, inputs, gradients, operands.device)
            for _ in range(warm_up + repeats)
        ]
    except (RuntimeError, IndexError) as error:
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelError(
            f"can't profile layer {layer.name!r} on {operands.device} with batch "
            f"{operands.batch_size}: {why}"
        ) from error
    return statistics.median(seconds[warm_up:])


def _seconds(
    module: fx.GraphModule,
    inputs: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor],
    device: torch.device,
) -> float:
    """Time one forward and backward pass; gradients are made anew, not added to earlier ones."""
    leaves, now = [tensor for tensor in inputs if tensor.requires_grad], clock_of(device)
    start = now()
    with torch.enable_grad():
        results = module(*inputs)
        pairs = [pair for pair in zip(results, gradients, strict=True) if pair[0].requires_grad]
        if pairs:
            outputs, upstream = zip(*pairs, strict=True)
            torch.autograd.grad(outputs, leaves, upstream, allow_unused=True)
    return now() - start


# ------------------------------------------------------------------ where it was measured


def _source(device: torch.device, batch_size: int, measured_batch: int) -> str:
    batch = f"batch {batch_size}"
    if batch_size != measured_batch:
        batch += f" (scaled from {measured_batch}, the only batch size that the model allows)"
    return f"profile {measured_on(device, batch)}"
