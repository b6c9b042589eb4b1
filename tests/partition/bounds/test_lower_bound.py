"""The lower bound is below every partition, and near the best of some."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from partitioned_models import chain, channel_graphs, modellings, with_capacities
from torch import nn

from hgpart.hypergraph.blocks import single_blocks
from hgpart.hypergraph.building import cnn_hypergraph, evaluate_parts
from hgpart.hypergraph.metrics import communication_volume, part_loads
from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.layers.layering import channel_graph
from hgpart.partition import partition_graph
from hgpart.partition.baselines.by_slices import data_parallel
from hgpart.partition.bounds.lower_bound import MOST_SLICES, lower_bound
from hgpart.partition.problem.problem import Problem
from hgpart.tracing.traced_model import trace
from hgpart.work.figures import Work, flops


@given(
    channel_graphs(max_layers=6, max_tasks=8),
    modellings,
    st.integers(1, 6),
    st.integers(0, 9),
    st.floats(0, 1),
)
def test_no_partition_is_below_it(
    graph_and_work: tuple[ChannelGraph, Work],
    modelling: Modelling,
    k: int,
    seed: int,
    together: float,
) -> None:
    """Parts at random, more or less of the vertices in the part of the one before."""
    graph, work = graph_and_work
    hypergraph = cnn_hypergraph(graph, work, single_blocks(graph, modelling), modelling).hypergraph
    random = np.random.default_rng(seed)
    parts = random.integers(0, k, hypergraph.vertices).astype(np.int32)
    for vertex in range(1, hypergraph.vertices):
        if random.random() < together:
            parts[vertex] = parts[vertex - 1]
    room = part_loads(hypergraph, parts, k)
    volume = communication_volume(hypergraph, parts, k)
    assert 0 <= lower_bound(with_capacities(graph, work, modelling, room)) <= volume


GROUPED = {
    "depthwise": [nn.Conv2d(8, 8, 3, groups=8, padding=1), nn.Upsample(scale_factor=4)],
    "small groups": [nn.Conv2d(8, 8, 3, groups=4, padding=1), nn.Upsample(scale_factor=4)],
    "dense": [
        *[nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3, groups=4), nn.Upsample(scale_factor=2)],
        nn.Conv2d(16, 8, 1),
    ],
    "strided": [nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3, groups=4, stride=4), nn.Conv2d(16, 4, 1)],
}


@pytest.mark.long
@pytest.mark.parametrize("k", [2, pytest.param(4, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "name", ["depthwise", *(pytest.param(n, marks=pytest.mark.full) for n in [*GROUPED][1:])]
)
def test_partial_sums_that_are_less_than_maps(name: str, k: int) -> None:
    """Groups were kept whole: the bound was above what KaHyPar found, and native got no lower."""
    layers = GROUPED[name]
    model = nn.Sequential(*layers)
    graph = channel_graph(trace(model, torch.zeros(2, layers[0].in_channels, 16, 16)))
    modelling = Modelling(grain="fine")
    options = {"modelling": modelling, "best_effort": True}
    other = partition_graph(graph, flops(graph), k, 0.03, backend="kahypar", **options)
    found = partition_graph(graph, flops(graph), k, 0.03, **options)
    assert found.feasible >= other.feasible
    if other.feasible:
        assert other.lower_bound <= other.evaluation.volume
        assert found.evaluation.volume <= other.evaluation.volume


@pytest.mark.parametrize("k", [2, 4])
def test_a_layer_that_needs_all_parts_sends_its_maps_to_all(k: int) -> None:
    """8 tasks in k parts read the maps of 8 tasks that have no work: each goes to k - 1 others."""
    graph, work = chain([8, 8], [0, 8 * 10], [5, 0])
    modelling = Modelling(input_vertex=False, output_vertex=False, batch_size=1)
    found = partition_graph(graph, work, k, 0, modelling=modelling)
    bound = lower_bound(Problem(graph, work, modelling, k))
    assert bound == found.evaluation.volume > 0


def test_a_layer_by_channels_of_filters_keeps_no_parameters_twice() -> None:
    """Its filters and samples are all in each part; it was taken for one by filters or samples."""
    model = nn.Sequential(nn.Linear(1, 200), nn.ReLU(), nn.Linear(200, 4))
    graph = channel_graph(trace(model, torch.zeros(2, 1)))
    modelling = Modelling(grain="fine", batch_size=64, slices=2)
    problem = Problem(graph, flops(graph), modelling, 2, 0.1)
    found = problem.hypergraph(single_blocks(graph, modelling))
    half = 100
    parts = np.zeros(found.vertices, dtype=np.int32)
    layers = found.vertex_layers
    is_wide = np.flatnonzero(layers == layers[found.vertex_rows.argmax()])
    parts[is_wide[found.vertex_rows[is_wide] >= half]] = 1
    parts[(layers > layers[is_wide[0]]) & (found.vertex_columns >= half)] = 1
    evaluation = evaluate_parts(found, parts, 2)
    assert (evaluation.loads <= problem.capacities).all()
    assert evaluation.volume >= lower_bound(problem)


def test_of_many_slices_it_is_what_parameters_cost() -> None:
    """Partitions by slices alone send nothing else, and no less."""
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3))
    graph = channel_graph(trace(model, torch.zeros(2, 1, 64, 64)))
    slices = MOST_SLICES + 6
    modelling = Modelling(batch_size=slices, slices=slices)
    problem = Problem(graph, flops(graph), modelling, slices, 0.0)
    sent = evaluate_parts(*data_parallel(problem), slices).volume
    assert 0 < lower_bound(problem) <= sent
