"""Models to partition: small traced ones by name, and random ChannelGraphs with their work."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from hypothesis import strategies as st
from torch import nn

from hgpart.blocks import Blocks, Modelling
from hgpart.graph import INPUT, LINEAR, OUTPUT, WHOLE, ChannelGraph, Layer, Read
from hgpart.layering import channel_graph
from hgpart.tracing import trace
from hgpart.work import Work

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
    """Most of the work is a product of maps with each other, which is one whole task."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        maps = self.stem(image).flatten(2)
        return torch.bmm(maps, maps.transpose(1, 2))


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
                tasks=tasks,
                channels=channels,
                map_elements=elements,
                partial_elements=2 * elements,
                bytes_per_element=4,
                macs=weights // tasks * elements,
                parameters=(weights + tasks * bias) if own else 0,
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
    """Graphs of dense, linear, grouped, depthwise, residual, whole and tied layers, in a DAG."""
    maker = GraphMaker()
    made = [maker.add(INPUT, 1, channels=draw(st.integers(1, 3)), elements=5)]
    for _ in range(draw(st.integers(1, max_layers))):
        source = made[draw(st.integers(0, len(made) - 1))]
        if draw(st.booleans()):  # a concatenation
            source = np.concatenate([source, made[draw(st.integers(0, len(made) - 1))]])
        tasks, elements = draw(st.integers(1, max_tasks)), draw(st.integers(1, 5))
        bias = draw(st.integers(0, 2))
        kind = draw(
            st.sampled_from(["dense", LINEAR, "grouped", "same index", "residual", WHOLE, "tied"])
        )
        if kind in ("dense", LINEAR):
            size = draw(st.integers(1, 3))
            reads = (read(source, size, partial=True),)
            weights = tasks * len(source) * size
            made.append(
                maker.add(kind, tasks, reads, elements=elements, weights=weights, bias=bias)
            )
        elif kind == "tied":
            reads = (read(source, partial=True),)
            weights = tasks * len(source)
            at = len(maker.layers)
            made.append(maker.add("dense", tasks, reads, elements=elements, weights=weights))
            again = np.resize(made[-1], len(source))
            reads = (read(again, partial=True),)
            made.append(maker.add("dense", tasks, reads, elements=2, weights=weights, tied_to=at))
        elif kind == "grouped":
            groups = draw(st.integers(2, 3))
            source = np.resize(source, groups * draw(st.integers(1, 3)))
            tasks = groups * draw(st.integers(1, 3))
            reads = (read(source, 1, groups, partial=len(source) > groups),)
            weights = tasks * len(source) // groups
            made.append(
                maker.add(kind, tasks, reads, elements=elements, weights=weights, bias=bias)
            )
        elif kind == "same index":
            reads = (read(source, groups=len(source)),)
            made.append(maker.add(kind, len(source), reads, elements=elements, bias=bias))
        elif kind == "residual":
            width = len(source)
            other = np.resize(made[draw(st.integers(0, len(made) - 1))], width)
            reads = (read(other, 1, 1, partial=True), read(source, groups=width))
            made.append(
                maker.add("dense", width, reads, elements=elements, weights=len(other) * width)
            )
        else:
            made.append(maker.add(WHOLE, 1, (read(source),), channels=tasks, elements=elements))
    maker.add(OUTPUT, 1, (read(made[-1]),), channels=0)
    graph = maker.graph()
    number = st.one_of(st.just(0), st.integers(1, 40))
    per_task = [0 if layer.kind in (INPUT, OUTPUT) else draw(number) for layer in graph.layers]
    return graph, Work(np.array(per_task, dtype=np.int64), "MAC", 1, "test")


modellings = st.builds(
    Modelling,
    grain=st.sampled_from(["coarse", "fine"]),
    linear=st.sampled_from(["neuron", "layer"]),
    batch_size=st.integers(1, 3),
    bytes_per_element=st.sampled_from([None, 1]),
    input_vertex=st.booleans(),
    output_vertex=st.booleans(),
)


@st.composite
def divided_graphs(draw: st.DrawFn) -> tuple[ChannelGraph, Work, Modelling, Blocks]:
    """A graph with its layers cut anywhere; tied layers are cut alike."""
    graph, work = draw(channel_graphs())
    modelling = draw(modellings)
    rows: list[np.ndarray] = []
    columns: list[np.ndarray] = []

    def cuts(count: int) -> np.ndarray:
        inner = draw(st.sets(st.integers(1, count - 1))) if count > 1 else set()
        return np.array([0, *sorted(inner), count], dtype=np.int64)

    for at, layer in enumerate(graph.layers):
        if layer.tied_to != at:
            rows.append(rows[layer.tied_to])
            columns.append(columns[layer.tied_to])
            continue
        split = modelling.split_read(layer)
        rows.append(np.array([0, layer.tasks]) if modelling.is_solid(layer) else cuts(layer.tasks))
        columns.append(cuts(1 if split is None else len(split.channels)))
    return graph, work, modelling, Blocks(tuple(rows), tuple(columns))
