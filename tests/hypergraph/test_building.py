from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from channel_graphs import channel_graphs, divisions, modellings
from hypothesis import given
from hypothesis import strategies as st
from perturbation import read_of_task
from torch import nn

from hgpart.errors import ArgumentError
from hgpart.hypergraph.blocks import Blocks, layer_blocks, single_blocks
from hgpart.hypergraph.building import CnnHypergraph, cnn_hypergraph
from hgpart.hypergraph.formats import write_patoh
from hgpart.hypergraph.hypergraph import Hypergraph
from hgpart.hypergraph.metrics import evaluate
from hgpart.hypergraph.modelling import LARGEST_FACTOR, Modelling
from hgpart.layers.channel_graph import ChannelGraph, Layer, Read
from hgpart.layers.layering import channel_graph
from hgpart.partition import partition_graph
from hgpart.tracing.traced_model import example_inputs, trace
from hgpart.work.figures import Work, flops

GOLDEN = Path(__file__).parents[1] / "golden"

# ------------------------------------------------------------------ the definitions, spelled out

# A vertex is (layer, task, position): the position of a channel in what the task reads, or -1 for
# the vertex that finishes the task (its reduction, or the task itself where it is not split).
Vertex = tuple[int, int, int]
# A net is (layer, gathers, root, pins); partial sums have numbers behind those of all layers.
Net = tuple[int, bool, Vertex, frozenset[Vertex]]


class Definition:
    """Vertices and nets of design section 2, channel by channel."""

    def __init__(self, graph: ChannelGraph, work: Work, modelling: Modelling) -> None:
        self.graph = graph
        self.modelling = modelling
        self.weights: Counter[Vertex] = Counter()
        self.costs: Counter[Net] = Counter()
        layers = [(at, layer) for at, layer in enumerate(graph.layers) if self.has_vertices(layer)]
        for at, layer in layers:
            for task in range(layer.tasks):
                self.weigh(at, layer, task, int(work.per_task[at]))
                self.reduction(at, layer, task)
        readers = self.readers()
        for at, layer in layers:
            samples = 1 if layer.kind == "parameter" else modelling.batch_size
            size = modelling.bytes_per_element or layer.bytes_per_element
            for task in range(layer.tasks):
                made = range(layer.channels) if layer.tasks == 1 else [task]
                first = sum(before.channels for before in graph.layers[:at])
                reading = set().union(*(readers[first + channel] for channel in made))
                if reading:
                    root = self.finisher(at, task)
                    net = (at, False, root, frozenset(reading | {root}))
                    elements = layer.map_elements * samples + layer.fixed_elements
                    self.costs[net] += elements * size

    def has_vertices(self, layer: Layer) -> bool:
        if layer.kind == "input":
            return self.modelling.input_vertex
        return self.modelling.output_vertex if layer.kind == "output" else True

    def is_one_vertex(self, layer: Layer) -> bool:
        return layer.kind == "linear" and self.modelling.linear == "layer"

    def splits(self, layer: Layer, read: Read) -> bool:
        """Fine-grain: f(j, i) for each channel i of filter j, where there are several."""
        return (
            self.modelling.grain == "fine"
            and not self.is_one_vertex(layer)
            and read.partial
            and len(read.channels) > read.groups
        )

    def finisher(self, at: int, task: int) -> Vertex:
        layer = self.graph.layers[at]
        return (layer.tied_to, 0 if self.is_one_vertex(layer) else task, -1)

    def positions(self, layer: Layer, read: Read, task: int) -> range:
        span = len(read.channels) // read.groups
        group = task * read.groups // layer.tasks
        return range(group * span, (group + 1) * span)

    def weigh(self, at: int, layer: Layer, task: int, work: int) -> None:
        rest = work
        for read in layer.reads:
            if self.splits(layer, read):
                span = self.positions(layer, read, task)
                total = sum(int(read.sizes[position]) for position in span)
                for position in span:
                    share = work * int(read.sizes[position]) // total
                    self.weights[layer.tied_to, task, position] += share
                    rest -= share
        self.weights[self.finisher(at, task)] += rest

    def reduction(self, at: int, layer: Layer, task: int) -> None:
        for read in layer.reads:
            if self.splits(layer, read):
                root = self.finisher(at, task)
                cells = {(layer.tied_to, task, p) for p in self.positions(layer, read, task)}
                net = (len(self.graph.layers) + at, True, root, frozenset(cells | {root}))
                size = self.modelling.bytes_per_element or layer.bytes_per_element
                self.costs[net] += layer.partial_elements * self.modelling.batch_size * size

    def readers(self) -> dict[int, set[Vertex]]:
        """Vertices that read each channel."""
        found: dict[int, set[Vertex]] = defaultdict(set)
        for at, layer in enumerate(self.graph.layers):
            for read in layer.reads if self.has_vertices(layer) else ():
                for task in range(layer.tasks):
                    for position in self.positions(layer, read, task):
                        split = self.splits(layer, read)
                        vertex = (layer.tied_to, task, position) if split else None
                        found[int(read.channels[position])].add(vertex or self.finisher(at, task))
        return found


def vertices_of(built: CnnHypergraph) -> list[Vertex]:
    """Layer, row block and column block of each vertex."""
    columns = (built.vertex_layers, built.vertex_rows, built.vertex_columns)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def nets_of(built: CnnHypergraph) -> Counter[Net]:
    names = vertices_of(built)
    hypergraph = built.hypergraph
    costs: Counter[Net] = Counter()
    for net in range(hypergraph.nets):
        pins = hypergraph.pins[hypergraph.pointers[net] : hypergraph.pointers[net + 1]].tolist()
        assert len(set(pins)) == len(pins)
        key = (
            int(hypergraph.net_layers[net]),
            bool(hypergraph.gathers[net]),
            names[pins[0]],
            frozenset(names[pin] for pin in pins),
        )
        costs[key] += int(hypergraph.costs[net])
    return costs


def check_arrays(hypergraph: Hypergraph) -> None:
    assert hypergraph.weights.dtype == hypergraph.costs.dtype == np.int64
    assert hypergraph.pointers.dtype == np.int64
    assert hypergraph.pins.dtype == hypergraph.net_layers.dtype == np.int32
    assert hypergraph.gathers.dtype == np.bool_
    assert hypergraph.pointers[0] == 0
    assert hypergraph.pointers[-1] == len(hypergraph.pins)
    assert (np.diff(hypergraph.pointers) >= 1).all()


def check_full(graph: ChannelGraph, modelling: Modelling) -> CnnHypergraph:
    work = flops(graph)
    built = cnn_hypergraph(graph, work, single_blocks(graph, modelling), modelling)
    check_arrays(built.hypergraph)
    defined = Definition(graph, work, modelling)
    names = vertices_of(built)
    assert len(set(names)) == len(names)
    weights = dict(zip(names, built.hypergraph.weights.tolist(), strict=True))
    assert weights == dict(defined.weights)
    assert nets_of(built) == defined.costs
    return built


@given(channel_graphs(), modellings())
def test_full_hypergraph_is_the_definition(graph: ChannelGraph, modelling: Modelling) -> None:
    built = check_full(graph, modelling)
    for at, layer in enumerate(graph.layers):
        finishers = built.task_vertices[at]
        defined = Definition(graph, flops(graph), modelling)
        if not defined.has_vertices(layer):
            assert len(finishers) == 0
            continue
        names = vertices_of(built)
        expected = [defined.finisher(at, task) for task in range(layer.tasks)]
        assert [names[vertex] for vertex in finishers] == expected


# ------------------------------------------------------------------ blocks are exact


def slow_metrics(hypergraph: Hypergraph, parts: list[int], k: int) -> Any:
    """Loads, traffic and messages, net by net."""
    loads = [0] * k
    for weight, part in zip(hypergraph.weights.tolist(), parts, strict=True):
        loads[part] += weight
    traffic: Counter[tuple[int, int]] = Counter()
    messages = set()
    for net in range(hypergraph.nets):
        pins = hypergraph.pins[hypergraph.pointers[net] : hypergraph.pointers[net + 1]].tolist()
        root = parts[pins[0]]
        for other in {parts[pin] for pin in pins} - {root}:
            way = (other, root) if hypergraph.gathers[net] else (root, other)
            traffic[way] += int(hypergraph.costs[net])
            messages.add((int(hypergraph.net_layers[net]), *way))
    return loads, traffic, messages


def expanded(full: CnnHypergraph, blocked: CnnHypergraph, parts: list[int]) -> list[int]:
    """Part of each vertex of the full hypergraph: that of the block that holds it."""
    part_of = dict(zip(vertices_of(blocked), parts, strict=True))

    def block(layer: int, task: int, position: int) -> Vertex:
        row = int(np.searchsorted(blocked.blocks.rows[layer], task, "right")) - 1
        cuts = blocked.blocks.columns[layer]
        column = -1 if position < 0 else int(np.searchsorted(cuts, position, "right")) - 1
        return layer, row, column

    return [part_of[block(*vertex)] for vertex in vertices_of(full)]


@given(st.data())
def test_blocks_are_exact(data: st.DataObject) -> None:
    """Whatever the blocks, and wherever they go: same loads, volume, traffic and messages."""
    check_exact(data, data.draw(channel_graphs()), data.draw(modellings()))


@given(st.data())
def test_blocks_across_groups_are_exact(data: st.DataObject) -> None:
    graph = data.draw(channel_graphs(max_layers=3, kinds=("grouped",)))
    check_exact(data, graph, Modelling(grain="fine", batch_size=1))


def check_exact(data: st.DataObject, graph: ChannelGraph, modelling: Modelling) -> None:
    blocks = data.draw(divisions(graph, modelling))
    work = flops(graph)
    full = cnn_hypergraph(graph, work, single_blocks(graph, modelling), modelling)
    blocked = cnn_hypergraph(graph, work, blocks, modelling)
    check_arrays(blocked.hypergraph)
    k = data.draw(st.integers(1, 4))
    count = blocked.hypergraph.vertices
    parts = data.draw(st.lists(st.integers(0, k - 1), min_size=count, max_size=count))
    whole = expanded(full, blocked, parts)
    assert slow_metrics(blocked.hypergraph, parts, k) == slow_metrics(full.hypergraph, whole, k)
    coarse = evaluate(blocked.hypergraph, np.array(parts, np.int32), k)
    fine = evaluate(full.hypergraph, np.array(whole, np.int32), k)
    assert coarse.volume == fine.volume == sum(slow_metrics(full.hypergraph, whole, k)[1].values())
    assert np.array_equal(coarse.traffic, fine.traffic)
    assert np.array_equal(coarse.messages, fine.messages)


# ------------------------------------------------------------------ real models


class Mixed(nn.Module):
    """Residual add, depthwise, grouped, concatenation, shuffle, flatten, a shared module."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU())
        self.depthwise = nn.Conv2d(6, 12, 3, padding=1, groups=6)
        self.grouped = nn.Conv2d(12, 6, 1, groups=3)
        self.shared = nn.Conv2d(6, 6, 1)
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Sequential(nn.Linear(12 * 4, 5), nn.ReLU(), nn.Linear(5, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.stem(x)
        z = y + self.grouped(F_shuffle(self.depthwise(y)))
        z = self.shared(torch.relu(self.shared(z)))
        return self.head(self.pool(torch.cat([z, y], 1)).flatten(1))


def F_shuffle(x: torch.Tensor) -> torch.Tensor:  # noqa: N802 (as in torch.nn.functional)
    return x.unflatten(1, (3, 4)).transpose(1, 2).flatten(1, 2)


@pytest.fixture(scope="module")
def mixed() -> ChannelGraph:
    model = Mixed()
    return channel_graph(trace(model, example_inputs(model, (3, 4, 4))))


@pytest.mark.few(2)
@pytest.mark.parametrize("grain", ["coarse", "fine"])
@pytest.mark.parametrize("linear", ["neuron", "layer"])
@pytest.mark.parametrize("ends", [True, False])
def test_traced_model(mixed: ChannelGraph, grain: str, linear: str, ends: bool) -> None:
    modelling = Modelling(grain, linear, input_vertex=ends, output_vertex=ends)
    built = check_full(mixed, modelling)
    assert built.hypergraph.weights.sum() == sum(layer.macs * layer.tasks for layer in mixed.layers)


def figure_3_5() -> CnnHypergraph:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.ReLU(),
        nn.Conv2d(4, 3, 3),
        nn.ReLU(),
        nn.Conv2d(3, 2, 3),
        nn.Flatten(),
        nn.Linear(8, 6),
        nn.Linear(6, 5),
        nn.Linear(5, 4),
    )
    graph = channel_graph(trace(model, example_inputs(model, (3, 8, 8))))
    modelling = Modelling(linear="layer", output_vertex=False)
    return cnn_hypergraph(graph, flops(graph), single_blocks(graph, modelling), modelling)


def test_figure_3_5_of_the_thesis(tmp_path: Path) -> None:
    built = figure_3_5()
    # in the figure, weights and costs grow by one per layer
    figure = dataclasses.replace(
        built.hypergraph,
        weights=built.vertex_layers.astype(np.int64) + 1,
        costs=built.hypergraph.net_layers.astype(np.int64) + 1,
    )
    file = tmp_path / "figure.patoh"
    write_patoh(figure, file)
    assert file.read_bytes() == (GOLDEN / "eserol_figure_3_5.patoh").read_bytes()


def test_layers_in_one_block_each(mixed: ChannelGraph) -> None:
    modelling = Modelling()
    built = cnn_hypergraph(mixed, flops(mixed), layer_blocks(modelling.views(mixed)), modelling)
    distinct = {layer.tied_to for layer in mixed.layers}
    assert built.vertex_layers.tolist() == sorted(distinct)


# ------------------------------------------------------------------ what is refused


def test_work_of_another_graph_is_refused(mixed: ChannelGraph) -> None:
    modelling = Modelling()
    blocks = single_blocks(mixed, modelling)
    short = Work(np.ones(2, np.int64), "MAC", 1, "flops")
    with pytest.raises(ArgumentError, match="work of 2 layers"):
        cnn_hypergraph(mixed, short, blocks, modelling)
    negative = dataclasses.replace(flops(mixed), per_task=-flops(mixed).per_task)
    with pytest.raises(ArgumentError, match="work"):
        cnn_hypergraph(mixed, negative, blocks, modelling)


def test_bytes_of_more_than_64_bits_are_refused(mixed: ChannelGraph) -> None:
    """NumPy raised OverflowError where a net's cost did not fit."""
    modelling = Modelling(batch_size=LARGEST_FACTOR, bytes_per_element=LARGEST_FACTOR)
    layers = [dataclasses.replace(layer, map_elements=2**30) for layer in mixed.layers]
    large = dataclasses.replace(mixed, layers=tuple(layers))
    with pytest.raises(ArgumentError, match=r"feature maps of \d+ bytes in a batch of 1048576"):
        cnn_hypergraph(large, flops(large), single_blocks(large, modelling), modelling)
    with pytest.raises(ArgumentError, match=r"feature maps of \d+ bytes in a batch of 1048576"):
        partition_graph(large, flops(large), 2, 0.1, modelling=modelling, effort=0)


def test_blocks_of_another_graph_are_refused(mixed: ChannelGraph) -> None:
    modelling = Modelling(grain="fine")
    blocks = single_blocks(mixed, modelling)

    def refused(changed: Blocks, match: str) -> None:
        with pytest.raises(ArgumentError, match=match) as caught:
            cnn_hypergraph(mixed, flops(mixed), changed, modelling)
        assert "\n" not in str(caught.value)

    def with_rows(at: int, cuts: list[int]) -> Blocks:
        rows = list(blocks.rows)
        rows[at] = np.array(cuts)
        return dataclasses.replace(blocks, rows=tuple(rows))

    refused(Blocks(blocks.rows[1:], blocks.columns[1:]), "layers")
    for cuts in ([0, 5], [1, 6], [0, 3, 3, 6], [0, 4, 2, 6]):
        refused(with_rows(1, cuts), "6 tasks of stem.0")
    refused(single_blocks(mixed, Modelling(grain="coarse")), "fine-grain")
    tied = next(at for at, layer in enumerate(mixed.layers) if layer.tied_to != at)
    refused(with_rows(tied, [0, 6]), "share a weight")


def test_reads_are_those_that_the_perturbation_proves(mixed: ChannelGraph) -> None:
    """The two definitions of a read in these tests are one."""
    defined = Definition(mixed, flops(mixed), Modelling())
    for layer in mixed.layers:
        for read in layer.reads:
            for task in range(layer.tasks):
                span = defined.positions(layer, read, task)
                assert (
                    read.channels[list(span)].tolist() == read_of_task(layer, read, task).tolist()
                )
