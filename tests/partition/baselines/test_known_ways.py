"""Every known way that can be used is there, once, as a partition of the sliced hypergraph."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from partitioned_models import chain, channel_graphs

from hgpart.hypergraph.building import CnnHypergraph, evaluate_parts
from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.partition.baselines.horizontal import horizontal
from hgpart.partition.baselines.known_ways import known_ways
from hgpart.partition.problem.problem import Problem
from hgpart.work.figures import Work


@pytest.mark.full
@settings(max_examples=25)
@given(channel_graphs(), st.sampled_from([(1, 4), (2, 4), (4, 4), (5, 6), (6, 2)]))
def test_each_is_a_partition_of_the_problem(
    worked: tuple[ChannelGraph, Work], numbers: tuple[int, int]
) -> None:
    slices, k = numbers
    problem = Problem(*worked, Modelling(batch_size=6, slices=slices), k, 0.3)
    names = []
    for name, model, parts in known_ways(problem):
        names.append(name)
        assert model.modelling == problem.modelling
        assert parts.dtype == np.int32
        assert len(parts) == model.vertices
        assert evaluate_parts(model, parts, k).loads.sum() == problem.total
    assert names[:2] == ["layerwise", "filterwise-incremental"]
    hybrids = [name for name in names if name.startswith("hybrid")]
    expected = {(1, 4): [], (2, 4): [2], (4, 4): [2], (5, 6): [2, 3], (6, 2): []}
    assert hybrids == [f"hybrid of {replicas}" for replicas in expected[numbers]]
    assert ("data-parallel" in names) == ("opposed-replicas" in names) == (slices > 1)


def test_replicas_are_divided_as_the_caller_says() -> None:
    """Hybrids alone: what divides a whole model is not a way of slices."""
    asked = []

    def divide(problem: Problem) -> tuple[CnnHypergraph, np.ndarray]:
        asked.append((problem.k, problem.modelling.slices))
        return horizontal(problem)

    problem = Problem(*chain([8, 8], [8, 8], [1, 1]), Modelling(batch_size=8, slices=8), 8, 0.1)
    names = [name for name, _, _ in known_ways(problem, divide)]
    assert asked == [(4, 1), (2, 1)]
    assert [name for name in names if name.startswith("hybrid")] == ["hybrid of 2", "hybrid of 4"]
