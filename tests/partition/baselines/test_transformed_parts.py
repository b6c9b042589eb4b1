"""A transformed model's parts on devices, against F. Brakel's formulas (MSc thesis, 2024, 3.3)."""

from __future__ import annotations

from functools import cache

import pytest
from builtin_graphs import full_size_graph
from transformed_models import EXAMPLE, model_of

import hgpart
from hgpart.errors import ArgumentError
from hgpart.hypergraph.building import evaluate_parts
from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.layers.layering import channel_graph
from hgpart.partition.baselines.transformed_parts import transformed_parts
from hgpart.partition.problem.problem import Problem
from hgpart.tracing.traced_model import trace
from hgpart.work.figures import flops

ELEMENTS = Modelling(batch_size=1, bytes_per_element=1)
CELLS, CHANNELS, INNER, PIXELS, POOLED = 4, 8, 12, 36, 1  # of `model_of` "inception"
PARTS = [2, pytest.param(4, marks=pytest.mark.full)]


@cache
def graph_of(kind: str, parts: int) -> ChannelGraph:
    transformed = hgpart.transform(model_of("inception", CELLS), kind, parts, EXAMPLE)
    return channel_graph(trace(transformed, EXAMPLE))


def volume(graph: ChannelGraph, k: int) -> int:
    problem = Problem(graph, flops(graph), ELEMENTS, k, 0.0)
    return evaluate_parts(*transformed_parts(problem), k).volume


@pytest.mark.full
@pytest.mark.parametrize("k", PARTS)
def test_cells_side_by_side_read_whole_maps_and_send_whole_maps(k: int) -> None:
    found = volume(graph_of("parallel", k), k)
    assert found == CELLS // k * (k - 1) * 2 * CHANNELS * PIXELS


@pytest.mark.full
@pytest.mark.parametrize("k", PARTS)
def test_groups_read_and_send_their_share_of_each_cell(k: int) -> None:
    found = volume(graph_of("grouped", k), k)
    assert found == CELLS * (k - 1) * (CHANNELS + INNER) // k * PIXELS


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize(
    ("parts", "k"), [(2, 2), *(pytest.param(4, k, marks=pytest.mark.full) for k in (4, 2))]
)
def test_parts_of_a_stage_read_their_share_and_send_it_once(parts: int, k: int) -> None:
    found = volume(graph_of("split", parts), k)
    # What pools the stage's maps is read by nothing before: it pools where they are.
    assert found == (k - 1) * CHANNELS // k * (PIXELS + POOLED)


@pytest.mark.full
def test_more_devices_than_parts() -> None:
    lenet5 = full_size_graph("lenet5")
    with pytest.raises(ArgumentError, match="2 devices, but the model has 1 part:"):
        volume(lenet5, 2)
    with pytest.raises(ArgumentError, match="3 devices, but the model has 2 parts: accepted are"):
        volume(graph_of("split", 2), 3)


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["parallel", "grouped", "split"])
def test_the_solver_needs_no_more_at_the_same_imbalance(kind: str) -> None:
    graph = graph_of(kind, 2)
    problem = Problem(graph, flops(graph), ELEMENTS, 2, 0.0)
    named = evaluate_parts(*transformed_parts(problem), 2)
    found = hgpart.partition_graph(
        graph, flops(graph), 2, named.imbalance, modelling=ELEMENTS, effort=0.01
    )
    assert found.evaluation.volume <= named.volume
    assert found.evaluation.imbalance <= named.imbalance


FORMULAS = {  # elements of each stage: pixels, channels, those inside its cells, cells
    "parallel": lambda pixels, map_, inner, cells, p: pixels * map_ * (p - 1) * cells // p * 2,
    "grouped": lambda pixels, map_, inner, cells, p: pixels * (inner + map_) // p * (p - 1) * cells,
    "split": lambda pixels, map_, inner, cells, p: pixels * map_ // p * (p - 1) * 2,
}
SIZES = [(35 * 35, 320, 128), (17 * 17, 1088, 384), (8 * 8, 2080, 448)]
PRINTED = {"parallel": 4_615_936, "grouped": 3_122_816, "split": 839_552}


@pytest.mark.full
@pytest.mark.long
@pytest.mark.parametrize("kind", FORMULAS)
def test_inception_resnet_v2_moves_what_the_thesis_says_to_the_element(kind: str) -> None:
    """Of two parts; benchmarks/transformations.py counts others, and all cells of the thesis."""

    def elements(*cells: int) -> int:
        stages = zip(SIZES, cells, strict=True)
        return sum(FORMULAS[kind](*size, count, 2) for size, count in stages)

    model, shape = hgpart.load_model(f"inception_resnet_v2-2-2-2+{kind}:2", device="meta")
    graph = channel_graph(trace(model, hgpart.example_inputs(model, shape)))
    assert elements(4, 8, 4) == PRINTED[kind]
    assert volume(graph, 2) == elements(2, 2, 2)
