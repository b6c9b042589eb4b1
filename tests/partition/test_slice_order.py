"""Slices and parts numbered as they come: the same partition by another name."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from partitioned_models import channel_graphs, graph_of, modellings

from hgpart.hypergraph.blocks import divide
from hgpart.hypergraph.building import evaluate_parts
from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.partition.problem.objectives import objective_named
from hgpart.partition.problem.problem import Problem
from hgpart.partition.slice_order import in_order
from hgpart.work.figures import Work, flops


@given(
    channel_graphs(),
    modellings,
    st.integers(1, 4),
    st.integers(0, 3),
    st.randoms(use_true_random=False),
)
def test_volume_and_loads_stay(
    worked: tuple[ChannelGraph, Work], base: Modelling, slices: int, more: int, random: Random
) -> None:
    modelling = replace(base, batch_size=slices + more, slices=slices)
    problem, k = Problem(*worked, modelling, 3), 3
    model = problem.hypergraph(divide(*worked, modelling, 8))
    parts = np.array([random.randrange(k) for _ in range(model.vertices)], dtype=np.int32)
    other = in_order(problem, model, parts)
    before, after = (evaluate_parts(model, each, k) for each in (parts, other))
    assert after.volume == before.volume
    assert sorted(after.loads.tolist()) == sorted(before.loads.tolist())
    if more == 0:  # slices of one sample each
        begins = other.reshape(slices, -1)[:, 0].tolist()
        assert begins == sorted(begins)
    if slices == 1:
        assert (other == parts).all()


def test_slices_that_begin_on_one_part_follow_each_other() -> None:
    graph = graph_of("plain")
    problem = Problem(graph, flops(graph), Modelling(batch_size=8, slices=4), 3)
    model = problem.hypergraph(divide(graph, flops(graph), problem.modelling, 1))
    parts = np.repeat(np.array([2, 0, 2, 1], np.int32), model.slice_vertices)
    expected = np.repeat([0, 1, 2, 2], model.slice_vertices)
    assert in_order(problem, model, parts).tolist() == expected.tolist()


@pytest.mark.parametrize(
    "unlike", [{"speeds": [1, 2, 1]}, {"objective": objective_named("largest")}]
)
def test_devices_that_differ_keep_what_they_have(unlike: dict[str, object]) -> None:
    graph = graph_of("plain")
    problem = Problem(
        graph,
        flops(graph),
        Modelling(batch_size=8, slices=4),
        3,
        **unlike,  # type: ignore[arg-type]
    )
    model = problem.hypergraph(divide(graph, flops(graph), problem.modelling, 1))
    parts = np.repeat(np.array([2, 0, 2, 1], np.int32), model.slice_vertices)
    assert in_order(problem, model, parts) is parts
