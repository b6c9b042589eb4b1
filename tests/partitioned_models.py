"""Models to partition: small traced ones by name, and random ChannelGraphs with their work."""

from __future__ import annotations

from functools import cache

import channel_graphs as graphs
import numpy as np
import torch
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

from hgpart.hypergraph.blocks import Blocks
from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.channel_graph import (
    INPUT,
    OUTPUT,
    PARAMETER,
    ChannelGraph,
    Layer,
    OwnParameter,
    Read,
)
from hgpart.layers.layering import channel_graph
from hgpart.partition.problem.problem import Problem
from hgpart.tracing.traced_model import trace
from hgpart.work.figures import Work


def with_capacities(
    graph: ChannelGraph, work: Work, modelling: Modelling, room: np.ndarray
) -> Problem:
    """A problem whose parts have room for these loads, whatever the eps and speeds would be."""
    problem = Problem(graph, work, modelling, len(room))
    vars(problem)["capacities"] = room
    return problem


# ------------------------------------------------------------------ traced models


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.body = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 1))
        self.head = nn.Linear(8 * 4, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        maps = self.stem(image)
        maps = torch.relu(maps + self.body(maps))
        return self.head(nn.functional.adaptive_avg_pool2d(maps, 2).flatten(1))


class Tied(nn.Module):
    """One convolution at two resolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.shared = nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8 * 4 * 4, 4)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        maps = self.shared(torch.relu(self.stem(image)))
        maps = self.shared(nn.functional.max_pool2d(maps, 2))
        return self.head(nn.functional.max_pool2d(maps, 2).flatten(1))


class Branches(nn.Module):
    """Two towers that share nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 6, 3))
        self.right = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 6, 3))

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.left(left), self.right(right)


class HeavyWhole(nn.Module):
    """Most of the work is a convolution with a spectral norm, which is one whole task."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.normed = nn.Conv2d(3, 8, 1), spectral_norm(nn.Conv2d(8, 8, 1))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.normed(self.stem(image))


def depthwise() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(8, 8, 3, groups=8), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8), nn.BatchNorm2d(8)
    )


def plain() -> nn.Module:
    """Every layer has 16 tasks, so that halves and quarters of it are whole tasks."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 4 * 4, 16),
    )


def grouped() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(4, 8, 3), nn.Conv2d(8, 12, 3, groups=4), nn.BatchNorm2d(12), nn.Conv2d(12, 5, 3)
    )


def single() -> nn.Module:
    """The second convolution has one task, which fine-grain splits."""
    return nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 1, 3))


def pooling() -> nn.Module:
    return nn.Sequential(nn.MaxPool2d(2), nn.ReLU(), nn.AvgPool2d(2))


MODELS = {
    "plain": (plain, (3, 8, 8)),
    "residual": (Residual, (3, 8, 8)),
    "grouped": (grouped, (4, 8, 8)),
    "tied": (Tied, (3, 16, 16)),
    "depthwise": (depthwise, (8, 8, 8)),
    "single": (single, (3, 8, 8)),
    "branches": (Branches, (3, 8, 8)),
    "heavy": (HeavyWhole, (3, 4, 4)),
    "pooling": (pooling, (3, 8, 8)),
}


@cache
def built(name: str) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    make, shape = MODELS[name]
    inputs = 2 if make is Branches else 1
    return make(), tuple(torch.zeros(2, *shape) for _ in range(inputs))


@cache
def graph_of(name: str) -> ChannelGraph:
    return channel_graph(trace(*built(name)))


# ------------------------------------------------------------------ random ChannelGraphs


class GraphMaker:
    """Builds a ChannelGraph layer by layer; each method returns the new layer's channels."""

    def __init__(self) -> None:
        self.layers: list[Layer] = []
        self.width = 0

    def add(
        self,
        kind: str,
        tasks: int,
        reads: tuple[Read, ...] = (),
        *,
        channels: int | None = None,
        elements: int = 1,
        weights: int = 0,
        bias: int = 0,
        tied_to: int | None = None,
    ) -> np.ndarray:
        at = len(self.layers)
        channels = tasks if channels is None else channels
        own = tied_to is None
        self.layers.append(
            Layer(
                name=f"layer{at}",
                kind=kind,
                operators=(f"layer{at}",),
                operations=(),
                tasks=tasks,
                channels=channels,
                map_elements=elements,
                partial_elements=2 * elements,
                bytes_per_element=4,
                macs=weights // tasks * elements,
                own_parameters=(OwnParameter("", weights + tasks * bias, 4),) if own else (),
                weights=weights if own else 0,
                parameter_names=(),
                reads=reads,
                tied_to=at if tied_to is None else tied_to,
            )
        )
        self.width += channels
        return np.arange(self.width - channels, self.width)

    def graph(self) -> ChannelGraph:
        return ChannelGraph(tuple(self.layers), {})


def read(channels: np.ndarray, sizes: int = 1, groups: int = 1, partial: bool = False) -> Read:
    return Read(channels.astype(np.int64), np.full(len(channels), sizes), groups, partial)


def chain(widths: list[int], loads: list[int], elements: list[int]) -> tuple[ChannelGraph, Work]:
    """Dense layers, each with all its work and the size of each of its maps given."""
    maker = GraphMaker()
    channels = maker.add(INPUT, 1, channels=3)
    for width, size in zip(widths, elements, strict=True):
        channels = maker.add(
            "dense", width, (read(channels, partial=True),), elements=size, weights=width
        )
    maker.add(OUTPUT, 1, (read(channels),), channels=0)
    per_task = [0, *(load // width for load, width in zip(loads, widths, strict=True)), 0]
    return maker.graph(), Work(np.array(per_task, dtype=np.int64), "MAC", 1, "test")


@st.composite
def channel_graphs(
    draw: st.DrawFn, max_layers: int = 5, max_tasks: int = 6
) -> tuple[ChannelGraph, Work]:
    """Any ChannelGraph that computes, with any work for each task of the layers that compute."""
    graph = draw(graphs.channel_graphs(1, max_layers, max_tasks=max_tasks))
    number = st.one_of(st.just(0), st.integers(1, 40))
    idle = (INPUT, PARAMETER, OUTPUT)
    per_task = [0 if layer.kind in idle else draw(number) for layer in graph.layers]
    return graph, Work(np.array(per_task, dtype=np.int64), "MAC", 1, "test")


@st.composite
def concatenations(draw: st.DrawFn) -> tuple[ChannelGraph, Work]:
    """Branches side by side, as in GoogLeNet, and layers that read all before, as in DenseNet.

    Each of the latter reads through a norm over channels, which has no work.
    """
    number, width = st.integers(0, 30), st.integers(1, 4)
    maker, loads = GraphMaker(), [0]

    def layer(channels: np.ndarray) -> np.ndarray:
        tasks = draw(width)
        loads.append(draw(number))
        weights = draw(st.integers(0, 9)) * tasks
        return maker.add(
            "dense", tasks, (read(channels, partial=True),), elements=draw(width), weights=weights
        )

    channels = maker.add(INPUT, 1, channels=3)
    for _ in range(draw(st.integers(1, 3))):
        if draw(st.booleans()):
            branches = [layer(channels) for _ in range(draw(st.integers(2, 3)))]
            ends = [layer(own) if draw(st.booleans()) else own for own in branches]
            channels = np.concatenate(ends)
            continue
        size = draw(width)
        for _ in range(draw(st.integers(2, 4))):
            norm = maker.add(
                "dense", len(channels), (read(channels, groups=len(channels)),), elements=size
            )
            loads.append(0)
            channels = np.concatenate([channels, layer(norm)])
    layer(channels)
    maker.add(OUTPUT, 1, (read(channels),), channels=0)
    per_task = np.array([*loads, 0], dtype=np.int64)
    return maker.graph(), Work(per_task, "MAC", 1, "test")


modellings = graphs.modellings()


@st.composite
def divided_graphs(draw: st.DrawFn) -> tuple[ChannelGraph, Work, Modelling, Blocks]:
    """A graph with its layers cut anywhere; tied layers are cut alike."""
    graph, work = draw(channel_graphs())
    modelling = draw(modellings)
    return graph, work, modelling, draw(graphs.divisions(graph, modelling))
