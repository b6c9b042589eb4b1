"""Transfers are what each task lacks, and add up to the traffic of the hypergraph."""

from __future__ import annotations

import pickle
from collections import defaultdict
from dataclasses import replace

import numpy as np
import placements
from banded_graphs import graph_of, modellings, random_parts
from hypothesis import given
from hypothesis import strategies as st
from partitioned_graphs import partitioned_graphs

from hgpart.hypergraph.blocks import single_blocks
from hgpart.hypergraph.building import cnn_hypergraph
from hgpart.hypergraph.metrics import evaluate
from hgpart.layers.channel_graph import INPUT, ChannelGraph
from hgpart.placement.building.channel_transfers import RESULT_PART, channel_transfers
from hgpart.placement.shares.ownership import Ownership, ownership
from hgpart.work.figures import flops


@given(partitioned_graphs())
def test_a_partition_of_another_process_sends_the_same(case):
    """The read that splits a layer was looked for by identity, among those of another copy."""
    graph, partition = case
    other = channel_transfers(graph, ownership(pickle.loads(pickle.dumps(partition))))
    assert list(map(repr, other)) == list(map(repr, channel_transfers(graph, ownership(partition))))


@given(partitioned_graphs())
def test_counted_transfers_add_up_to_the_traffic_and_the_messages(case):
    graph, partition = case
    modelling = partition.modelling
    traffic = np.zeros((partition.k, partition.k), dtype=np.int64)
    messages = np.zeros_like(traffic)
    for item in channel_transfers(graph, ownership(partition)):
        if not item.counted:
            assert not modelling.output_vertex
            continue
        layer = graph.layers[item.layer]
        element = modelling.bytes_per_element or layer.bytes_per_element
        if item.partial:
            each = layer.partial_elements * modelling.batch_size * element
        else:
            each = graph.map_bytes(layer, modelling.batch_size, modelling.bytes_per_element)
        maps = 1 if layer.tasks == 1 else len(item.members)
        traffic[item.sender, item.receiver] += each * maps
        messages[item.sender, item.receiver] += 1
    np.testing.assert_array_equal(traffic, partition.evaluation.traffic)
    np.testing.assert_array_equal(messages, partition.evaluation.messages)


@given(partitioned_graphs())
def test_a_part_gets_what_its_tasks_read_and_it_does_not_make(case):
    graph, partition = case
    owners = ownership(partition)
    found = {}
    for item in channel_transfers(graph, owners):
        key = (item.layer, item.partial, item.sender, item.receiver, item.counted)
        assert key not in found
        assert (np.diff(item.members) > 0).all()
        found[key] = set(item.members.tolist())
    assert list(found) == sorted(found, key=lambda key: (key[0], not key[1], not key[4], *key[2:4]))
    assert found == wanted(graph, owners)


@given(st.integers(0, 5), modellings(), st.integers(0, 99))
def test_rows_of_tiles_add_up_to_the_traffic_and_each_is_sent_once(seed, modelling, parts_seed):
    graph, modelling = graph_of(seed), replace(modelling, slices=1)
    work = flops(graph)
    model = cnn_hypergraph(graph, work, single_blocks(graph, modelling), modelling)
    parts = random_parts(model, parts_seed)
    partition = placements.partitioned(None, graph, modelling, 3, model, parts).partition
    owners, traffic = ownership(partition), np.zeros((3, 3), dtype=np.int64)
    for item in channel_transfers(graph, owners):
        layer, height = graph.layers[item.layer], owners.height(item.layer)
        row_bytes = graph.map_bytes(layer, modelling.batch_size, None) // height
        if item.partial:  # of a sum over rows
            height, row_bytes = 1, model.views[item.layer].partial_bytes
        sent = np.zeros((layer.channels, height), dtype=np.int64)
        for piece in item.pieces:
            rows = np.zeros(1, np.int64) if piece.rows is None else piece.rows
            sent[np.ix_(piece.members, rows)] += 1
            if item.partial:
                continue
            tile = owners.tiles(item.layer, item.sender)[piece.tile]
            assert piece.rows is None or np.isin(rows, tile.rows).all()
            assert layer.tasks == 1 or np.isin(piece.members, tile.tasks).all()
        assert sent.max() == 1
        tasks = sent[:1] if layer.tasks == 1 else sent
        traffic[item.sender, item.receiver] += int(tasks.sum()) * row_bytes * item.counted
    maps = model.map_nets.of_parts(model.weights, parts, 3)
    expected = evaluate(maps, np.arange(3, dtype=np.int32), 3).traffic
    np.testing.assert_array_equal(traffic, expected)


def wanted(graph: ChannelGraph, owners: Ownership) -> dict[tuple, set[int]]:
    """Task by task and position by position."""
    found = defaultdict(set)
    for at, layer in enumerate(graph.layers):
        counted = owners.finish[at] is not None
        finish = owners.finish[at][0] if counted else None
        for number, read in enumerate(layer.reads):
            count = len(read.channels)
            for task in range(layer.tasks):
                group = task * read.groups // layer.tasks
                for position in range(
                    group * count // read.groups, (group + 1) * count // read.groups
                ):
                    if number == owners.splits[at]:
                        reader = holder(owners, at, task, position)
                        if reader != finish[task]:
                            found[at, True, reader, int(finish[task]), True].add(task)
                    else:
                        reader = int(finish[task]) if counted else RESULT_PART
                    if read.channels[position] >= 0:
                        add_map(graph, owners, found, int(read.channels[position]), reader, counted)
    for layer, partial, sender, receiver, counted in list(found):
        if not counted and (layer, partial, sender, receiver, True) in found:
            members = found[layer, partial, sender, receiver, False]
            members -= found[layer, partial, sender, receiver, True]
            if not members:
                del found[layer, partial, sender, receiver, False]
    return dict(found)


def add_map(graph, owners, found, channel, reader, counted):
    source = int(graph.layer_of_channel(np.array([channel]))[0])
    made, finish = graph.layers[source], owners.finish[source]
    if finish is None:
        assert made.kind == INPUT  # which is at hand everywhere
        return
    number = channel - int(graph.first_channel[source])
    maker = int(finish[0, 0 if made.tasks == 1 else number])
    if maker != reader:
        members = range(made.channels) if made.tasks == 1 else [number]
        found[source, False, maker, reader, counted].update(members)


def holder(owners: Ownership, at: int, task: int, position: int) -> int:
    (part,) = [
        part
        for part, rectangles in enumerate(owners.cells[at])
        if any(task in one.tasks and position in one.positions for one in rectangles)
    ]
    return part
