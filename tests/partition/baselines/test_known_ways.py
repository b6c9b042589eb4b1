"""Every known way that can be used is there, once, as a partition of the sliced hypergraph."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from partitioned_models import channel_graphs

from hgpart.hypergraph.building import evaluate_parts
from hgpart.hypergraph.modelling import Modelling
from hgpart.layers.channel_graph import ChannelGraph
from hgpart.partition.baselines.known_ways import known_ways, stages_of_rooms
from hgpart.partition.baselines.one_weird_trick import linear_tail
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
    count = 0
    for model, parts in known_ways(problem):
        count += 1
        assert model.modelling == problem.modelling
        assert parts.dtype == np.int32
        assert len(parts) == model.vertices
        assert evaluate_parts(model, parts, k).loads.sum() == problem.total
    hybrids = {(1, 4): 0, (2, 4): 1, (4, 4): 1, (5, 6): 2, (6, 2): 0}[numbers]
    tricks = slices > 1 and bool(linear_tail(problem.graph).any())
    stages = len([*stages_of_rooms(problem)]) if slices > 1 else 0
    assert count == 2 + 2 * (slices > 1) + hybrids + tricks + stages
