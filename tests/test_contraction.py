"""Contraction is exact for partitions that keep the clusters whole."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from strategies import hypergraphs

from hgpart.contraction import contract
from hgpart.hypergraph import Hypergraph
from hgpart.metrics import evaluate


@st.composite
def clustered_hypergraphs(draw: st.DrawFn) -> tuple[Hypergraph, np.ndarray, int]:
    hypergraph = draw(hypergraphs())
    count = draw(st.integers(1, hypergraph.vertices))
    cluster = st.integers(0, count - 1)
    clusters = draw(st.lists(cluster, min_size=hypergraph.vertices, max_size=hypergraph.vertices))
    return hypergraph, np.array(clusters, dtype=np.int32), count


def net_keys(hypergraph: Hypergraph, clusters: np.ndarray) -> list[tuple]:
    """(root, pins, direction, layer) of each net, in clusters; a net within one is left out."""
    keys = []
    for net in range(hypergraph.nets):
        pins = hypergraph.pins[hypergraph.pointers[net] : hypergraph.pointers[net + 1]]
        mapped = clusters[pins].tolist()
        if len(set(mapped)) > 1:
            direction, layer = bool(hypergraph.gathers[net]), int(hypergraph.net_layers[net])
            keys.append((net, (mapped[0], frozenset(mapped), direction, layer)))
    return keys


@given(clustered_hypergraphs(), st.integers(1, 5), st.randoms(use_true_random=False))
def test_every_partition_costs_the_same_before_and_after(case, k, random):
    hypergraph, clusters, count = case
    contracted = contract(hypergraph, clusters, count)
    part_of_cluster = np.array([random.randrange(k) for _ in range(count)], dtype=np.int32)
    before = evaluate(hypergraph, part_of_cluster[clusters], k)
    after = evaluate(contracted, part_of_cluster, k)
    assert after.volume == before.volume
    assert after.cut_net == before.cut_net
    np.testing.assert_array_equal(after.loads, before.loads)
    np.testing.assert_array_equal(after.traffic, before.traffic)
    np.testing.assert_array_equal(after.messages, before.messages)


@given(clustered_hypergraphs())
def test_nets_are_the_distinct_ones_in_order_with_their_costs_added(case):
    hypergraph, clusters, count = case
    contracted = contract(hypergraph, clusters, count)
    costs: Counter[tuple] = Counter()
    for net, key in net_keys(hypergraph, clusters):
        costs[key] += int(hypergraph.costs[net])
    found = [key for _, key in net_keys(contracted, np.arange(count))]
    assert found == list(costs)
    assert contracted.costs.tolist() == list(costs.values())
    assert len(contracted.pins) == sum(len(pins) for _, pins, _, _ in costs)


@given(hypergraphs())
def test_clusters_of_one_vertex_only_drop_and_merge_nets(hypergraph):
    identity = np.arange(hypergraph.vertices, dtype=np.int32)
    once = contract(hypergraph, identity, hypergraph.vertices)
    np.testing.assert_array_equal(once.weights, hypergraph.weights)
    twice = contract(once, identity, hypergraph.vertices)
    for name in ("weights", "costs", "pointers", "pins", "gathers", "net_layers"):
        array = getattr(twice, name)
        np.testing.assert_array_equal(array, getattr(once, name))
        assert array.dtype == getattr(hypergraph, name).dtype


def test_pins_keep_the_order_of_first_appearance():
    hypergraph = Hypergraph(
        weights=np.array([1, 2, 3, 4, 5], dtype=np.int64),
        costs=np.array([7, 8], dtype=np.int64),
        pointers=np.array([0, 5, 7], dtype=np.int64),
        pins=np.array([4, 0, 3, 1, 2, 1, 0], dtype=np.int32),
        gathers=np.array([True, False]),
        net_layers=np.array([3, 2], dtype=np.int32),
    )
    contracted = contract(hypergraph, np.array([0, 0, 1, 1, 2], dtype=np.int32), 3)
    assert contracted.weights.tolist() == [3, 7, 5]
    assert contracted.pins.tolist() == [2, 0, 1]
    assert contracted.pointers.tolist() == [0, 3]
    assert contracted.costs.tolist() == [7]
    assert contracted.gathers.tolist() == [True]
    assert contracted.net_layers.tolist() == [3]
