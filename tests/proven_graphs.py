"""Graphs of small models, each proven by perturbation, and what tests ask of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from perturbation import check_all, read_of_task
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from hgpart.layers.channel_graph import ChannelGraph, Layer
from hgpart.layers.layering import channel_graph
from hgpart.tracing.traced_model import TracedModel, trace
from hgpart.work.layer_module import layer_module


class Net(nn.Module):
    """A module made of parts and a function of them and the inputs."""

    def __init__(
        self, compute: Callable[..., Any], **parts: nn.Module | nn.Parameter | torch.Tensor
    ) -> None:
        super().__init__()
        self.compute = compute
        for name, part in parts.items():
            if isinstance(part, (nn.Module, nn.Parameter)):
                setattr(self, name, part)
            else:
                self.register_buffer(name, part)

    def forward(self, x: torch.Tensor, *more: torch.Tensor) -> Any:
        return self.compute(self, x, *more)


IMAGE = (2, 4, 8, 8)


def modelled(model: nn.Module, *shapes: Sequence[int], counted: bool = True) -> ChannelGraph:
    """The graph of a model, after proving it by perturbation and counting its work anew."""
    example = tuple(torch.zeros(shape) for shape in shapes or [IMAGE])
    traced = trace(model, example)
    graph = channel_graph(traced)
    check_all(traced, graph, limit=12)
    check_maps(traced, graph)
    assert [layer.kind for layer in graph.layers].count("input") == len(example)
    assert graph.layers[-1].kind == "output"
    if counted:
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(*example)
        work = sum(layer.macs * layer.tasks for layer in graph.layers)
        assert work == counter.get_total_flops() // 2 // len(example[0])
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    for layer in graph.layers:  # a shared parameter counts in the first layer that has it
        assert layer.parameters == sum(sizes.pop(name, 0) for name in layer.parameter_names)
        assert layer.weights <= layer.parameters
    assert not sizes
    return graph


def check_maps(traced: TracedModel, graph: ChannelGraph) -> None:
    """Tasks share out all that leaves their layer, and its bytes are those of their maps."""
    for at, layer in enumerate(graph.layers):
        if not layer.operators:
            continue
        made = layer_module(traced, graph, layer, traced.batch_size).results
        count = 0
        for node in made:
            channels = graph.ids[node.name].flatten().numpy().astype(np.int64)
            assert (channels >= 0).all(), (layer.name, node.name)
            tasks = graph.task_of_channel[channels] - graph.first_task[at]
            shares = np.bincount(tasks, minlength=layer.tasks)
            assert len(shares) == layer.tasks, (layer.name, node.name)
            assert (shares == shares[0]).all(), (layer.name, node.name)
            count += int(shares[0]) * node.meta["val"].element_size()
        assert layer.bytes_per_element == made[0].meta["val"].element_size()
        elements = layer.map_elements * traced.batch_size + layer.fixed_elements
        rounding = elements * layer.bytes_per_element - count  # results of several types
        assert 0 <= rounding < (traced.batch_size + 1) * layer.bytes_per_element, layer.name


def layer_of(graph: ChannelGraph, name: str) -> Layer:
    return next(layer for layer in graph.layers if name in (layer.name, unnumbered(layer.name)))


def needs(graph: ChannelGraph, name: str) -> list[set[tuple[str, int]]]:
    """What each task of a layer reads: (layer, its channel), task by task."""
    layer = layer_of(graph, name)
    result: list[set[tuple[str, int]]] = []
    for task in range(layer.tasks):
        result.append(set())
        for read in layer.reads:
            for channel in read_of_task(layer, read, task):
                if channel >= 0:
                    at = int(graph.layer_of_channel(np.array([channel]))[0])
                    number = int(channel - graph.first_channel[at])
                    result[-1].add((unnumbered(graph.layers[at].name), number))
    return result


def maps(name: str, *numbers: int) -> set[tuple[str, int]]:
    return {(name, number) for number in numbers}


def kinds(graph: ChannelGraph) -> dict[str, str]:
    """Kind of each layer between inputs and output."""
    return {
        unnumbered(layer.name): layer.kind
        for layer in graph.layers
        if layer.kind not in ("input", "output")
    }


def operators(graph: ChannelGraph, name: str) -> tuple[str, ...]:
    return tuple(map(unnumbered, layer_of(graph, name).operators))


def unnumbered(name: str) -> str:
    """A node's name without the number that torch.export gives it."""
    return re.sub(r"_\d+$", "", name)


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.rand(shape))


class StandardisedConv2d(nn.Conv2d):
    """Each filter has mean 0 and variance 1, by batch norm over a view, as timm has it."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.gain = parameter(self.out_channels, 1, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = functional.batch_norm(
            self.weight.reshape(1, self.out_channels, -1),
            None,
            None,
            weight=(self.gain * 0.3).view(-1),
            training=True,
            momentum=0.0,
        )
        return functional.conv2d(x, weight.reshape_as(self.weight), self.bias)


class VarianceConv2d(nn.Conv2d):
    """The same by var_mean."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        variance, mean = torch.var_mean(self.weight, (1, 2, 3), keepdim=True, unbiased=False)
        return functional.conv2d(x, (self.weight - mean) / (variance + 1e-5).sqrt(), self.bias)
