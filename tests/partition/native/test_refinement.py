"""Moves of single vertices: never worse, within the capacities, and to the end."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import hypergraphs

from hgpart import _native
from hgpart.errors import HypergraphError
from hgpart.hypergraph.hypergraph import Hypergraph


def nets_of(hypergraph: Hypergraph) -> list[tuple[int, list[int]]]:
    ends = hypergraph.pointers.tolist()
    return [
        (cost, hypergraph.pins[begin:end].tolist())
        for cost, (begin, end) in zip(hypergraph.costs.tolist(), pairwise(ends), strict=True)
    ]


def volume(hypergraph: Hypergraph, parts: list[int]) -> int:
    return sum(cost * (len({parts[pin] for pin in pins}) - 1) for cost, pins in nets_of(hypergraph))


def loads(hypergraph: Hypergraph, parts: list[int], k: int) -> list[int]:
    found = [0] * k
    for part, weight in zip(parts, hypergraph.weights.tolist(), strict=True):
        found[part] += weight
    return found


def overload(found: list[int], most: list[int]) -> int:
    return sum(max(0, load - room) for load, room in zip(found, most, strict=True))


def small(weights: list[int], nets: list[list[int]], costs: list[int]) -> Hypergraph:
    return Hypergraph(
        weights=np.array(weights, dtype=np.int64),
        costs=np.array(costs, dtype=np.int64),
        pointers=np.cumsum([0, *map(len, nets)], dtype=np.int64),
        pins=np.array([pin for net in nets for pin in net], dtype=np.int32),
        gathers=np.zeros(len(nets), dtype=np.bool_),
        net_layers=np.zeros(len(nets), dtype=np.int32),
    )


def refine(hypergraph: Hypergraph, parts: list[int], most: list[int], seed: int = 0) -> list[int]:
    refined = _native.refine(
        hypergraph, np.array(parts, dtype=np.int32), np.array(most, dtype=np.int64), seed
    )
    assert refined.dtype == np.int32
    return refined.tolist()


@st.composite
def problems(draw: st.DrawFn) -> tuple[Hypergraph, list[int], list[int]]:
    """A hypergraph, parts, and capacities that may or may not hold."""
    hypergraph = draw(hypergraphs(max_weight=12, max_vertices=10))
    k = draw(st.integers(1, 4))
    part = st.integers(0, k - 1)
    parts = draw(st.lists(part, min_size=hypergraph.vertices, max_size=hypergraph.vertices))
    most = draw(st.lists(st.integers(0, 60), min_size=k, max_size=k))
    return hypergraph, parts, most


@given(problems(), st.data())
def test_vertices_move_only_to_where_they_may_lie(
    problem: tuple[Hypergraph, list[int], list[int]], data: st.DataObject
) -> None:
    hypergraph, parts, most = problem
    size = hypergraph.vertices * len(most)
    drawn = data.draw(st.lists(st.booleans(), min_size=size, max_size=size))
    allowed = np.array(drawn, dtype=np.bool_).reshape(-1, len(most))
    refined = _native.refine(
        hypergraph,
        np.array(parts, dtype=np.int32),
        np.array(most, dtype=np.int64),
        0,
        may_lie=allowed,
    )
    for before, after, own in zip(parts, refined.tolist(), allowed, strict=True):
        assert after == before or own[after]
    everywhere = np.ones_like(allowed)
    unlimited = _native.refine(
        hypergraph,
        np.array(parts, dtype=np.int32),
        np.array(most, dtype=np.int64),
        0,
        may_lie=everywhere,
    )
    assert unlimited.tolist() == refine(hypergraph, parts, most)


@given(problems(), st.integers(0, 2**64 - 1))
def test_never_worse(problem: tuple[Hypergraph, list[int], list[int]], seed: int) -> None:
    hypergraph, parts, most = problem
    k = len(most)
    refined = refine(hypergraph, parts, most, seed)
    assert all(0 <= part < k for part in refined)
    before, after = loads(hypergraph, parts, k), loads(hypergraph, refined, k)
    assert overload(after, most) <= overload(before, most)
    for first, last, room in zip(before, after, most, strict=True):
        assert last <= max(first, room)  # what fitted still fits, what did not has not grown
    if overload(before, most) == 0:
        assert volume(hypergraph, refined) <= volume(hypergraph, parts)


@given(problems(), st.integers(0, 9))
def test_no_single_move_is_left_that_would_lower_the_volume(
    problem: tuple[Hypergraph, list[int], list[int]], seed: int
) -> None:
    """Small hypergraphs are done long before the limit of rounds."""
    hypergraph, parts, most = problem
    refined = refine(hypergraph, parts, most, seed)
    k, found = len(most), volume(hypergraph, refined)
    held = loads(hypergraph, refined, k)
    for vertex, weight in enumerate(hypergraph.weights.tolist()):
        for part in range(k):
            moved = [*refined[:vertex], part, *refined[vertex + 1 :]]
            if part != refined[vertex] and held[part] + weight <= most[part]:
                assert volume(hypergraph, moved) >= found


@given(problems())
def test_no_move_or_exchange_is_left_that_would_restore_balance(
    problem: tuple[Hypergraph, list[int], list[int]],
) -> None:
    hypergraph, parts, most = problem
    refined = refine(hypergraph, parts, most)
    k, weights = len(most), hypergraph.weights.tolist()
    held = loads(hypergraph, refined, k)
    worst = max(range(k), key=lambda part: held[part] - most[part])
    if held[worst] <= most[worst]:
        return
    outside = [vertex for vertex, part in enumerate(refined) if part != worst]
    for vertex in (vertex for vertex, part in enumerate(refined) if part == worst):
        for part in set(range(k)) - {worst}:
            assert weights[vertex] == 0 or held[part] + weights[vertex] > most[part]
        for other in outside:
            part, difference = refined[other], weights[vertex] - weights[other]
            assert difference <= 0 or held[part] + difference > most[part]


@given(problems(), st.integers(0, 9))
def test_the_same_seed_gives_the_same_parts(
    problem: tuple[Hypergraph, list[int], list[int]], seed: int
) -> None:
    assert refine(*problem, seed) == refine(*problem, seed)


def test_the_input_is_left_alone() -> None:
    hypergraph = small([1, 1], [[0, 1]], [5])
    parts = np.array([0, 1], dtype=np.int32)
    assert _native.refine(hypergraph, parts, np.array([2, 2]), 0).tolist() in ([0, 0], [1, 1])
    assert parts.tolist() == [0, 1]


def test_an_overloaded_part_hands_over_what_costs_least() -> None:
    hypergraph = small([2, 2, 2, 2], [[0, 1], [1, 2], [2, 3]], [9, 9, 1])
    assert refine(hypergraph, [0, 0, 0, 0], [6, 2]) == [0, 0, 0, 1]


def test_an_exchange_restores_balance_where_no_move_can() -> None:
    """7 + 5 against 6 + 4, at most 11 each: nothing fits, but 7 and 6, or 5 and 4, can swap."""
    hypergraph = small([7, 5, 6, 4], [], [])
    refined = refine(hypergraph, [0, 0, 1, 1], [11, 11])
    assert loads(hypergraph, refined, 2) == [11, 11]


def test_room_that_evening_the_loads_has_made_is_used_for_what_did_not_fit() -> None:
    """The 6 fits beside the 12 as soon as one of the ones there has moved to the second part."""
    hypergraph = small([1, 1, 6, 12], [], [])
    for seed in range(5):
        refined = refine(hypergraph, [0, 0, 0, 0], [0, 1, 18], seed)
        assert overload(loads(hypergraph, refined, 3), [0, 1, 18]) <= 1


def test_a_vertex_moves_to_its_readers() -> None:
    hypergraph = small([1, 1, 1], [[0, 1, 2]], [7])
    assert len(set(refine(hypergraph, [0, 1, 1], [3, 3]))) == 1
    assert refine(hypergraph, [0, 1, 1], [1, 2]) == [0, 1, 1]  # there is no room


def test_a_move_that_only_evens_the_loads_makes_room_for_one_that_saves() -> None:
    """A round that had no gain used to be the last, though vertex 1 could now join vertex 2."""
    hypergraph = small([1, 1, 2], [[1, 2]], [1])
    for seed in range(10):
        assert refine(hypergraph, [0, 1, 0], [3, 2], seed) == [1, 0, 0]


def test_a_pin_that_a_net_names_twice_counts_once() -> None:
    """It was taken for two, which left the net in both parts."""
    hypergraph = small([1, 1], [[0, 1, 1]], [2**62])
    assert len(set(refine(hypergraph, [0, 1], [2, 1]))) == 1


def test_one_part_and_empty_parts() -> None:
    hypergraph = small([3, 4], [[0, 1]], [2])
    assert refine(hypergraph, [0, 0], [1]) == [0, 0]
    assert refine(hypergraph, [2, 2], [0, 0, 7, 0]) == [2, 2]


def test_weightless_vertices_move_for_the_volume_only() -> None:
    hypergraph = small([5, 0], [[0, 1]], [1])
    assert refine(hypergraph, [0, 1], [5, 0]) == [0, 0]
    assert refine(hypergraph, [0, 0], [4, 0]) == [0, 0]


def test_large_weights_and_costs_do_not_wrap() -> None:
    hypergraph = small([2**62, 2**61], [[0, 1]], [2**62])
    assert refine(hypergraph, [0, 1], [2**63 - 1, 2**61]) == [0, 0]


@pytest.mark.parametrize(
    ("parts", "most", "words"),
    [
        ([0], [9, 9], "1"),
        ([0, 2], [9, 9], "2"),
        ([0, -1], [9, 9], "-1"),
        ([0, 0], [], "k"),
        ([0, 0], [9, -1], "capacities.1. is -1, expected 0 or more"),
    ],
)
def test_what_is_not_a_partition_is_refused(parts: list[int], most: list[int], words: str) -> None:
    hypergraph = small([1, 1], [[0, 1]], [1])
    with pytest.raises(HypergraphError, match=words) as raised:
        refine(hypergraph, parts, most)
    assert "\n" not in str(raised.value)


def test_what_is_not_a_hypergraph_is_refused() -> None:
    with pytest.raises(HypergraphError):
        refine(small([1, 1], [[0, 5]], [1]), [0, 1], [9, 9])
    with pytest.raises(HypergraphError):
        refine(small([-1, 1], [[0, 1]], [1]), [0, 1], [9, 9])
    parts = np.array([0, 1], dtype=np.int32)
    with pytest.raises(HypergraphError, match="capacities is int32"):
        _native.refine(small([1, 1], [], []), parts, np.array([9, 9], dtype=np.int32), 0)
    with pytest.raises(HypergraphError, match="parts is int64"):
        _native.refine(small([1, 1], [], []), parts.astype(np.int64), np.array([9, 9]), 0)


def test_time_that_is_up_ends_the_moves() -> None:
    """The partition stays as it is by then, within the capacities and no worse."""
    random = np.random.default_rng(0)
    vertices, pins, k = 2000, 20, 1000
    nets = [random.choice(vertices, pins, replace=False).tolist() for _ in range(vertices)]
    hypergraph = small([1] * vertices, nets, [1] * vertices)
    start = random.integers(0, k, vertices).astype(np.int32)
    most = np.full(k, 20, dtype=np.int64)
    cut_short = _native.refine(hypergraph, start, most, 0, 0.0).tolist()
    to_the_end = _native.refine(hypergraph, start, most, 0).tolist()
    volumes = [volume(hypergraph, parts) for parts in (to_the_end, cut_short, start.tolist())]
    assert volumes == sorted(volumes)
    assert len(set(volumes)) == 3
    assert overload(loads(hypergraph, cut_short, k), most.tolist()) == 0
