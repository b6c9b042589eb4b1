"""Chains of dense layers: what they send at least, exact where each part has whole layers."""

from __future__ import annotations

import numpy as np
import pytest
from partitioned_models import chain

from hgpart.hypergraph.modelling import Modelling
from hgpart.partition import partition_graph
from hgpart.partition.bounds.chain_bound import chain_bound
from hgpart.partition.problem.balance import capacities
from hgpart.partition.problem.problem import Problem
from hgpart.partition.symmetry.finding import symmetry_of

BARE = Modelling(input_vertex=False, output_vertex=False, batch_size=1, bytes_per_element=1)


def bound_of(layers: list[int], maps: list[int], room: list[int]) -> int:
    graph, work = chain([8] * len(layers), layers, maps)
    return chain_bound(symmetry_of(Problem(graph, work, BARE, 1)), np.array(room, dtype=np.int64))


@pytest.mark.parametrize(
    ("layers", "maps", "room", "expected"),
    [
        ([80, 80, 80], [5, 3, 1], [240], 0),
        ([80, 80, 80], [5, 3, 1], [160, 160], 8 * 3),  # a cut behind the second layer
        ([80, 80, 80], [3, 5, 1], [160, 160], 8 * 3),  # behind the first
        ([80, 80, 80], [5, 3, 1], [80, 80, 80], 8 * (5 + 3)),
        ([80, 80, 80], [5, 3, 1], [140, 140], 8 * 3 + 2 * 5),  # 2 filters do not fit
        ([80, 160], [5, 1], [80, 80, 80], 8 * 5 * 2),  # all maps go to the two that read them
        ([80, 160], [5, 1], [120, 120], 8 * 5),  # half of the maps each way
    ],
)
def test_chains_by_hand(layers: list[int], maps: list[int], room: list[int], expected: int) -> None:
    assert bound_of(layers, maps, room) == expected


@pytest.mark.few(2)
@pytest.mark.parametrize("k", [2, 3, 4])
def test_equal_layers_are_cut_for_the_bound(k: int) -> None:
    layers = 12
    graph, work = chain([8] * layers, [80] * layers, [1] * layers)
    found = partition_graph(graph, work, k, 0, modelling=BARE, backend="native", effort=0.05)
    room = capacities(80 * layers, [1] * k, 0)
    assert (
        chain_bound(symmetry_of(Problem(graph, work, BARE, 1)), room)
        == found.evaluation.volume
        == 8 * (k - 1)
    )
