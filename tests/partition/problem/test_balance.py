"""Capacities against their definition; scaling to int32 against what it promises."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgpart.errors import ArgumentError
from hgpart.hypergraph.hypergraph import Hypergraph
from hgpart.partition.problem.balance import (
    capacities,
    fitted,
    pack,
    scale_costs,
    scale_weights,
)

MOST = 2**31 - 1
numbers = st.one_of(st.integers(0, 9), st.integers(0, 10**15))


@given(
    total=st.integers(0, 10**18),
    speeds=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    percent=st.integers(0, 300),
)
def test_capacity_is_the_largest_weight_within_eps(
    total: int, speeds: list[int], percent: int
) -> None:
    eps = float(Decimal(percent) / 100)
    for capacity, speed in zip(capacities(total, speeds, eps).tolist(), speeds, strict=True):
        # weight / (total * speed / sum(speeds)) <= 1 + percent / 100, without a division
        bound = (100 + percent) * total * speed
        assert capacity * 100 * sum(speeds) <= bound < (capacity + 1) * 100 * sum(speeds)


def test_eps_is_its_decimal_digits() -> None:
    """The float 0.1 is above one tenth, and 3 * (1 + 0.1) floats is above 3.3."""
    assert capacities(10**17, [1], 0.1).tolist() == [11 * 10**16]
    assert capacities(10**17, [1], np.float64(0.1)).tolist() == [11 * 10**16]
    assert capacities(10**17, [1], Fraction(1, 10)).tolist() == [11 * 10**16]
    assert capacities(30, [0.1, 0.2], 0).tolist() == [10, 20]


def test_capacity_is_cut_off_at_64_bits() -> None:
    assert capacities(2**62, [1], 1e9).tolist() == [2**63 - 1]


@pytest.mark.parametrize("eps", [-0.1, float("nan"), float("inf"), "much"])
def test_bad_eps_is_refused(eps: float) -> None:
    with pytest.raises(ArgumentError, match=f"eps is {eps}"):
        capacities(10, [1, 1], eps)


@pytest.mark.parametrize("speed", [0, -1, float("nan"), float("inf")])
def test_bad_speed_is_refused(speed: float) -> None:
    with pytest.raises(ArgumentError, match=f"speed is {speed}"):
        capacities(10, [1, speed], 0.1)
    with pytest.raises(ArgumentError, match="no speeds"):
        capacities(10, [], 0.1)


@st.composite
def weighted_partitions(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights, a part of each vertex, and capacities."""
    weights = draw(st.lists(numbers, min_size=1, max_size=20).filter(any))
    k = draw(st.integers(1, 5))
    parts = draw(st.lists(st.integers(0, k - 1), min_size=len(weights), max_size=len(weights)))
    room = draw(st.lists(st.integers(0, 2 * sum(weights)), min_size=k, max_size=k))
    return np.array(weights), np.array(parts), np.array(room)


def sums(weights: np.ndarray, parts: np.ndarray, k: int) -> list[int]:
    return [sum(weights[parts == part].tolist()) for part in range(k)]


@given(weighted_partitions())
def test_what_fits_scaled_fits(case: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    weights, parts, room = case
    scaled, scaled_room = scale_weights(weights, room)
    assert scaled.min() >= 1
    assert sum(scaled.tolist()) <= MOST
    assert min(scaled_room.tolist()) >= 0
    assert sum(scaled_room.tolist()) <= MOST
    # KaHyPar's (1 + 16 eps) average
    assert 16 * max(scaled_room.tolist()) <= MOST + 1
    for load, capacity, true, true_capacity in zip(
        sums(scaled, parts, len(room)),
        scaled_room.tolist(),
        sums(weights, parts, len(room)),
        room.tolist(),
        strict=True,
    ):
        if load <= capacity:
            assert true <= true_capacity


@given(weighted_partitions())
def test_small_weights_stay_exact(case: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    weights, parts, room = case
    weights, room = weights % 1000, room % 10_000
    weights[0] = 1000
    scaled, scaled_room = scale_weights(weights, room)
    fits = np.array(sums(weights, parts, len(room))) <= room
    scaled_fits = np.array(sums(scaled, parts, len(room))) <= scaled_room
    assert fits.tolist() == scaled_fits.tolist()


@given(weighted_partitions())
def test_scaling_loses_less_than_a_millionth(
    case: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    weights, parts, _ = case
    k = int(parts.max()) + 1
    most = max(sums(weights, parts, k))
    room = np.full(k, most + most // 10**6 + 1)
    scaled, scaled_room = scale_weights(weights, room)
    assert max(sums(scaled, parts, k)) <= scaled_room[0]


@given(st.lists(st.tuples(st.integers(1, 10**15), st.integers(1, 200)), min_size=1, max_size=50))
def test_scaled_costs_do_not_wrap(nets: list[tuple[int, int]]) -> None:
    costs, copies = (np.array(column) for column in zip(*nets, strict=True))
    scaled = scale_costs(costs, copies)
    assert scaled.min() >= 1
    assert sum((scaled.astype(object) * copies).tolist()) <= MOST
    assert (scaled[np.argsort(costs)][1:] >= scaled[np.argsort(costs)][:-1]).all()


def test_small_costs_keep_their_ratios() -> None:
    assert scale_costs(np.array([12, 30, 600]), np.array([3, 3, 3])).tolist() == [2, 5, 100]


def test_pack_balances() -> None:
    parts = pack(np.array([7, 6, 5, 4, 3, 2, 1]), np.array([14, 14]))
    assert sorted(sums(np.array([7, 6, 5, 4, 3, 2, 1]), parts, 2)) == [14, 14]


def test_pack_gives_a_larger_part_more() -> None:
    assert sums(np.ones(9, dtype=int), pack(np.ones(9, dtype=int), np.array([3, 6])), 2) == [3, 6]


# ------------------------------------------------------------------ files for others


def star(weights: list[int], costs: list[int]) -> Hypergraph:
    """As many nets as there are costs, each of all vertices."""
    count = len(weights)
    return Hypergraph(
        weights=np.array(weights, dtype=np.int64),
        costs=np.array(costs, dtype=np.int64),
        pointers=np.arange(len(costs) + 1, dtype=np.int64) * count,
        pins=np.tile(np.arange(count, dtype=np.int32), len(costs)),
        gathers=np.zeros(len(costs), dtype=bool),
        net_layers=np.zeros(len(costs), dtype=np.int32),
    )


@given(
    st.lists(st.integers(0, 2**40), min_size=1, max_size=20),
    st.lists(st.integers(0, 2**40), max_size=20),
    st.integers(1, 80),
)
def test_no_sum_of_a_fitted_hypergraph_wraps(weights: list[int], costs: list[int], k: int) -> None:
    """Weights of 4.09e9 in sum were written as they were."""
    found = fitted(star(weights, costs), k)
    fits = found.hypergraph
    assert int(fits.weights.sum()) < 2**31
    assert int(fits.costs.sum()) * (min(k, len(weights)) - 1) < 2**31
    for by, before, after in (
        (found.weights_by, weights, fits.weights.tolist()),
        (found.costs_by, costs, fits.costs.tolist()),
    ):
        for one, other in zip(before, after, strict=True):
            assert (other == 0) == (one == 0)
            assert abs(by * other - one) <= (by - 1 if other == 1 else by / 2)
    off = sum(
        abs(found.weights_by * other - one)
        for one, other in zip(weights, fits.weights.tolist(), strict=True)
    )
    assert found.rounding == pytest.approx(off / max(1, sum(weights)))


def test_what_fits_stays_as_it_is() -> None:
    graph = star([2**29, 0, 2**29], [2**28, 1])
    found = fitted(graph)
    assert (found.weights_by, found.costs_by, found.rounding) == (1, 1, 0.0)
    assert found.hypergraph.weights.tolist() == graph.weights.tolist()
    assert found.hypergraph.costs.tolist() == graph.costs.tolist()
