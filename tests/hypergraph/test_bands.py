"""Tiles: what partitions over slices and bands of rows send, by the definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from banded_graphs import BATCH, graph_of, modellings, random_parts
from banded_volumes import banded_volume, bands_of, fine_volume
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import hgpart
from hgpart.errors import ArgumentError
from hgpart.hypergraph.blocks import divide, single_blocks
from hgpart.hypergraph.building import cnn_hypergraph, evaluate_parts
from hgpart.hypergraph.metrics import evaluate
from hgpart.hypergraph.modelling import Modelling
from hgpart.hypergraph.partition_files import blocks_of_parts, full_parts
from hgpart.partition.problem.problem import Problem
from hgpart.partition.problem.project import project
from hgpart.work.figures import flops


@given(st.integers(0, 20), modellings(), st.integers(0, 2**20))
def test_a_partition_sends_what_its_rows_do(seed: int, modelling: Modelling, random: int) -> None:
    graph = graph_of(seed)
    blocks = single_blocks(graph, modelling)
    model = cnn_hypergraph(graph, flops(graph), blocks, modelling)
    parts = random_parts(model, random)
    found = evaluate_parts(model, parts, 3)
    assert found.volume == evaluate(model.hypergraph, parts, 3).volume
    whole = cnn_hypergraph(graph, flops(graph), blocks, Modelling(batch_size=BATCH))
    assert model.weights.sum() == whole.weights.sum() * sum(modelling.slice_work)
    by_slice = parts.reshape(modelling.slices, -1)

    def part_of(number: int, band: int | None, at: int, task: int) -> int:
        vertex, layout = model.task_vertices[at][task], model.layouts[at]
        if band is not None and layout is not None and model.views[at].total is not None:
            vertex = layout.row_starts[0 if model.views[at].is_solid else task]
        return int(by_slice[number][model.in_bands[band or 0][vertex]])

    assert found.volume == banded_volume(graph, modelling, part_of)


@given(st.integers(0, 20), st.integers(1, 2), st.integers(2, 6), st.integers(0, 2**20))
def test_channels_of_filters_send_rows_of_partial_sums(
    seed: int, slices: int, bands: int, random: int
) -> None:
    graph = graph_of(seed)
    modelling = Modelling("fine", batch_size=BATCH, slices=slices, bands=bands, training=False)
    model = cnn_hypergraph(graph, flops(graph), single_blocks(graph, modelling), modelling)
    parts = random_parts(model, random)
    found = evaluate_parts(model, parts, 3)
    assert found.volume == fine_volume(model, parts)
    assert found.volume == evaluate(model.hypergraph, parts, 3).volume
    assert model.weights.sum() == Problem(graph, flops(graph), modelling, 3, 1.0).total


def test_tasks_stay_whole_where_bands_share_rows_of_partial_sums() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.MaxPool2d(3, 2, 1), nn.Conv2d(4, 4, 3))
    graph = hgpart.channel_graph(hgpart.trace(model, (torch.randn(2, 3, 16, 16),)))
    views = Modelling("fine", bands=2).views(graph)
    assert [view.split is not None for view in views] == [False, False, True, False]
    assert views[2].partial_rows == (6, (3, 3))
    apart = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.MaxPool2d(3), nn.Conv2d(4, 4, 3))
    graph = hgpart.channel_graph(hgpart.trace(apart, (torch.randn(2, 3, 16, 16),)))
    view = Modelling("fine", bands=2).views(graph)[1]
    assert view.split is not None
    assert view.partial_rows == (16, (6, 9))  # the last row is not pooled


@given(st.integers(0, 20), modellings(("coarse", "fine")), st.integers(0, 2**20))
def test_blocks_are_exact_and_files_of_parts_come_back(
    seed: int, modelling: Modelling, random: int
) -> None:
    graph = graph_of(seed)
    work = flops(graph)
    model = cnn_hypergraph(graph, work, divide(graph, work, modelling, 12), modelling)
    parts = random_parts(model, random)
    found = evaluate_parts(model, parts, 3)
    full = cnn_hypergraph(graph, work, single_blocks(graph, modelling), modelling)
    every = full_parts(model, parts)
    again, own = blocks_of_parts(graph, work, modelling, every)
    for other, other_parts in ((full, every), (again, own), (full, project(parts, model, full))):
        same = evaluate_parts(other, other_parts, 3)
        assert same.volume == found.volume
        assert same.loads.tolist() == found.loads.tolist()


def test_bands_are_as_even_as_can_be_and_fewer_where_rows_are() -> None:
    graph = graph_of(0)
    views = Modelling(bands=5).views(graph)
    for at, view in enumerate(views):
        rows = [len(band) for band in bands_of(graph, Modelling(bands=5), at)]
        assert np.diff(view.cell_cuts).tolist() == rows
        assert max(rows) - min(rows) <= 1
    assert {view.bands for view in views} == {1, 5}


def test_more_bands_than_rows_and_no_rows_are_refused() -> None:
    graph = graph_of(0)
    tallest = max(rows.height or 1 for rows in graph.layer_rows)
    with pytest.raises(ArgumentError, match=f"accepted is 1 to {tallest}"):
        cnn_hypergraph(graph, flops(graph), single_blocks(graph, Modelling()), Modelling(bands=999))
    flat = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    graph = hgpart.channel_graph(hgpart.trace(flat, (torch.randn(2, 4),)))
    with pytest.raises(ArgumentError, match="2 bands: no layer has rows to divide: accepted is 1"):
        cnn_hypergraph(graph, flops(graph), single_blocks(graph, Modelling()), Modelling(bands=2))
