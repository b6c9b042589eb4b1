"""Slices of the batch: S ordinary partitions that share parameters, by the definition."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from partitioned_models import channel_graphs, graph_of, modellings

from hgpart.errors import ArgumentError
from hgpart.hypergraph.blocks import divide, single_blocks
from hgpart.hypergraph.building import CnnHypergraph, cnn_hypergraph, evaluate_parts
from hgpart.hypergraph.metrics import evaluate
from hgpart.hypergraph.modelling import Modelling
from hgpart.hypergraph.partition_files import blocks_of_parts, full_parts
from hgpart.hypergraph.shares import part_shares
from hgpart.layers.channel_graph import PARAMETER, ChannelGraph
from hgpart.work.figures import Work, flops

Worked = tuple[ChannelGraph, Work]


@st.composite
def sliced(draw: st.DrawFn) -> tuple[Worked, Modelling]:
    slices = draw(st.integers(1, 4))
    batch = slices + draw(st.integers(0, 3))
    return draw(channel_graphs()), replace(draw(modellings), batch_size=batch, slices=slices)


def parts_of(model: CnnHypergraph, k: int, random: Random) -> np.ndarray:
    return np.array([random.randrange(k) for _ in range(model.vertices)], dtype=np.int32)


def of_slices(worked: Worked, model: CnnHypergraph) -> list[CnnHypergraph]:
    """Each slice as a model of its own."""
    return [
        cnn_hypergraph(*worked, model.blocks, model.modelling.of_samples(samples))
        for samples in model.modelling.samples
    ]


def data_of(whole: CnnHypergraph) -> dict[int, tuple[list[int], int]]:
    """Of each vertex with parameters that others read: all of these, and bytes that are sent."""
    nets, found = whole.map_nets.written_out(whole.weights), {}
    for net, (start, end) in enumerate(pairwise(nets.pointers.tolist())):
        at = int(nets.net_layers[net])
        if at < len(whole.views) and whole.views[at].layer.kind == PARAMETER:
            found[int(nets.pins[start])] = nets.pins[start:end].tolist(), int(nets.costs[net])
    return found


def parameter_bytes(whole: CnnHypergraph, vertex: int) -> int:
    """Bytes of the parameters that a vertex has for others to read."""
    return sum(
        count * size
        for view, vertices in zip(whole.views, whole.task_vertices, strict=True)
        if view.layer.kind == PARAMETER and vertex in vertices.tolist()
        for count, size in view.parameters
    )


@given(
    sliced(),
    st.randoms(use_true_random=False),
    st.booleans(),
    st.sampled_from(["slice", "batch"]),
)
def test_each_slice_is_a_partition_and_what_they_share_joins_them(
    case: tuple[Worked, Modelling], random: Random, training: bool, norms: str
) -> None:
    worked, modelling = case
    modelling = replace(modelling, training=training, norms=norms)
    model, k = cnn_hypergraph(*worked, single_blocks(worked[0], modelling), modelling), 3
    parts = parts_of(model, k, random)
    found, by_slice = evaluate_parts(model, parts, k), parts.reshape(modelling.slices, -1)
    alone = [
        evaluate_parts(one, own, k)
        for one, own in zip(of_slices(worked, model), by_slice, strict=True)
    ]
    gradients = statistics = 0
    whole = cnn_hypergraph(*worked, model.blocks, replace(modelling, slices=1))
    data = data_of(whole) if modelling.slices > 1 else {}
    maps = sum(one.volume for one in alone)
    for readers, nbytes in data.values():  # these are no maps of each slice
        maps -= sum(nbytes * (len(set(own[readers].tolist())) - 1) for own in by_slice)
    if training:
        for vertex in range(whole.vertices):
            at_home = np.zeros(whole.vertices, dtype=np.int32)
            at_home[vertex] = 1  # what is in part 1 is this vertex's alone
            held = int(part_shares(whole, at_home, 2).parameter_bytes[1])
            readers, read = [vertex], 0
            if vertex in data:
                readers, _ = data[vertex]
                read = parameter_bytes(whole, vertex)
            gradients += (held - read) * (len(set(by_slice[:, vertex].tolist())) - 1)
            gradients += read * (len(set(by_slice[:, readers].ravel().tolist())) - 1)
    if training and norms == "batch":
        for layer, vertices in zip(worked[0].layers, model.task_vertices, strict=True):
            numbers = 4 * (modelling.bytes_per_element or layer.bytes_per_element)
            for vertex in vertices.tolist():  # of each task
                copies = len(set(by_slice[:, vertex].tolist())) - 1
                statistics += numbers * layer.batch_statistics // layer.tasks * copies
    assert found.volume == maps + gradients + statistics
    for nets, volume in ((model.parameter_nets, gradients), (model.statistics_nets, statistics)):
        assert nets.of_parts(model.weights, parts, k).costs.sum() <= volume
        assert evaluate(nets.written_out(model.weights), parts, k).volume == volume
    work = zip(modelling.slice_work, alone, strict=True)
    assert found.loads.tolist() == sum(each * one.loads for each, one in work).tolist()
    again = evaluate(model.hypergraph, parts, k)
    assert (again.traffic == found.traffic).all()
    assert (again.messages == found.messages).all()


@given(channel_graphs(), modellings, st.integers(1, 5))
def test_data_parallelism_sends_all_parameters_k_minus_1_times(
    worked: Worked, modelling: Modelling, k: int
) -> None:
    modelling = replace(modelling, batch_size=2 * k, slices=k)
    model = cnn_hypergraph(*worked, divide(*worked, modelling, 10), modelling)
    parts = np.repeat(np.arange(k, dtype=np.int32), model.slice_vertices)
    shares = part_shares(model, parts, k)
    assert len(set(shares.parameter_bytes.tolist())) == 1
    assert evaluate_parts(model, parts, k).volume == (k - 1) * int(shares.parameter_bytes[0])


@given(sliced(), st.randoms(use_true_random=False))
def test_the_part_of_every_vertex_comes_back_from_a_file(
    case: tuple[Worked, Modelling], random: Random
) -> None:
    worked, modelling = case
    model = cnn_hypergraph(*worked, divide(*worked, modelling, 8), modelling)
    parts = parts_of(model, 3, random)
    every = full_parts(model, parts)
    again, own = blocks_of_parts(*worked, modelling, every)
    assert (full_parts(again, own) == every).all()
    found, expected = evaluate_parts(again, own, 3), evaluate_parts(model, parts, 3)
    assert (found.traffic == expected.traffic).all()
    assert (found.loads == expected.loads).all()


def test_a_statistic_is_of_the_whole_batch_to_begin_with() -> None:
    modelling = Modelling(batch_size=8, norms="batch")
    graph = graph_of("grouped")
    model = cnn_hypergraph(graph, flops(graph), single_blocks(graph, modelling), modelling)
    assert graph.layers[2].batch_statistics == 12
    assert len(model.statistics_nets.costs) == 0
    sliced = replace(modelling, slices=2)
    model = cnn_hypergraph(graph, flops(graph), single_blocks(graph, sliced), sliced)
    assert model.statistics_nets.costs.tolist() == [4 * 4] * 12


@pytest.mark.parametrize("slices", [0, 9, 2.0, "2"])
def test_slices_that_a_batch_can_not_have(slices: object) -> None:
    with pytest.raises(ArgumentError, match=f"slices {slices}: accepted is a whole number from 1"):
        Modelling(batch_size=8, slices=slices)  # type: ignore[arg-type]
