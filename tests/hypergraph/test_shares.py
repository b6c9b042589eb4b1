"""What each part holds, against counting it task by task."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from partitioned_models import (
    MODELS,
    GraphMaker,
    built,
    channel_graphs,
    divided_graphs,
    graph_of,
    modellings,
    read,
)

from hgpart.hypergraph.blocks import Blocks, divide, single_blocks
from hgpart.hypergraph.building import CnnHypergraph, cnn_hypergraph
from hgpart.hypergraph.metrics import part_loads
from hgpart.hypergraph.modelling import Modelling
from hgpart.hypergraph.partition_files import blocks_of_parts, full_vertices
from hgpart.hypergraph.shares import part_shares
from hgpart.layers.channel_graph import INPUT, OUTPUT, PARAMETER, ChannelGraph
from hgpart.work.figures import Work, flops

PARTS = 3


def drawn_parts(data: st.DataObject, model: CnnHypergraph) -> np.ndarray:
    count = model.hypergraph.vertices
    part = st.integers(0, PARTS - 1)
    return np.array(data.draw(st.lists(part, min_size=count, max_size=count)), dtype=np.int32)


def map_bytes(graph: ChannelGraph, at: int, modelling: Modelling) -> int:
    layer = graph.layers[at]
    samples = 1 if layer.kind == PARAMETER else modelling.batch_size
    elements = layer.map_elements * samples + layer.fixed_elements
    return elements * (modelling.bytes_per_element or layer.bytes_per_element)


def received_bytes(model: CnnHypergraph, parts: np.ndarray) -> list[int]:
    """A part receives a map that another makes, and the partial sums that others made."""
    nets = model.hypergraph
    received = [0] * PARTS
    for net in range(nets.nets):
        pins = nets.pins[nets.pointers[net] : nets.pointers[net + 1]]
        root = int(parts[pins[0]])
        others = {int(parts[pin]) for pin in pins} - {root}
        for part in others:
            received[root if nets.gathers[net] else part] += int(nets.costs[net])
    return received


@given(divided_graphs(), st.data())
def test_work_tasks_and_maps_of_every_part(
    divided: tuple[ChannelGraph, Work, Modelling, Blocks], data: st.DataObject
) -> None:
    graph, work, modelling, blocks = divided
    model = cnn_hypergraph(graph, work, blocks, modelling)
    parts = drawn_parts(data, model)
    shares = part_shares(model, parts, PARTS)

    loads = part_loads(model.hypergraph, parts, PARTS)
    assert shares.layer_work.sum(axis=0).tolist() == loads.tolist()
    own = [
        sum(
            int(work.per_task[peer]) * layer.tasks
            for peer, layer in enumerate(graph.layers)
            if layer.tied_to == at
        )
        for at in range(len(graph.layers))
    ]
    assert shares.layer_work.sum(axis=1).tolist() == own

    tasks = np.zeros((len(graph.layers), PARTS), dtype=np.int64)
    made = received_bytes(model, parts)
    for at, vertices in enumerate(model.task_vertices):
        for vertex in vertices.tolist():
            tasks[at, parts[vertex]] += 1
            made[parts[vertex]] += map_bytes(graph, at, modelling)
    assert shares.layer_tasks.tolist() == tasks.tolist()
    assert shares.activation_bytes.tolist() == made


@given(channel_graphs(), modellings, st.data())
def test_parameters_are_counted_element_by_element(
    graph_and_work: tuple[ChannelGraph, Work], modelling: Modelling, data: st.DataObject
) -> None:
    """A cell f(task, channel) holds what multiplies its channel; the reduction, all the rest.

    Each parameter has bytes of its own, whatever those of the maps.
    """
    graph, work = graph_and_work
    count = full_vertices(modelling.views(graph))
    part = st.integers(0, PARTS - 1)
    tasks = np.array(data.draw(st.lists(part, min_size=count, max_size=count)), dtype=np.int32)
    full = cnn_hypergraph(graph, work, single_blocks(graph, modelling), modelling)
    expected, in_bytes = [0] * PARTS, [0] * PARTS
    for vertex, holder in enumerate(tasks.tolist()):
        at = int(full.vertex_layers[vertex])
        for layer in (peer for peer in graph.layers if peer.tied_to == at):
            solid = modelling.is_solid(layer)
            split = modelling.split_read(layer)
            sizes = {
                one.name: modelling.bytes_per_element or one.element_bytes
                for one in layer.own_parameters
            }
            counts = {one.name: one.elements for one in layer.own_parameters}
            if full.vertex_columns[vertex] >= 0:
                width = int(split.sizes[full.vertex_columns[vertex]])
                spanned = int(split.sizes.sum()) // split.groups
                counts = {"weight": layer.weights // layer.tasks * width // spanned}
            else:
                if split is not None:
                    counts.pop("weight", None)
                counts = {name: n if solid else n // layer.tasks for name, n in counts.items()}
            expected[holder] += sum(counts.values())
            in_bytes[holder] += sum(n * sizes.get(name, 0) for name, n in counts.items())
    model, parts = blocks_of_parts(graph, work, modelling, tasks)
    shares = part_shares(model, parts, PARTS)
    assert shares.parameters.tolist() == expected
    assert shares.parameter_bytes.tolist() == in_bytes


@pytest.mark.full
@pytest.mark.parametrize("grain", ["coarse", "fine"])
@pytest.mark.parametrize("name", MODELS)
def test_parameters_add_up_to_the_models(name: str, grain: str) -> None:
    graph, modelling = graph_of(name), Modelling(grain=grain)
    parameters = sum(parameter.numel() for parameter in built(name)[0].parameters())
    assert sum(layer.parameters for layer in graph.layers) == parameters
    for count in (1, 20, 10**6):
        blocks = divide(graph, flops(graph), modelling, count)
        model = cnn_hypergraph(graph, flops(graph), blocks, modelling)
        parts = (np.arange(model.hypergraph.vertices) % PARTS).astype(np.int32)
        shares = part_shares(model, parts, PARTS)
        assert shares.parameters.sum() == parameters
        assert shares.parameters.min() >= 0


def test_a_block_over_two_groups_holds_the_weights_of_both() -> None:
    """Two tasks and four channels a group: a block of four tasks, and two of four channels."""
    maker = GraphMaker()
    image = maker.add(INPUT, 1, channels=8)
    maps = maker.add("grouped", 4, (read(image, groups=2, partial=True),), weights=16, bias=1)
    maker.add(OUTPUT, 1, (read(maps),), channels=0)
    graph = maker.graph()
    modelling = Modelling(grain="fine", input_vertex=False, output_vertex=False)
    work = Work(np.array([0, 8, 0]), "MAC", 1, "test")
    ends = np.array([0, 1])
    blocks = Blocks((ends, np.array([0, 4]), ends), (np.array([0, 1]), np.array([0, 4, 8]), ends))
    model = cnn_hypergraph(graph, work, blocks, modelling)
    shares = part_shares(model, np.array([0, 1, 2], dtype=np.int32), 3)
    assert shares.parameters.tolist() == [8, 8, 4]


def test_weights_that_only_a_later_tied_layer_has_are_in_its_cells() -> None:
    """Layers tied by something else each have weights of their own."""
    maker = GraphMaker()
    image = maker.add(INPUT, 1, channels=2)
    one = maker.add("dense", 2, (read(image, partial=True),), weights=4, bias=1)
    maker.add("dense", 2, (read(one, partial=True),), weights=4, bias=1)
    maker.layers[2] = replace(maker.layers[2], tied_to=1)
    graph = maker.graph()
    modelling = Modelling(grain="fine", input_vertex=False)
    work = Work(np.array([0, 1, 1]), "MAC", 1, "test")
    model = cnn_hypergraph(graph, work, single_blocks(graph, modelling), modelling)
    parts = np.array([0, 0, 0, 0, 1, 1], dtype=np.int32)
    assert part_shares(model, parts, 2).parameters.tolist() == [8, 4]
