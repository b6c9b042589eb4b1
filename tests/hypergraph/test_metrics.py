"""Each metric against a slow, obvious computation of its definition."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import hypergraphs, partitioned_hypergraphs

from hgpart.errors import ArgumentError
from hgpart.hypergraph import metrics
from hgpart.hypergraph.hypergraph import Hypergraph


def nets_of(hypergraph: Hypergraph) -> list[list[int]]:
    ends = hypergraph.pointers.tolist()
    pins = hypergraph.pins.tolist()
    return [pins[begin:end] for begin, end in pairwise(ends)]


def parts_of_nets(hypergraph: Hypergraph, parts: np.ndarray) -> list[set[int]]:
    return [{int(parts[pin]) for pin in net} for net in nets_of(hypergraph)]


def transfers(hypergraph: Hypergraph, parts: np.ndarray) -> list[tuple[int, int, int, int]]:
    """(layer, sender, receiver, bytes) of everything that crosses."""
    found = []
    for index, net in enumerate(nets_of(hypergraph)):
        root = int(parts[net[0]])
        for other in {int(parts[pin]) for pin in net} - {root}:
            ends = (other, root) if hypergraph.gathers[index] else (root, other)
            layer, cost = int(hypergraph.net_layers[index]), int(hypergraph.costs[index])
            found.append((layer, *ends, cost))
    return found


def in_other_parts(
    case: tuple[Hypergraph, np.ndarray, int], offset: int
) -> tuple[Hypergraph, np.ndarray, int]:
    hypergraph, parts, k = case
    return hypergraph, parts + np.int32(offset), k + offset


# Up to 64 parts the native search uses a mask, above it does not.
cases = st.builds(in_other_parts, partitioned_hypergraphs(), st.sampled_from([0, 60, 64, 70]))


@given(cases)
def test_volume_is_cost_times_connectivity_minus_one(case):
    hypergraph, parts, _ = case
    found = parts_of_nets(hypergraph, parts)
    expected = sum(
        cost * (len(parts_of_net) - 1)
        for cost, parts_of_net in zip(hypergraph.costs.tolist(), found, strict=True)
    )
    assert metrics.communication_volume(*case) == expected


@given(cases)
def test_cut_net_is_the_cost_of_the_nets_in_several_parts(case):
    hypergraph, parts, _ = case
    found = parts_of_nets(hypergraph, parts)
    expected = sum(
        cost
        for cost, parts_of_net in zip(hypergraph.costs.tolist(), found, strict=True)
        if len(parts_of_net) > 1
    )
    assert metrics.cut_net(*case) == expected


@given(cases)
def test_part_loads_are_sums_of_weights(case):
    hypergraph, parts, k = case
    expected = [0] * k
    for weight, part in zip(hypergraph.weights.tolist(), parts.tolist(), strict=True):
        expected[part] += weight
    loads = metrics.part_loads(*case)
    assert loads.dtype == np.int64
    assert loads.tolist() == expected


@given(cases)
def test_traffic_is_who_sends_how_much_to_whom(case):
    hypergraph, parts, k = case
    expected = np.zeros((k, k), dtype=np.int64)
    for _, sender, receiver, cost in transfers(hypergraph, parts):
        expected[sender, receiver] += cost
    table = metrics.traffic(*case)
    assert table.dtype == np.int64
    np.testing.assert_array_equal(table, expected)
    assert table.sum() == metrics.communication_volume(*case)


@given(cases)
def test_messages_are_the_distinct_layer_sender_receiver_triples(case):
    hypergraph, parts, k = case
    expected = np.zeros((k, k), dtype=np.int64)
    for _, sender, receiver in {found[:3] for found in transfers(hypergraph, parts) if found[3]}:
        expected[sender, receiver] += 1
    np.testing.assert_array_equal(metrics.messages(*case), expected)


@given(partitioned_hypergraphs())
def test_metrics_do_not_depend_on_the_order_of_the_nets(case):
    hypergraph, parts, k = case
    backwards = list(reversed(range(hypergraph.nets)))
    nets = nets_of(hypergraph)
    reordered = Hypergraph(
        weights=hypergraph.weights,
        costs=hypergraph.costs[backwards],
        pointers=np.cumsum([0, *(len(nets[net]) for net in backwards)], dtype=np.int64),
        pins=np.array([pin for net in backwards for pin in nets[net]], dtype=np.int32),
        gathers=hypergraph.gathers[backwards],
        net_layers=hypergraph.net_layers[backwards],
    )
    before, after = metrics.evaluate(hypergraph, parts, k), metrics.evaluate(reordered, parts, k)
    assert after.volume == before.volume
    np.testing.assert_array_equal(after.traffic, before.traffic)
    np.testing.assert_array_equal(after.messages, before.messages)


def test_nets_that_share_their_readers_keep_their_own_roots():
    # The native search for the readers' parts is done once for the four nets, whose roots lie in
    # a reader's part (0, 1), in none of theirs (2), and in a reader's again (0).
    readers = [4, 5, 6]
    hypergraph = Hypergraph(
        weights=np.ones(7, dtype=np.int64),
        costs=np.array([1, 10, 100, 1000], dtype=np.int64),
        pointers=np.array([0, 4, 8, 12, 16], dtype=np.int64),
        pins=np.array([pin for root in range(4) for pin in [root, *readers]], dtype=np.int32),
        gathers=np.zeros(4, dtype=np.bool_),
        net_layers=np.zeros(4, dtype=np.int32),
    )
    parts = np.array([0, 1, 2, 0, 0, 1, 1], dtype=np.int32)
    table = [[0, 1001, 0], [10, 0, 0], [100, 100, 0]]
    assert metrics.traffic(hypergraph, parts, 3).tolist() == table


@given(hypergraphs())
def test_one_part_sends_nothing(hypergraph):
    evaluation = metrics.evaluate(hypergraph, np.zeros(hypergraph.vertices, dtype=np.int32), 1)
    assert (evaluation.volume, evaluation.cut_net, evaluation.message_count) == (0, 0, 0)
    assert evaluation.imbalance == 0.0


@given(
    st.lists(st.integers(0, 2**60), min_size=1, max_size=6),
    st.lists(st.integers(1, 1000), min_size=6, max_size=6),
)
def test_imbalance_is_the_largest_excess_over_a_share(loads, speeds):
    speeds = speeds[: len(loads)]
    total = sum(loads)
    shares = [Fraction(total * speed, sum(speeds)) for speed in speeds]
    expected = (
        max(load / share for load, share in zip(loads, shares, strict=True)) - 1 if total else 0
    )
    assert metrics.imbalance(loads, speeds) == float(expected)
    assert metrics.imbalance(loads, [7.5] * len(loads)) == metrics.imbalance(loads)


def test_imbalance_of_a_part_exactly_at_the_bound_is_eps():
    # In floats, 11 * 2 / 20 - 1 is 0.10000000000000009.
    assert metrics.imbalance([11, 9]) == 0.1


@pytest.mark.parametrize(
    ("loads", "speeds", "message"),
    [
        ([], None, "got no loads, expected the load of at least one part"),
        ([3, -1], None, "load is -1, expected 0 or more"),
        ([1, 2], [1.0], "got 1 speeds for 2 parts"),
        ([1, 2], [1.0, 0.0], "speed is 0.0, expected a positive number"),
        ([1, 2], [1.0, float("nan")], "speed is nan, expected a positive number"),
        ([1, 2], [float("inf"), 1.0], "speed is inf, expected a positive number"),
        ([0, 0], [-1.0, 1.0], "speed is -1.0, expected a positive number"),
    ],
)
def test_imbalance_names_what_it_can_not_use(loads, speeds, message):
    with pytest.raises(ArgumentError) as raised:
        metrics.imbalance(loads, speeds)
    assert str(raised.value) == message


@given(partitioned_hypergraphs())
def test_evaluation_has_the_figures_of_the_tables(case):
    hypergraph, parts, k = case
    evaluation = metrics.evaluate(hypergraph, parts, k)
    loads = metrics.part_loads(*case).tolist()
    table = metrics.traffic(*case).tolist()
    sent = [sum(row) for row in table]
    received = [sum(row[part] for row in table) for part in range(k)]
    volume = metrics.communication_volume(*case)

    assert evaluation.k == k
    assert evaluation.loads.tolist() == loads
    assert evaluation.imbalance == metrics.imbalance(loads)
    assert (evaluation.max_load, evaluation.min_load) == (max(loads), min(loads))
    assert evaluation.average_load == sum(loads) / k
    assert evaluation.max_over_min == (max(loads) / min(loads) if min(loads) else float("inf"))
    average = sum(loads) / k
    assert evaluation.max_over_average == (max(loads) / average if average else 1.0)
    assert evaluation.volume == volume
    assert evaluation.cut_net == metrics.cut_net(*case)
    assert evaluation.sent.tolist() == sent
    assert evaluation.received.tolist() == received
    assert evaluation.max_part_volume == max(sent)
    assert evaluation.average_part_volume == volume / k
    assert evaluation.max_over_average_part_volume == (max(sent) / (volume / k) if volume else 1.0)
    assert evaluation.message_count == metrics.messages(*case).sum()


def test_evaluation_uses_the_speeds():
    hypergraph = Hypergraph(
        weights=np.array([1, 1, 2], dtype=np.int64),
        costs=np.array([], dtype=np.int64),
        pointers=np.array([0], dtype=np.int64),
        pins=np.array([], dtype=np.int32),
        gathers=np.array([], dtype=np.bool_),
        net_layers=np.array([], dtype=np.int32),
    )
    parts = np.array([0, 1, 2], dtype=np.int32)
    assert metrics.evaluate(hypergraph, parts, 3, speeds=[1, 1, 2]).imbalance == 0.0
    assert metrics.evaluate(hypergraph, parts, 3).imbalance == 0.5
